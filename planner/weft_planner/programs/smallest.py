"""The smallest layout that keeps every limit, whatever its latency: without it there is none at all."""

import math
from collections.abc import Iterator, Mapping, Sequence

from weft_core.parallelism import Degree
from weft_core.plan import PlannedGroup, Role
from weft_planner.programs.group_options import PlanLimits, keeps_limits
from weft_planner.request.capacity import Pool
from weft_planner.request.reading import Request

_RATIOS_TRIED = 4096

Degrees = Mapping[str, Sequence[Degree]]


def smallest_layout(request: Request, degrees: Degrees, limits: PlanLimits) -> tuple[PlannedGroup, ...] | None:
    """Return the layout of the fewest GPUs that keeps every limit but latency and KV, None when there is none.

    More workers only break more limits, so for each pair of degrees the fewest workers within bounds and ratio decide.
    """
    counts = _fewest(limits)
    if counts is None:
        return None
    best: tuple[PlannedGroup, ...] | None = None
    for a, n in places(request, degrees, "prefill"):
        for b, m in places(request, degrees, "decode"):
            groups = PlannedGroup("prefill", n, counts[0], a.name), PlannedGroup("decode", m, counts[1], b.name)
            cheaper = best is None or sum(g.gpus for g in groups) < sum(g.gpus for g in best)
            if cheaper and keeps_limits(groups, limits, kv_tokens=math.inf):
                best = groups
    return best


def places(request: Request, degrees: Degrees, role: Role) -> Iterator[tuple[Pool, Degree]]:
    """Yield each pool and degree that may have a role."""
    for pool in request.capacity.pools:
        if role in pool.roles:
            for degree in degrees[pool.name]:
                yield pool, degree


def _fewest(limits: PlanLimits) -> tuple[int, int] | None:
    """Return the fewest (prefill, decode) within bounds and ratio; the fewest decode workers need the fewest."""
    low, high = limits.ratio[0] or 0.0, limits.ratio[1] or math.inf
    (least_p, most_p), (least_d, most_d) = limits.workers["prefill"], limits.workers["decode"]
    for d in range(least_d, (most_d or least_d + _RATIOS_TRIED) + 1):
        p = max(least_p, math.ceil(low * d - 1e-9))
        if p <= high * d + 1e-9:
            return None if most_p is not None and p > most_p else (p, d)
    return None
