"""The parallelism strategies that would work in a pool, by likeness to one that does not."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from weft_core.analytic import ModelDoesNotFit, derive_profile
from weft_core.cost import CostProfile
from weft_core.parallelism import Degree, gpus_of
from weft_core.plan import ROLES
from weft_core.strategies import most_similar, near_strategies
from weft_planner.request.capacity import Pool
from weft_planner.request.costs import with_drafts
from weft_planner.request.engines import barred_pairs, speculation_faults
from weft_planner.request.hardware import dimensions_of, efficiency_of, gpu_of
from weft_planner.request.reading import Request


def partners(
    request: Request, degrees: Mapping[str, Sequence[Degree]], pool: Pool, degree: Degree
) -> tuple[list[Degree], list[Degree]]:
    """Return the degrees of the pools that a worker of a pool could exchange KV with by its roles, and all of them.

    A pool with both roles may have workers of this degree on both sides.
    """
    pairs: list[tuple[Degree, Degree]] = []
    for role, other in zip(ROLES, reversed(ROLES), strict=True):
        if role in pool.roles:
            there = {n for one in request.capacity.pools if other in one.roles for n in degrees[one.name]}
            there |= {degree} if other in pool.roles else set()
            pairs += [(degree, n) if role == "prefill" else (n, degree) for n in sorted(there)]
    barred = barred_pairs(request.engine, {n for n, _ in pairs}, {m for _, m in pairs})
    every = [m if n == degree else n for n, m in pairs]
    return [one for one, pair in zip(every, pairs, strict=True) if pair not in barred], list(dict.fromkeys(every))


def nearest_strategies(
    request: Request,
    profiles: Mapping[str, CostProfile],
    degrees: Mapping[str, Sequence[Degree]],
    pool: Pool,
    wanted: Degree,
) -> Iterator[Degree]:
    """Yield strategies that hold the model and its context, have room in the pool and pair, the most similar first.

    ``degrees`` are those that pools can run. With given cost profiles only their rows are known.
    """
    most = min(request.capacity.gpus, pool.gpus or request.capacity.gpus)
    if len(request.capacity.pools) == 1:
        most //= 2  # for a prefill and a decode worker
    given = request.profile is not None or bool(request.profiles)
    found = (
        most_similar(wanted, profiles[pool.name].degrees)
        if given
        else near_strategies(wanted, node_gpus=pool.gpus_per_node)
    )
    for degree in found:
        if (
            degree != wanted
            and pool.takes(degree)
            and gpus_of(degree) <= most
            and partners(request, degrees, pool, degree)[0]
            and not any(speculation_faults(request.engine, [degree]))
            and _longest_context(request, profiles[pool.name] if given else None, pool, degree)
            >= request.model.max_model_len
        ):
            yield degree


def _longest_context(request: Request, profile: CostProfile | None, pool: Pool, degree: Degree) -> int:
    """Return the tokens of one sequence that a worker holds, by a given profile or a derived one; 0: none."""
    if profile is not None:
        return profile.longest_context(degree)
    model, gpu = dimensions_of(request.model), gpu_of(pool)
    with contextlib.suppress(ModelDoesNotFit):
        if model.splits(degree):
            efficiency = efficiency_of(request.analytic, gpu.name)
            derived = derive_profile(model, gpu, degrees=[degree], efficiency=efficiency, node_gpus=pool.scale_up_gpus)
            return with_drafts(request, derived, model).longest_context(degree)
    return 0
