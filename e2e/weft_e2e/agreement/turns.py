"""Compare how long prefills hold their worker: queues grow by what routers and engines add to each of them."""

import math
from collections.abc import Mapping

from weft_core.policies.inputs import LOCAL
from weft_e2e.agreement.scenario import DEGREE, AgreementScenario
from weft_e2e.metrics import growth
from weft_planner.simulation import Outcome


def measured_turn(before: Mapping[str, str], after: Mapping[str, str]) -> float:
    """Return the mean seconds of a remote prefill by the prefill sidecars' clocks, NaN when there was none.

    It begins when the engine can begin with it, and ends with the engine's reply.
    """
    pages = growth(before, after).pages.values()
    total, count = (
        math.fsum(page.samples.get((f"weft_router_prefill_seconds_{what}", frozenset()), 0.0) for page in pages)
        for what in ("sum", "count")
    )
    return total / count if count else math.nan


def simulated_turn(outcome: Outcome, scenario: AgreementScenario) -> float:
    """Return the mean seconds of a remote prefill in a simulated run, its history's reading included; NaN without."""
    sample, profile = outcome.sample, scenario.profile
    remote = outcome.route != LOCAL
    if not remote.any():
        return math.nan
    computing = math.fsum(
        profile.t_pre(history=history, increment=increment, degree=DEGREE)
        for history, increment in zip(sample.history[remote], sample.increment[remote], strict=True)
    )
    reads = int((remote & (sample.history > 0)).sum())
    reading = reads * profile.t_kv(outcome.read_tokens / reads, source=DEGREE, destination=DEGREE) if reads else 0.0
    return (computing + reading) / int(remote.sum())
