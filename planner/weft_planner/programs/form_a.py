"""Form A: choose one prefill and one decode group by an integer program, one function per family of constraints.

u[a] = 1 when candidate a = (pool, n, k), that is k prefill workers of degree n, is chosen; v[b] likewise for decode.
AMPD's Eq. (5) as printed does not let latency depend on the number of workers and compares raw seconds, so TTFT swamps
ITL; here tau(n, k) does depend on k and each latency is a share of its SLO.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from weft_core.plan import Objective, Role
from weft_planner.programs.group_options import (
    BALANCE,
    ROUNDING,
    THRIFT,
    GroupOption,
    LayoutPair,
    PlanLimits,
    Shape,
    change,
)
from weft_planner.programs.packing import divide_each_other
from weft_planner.programs.placement import placeable, slots
from weft_planner.programs.program import Program, enumerate_best

Side = tuple[tuple[int, GroupOption], ...]


@dataclass(frozen=True, slots=True)
class PairProgram:
    """A program and where each candidate's variable is."""

    program: Program
    prefill: Side
    decode: Side

    @property
    def sides(self) -> tuple[tuple[Role, Side], tuple[Role, Side]]:
        """Return both roles with their candidates."""
        return ("prefill", self.prefill), ("decode", self.decode)

    @property
    def all(self) -> Side:
        """Return the candidates of both roles."""
        return self.prefill + self.decode


def build(
    prefill: Sequence[GroupOption],
    decode: Sequence[GroupOption],
    *,
    limits: PlanLimits,
    objective: Objective,
    excluded: Iterable[LayoutPair] = (),
) -> PairProgram:
    """Build the program: ``latency`` minimises within the limits, ``cost`` seeks the cheapest within the SLO."""
    program = Program()
    u = tuple((program.add_variable(_name("u", c), "binary"), c) for c in prefill)
    v = tuple((program.add_variable(_name("v", c), "binary"), c) for c in decode)
    z, zp, zd = (program.add_variable(name, "continuous") for name in ("Z", "Zp", "Zd"))
    built = PairProgram(program, u, v)
    one_group_per_role(built)
    latency_of_prefill(built, zp=zp, z=z)
    latency_of_decode(built, zd=zd, z=z)
    gpu_budget(built, limits)
    pool_budget(built, limits)
    worker_bounds(built, limits)
    worker_ratio(built, limits)
    node_shapes(built, limits)
    kv_capacity(built, limits)
    engine_pairs(built, limits)
    money_budget(built, limits)
    no_good_cuts(built, excluded)
    if objective == "cost":
        slo_ceiling(built, z=z)
    minimise(built, limits, z=z, zp=zp, zd=zd, objective=objective)
    return built


def extract(built: PairProgram, values: Sequence[float]) -> LayoutPair:
    """Read the chosen layout from a solution's values."""
    prefill, decode = (max(side, key=lambda pair: values[pair[0]])[1] for _, side in built.sides)
    return LayoutPair(prefill=prefill, decode=decode)


def one_group_per_role(built: PairProgram) -> None:
    """Require sum_a u[a] = 1 and sum_b v[b] = 1: both phases run, each with one degree."""
    for role, side in built.sides:
        built.program.add(f"one {role} group", ((i, 1.0) for i, _ in side), lower=1, upper=1)


def latency_of_prefill(built: PairProgram, *, zp: int, z: int) -> None:
    """Require Zp >= sum_a (tau_pre[a] / TTFT_thres) u[a] and Z >= Zp (C1 of Eq. (5), normalised)."""
    built.program.add("C1", [(zp, 1.0), *((i, -c.share) for i, c in built.prefill)], lower=0)
    built.program.add("Z over Zp", [(z, 1.0), (zp, -1.0)], lower=0)


def latency_of_decode(built: PairProgram, *, zd: int, z: int) -> None:
    """Require Zd >= sum_b (tau_dec[b] / ITL_thres) v[b] and Z >= Zd (C2 of Eq. (5), normalised)."""
    built.program.add("C2", [(zd, 1.0), *((i, -c.share) for i, c in built.decode)], lower=0)
    built.program.add("Z over Zd", [(z, 1.0), (zd, -1.0)], lower=0)


def gpu_budget(built: PairProgram, limits: PlanLimits) -> None:
    """Require sum_a n k u[a] + sum_b n k v[b] <= N (C3 of Eq. (5))."""
    built.program.add("C3", ((i, float(c.gpus)) for i, c in built.all), upper=limits.gpus)


def pool_budget(built: PairProgram, limits: PlanLimits) -> None:
    """Require, for each pool p, sum over candidates in p of n k x[c] <= GPUs of p."""
    for pool in limits.nodes:
        inside = [(i, float(c.gpus)) for i, c in built.all if c.pool == pool]
        built.program.add(f"pool {pool}", inside, upper=limits.gpus_of(pool))


def worker_bounds(built: PairProgram, limits: PlanLimits) -> None:
    """Require, for each role, min <= sum of k x[c] <= max."""
    for role, side in built.sides:
        least, most = limits.workers[role]
        built.program.add(f"{role} workers", ((i, float(c.replicas)) for i, c in side), lower=least, upper=most)


def worker_ratio(built: PairProgram, limits: PlanLimits) -> None:
    """Require r_min sum_b k v[b] <= sum_a k u[a] <= r_max sum_b k v[b]: the P:D ratio."""
    low, high = limits.ratio
    for name, ratio, sign in (("least", low, 1.0), ("most", high, -1.0)):
        if ratio is not None:
            terms = [(i, sign * c.replicas) for i, c in built.prefill]
            terms += [(i, -sign * ratio * c.replicas) for i, c in built.decode]
            built.program.add(f"{name} P:D ratio", terms, lower=-ROUNDING)


def node_shapes(built: PairProgram, limits: PlanLimits) -> None:
    """Require that workers pack onto their pool's nodes, and those larger than a node into its racks.

    Degrees that divide each other: for each pool p and degree d, sum over candidates of degree n >= d in p of
    (n / d) k x[c] <= sum over nodes i of p of floor(free[i] / d), which is exact. Other degrees: x[c] = 0 for a group
    that does not pack alone, u[a] + v[b] <= 1 for two that do not pack together. A worker larger than a node counts as
    its parts, so d is never larger than a node. The same holds in racks, where n, d and free[i] count whole nodes.
    """
    for pool in limits.nodes:
        for shape in limits.shapes(pool):
            inside = [(i, c, *shape.taken(c.degree)) for i, c in built.all if c.pool == pool]
            sizes = sorted({size for _, _, size, count in inside if count})
            if divide_each_other(sizes):
                for d in sizes:
                    terms = ((i, float(c.replicas * n * (size // d))) for i, c, size, n in inside if size >= d and n)
                    built.program.add(f"{shape.name} of {d} in {pool}", terms, upper=slots(shape.sizes, d))
            else:
                _forbid_what_does_not_pack(built, pool, shape, limits.gpus_of(pool))


def kv_capacity(built: PairProgram, limits: PlanLimits) -> None:
    """Require sum_b k kv(n) v[b] >= K: the tokens that sessions hold at once have room in the decode workers."""
    if limits.kv_tokens > 0:
        terms = ((i, float(c.replicas * c.kv_tokens)) for i, c in built.decode)
        built.program.add("KV", terms, lower=limits.kv_tokens - ROUNDING)


def engine_pairs(built: PairProgram, limits: PlanLimits) -> None:
    """Require, for each pair (n, m) the engine cannot exchange KV between, sum u[n] + sum v[m] <= 1."""
    for n, m in sorted(limits.barred):
        terms = [(i, 1.0) for i, c in built.prefill if c.degree == n]
        others = [(i, 1.0) for i, c in built.decode if c.degree == m]
        if terms and others:
            built.program.add(f"P{n} with D{m}", [*terms, *others], upper=1)


def money_budget(built: PairProgram, limits: PlanLimits) -> None:
    """Require sum over candidates of price(p) n k x[c] <= budget."""
    if limits.budget is not None:
        terms = ((i, c.gpus * limits.price(c.pool)) for i, c in built.all)
        built.program.add("budget", terms, upper=limits.budget + ROUNDING)


def no_good_cuts(built: PairProgram, excluded: Iterable[LayoutPair]) -> None:
    """Require u[a] + v[b] <= 1 for each layout already found, so that the next best comes out."""
    u = {c: i for i, c in built.prefill}
    v = {c: i for i, c in built.decode}
    for layout in excluded:
        if layout.prefill in u and layout.decode in v:
            built.program.add("found already", [(u[layout.prefill], 1.0), (v[layout.decode], 1.0)], upper=1)


def slo_ceiling(built: PairProgram, *, z: int) -> None:
    """Require Z <= 1: both latencies within the SLO."""
    built.program.add("SLO", [(z, 1.0)], upper=1)


def minimise(built: PairProgram, limits: PlanLimits, *, z: int, zp: int, zd: int, objective: Objective) -> None:
    """Minimise Z + 1e-4 (Zp + Zd) + 1e-6 GPUs + transition, or for cost money + 1e-4 (Z + 1e-4 (Zp + Zd)) + transition.

    The transition is inertia x GPUs that start or stop, as a constant of each candidate: its own group's change and
    the end of the other groups of its role.
    """
    latency = 1.0 if objective == "latency" else BALANCE
    weights = {z: latency, zp: latency * BALANCE, zd: latency * BALANCE}
    for i, c in built.all:
        price = THRIFT if objective == "latency" else limits.price(c.pool) / limits.unit
        weights[i] = price * c.gpus + change(c.group, limits)
    built.program.minimise(weights)


def best(
    prefill: Sequence[GroupOption],
    decode: Sequence[GroupOption],
    *,
    limits: PlanLimits,
    objective: Objective,
    solve: Callable[[Program], Sequence[float] | None],
) -> Iterator[LayoutPair]:
    """Yield layouts, best first, until there is no other."""

    def without(found: Sequence[LayoutPair]) -> PairProgram:
        return build(prefill, decode, limits=limits, objective=objective, excluded=found)

    return enumerate_best(without, extract, solve)


def _forbid_what_does_not_pack(built: PairProgram, pool: str, shape: Shape, gpus: int) -> None:
    def of(c: GroupOption) -> tuple[int, int]:
        size, count = shape.taken(c.degree)
        return size, c.replicas * count

    alone: set[int] = set()
    for i, c in built.all:
        if c.pool == pool and not placeable(shape.sizes, [of(c)]):
            alone.add(i)
            built.program.add(f"no room for {_name('x', c)}", [(i, 1.0)], upper=0)
    for (i, a), (j, b) in product(built.prefill, built.decode):
        if i in alone or j in alone or a.pool != pool or b.pool != pool or a.gpus + b.gpus > gpus:
            continue  # ruled out or kept apart already
        if not placeable(shape.sizes, [of(a), of(b)]):
            built.program.add(f"no room for {_name('u', a)} and {_name('v', b)}", [(i, 1.0), (j, 1.0)], upper=1)


def _name(kind: str, candidate: GroupOption) -> str:
    return f"{kind}[{candidate.pool},{candidate.degree},{candidate.replicas}]"
