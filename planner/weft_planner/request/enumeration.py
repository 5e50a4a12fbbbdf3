"""Fill in the parallelism strategies of pools that name none: those that fit the model, the pool and the engine."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from weft_core.analytic import fits
from weft_core.parallelism import Degree, degree_from_json, parallelism_of
from weft_core.strategies import candidate_strategies, powers_of_two
from weft_planner.request.capacity import Pool, split_of
from weft_planner.request.engines import compatibility_of, speculation_faults
from weft_planner.request.hardware import dimensions_of, efficiency_of, gpu_of
from weft_planner.request.infeasible import Infeasible
from weft_planner.request.parts import Engine
from weft_planner.request.silicon import look_up

if TYPE_CHECKING:
    from weft_planner.request.reading import Request

Asked = TypeVar("Asked", bound="Request")

MOST = 16
"""Strategies of a pool that a request can have."""


def with_strategies(request: Asked) -> Asked:
    """Return a request whose pools all name degrees or parallelism.

    A pool that has neither gets those of the cost profile of its GPU where one is given, else ``candidate_strategies``
    of the model (``weft_core.strategies``) that the engine can run. Where silicon tables have only some of these, the
    others by ranks and experts are left out: times that are assumed say little beside measured ones. Where the model is
    unknown, or fits nowhere, powers of two within a node are left, about which planning then says what is wrong.
    """
    pools = tuple(_filled(request, pool) for pool in request.capacity.pools)
    if pools == request.capacity.pools:
        return request
    return request.model_copy(update={"capacity": request.capacity.model_copy(update={"pools": pools})})


def _filled(request: "Request", pool: Pool) -> Pool:
    if pool.degrees is not None or pool.parallelism:
        return pool
    in_node = powers_of_two(pool.gpus_per_node)
    found = _of_profile(request, pool) or _enumerated(request, pool)
    numbers = tuple(degree for degree in found if isinstance(degree, int))
    if len(numbers) < len(found):
        return Pool.model_validate({**dict(pool), "parallelism": tuple(map(split_of, found))})
    return Pool.model_validate({**dict(pool), "degrees": in_node if set(numbers) <= set(in_node) else numbers})


def _of_profile(request: "Request", pool: Pool) -> tuple[Degree, ...]:
    """Return the degrees on this pool's nodes of the given profile of its GPU; none where it has none, or too many."""
    given = [] if request.profile is None else [request.profile]
    for body in (*given, *request.profiles):
        rows = body.get("degrees")
        if body.get("gpu") == pool.gpu_type and isinstance(rows, list):
            try:
                degrees = [degree_from_json(row.get("degree")) for row in rows if isinstance(row, Mapping)]
            except ValueError:
                return ()  # planning says what is wrong with it
            found = sorted(degree for degree in set(degrees) if pool.takes(degree))
            return tuple(found) if len(found) <= MOST else ()
    return ()


def _enumerated(request: "Request", pool: Pool) -> tuple[Degree, ...]:
    """Return the strategies by the model's dimensions; none where these, or the GPU, are not known."""
    try:
        model, gpu = dimensions_of(request.model), gpu_of(pool)
    except Infeasible:
        return ()  # planning says it
    efficiency = efficiency_of(request.analytic, gpu.name)
    found = candidate_strategies(
        model,
        node_gpus=pool.gpus_per_node,
        rack_gpus=pool.gpus_per_rack or 0,
        holds=lambda degree: (
            pool.takes(degree)
            and _runs(request.engine, degree)
            and fits(model, gpu, degree, efficiency, request.model.max_model_len)
        ),
    )
    if request.silicon is None:
        return found
    tables = look_up(
        request, model, gpu.name, found, node_sizes=(0 if pool.gpus_per_rack else pool.gpus_per_node,)
    ).tables
    if tables is None or not tables.degrees.keys() & set(found):
        return found
    return tuple(degree for degree in found if isinstance(degree, int) or degree in tables.degrees)


def _runs(engine: Engine, degree: Degree) -> bool:
    """Return whether workers of one strategy can be both roles of an engine."""
    parts = parallelism_of(degree)
    alike = engine.pairs is not None or compatibility_of(engine).pairs(parts, parts)
    return alike and not any(speculation_faults(engine, [degree]))
