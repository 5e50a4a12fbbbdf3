"""Say why there is no plan: the reason for a condition, the numbers, and the nearest thing that works."""

from collections.abc import Sequence

from weft_core.cost import CostProfile
from weft_core.plan import ROLES, Role
from weft_planner.placement import node_sizes, placeable
from weft_planner.request_parts import Pool
from weft_planner.workload import Request


class Infeasible(Exception):  # noqa: N818 - an answer, not a fault
    """No layout is possible; ``reason`` is a CamelCase word for a status condition."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def degrees_of(pool: Pool, profile: CostProfile, max_model_len: int) -> list[int]:
    """Return the degrees a pool can run: within a node, in the profile, with KV room for the longest context."""
    return sorted(
        n
        for n in set(pool.degrees)
        if n <= pool.gpus_per_node and n in profile.degrees and profile.kv_capacity(n) >= max_model_len
    )


def explain_no_degree(request: Request, profile: CostProfile) -> Infeasible:
    """Explain that no pool can run the model at any of its degrees."""
    asked = sorted({n for pool in request.capacity.pools for n in pool.degrees if n <= pool.gpus_per_node})
    known = [n for n in asked if n in profile.degrees]
    if not known:
        return Infeasible(
            "ProfileInvalid",
            f"profile.degrees: it has {sorted(profile.degrees)}, the pools allow {asked}; profile one of the pools' "
            "degrees or add one of the profile's to capacity.pools.degrees",
        )
    most = max(known, key=profile.kv_capacity)
    return Infeasible(
        "ContextDoesNotFit",
        f"model.maxModelLen: {request.model.max_model_len} tokens of KV do not fit one worker of {profile.model} on "
        f"{profile.gpu}; degree {most} holds {profile.kv_capacity(most)} tokens: lower maxModelLen to that, or allow "
        "a larger degree",
    )


def explain_no_layout(request: Request, usable: dict[str, list[int]]) -> Infeasible:
    """Explain that workers exist but no pair of groups keeps all limits; ``usable`` is degrees by pool."""
    for role in ROLES:
        if not _pools(request, role, usable):
            return Infeasible(
                "NoPoolForRole",
                f"capacity.pools: none that can run this model has the role {role}; add {role} to a pool's roles",
            )
    least = {role: request.bounds.of(role).min for role in ROLES}
    smallest = {role: min(min(usable[p.name]) for p in _pools(request, role, usable)) for role in ROLES}
    needed = sum(least[role] * smallest[role] for role in ROLES)
    parts = " and ".join(f"{least[role]} {role} x degree {smallest[role]}" for role in ROLES)
    if needed > request.capacity.gpus:
        if max(least.values()) > 1:
            return Infeasible(
                "BoundsUnsatisfiable",
                f"bounds: at least {parts} need {needed} GPUs, capacity.gpus is {request.capacity.gpus}; "
                f"lower the minimum or allow {needed} GPUs",
            )
        return Infeasible(
            "TooFewGpus",
            f"capacity.gpus: {request.capacity.gpus} are too few, {parts} need {needed}; allow {needed} GPUs, "
            "or use a smaller model, a lower precision or a GPU with more memory",
        )
    shapes = ", ".join(f"{pool.name}: {_shape(pool, request)}" for pool in request.capacity.pools)
    return Infeasible(
        "NotPlaceable",
        f"capacity.pools: {parts} need {needed} GPUs, but a worker must lie on one node and the pools are {shapes}; "
        f"{_enough_nodes(request, usable)}",
    )


def pool_gpus(pool: Pool, request: Request) -> int:
    """Return how many GPUs of a pool may be used."""
    return min(pool.gpus or request.capacity.gpus, request.capacity.gpus)


def _shape(pool: Pool, request: Request) -> str:
    sizes = node_sizes(pool_gpus(pool, request), pool.gpus_per_node)
    return f"nodes of {' + '.join(str(size) for size in sizes)} GPUs"


def _pools(request: Request, role: Role, usable: dict[str, list[int]]) -> list[Pool]:
    return [pool for pool in request.capacity.pools if role in pool.roles and usable[pool.name]]


def _enough_nodes(request: Request, usable: dict[str, list[int]]) -> str:
    """Name the least GPU count of one pool, in whole nodes, that would hold the smallest workers of both roles."""
    for pool in request.capacity.pools:
        if not usable[pool.name] or set(pool.roles) != set(ROLES):
            continue
        degree = usable[pool.name][0]
        workers: Sequence[tuple[int, int]] = [(degree, sum(request.bounds.of(role).min for role in ROLES))]
        nodes = 1
        while not placeable([pool.gpus_per_node] * nodes, workers):
            nodes += 1
        return f"{nodes * pool.gpus_per_node} GPUs of pool {pool.name} would do"
    return "add nodes to the pools"
