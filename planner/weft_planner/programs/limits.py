"""Turn a request's capacity, bounds and engine into the limits that layouts must keep."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from weft_core.layouts import LayoutKind
from weft_core.parallelism import Degree, gpus_of
from weft_core.plan import ROLES
from weft_planner.programs.group_options import PlanLimits
from weft_planner.programs.placement import node_sizes
from weft_planner.request.capacity import Pool
from weft_planner.request.engines import barred_pairs
from weft_planner.request.reading import Request


def nodes_of(pool: Pool, gpus: int) -> list[int]:
    """Return the free GPUs of a pool's nodes: as they were seen, else as many full nodes as its GPUs make."""
    return list(pool.nodes) if pool.nodes is not None else node_sizes(min(pool.gpus or gpus, gpus), pool.gpus_per_node)


def racks_of(pool: Pool, gpus: int) -> list[int]:
    """Return the wholly free nodes of each of a pool's racks: as they were seen, else of full racks."""
    if pool.racks is not None:
        return list(pool.racks)
    whole = sum(size >= pool.gpus_per_node for size in nodes_of(pool, gpus))
    return node_sizes(whole, pool.nodes_per_rack)


def limits_of(request: Request, degrees: Mapping[str, Sequence[Degree]], *, kv_tokens: float = 0.0) -> PlanLimits:
    """Return what a plan must keep; ``degrees`` are those that pools can run, ``kv_tokens`` what must have room."""
    capacity, bounds = request.capacity, request.bounds
    of_role = {role: {n for pool in capacity.pools if role in pool.roles for n in degrees[pool.name]} for role in ROLES}
    prices = {pool.name: pool.price_per_gpu_hour for pool in capacity.pools if pool.price_per_gpu_hour is not None}
    running = sum(gpus_of(group.degree) * group.replicas for group in request.current)
    return PlanLimits(
        gpus=capacity.gpus,
        nodes={pool.name: nodes_of(pool, capacity.gpus) for pool in capacity.pools},
        node_gpus={pool.name: pool.gpus_per_node for pool in capacity.pools if pool.spans},
        racks={
            pool.name: racks_of(pool, capacity.gpus) for pool in capacity.pools if pool.spans and pool.gpus_per_rack
        },
        workers={role: (bounds.of(role).min, bounds.of(role).max) for role in ROLES},
        pool_gpus={pool.name: min(pool.gpus or capacity.gpus, capacity.gpus) for pool in capacity.pools},
        ratio=(bounds.ratio.min, bounds.ratio.max),
        kv_tokens=kv_tokens,
        barred=barred_pairs(request.engine, of_role["prefill"], of_role["decode"]),
        prices=prices if len(prices) == len(capacity.pools) else {},
        budget=request.budget_per_hour,
        current={(group.role, group.pool, group.degree): group.replicas for group in request.current},
        # Replacing every GPU that runs costs as much as the improvement that is asked for.
        inertia=request.min_improvement / running if running else 0.0,
    )


def limits_of_kind(limits: PlanLimits, kind: LayoutKind) -> PlanLimits:
    """Return the limits that layouts of a kind keep, without the one on KV.

    Co-located workers all prefill: they count for the least number of prefill workers, too. The largest number of
    prefill workers and the ratio of roles do not concern them.
    """
    limits = replace(limits, kv_tokens=0.0)
    if kind != "colocated":
        return limits
    least = max(low for low, _ in limits.workers.values())
    return replace(limits, workers={"decode": (least, limits.workers["decode"][1])}, ratio=(None, None))
