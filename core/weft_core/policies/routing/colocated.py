"""Run every prefill where the session decodes, in layouts whose workers all do both; reports name what was run.

A worker's prefills delay its sessions more than a lack of KV memory does, so new sessions go to the worker with the
fewest requests.

A prefill stalls the sessions that decode beside it. Whoever is about to end a short answer cannot make up for that any
more, but is done in a moment, and the prefill's own session has its TTFT to spare. So a worker delays a prefill while
it would make sessions miss their ITL, as long as the prefill still ends within a share of its TTFT.

Hand-worked example (test_policy_colocated.py): after 10 gaps of 20 ms and with 10 to come, a stall of 1 s makes a mean
gap of 70 ms, over an SLO of 30 ms; with 200 to come it makes 25 ms.
"""

from collections.abc import Sequence
from typing import Final

from weft_core.policies.inputs import LOCAL, RoutingInputs
from weft_core.policies.policy import Parameter, RoutingPolicy
from weft_core.policies.reasons import reason
from weft_core.policies.routing.weft import LARGEST, MEAN, P95, P95_SHARE, chance_over

COLOCATED = reason("colocated", "prefill and decode share their workers")

ITL_STATISTIC: Final = 0
DELAY: Final = 1
HARM: Final = 2
CENTRE: Final = 3
WIDTH: Final = 4
PARAMETERS = (
    Parameter("itl_statistic", MEAN, 0, 2, "code", "statistic of the ITL SLO: mean 0, P95 1, largest 2"),
    Parameter(
        "delay", 0.8, 0.0, 1.0, "share of the TTFT SLO",
        "within which a prefill that is delayed for the sessions beside it has to end; 0: none is delayed",
    ),
    Parameter("harm", 0.25, 0.0, 100.0, "sessions", "that a prefill may be expected to make miss their ITL"),
    Parameter("centre", 0.92, 0.1, 2.0, "share of the SLO", "predicted ITL at which a miss has probability 0.5"),
    Parameter("width", 0.08, 0.001, 1.0, "share of the SLO", "scatter of ITL about its predictions"),
)  # fmt: skip


def route_colocated(inputs: RoutingInputs) -> tuple[int, int]:  # noqa: ARG001 - every policy takes them
    """Decide: the one worker that the session has."""
    return LOCAL, COLOCATED


def sessions_harmed(
    seconds: float,
    chunks: float,
    step: float,
    itl_slo: float,
    params: Sequence[float],
    gap_sums: Sequence[float],
    gap_counts: Sequence[float],
    gaps_left: Sequence[float],
) -> float:
    """Return how many sessions a prefill is expected to make miss their ITL by the end of their answers.

    It computes for ``seconds`` in so many ``chunks``, each of which lengthens one gap of every session; other gaps take
    ``step`` seconds. ``gap_sums`` and ``gap_counts`` are those of the sessions that decode (``weft`` says how they are
    counted), ``gaps_left`` the gaps that the rest of each answer is expected to have.
    """
    statistic = int(params[ITL_STATISTIC])
    centre = params[CENTRE]
    width = params[WIDTH]
    gap = step + seconds / chunks
    total = 0.0
    for s in range(len(gap_counts)):
        seen = gap_sums[s]
        left = gaps_left[s]
        longer = min(left, chunks)
        gaps = gap_counts[s] + left
        if statistic == MEAN:
            alone = (seen + left * step) / gaps / itl_slo
            beside = (seen + left * step + longer * (gap - step)) / gaps / itl_slo
        elif gap <= itl_slo:
            continue
        elif statistic == P95:
            alone = seen / gaps / P95_SHARE
            beside = (seen + longer) / gaps / P95_SHARE
        elif statistic == LARGEST and seen > 0:
            continue
        else:
            alone = step / itl_slo
            beside = gap / itl_slo
        total += chance_over(beside, centre, width) - chance_over(alone, centre, width)
    return total


def delays_prefill(
    urgency: float,
    seconds: float,
    chunks: float,
    step: float,
    itl_slo: float,
    params: Sequence[float],
    gap_sums: Sequence[float],
    gap_counts: Sequence[float],
    gaps_left: Sequence[float],
) -> bool:
    """Return whether the next prefill is delayed for the sessions beside it.

    ``urgency``: when the last of all prefills that wait would end if they began now, counted from the arrival of each
    and as a share of its TTFT SLO; the largest of these shares. So nobody is late behind a prefill that is delayed.
    """
    if urgency > params[DELAY]:
        return False
    harmed = sessions_harmed(seconds, chunks, step, itl_slo, params, gap_sums, gap_counts, gaps_left)
    return harmed > params[HARM]


POLICY = RoutingPolicy(
    "colocated", "no disaggregation; prefills wait for answers that they would stall too much",
    "Weft; docs/policies.md", route_colocated, PARAMETERS, order="moore-hodgson", binding="least-requests",
)  # fmt: skip
