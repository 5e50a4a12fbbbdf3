"""Find what keeps every layout out: the one limit without which there would be one, and its nearest value that does.

Latency plays no part here: a layout that keeps every limit is always answered with a plan.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import cast

from weft_core.cost import CostProfile
from weft_core.parallelism import Degree, gpus_of
from weft_core.plan import ROLES, PlannedGroup
from weft_core.shortfall import Remedy
from weft_planner.plan.field_search import least_that, most_that, with_field
from weft_planner.programs.group_options import PlanLimits, money
from weft_planner.programs.limits import limits_of, nodes_of, racks_of
from weft_planner.programs.nearest import nearest_strategies
from weft_planner.programs.smallest import Degrees, places, smallest_layout
from weft_planner.request.capacity import Pool, split_of
from weft_planner.request.costs import profiles_of
from weft_planner.request.engines import MAX_PAIRS, barred_pairs, blocks_pair, pairing_rule
from weft_planner.request.infeasible import Infeasible, degrees_of
from weft_planner.request.parts import Ratio
from weft_planner.request.reading import Request

LARGEST = 4096
"""GPUs of one request at most."""
MOST_NAMED = 8
"""Strategies that a pool of a manifest may name."""
MOST_TRIED = 16
"""Strategies of a pool that are tried in place of those that it names: each needs costs of its own."""


def explain_no_layout(request: Request, profiles: Mapping[str, CostProfile]) -> Infeasible:
    """Explain that workers exist but no pair of groups keeps all limits: try without each limit in turn."""
    explanation = next(_explanations(request, profiles), None)
    if explanation is not None:
        return explanation
    others = tuple(_strategies(request, profiles))
    return Infeasible(
        "BoundsUnsatisfiable",
        "capacity and bounds: several limits at once keep every layout out; "
        f"{''.join(f'set {_changed(remedy)}, or ' for remedy in others)}allow more GPUs, smaller degrees and fewer "
        "workers",
        remedies=others,
    )


def _explanations(request: Request, profiles: Mapping[str, CostProfile]) -> Iterator[Infeasible]:
    """Yield an explanation for each limit without which there would be a layout."""

    def layout(path: str = "", value: object = None) -> tuple[PlannedGroup, ...] | None:
        asked = with_field(request, path, value) if path else request
        degrees = _degrees(asked, profiles)
        return smallest_layout(asked, degrees, limits_of(asked, degrees))

    pools = list(enumerate(request.capacity.pools))
    for role in ROLES:
        if not any(True for _ in places(request, _degrees(request, profiles), role)):
            fix = next((f"capacity.pools.{i}.roles" for i, p in pools if _degrees(request, profiles)[p.name]), "")
            yield Infeasible(
                "NoPoolForRole",
                f"capacity.pools: none that can run this model has the role {role}; add {role} to a pool's roles",
                remedies=(Remedy(fix, [str(role) for role in ROLES]),) if fix and layout(fix, ROLES) else (),
            )
    yield from _pairs(request, layout, profiles)
    yield from _bounds(request, layout)
    yield from _budget(request, layout)
    yield from _gpus(request, layout, profiles)


Layout = Callable[..., tuple[PlannedGroup, ...] | None]


def _pairs(request: Request, layout: Layout, profiles: Mapping[str, CostProfile]) -> Iterator[Infeasible]:
    engine = request.engine
    if layout("engine", engine.model_copy(update={"type": "", "pairs": None, "block_sizes": None})) is None:
        return
    remedies: list[Remedy] = []
    for path, given in (("engine.blockSizes", engine.block_sizes), ("engine.pairs", engine.pairs)):
        if given is not None and layout(path, None):
            remedies.append(Remedy(path, None))
    every = sorted({n for pool in request.capacity.pools for n in pool.all_degrees if isinstance(n, int)})
    for i, pool in enumerate(request.capacity.pools):
        allowed = tuple(n for n in every if pool.takes(n))
        if not pool.parallelism and layout(f"capacity.pools.{i}.degrees", allowed):
            remedies.append(Remedy(f"capacity.pools.{i}.degrees", list(allowed)))
    remedies += _strategies(request, profiles)
    what = " or ".join(_changed(remedy) for remedy in remedies)
    yield Infeasible(
        "NoPairOfDegrees",
        f"engine: no prefill degree of the pools can exchange KV with a decode degree: {_unpaired(request)}; "
        f"{f'{what} would do' if what else 'allow degrees that may pair'}",
        remedies=tuple(remedies),
    )


def _strategies(request: Request, profiles: Mapping[str, CostProfile]) -> Iterator[Remedy]:
    """Yield for each pool with strategies the nearest one that makes a layout possible, added to them."""
    degrees = _degrees(request, profiles)
    for i, pool in enumerate(request.capacity.pools):
        path = f"capacity.pools.{i}.parallelism"
        for near in islice(_nearest(request, profiles, degrees, pool), MOST_TRIED):
            splits = (*pool.parallelism[: MOST_NAMED - 1], split_of(near))
            if _makes_layout(with_field(request, path, splits)):
                yield Remedy(path, [split.in_manifest for split in splits])
                break


def _nearest(request: Request, profiles: Mapping[str, CostProfile], degrees: Degrees, pool: Pool) -> Iterator[Degree]:
    """Yield strategies that work in a pool, those first that are most like one that it names."""
    for one in pool.parallelism:
        yield from nearest_strategies(request, profiles, degrees, pool, one.degree)


def _makes_layout(request: Request) -> bool:
    """Return whether a request whose strategies are others has a layout; they may need costs of their own."""
    try:
        degrees = _degrees(request, profiles_of(request))
    except Infeasible:
        return False
    return smallest_layout(request, degrees, limits_of(request, degrees)) is not None


def _changed(remedy: Remedy) -> str:
    if remedy.value is None:
        return f"{remedy.path} left out"
    value = remedy.value
    return f"{remedy.path} [{', '.join(map(str, value))}]" if isinstance(value, list) else f"{remedy.path} {value}"


def _unpaired(request: Request) -> str:
    """Say which degrees do not pair, and by what rule."""
    engine, capacity = request.engine, request.capacity
    if not blocks_pair(engine):
        return f"engine {pairing_rule(engine)}"
    prefill, decode = (
        sorted(
            {
                n
                for pool in capacity.pools
                if role in pool.roles
                for n in pool.all_degrees
                if gpus_of(n) <= capacity.gpus
            }
        )
        for role in ROLES
    )
    barred = sorted(barred_pairs(engine, prefill, decode))
    named = ", ".join(f"{n} with {m}" for n, m in barred[:MAX_PAIRS])
    more = f" and {len(barred) - MAX_PAIRS} more pairs" if len(barred) > MAX_PAIRS else ""
    return f"not {named}{more} ({pairing_rule(engine)})"


def _bounds(request: Request, layout: Layout) -> Iterator[Infeasible]:
    counts = request.capacity.gpus
    for role in ROLES:
        bound = request.bounds.of(role)
        path = f"bounds.{role}.min"
        if bound.min > 1 and layout(path, 1):
            most = most_that(lambda k, path=path: layout(path, k) is not None, 1, bound.min)  # type: ignore[misc]
            needs = _needed(request, layout)
            yield Infeasible(
                "BoundsUnsatisfiable",
                f"bounds: at least {needs[0]} need {needs[1]} GPUs, capacity.gpus is {counts}; lower {path} to {most} "
                f"or allow {needs[1]} GPUs",
                remedies=(Remedy(path, most),),
                least_gpus=needs[1],
            )
        path = f"bounds.{role}.max"
        if bound.max is not None and layout(path, None):
            least = least_that(lambda k, path=path: layout(path, k) is not None, bound.max, LARGEST)  # type: ignore[misc]
            yield Infeasible(
                "BoundsUnsatisfiable",
                f"{path}: {bound.max} {role} workers are too few for the other bounds; raise it to {least}",
                remedies=(Remedy(path, least),),
            )
    ratio = request.bounds.ratio
    if ratio != Ratio() and layout("bounds.ratio", Ratio()):
        yield Infeasible(
            "BoundsUnsatisfiable",
            f"bounds.ratio: no layout of {counts} GPUs has between {ratio.min or 0:g} and {ratio.max or math.inf:g} "
            "prefill workers for each decode worker; widen it",
            remedies=tuple(
                Remedy(f"bounds.ratio.{side}", None)
                for side in ("min", "max")
                if getattr(ratio, side) is not None and layout(f"bounds.ratio.{side}", None)
            ),
        )


def _budget(request: Request, layout: Layout) -> Iterator[Infeasible]:
    found = layout("budgetPerHour", None)
    if request.budget_per_hour is not None and found:
        prices = {pool.name: pool.price_per_gpu_hour or 0.0 for pool in request.capacity.pools}
        least = money(found, PlanLimits(gpus=0, nodes={}, workers={}, prices=prices))
        yield Infeasible(
            "OverBudget",
            f"budgetPerHour: {request.budget_per_hour:g} does not pay for the smallest layout, which costs {least:g} "
            f"an hour ({sum(group.gpus for group in found)} GPUs); raise it to that",
            remedies=(Remedy("budgetPerHour", least),),
        )


def _gpus(request: Request, layout: Layout, profiles: Mapping[str, CostProfile]) -> Iterator[Infeasible]:
    """Explain by GPUs: too few in all, too few in a pool, or enough but on the wrong nodes."""
    degrees = _degrees(request, profiles)
    limits = limits_of(request, degrees)
    roomy = PlanLimits(
        gpus=limits.gpus,
        nodes={pool.name: [pool.gpus_per_node] * LARGEST for pool in request.capacity.pools},
        workers=limits.workers,
        pool_gpus=limits.pool_gpus,
        ratio=limits.ratio,
        barred=limits.barred,
        node_gpus=limits.node_gpus,
        racks={pool: [request.capacity.pool(pool).nodes_per_rack] * LARGEST for pool in limits.racks},
    )
    fits_by_count = smallest_layout(request, degrees, roomy)
    remedies = tuple(_more_gpus(request, layout))
    if not remedies and not (limits.racks and fits_by_count):
        return  # GPUs alone would not do
    others = tuple(_strategies(request, profiles))
    remedies += others
    least = next((int(cast(int, r.value)) for r in remedies if r.path == "capacity.gpus"), None)
    if fits_by_count is None:
        what, needed = _needed(request, layout)
        smaller = "".join(f"set {_changed(remedy)}, " for remedy in others)
        yield Infeasible(
            "TooFewGpus",
            f"capacity.gpus: {limits.gpus} are too few, {what} need {needed}; allow {least or needed} GPUs, "
            f"{smaller}or use a smaller model, a lower precision or a GPU with more memory",
            remedies=remedies,
            least_gpus=least or needed,
        )
        return
    parts = " and ".join(f"{g.replicas} {g.role} x degree {g.degree}" for g in fits_by_count)
    shapes = ", ".join(f"{pool.name}: {_shape(pool, request)}" for pool in request.capacity.pools)
    enough = (
        "; ".join(_said(r, request) for r in remedies) or f"add {'racks' if limits.racks else 'nodes'} to the pools"
    )
    yield Infeasible(
        "NotPlaceable",
        f"capacity.pools: {parts} need {sum(g.gpus for g in fits_by_count)} GPUs, but "
        f"{_placing(fits_by_count, limits)} and the pools are {shapes}; {enough}",
        remedies=remedies,
        least_gpus=least,
    )


def _placing(groups: Sequence[PlannedGroup], limits: PlanLimits) -> str:
    """Say what the nodes must have room for."""
    if any(limits.parts(group.pool, group.degree) > 1 for group in groups):
        of_rack = " of one rack" if any(group.pool in limits.racks for group in groups) else ""
        return f"a worker must lie on one node or take whole ones{of_rack}"
    return "a worker must lie on one node"


def _more_gpus(request: Request, layout: Layout) -> Iterator[Remedy]:
    least = least_that(lambda gpus: layout("capacity.gpus", gpus) is not None, request.capacity.gpus, LARGEST)
    if least is not None:
        yield Remedy("capacity.gpus", least)
    for i, pool in enumerate(request.capacity.pools):
        if pool.gpus is not None:
            path = f"capacity.pools.{i}.gpus"
            least = least_that(lambda gpus, path=path: layout(path, gpus) is not None, pool.gpus, LARGEST)  # type: ignore[misc]
            if least is not None:
                yield Remedy(path, least)
        if pool.nodes is not None:
            path = f"capacity.pools.{i}.nodes"

            def more(count: int, pool: Pool = pool) -> tuple[int, ...]:
                return (*[pool.gpus_per_node] * count, *(pool.nodes or ()))

            count = least_that(lambda n, path=path, more=more: layout(path, more(n)) is not None, 0, 512)  # type: ignore[misc]
            if count:
                yield Remedy(path, list(more(count)))


def _said(remedy: Remedy, request: Request) -> str:
    if remedy.path == "capacity.gpus":
        only = request.capacity.pools[0].name if len(request.capacity.pools) == 1 else ""
        return f"{remedy.value} GPUs{f' of pool {only}' if only else ''} would do"
    if remedy.path.endswith("parallelism"):
        return f"{_changed(remedy)} would do"
    at = int(remedy.path.split(".")[2])
    pool = request.capacity.pools[at]
    if remedy.path.endswith("nodes") and isinstance(remedy.value, list):
        more = len(remedy.value) - len(pool.nodes or ())
        return (
            f"{more} more free node{'s' if more > 1 else ''} of {pool.gpus_per_node} GPUs in pool {pool.name} would do"
        )
    return f"{remedy.value} GPUs in pool {pool.name} would do"


def _needed(request: Request, layout: Layout) -> tuple[str, int]:
    """Return the smallest layout, were there GPUs without end, in words and GPUs."""
    free = request.capacity.model_copy(
        update={
            "gpus": LARGEST,
            "pools": tuple(p.model_copy(update={"gpus": None, "nodes": None}) for p in request.capacity.pools),
        }
    )
    found = layout("capacity", free) or ()
    words = " and ".join(f"{g.replicas} {g.role} x degree {g.degree}" for g in found)
    return words or "the bounds", sum(g.gpus for g in found)


def _degrees(request: Request, profiles: Mapping[str, CostProfile]) -> Degrees:
    return {
        pool.name: degrees_of(pool, profiles[pool.name], request.model.max_model_len) if pool.name in profiles else []
        for pool in request.capacity.pools
    }


def _shape(pool: Pool, request: Request) -> str:
    sizes = nodes_of(pool, request.capacity.gpus)
    shown = " + ".join(str(size) for size in sizes[:16]) + (" + …" if len(sizes) > 16 else "")
    free = " free" if pool.nodes is not None else ""
    racks = racks_of(pool, request.capacity.gpus) if pool.spans and pool.gpus_per_rack else None
    beside = "" if racks is None else f" in racks with {' + '.join(map(str, racks[:16])) or 'no'} free nodes"
    return f"nodes of {shown or '0'}{free} GPUs{beside}"
