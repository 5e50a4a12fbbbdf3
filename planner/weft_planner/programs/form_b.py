"""Form B: workers of mixed degrees and pools, each at a load of its own, so that tables do not grow with the cluster.

x[n,g] workers of kind n (role, pool, degree) carry l[g] sessions per second each; tau(n, l) is one such worker's
latency as a share of the SLO. This is the sound version of AMPD's Eq. (5), whose tau(n) knows no load. It is
pessimistic: a pool of k workers queues less than k workers apart. Its plans need a router that loads workers unequally.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from weft_core.layouts import in_order
from weft_core.parallelism import Degree, gpus_of
from weft_core.plan import ROLES, Objective, PlannedGroup, Role
from weft_planner.programs.group_options import BALANCE, ROUNDING, THRIFT, PlanLimits, Shape
from weft_planner.programs.mixed import MixedLayout, WorkerOption
from weft_planner.programs.packing import divide_each_other
from weft_planner.programs.placement import slots
from weft_planner.programs.program import Program, enumerate_best


@dataclass(frozen=True, slots=True)
class MixedProgram:
    """A program and where its variables are: x[kind][level], b[kind][level], and the worst share of each role."""

    program: Program
    kinds: tuple[WorkerOption, ...]
    x: tuple[tuple[int, ...], ...]
    b: tuple[tuple[int, ...], ...]
    worst: dict[Role, int]
    most: tuple[int, ...]

    def workers(self, at: int, factor: float = 1.0) -> list[tuple[int, float]]:
        """Return the terms of factor x (workers of a kind)."""
        return [(index, factor) for index in self.x[at]]

    def sum_over(self, factor_of: Callable[[WorkerOption], float]) -> list[tuple[int, float]]:
        """Return the terms of the sum over kinds of factor x workers."""
        return [term for at, kind in enumerate(self.kinds) for term in self.workers(at, factor_of(kind))]


def build(
    kinds: Sequence[WorkerOption],
    *,
    rate: float,
    limits: PlanLimits,
    objective: Objective,
    excluded: Iterable[MixedLayout] = (),
) -> MixedProgram:
    """Build the program for ``rate`` sessions per second in all."""
    program = Program()
    z = program.add_variable("Z", "continuous")
    worst = {role: program.add_variable(f"Z {role}", "continuous") for role in ROLES}
    x = tuple(tuple(program.add_variable(f"x[{k},{v.load:g}]", "integer") for v in k.levels) for k in kinds)
    b = tuple(tuple(program.add_variable(f"b[{k},{v.load:g}]", "binary") for v in k.levels) for k in kinds)
    most = tuple(_most(kind, limits) for kind in kinds)
    built = MixedProgram(program, tuple(kinds), x, b, worst, most)
    used_levels(built)
    latencies(built, z=z)
    load_is_carried(built, rate)
    gpu_budgets(built, limits)
    worker_bounds(built, limits)
    worker_ratio(built, limits)
    node_shapes(built, limits)
    kv_capacity(built, limits)
    engine_pairs(built, limits)
    money_budget(built, limits)
    for found in excluded:
        no_good_cut(built, found)
    if objective == "cost":
        program.add("SLO", [(z, 1.0)], upper=1)
    minimise(built, limits, z=z, objective=objective)
    return built


def extract(built: MixedProgram, values: Sequence[float]) -> MixedLayout:
    """Read groups and shares from a solution's values."""
    counts = [round(sum(values[index] for index in row)) for row in built.x]
    shares = dict.fromkeys(ROLES, 0.0)
    for kind, row in zip(built.kinds, built.x, strict=True):
        used = [level.share for level, index in zip(kind.levels, row, strict=True) if values[index] > 0.5]
        shares[kind.role] = max([shares[kind.role], *used])
    groups = (PlannedGroup(k.role, k.degree, n, k.pool) for k, n in zip(built.kinds, counts, strict=True) if n)
    return MixedLayout(in_order(groups), shares["prefill"], shares["decode"])


def used_levels(built: MixedProgram) -> None:
    """Require x[n,g] <= K[n] b[n,g]: a level with workers is used; K is the most workers of the kind."""
    for at, kind in enumerate(built.kinds):
        for x, b in zip(built.x[at], built.b[at], strict=True):
            built.program.add(f"used {kind}", [(x, 1.0), (b, -float(built.most[at]))], upper=0)


def latencies(built: MixedProgram, *, z: int) -> None:
    """Require Z_role >= tau(n, l[g]) / threshold b[n,g] for every kind and level, and Z >= Z_role."""
    for at, kind in enumerate(built.kinds):
        for level, b in zip(kind.levels, built.b[at], strict=True):
            built.program.add(f"tau {kind}", [(built.worst[kind.role], 1.0), (b, -level.share)], lower=0)
    for role, index in built.worst.items():
        built.program.add(f"Z over {role}", [(z, 1.0), (index, -1.0)], lower=0)


def load_is_carried(built: MixedProgram, rate: float) -> None:
    """Require, for each role, sum x[n,g] l[g] >= Lambda, and at least one worker."""
    for role in ROLES:
        terms = [
            (x, level.load)
            for at, kind in enumerate(built.kinds)
            if kind.role == role
            for level, x in zip(kind.levels, built.x[at], strict=True)
        ]
        built.program.add(f"{role} load", terms, lower=rate * (1 - ROUNDING))


def gpu_budgets(built: MixedProgram, limits: PlanLimits) -> None:
    """Require sum n x[n,g] <= N over all kinds, and for each pool over its kinds."""
    built.program.add("C3", built.sum_over(lambda k: float(gpus_of(k.degree))), upper=limits.gpus)
    for pool in limits.nodes:
        inside = built.sum_over(lambda k, pool=pool: float(gpus_of(k.degree) if k.pool == pool else 0))  # type: ignore[misc]
        built.program.add(f"pool {pool}", inside, upper=limits.gpus_of(pool))


def worker_bounds(built: MixedProgram, limits: PlanLimits) -> None:
    """Require, for each role, min <= sum x[n,g] <= max."""
    for role in ROLES:
        least, most = limits.workers[role]
        terms = built.sum_over(lambda k, role=role: float(k.role == role))  # type: ignore[misc]
        built.program.add(f"{role} workers", terms, lower=least, upper=most)


def worker_ratio(built: MixedProgram, limits: PlanLimits) -> None:
    """Require r_min D <= P <= r_max D with P and D the workers of both roles."""
    for name, ratio, sign in (("least", limits.ratio[0], 1.0), ("most", limits.ratio[1], -1.0)):
        if ratio is not None:
            terms = built.sum_over(lambda k, r=ratio, s=sign: s if k.role == "prefill" else -s * r)  # type: ignore[misc]
            built.program.add(f"{name} P:D ratio", terms, lower=-ROUNDING)


def node_shapes(built: MixedProgram, limits: PlanLimits) -> None:
    """Require that workers pack onto their pool's nodes, and those larger than a node into its racks.

    Degrees that divide each other: sum over n >= d of (n / d) x[n] <= sum over nodes of floor(free / d) for each d.
    Others: w[n,i] workers of kind n on node i, sum_i w[n,i] = x[n] and sum_n n w[n,i] <= free[i]. A worker larger than
    a node counts as its parts, so d is never larger than a node, and w[n,i] are parts. The same holds in racks, where
    n, d and free[i] count whole nodes.
    """
    for pool in limits.nodes:
        for shape in limits.shapes(pool):
            taken = {at: shape.taken(kind.degree) for at, kind in enumerate(built.kinds) if kind.pool == pool}
            taken = {at: (size, count) for at, (size, count) in taken.items() if count}
            sizes = sorted({size for size, _ in taken.values()})
            if not divide_each_other(sizes):
                _place_each(built, pool, shape, taken)
                continue
            for d in sizes:
                terms = [
                    term
                    for at, (size, count) in taken.items()
                    if size >= d
                    for term in built.workers(at, float(count * (size // d)))
                ]
                built.program.add(f"{shape.name} of {d} in {pool}", terms, upper=slots(shape.sizes, d))


def _place_each(built: MixedProgram, pool: str, shape: Shape, taken: Mapping[int, tuple[int, int]]) -> None:
    """Require w[n,i]: see ``node_shapes``; ``taken`` are (size, how many) by the number of the kind."""
    places = range(len(shape.sizes))
    w = {
        (at, i): built.program.add_variable(f"w[{built.kinds[at]},{shape.name} {i}]", "integer")
        for at in taken
        for i in places
    }
    for at, (_, count) in taken.items():
        here = [(w[at, i], -1.0) for i in places]
        name = f"places of {built.kinds[at]}"
        built.program.add(name, [*built.workers(at, float(count)), *here], lower=0, upper=0)
    for i, free in enumerate(shape.sizes):
        terms = [(w[at, i], float(size)) for at, (size, _) in taken.items()]
        built.program.add(f"{shape.name} {i} of {pool}", terms, upper=free)


def kv_capacity(built: MixedProgram, limits: PlanLimits) -> None:
    """Require sum over decode kinds of kv(n) x[n,g] >= K: what sessions hold at once has room."""
    if limits.kv_tokens > 0:
        terms = built.sum_over(lambda k: float(k.kv_tokens if k.role == "decode" else 0))
        built.program.add("KV", terms, lower=limits.kv_tokens - ROUNDING)


def engine_pairs(built: MixedProgram, limits: PlanLimits) -> None:
    """Require, for each pair of degrees the engine cannot exchange KV between, e[n] + f[m] <= 1, x[n] <= K[n] e[n]."""
    barred = {
        "prefill": {n for n, _ in limits.barred},
        "decode": {m for _, m in limits.barred},
    }
    used: dict[tuple[Role, Degree], int] = {}
    for at, kind in enumerate(built.kinds):
        if kind.degree in barred[kind.role]:
            key = (kind.role, kind.degree)
            if key not in used:
                used[key] = built.program.add_variable(f"e[{kind.role},{kind.degree}]", "binary")
            built.program.add(f"pairs {kind}", [*built.workers(at), (used[key], -float(built.most[at]))], upper=0)
    for n, m in sorted(limits.barred):
        if ("prefill", n) in used and ("decode", m) in used:
            built.program.add(f"P{n} with D{m}", [(used["prefill", n], 1.0), (used["decode", m], 1.0)], upper=1)


def money_budget(built: MixedProgram, limits: PlanLimits) -> None:
    """Require sum price(p) n x[n,g] <= budget."""
    if limits.budget is not None:
        terms = built.sum_over(lambda k: gpus_of(k.degree) * limits.price(k.pool))
        built.program.add("budget", terms, upper=limits.budget + ROUNDING)


def no_good_cut(built: MixedProgram, found: MixedLayout) -> None:
    """Require that the workers of some kind differ from a layout found: x[n] >= c + 1 or x[n] <= c - 1 for one n.

    up[n] and down[n] are binary: x[n] >= (c + 1) up[n], x[n] <= c - 1 + (K[n] + 1 - c) (1 - down[n]), sum of them >= 1.
    """
    counts = {(g.role, g.pool, g.degree): g.replicas for g in found.groups}
    differing = []
    for at, kind in enumerate(built.kinds):
        count, most = counts.get((kind.role, kind.pool, kind.degree), 0), built.most[at]
        if count < most:
            up = built.program.add_variable(f"up[{kind}]", "binary")
            built.program.add("more", [*built.workers(at), (up, -float(count + 1))], lower=0)
            differing.append((up, 1.0))
        if count > 0:
            down = built.program.add_variable(f"down[{kind}]", "binary")
            built.program.add("fewer", [*built.workers(at), (down, float(most + 1 - count))], upper=most)
            differing.append((down, 1.0))
    built.program.add("found already", differing, lower=1)


def minimise(built: MixedProgram, limits: PlanLimits, *, z: int, objective: Objective) -> None:
    """Minimise as form A does; the GPUs of kind n that move are m[n] >= n (x[n] - c[n]) and m[n] >= n (c[n] - x[n])."""
    latency = 1.0 if objective == "latency" else BALANCE
    weights = {z: latency} | dict.fromkeys(built.worst.values(), latency * BALANCE)
    for at, kind in enumerate(built.kinds):
        price = THRIFT if objective == "latency" else limits.price(kind.pool) / limits.unit
        weights |= dict.fromkeys(built.x[at], price * gpus_of(kind.degree))
        if limits.current and limits.inertia > 0:
            moved = built.program.add_variable(f"m[{kind}]", "continuous")
            running = gpus_of(kind.degree) * limits.current.get((kind.role, kind.pool, kind.degree), 0)
            gpus = built.workers(at, float(gpus_of(kind.degree)))
            built.program.add("starts", [(moved, 1.0), *((i, -n) for i, n in gpus)], lower=-running)
            built.program.add("stops", [(moved, 1.0), *gpus], lower=running)
            weights[moved] = limits.inertia
    built.program.minimise(weights)


def best(
    kinds: Sequence[WorkerOption],
    *,
    rate: float,
    limits: PlanLimits,
    objective: Objective,
    solve: Callable[[Program], Sequence[float] | None],
) -> Iterator[MixedLayout]:
    """Yield layouts, best first, until there is no other."""

    def without(found: Sequence[MixedLayout]) -> MixedProgram:
        return build(kinds, rate=rate, limits=limits, objective=objective, excluded=found)

    return enumerate_best(without, extract, solve)


def _most(kind: WorkerOption, limits: PlanLimits) -> int:
    """Return how many workers of a kind there can be at all: by nodes, pool and bounds."""
    room = min(limits.room_for(kind.pool, kind.degree), limits.gpus_of(kind.pool) // gpus_of(kind.degree))
    most = limits.workers[kind.role][1]
    return room if most is None else min(room, most)
