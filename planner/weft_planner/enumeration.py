"""Find the best layouts by trying every pair: what the integer program must equal, and its stand-in when SCIP fails.

With one group per role there are only as many pairs as candidates squared, so this is exact and quick at small
scale; the program is what carries on when later forms mix degrees and pools.
"""

import heapq
from collections.abc import Sequence
from itertools import product

from weft_core.plan import Objective
from weft_planner.ilp import Candidate, Layout, Limits, score
from weft_planner.placement import node_sizes, placeable


def feasible(layout: Layout, limits: Limits) -> bool:
    """Tell whether a layout keeps every limit: GPUs, pools, worker counts and node shapes."""
    groups = (layout.prefill, layout.decode)
    for group in groups:
        least, most = limits.workers[group.role]
        if group.replicas < least or (most is not None and group.replicas > most):
            return False
    if layout.gpus > limits.gpus:
        return False
    for pool, gpus in limits.pool_gpus.items():
        workers = [(group.degree, group.replicas) for group in groups if group.pool == pool]
        if not placeable(node_sizes(gpus, limits.node_gpus[pool]), workers):
            return False
    return True


def best_layouts(
    prefill: Sequence[Candidate], decode: Sequence[Candidate], *, limits: Limits, objective: Objective, count: int
) -> list[Layout]:
    """Return up to ``count`` feasible layouts by rising score; for ``cost`` only those within the SLO."""
    layouts = (Layout(a, b) for a, b in product(prefill, decode))
    kept = (x for x in layouts if feasible(x, limits) and (objective == "latency" or x.holds))
    return heapq.nsmallest(count, kept, key=lambda layout: score(layout, objective))
