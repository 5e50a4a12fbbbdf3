"""What integer programs choose among: groups with their latency as a share of the SLO, and the limits to keep."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from weft_core.layouts import duties_of
from weft_core.parallelism import Degree, gpus_of
from weft_core.plan import Objective, PlannedGroup, Role, WorkerRole
from weft_planner.phases.latency import PhaseLatency
from weft_planner.programs.packing import pack
from weft_planner.programs.placement import slots

BALANCE = 1e-4
"""Weight of the sum of both latencies: decides among plans with the same bottleneck."""
THRIFT = 1e-6
"""Weight of one GPU: decides among plans with the same latencies."""
CEILING = 100.0
"""Shares of the SLO are cut here, so that all finite latencies rank before every overload."""
ROUNDING = 1e-6
"""Slack of limits on money and KV, whose figures are not whole numbers."""


@dataclass(frozen=True, slots=True)
class GroupOption:
    """One possible group with its latency as a share of the SLO threshold; overload ranks behind, by how much.

    ``kv_tokens`` is what one worker holds.
    """

    role: Role
    pool: str
    degree: Degree
    replicas: int
    share: float
    tau: PhaseLatency
    kv_tokens: int = 0

    @property
    def gpus(self) -> int:
        """Return how many GPUs the group takes."""
        return gpus_of(self.degree) * self.replicas

    @property
    def group(self) -> PlannedGroup:
        """Return the group without its latency."""
        return PlannedGroup(self.role, self.degree, self.replicas, self.pool)


@dataclass(frozen=True, slots=True)
class LayoutPair:
    """One prefill and one decode group: what form A chooses."""

    prefill: GroupOption
    decode: GroupOption

    @property
    def worst(self) -> float:
        """Return the worse of both latencies as a share of its SLO; 1 = just met."""
        return max(self.prefill.share, self.decode.share)

    @property
    def gpus(self) -> int:
        """Return how many GPUs both groups take."""
        return self.prefill.gpus + self.decode.gpus

    @property
    def holds(self) -> bool:
        """Return whether both latencies are within the SLO."""
        return self.worst <= 1

    @property
    def groups(self) -> tuple[PlannedGroup, ...]:
        """Return both groups, prefill first."""
        return self.prefill.group, self.decode.group


@dataclass(frozen=True, slots=True)
class Shape:
    """Nodes by their free GPUs, or racks by their free nodes; ``taken`` is what a worker takes: (size, how many).

    A worker on one node takes nothing of racks. One on several takes whole nodes, all of them alike, so a plan packs
    into nodes and racks together if it packs into each.
    """

    name: str
    sizes: Sequence[int]
    taken: Callable[[Degree], tuple[int, int]]

    def room_for(self, degree: Degree) -> int:
        """Return how many workers of a degree that takes something have room alone."""
        size, count = self.taken(degree)
        return slots(self.sizes, size) // count

    def packs(self, degrees: Sequence[Degree]) -> bool:
        """Return whether workers of these degrees have room together."""
        taken = map(self.taken, degrees)
        return pack(self.sizes, [size for size, count in taken for _ in range(count)]) is not None


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """What a plan must keep: see the functions of the same names in ``form_a``.

    ``nodes`` are free GPUs per node and pool, ``workers`` (least, most) per role, ``ratio`` (least, most) prefill
    workers per decode worker, ``kv_tokens`` what all decode workers must hold together, ``barred`` (prefill, decode)
    degrees that must not pair, ``prices`` money per GPU and hour by pool (empty: GPUs are counted), ``current`` the
    workers that run, by (role, pool, degree), and ``inertia`` what starting or stopping one GPU costs. ``node_gpus``
    are the GPUs of a pool's nodes where workers may be larger than a node: such a one fills nodes of that size, of one
    rack where the pool has ``racks``: the wholly free nodes of each.
    """

    gpus: int
    nodes: Mapping[str, Sequence[int]]
    workers: Mapping[Role, tuple[int, int | None]]
    pool_gpus: Mapping[str, int] = field(default_factory=dict)
    ratio: tuple[float | None, float | None] = (None, None)
    kv_tokens: float = 0.0
    barred: frozenset[tuple[Degree, Degree]] = frozenset()
    prices: Mapping[str, float] = field(default_factory=dict)
    budget: float | None = None
    current: Mapping[tuple[WorkerRole, str, Degree], int] = field(default_factory=dict)
    inertia: float = 0.0
    node_gpus: Mapping[str, int] = field(default_factory=dict)
    racks: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def part(self, pool: str, degree: Degree) -> int:
        """Return how many GPUs of one node a worker of this degree takes."""
        gpus = gpus_of(degree)
        return min(gpus, self.node_gpus.get(pool, gpus))

    def parts(self, pool: str, degree: Degree) -> int:
        """Return how many nodes a worker of this degree lies on."""
        return gpus_of(degree) // self.part(pool, degree)

    def shapes(self, pool: str) -> "tuple[Shape, ...]":
        """Return what the pool's workers must pack into: its nodes, and its racks."""
        nodes = Shape("slots", self.nodes[pool], lambda n: (self.part(pool, n), self.parts(pool, n)))
        if pool not in self.racks:
            return (nodes,)
        racks = Shape("nodes in racks", self.racks[pool], lambda n: (self.parts(pool, n), int(self.parts(pool, n) > 1)))
        return nodes, racks

    def room_for(self, pool: str, degree: Degree) -> int:
        """Return how many workers of this degree the pool holds where there is nothing else."""
        return min(shape.room_for(degree) for shape in self.shapes(pool) if shape.taken(degree)[1])

    def packs(self, pool: str, degrees: Sequence[Degree]) -> bool:
        """Return whether workers of these degrees have room in the pool together."""
        return all(shape.packs(degrees) for shape in self.shapes(pool))

    def gpus_of(self, pool: str) -> int:
        """Return how many GPUs of a pool may be used."""
        return min(self.pool_gpus.get(pool, self.gpus), self.gpus, sum(self.nodes[pool]))

    def price(self, pool: str) -> float:
        """Return what one GPU of a pool costs: money for an hour, or 1 where no price is known."""
        return self.prices.get(pool, 1.0) if self.prices else 1.0

    def affordable_gpus(self, pool: str) -> int:
        """Return how many GPUs of a pool the budget pays for, all of them where there is none."""
        price = self.price(pool)
        if self.budget is None or price <= 0:
            return self.gpus
        return int((self.budget + ROUNDING) // price)

    @property
    def unit(self) -> float:
        """Return the price that the objective counts in, that of the cheapest GPU, so that one GPU weighs about 1."""
        return min((price for price in self.prices.values() if price > 0), default=1.0)


def share_of_slo(tau: PhaseLatency, threshold_s: float) -> float:
    """Return tau / threshold, cut at CEILING; an overload gives more than any finite latency, growing with the load."""
    if math.isinf(tau.quantile_s):
        return CEILING + min(tau.utilisation, CEILING)
    return min(tau.quantile_s / threshold_s, CEILING)


def change(group: PlannedGroup, limits: PlanLimits) -> float:
    """Return the cost of having one group as all of its role: ``inertia`` for each GPU that starts or stops."""
    running = {at: k for at, k in limits.current.items() if at[0] == group.role}
    here = running.pop((group.role, group.pool, group.degree), 0)
    ends = sum(gpus_of(degree) * k for (_, _, degree), k in running.items())
    return limits.inertia * (gpus_of(group.degree) * abs(group.replicas - here) + ends) if limits.current else 0.0


def transition(groups: Sequence[PlannedGroup], limits: PlanLimits) -> float:
    """Return the cost of changing from the current groups: ``inertia`` for each GPU that starts or stops."""
    wanted = {(g.role, g.pool, g.degree): g.replicas for g in groups}
    places = {*wanted, *limits.current}
    moved = sum(gpus_of(at[2]) * abs(wanted.get(at, 0) - limits.current.get(at, 0)) for at in places)
    return limits.inertia * moved if limits.current else 0.0


def objective_value(
    groups: Sequence[PlannedGroup], shares: tuple[float, float], *, limits: PlanLimits, objective: Objective
) -> float:
    """Return what both forms minimise: latency and GPUs weighted by the objective, and the transition."""
    latency = max(shares) + BALANCE * sum(shares)
    gpus = sum(group.gpus for group in groups)
    moved = transition(groups, limits)
    if objective == "latency":
        return latency + THRIFT * gpus + moved
    return money(groups, limits) / limits.unit + BALANCE * latency + moved


def money(groups: Sequence[PlannedGroup], limits: PlanLimits) -> float:
    """Return what groups cost for an hour, their GPUs where no price is known."""
    return sum(group.gpus * limits.price(group.pool) for group in groups)


def keeps_limits(groups: Sequence[PlannedGroup], limits: PlanLimits, *, kv_tokens: float) -> bool:
    """Return whether groups keep every limit; ``kv_tokens`` is what their decode workers hold together.

    Written apart from the programs' constraints, which must agree with it; nodes are checked by packing.
    """
    totals: dict[Role, int] = {"prefill": 0, "decode": 0}
    by_pool: dict[str, list[Degree]] = {}
    for group in groups:
        for duty in duties_of(group.role):
            totals[duty] += group.replicas
        by_pool.setdefault(group.pool, []).extend([group.degree] * group.replicas)
    for role, (least, most) in limits.workers.items():
        if totals[role] < least or (most is not None and totals[role] > most):
            return False
    low, high = limits.ratio
    if (low is not None and totals["prefill"] < low * totals["decode"] - ROUNDING) or (
        high is not None and totals["prefill"] > high * totals["decode"] + ROUNDING
    ):
        return False
    if any(
        (a.degree, b.degree) in limits.barred
        for a in groups
        for b in groups
        if "prefill" in duties_of(a.role) and "decode" in duties_of(b.role)
    ):
        return False
    if sum(group.gpus for group in groups) > limits.gpus or kv_tokens < limits.kv_tokens - ROUNDING:
        return False
    if limits.budget is not None and money(groups, limits) > limits.budget + ROUNDING:
        return False
    return all(
        sum(map(gpus_of, workers)) <= limits.gpus_of(pool) and limits.packs(pool, workers)
        for pool, workers in by_pool.items()
    )
