"""Ask Weft for the layout that carries most by rates alone, as ``weft plan --rate-match`` does: no routing, no queues.

That is the question that aiconfigurator's own metric asks.
"""

import math
from collections.abc import Iterator

from weft_core.cost import CostProfile
from weft_core.layouts import LayoutKind
from weft_core.parallelism import Degree, gpus_of
from weft_core.plan import PlannedGroup
from weft_planner.rate_match import NoMatch, ProfiledServer, RateMatching, Servers, match_rates, rounds_of
from weft_planner.request.engines import step_limits
from weft_planner.request.reading import Request
from weft_planner.workload.sessions import draw

Found = tuple[LayoutKind, tuple[PlannedGroup, ...]]


def best_by_rates(asked: Request, profile: CostProfile, strategies: list[Degree], *, pool: str) -> Found | None:
    """Return the layout with most rounds per second on the GPUs of a request, None where none holds the SLO."""
    slo, gpus = asked.slo, asked.capacity.gpus
    limits = step_limits(asked.engine.prefill), step_limits(asked.engine.decode)
    servers = [ProfiledServer(profile, degree, *limits) for degree in strategies]
    sample = draw(
        asked.workload,
        max_model_len=asked.model.max_model_len,
        round_seconds=slo.ttft + asked.workload.mean_decode * slo.itl,
        seed=asked.seed,
    )
    try:
        found = match_rates(
            Servers(servers, servers, servers),
            rounds_of(sample, seed=asked.seed),
            ttft_s=slo.ttft,
            itl_s=slo.itl,
            percentile=slo.percentile,
            bidirectional=asked.engine.bidirectional,
        )
    except NoMatch:
        return None
    tries = [*_disaggregated(found, gpus, pool), *_aggregated(found, slo.itl, gpus, pool)]
    return max(tries, key=lambda one: one[0], default=(0.0, None))[1]


def _disaggregated(found: RateMatching, gpus: int, pool: str) -> Iterator[tuple[float, Found]]:
    """Yield every pair of strategies with the numbers of workers that carry most, and the rounds per second."""
    generation: dict[Degree, float] = {}
    for match in found.held:
        point = match.generation
        generation[point.degree] = max(generation.get(point.degree, 0.0), point.rounds_per_s)
    for context in found.context_best:
        for degree, rounds_per_s in generation.items():
            for workers in range(1, gpus // gpus_of(context.degree) + 1):
                rest = (gpus - workers * gpus_of(context.degree)) // gpus_of(degree)
                if rest:
                    carried = min(workers * context.rounds_per_s, rest * rounds_per_s)
                    prefill = PlannedGroup("prefill", context.degree, workers, pool)
                    yield carried, ("disaggregated", (prefill, PlannedGroup("decode", degree, rest, pool)))


def _aggregated(found: RateMatching, itl_s: float, gpus: int, pool: str) -> Iterator[tuple[float, Found]]:
    for point in found.aggregated:
        workers = gpus // gpus_of(point.degree)
        if workers and point.itl_s <= itl_s and math.isfinite(point.rounds_per_s):
            group = PlannedGroup("decode", point.degree, workers, pool)
            yield workers * point.rounds_per_s, ("colocated", (group,))
