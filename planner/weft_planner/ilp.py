"""Choose one prefill and one decode group by an integer program, one function per family of constraints.

Formulation A: u[a] = 1 when candidate a = (pool, n, k), that is k prefill workers of degree n, is chosen; v[b]
likewise for decode. AMPD's Eq. (5) as printed does not let latency depend on the number of workers and compares raw
seconds, so TTFT swamps ITL; here tau(n, k) does depend on k and each latency is a share of its SLO.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from weft_core.plan import Objective, Role
from weft_planner.placement import node_sizes, placeable
from weft_planner.program import Program
from weft_planner.tau import Tau

BALANCE = 1e-4
"""Weight of the sum of both latencies: decides among plans with the same bottleneck."""
THRIFT = 1e-6
"""Weight of one GPU: decides among plans with the same latencies."""
CEILING = 100.0
"""Shares of the SLO are cut here, so that all finite latencies rank before every overload."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One possible group with its latency as a share of the SLO threshold; overload ranks behind, by how much."""

    role: Role
    pool: str
    degree: int
    replicas: int
    share: float
    tau: Tau

    @property
    def gpus(self) -> int:
        """Return how many GPUs the group takes."""
        return self.degree * self.replicas


@dataclass(frozen=True, slots=True)
class Limits:
    """What a plan must keep: GPUs in all and per pool, node size per pool, worker counts per role."""

    gpus: int
    pool_gpus: dict[str, int]
    node_gpus: dict[str, int]
    workers: dict[Role, tuple[int, int | None]]


@dataclass(frozen=True, slots=True)
class Layout:
    """One prefill and one decode group, and the objective's value: the worse share plus tie-breaks."""

    prefill: Candidate
    decode: Candidate

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
        """Tell whether both latencies are within the SLO."""
        return self.worst <= 1


def share_of_slo(tau: Tau, threshold_s: float) -> float:
    """Return tau / threshold, cut at CEILING; an overload gives more than any finite latency, growing with the load."""
    if math.isinf(tau.quantile_s):
        return CEILING + min(tau.utilisation, CEILING)
    return min(tau.quantile_s / threshold_s, CEILING)


def score(layout: Layout, objective: Objective) -> float:
    """Return what the program minimises for a layout."""
    latency = layout.worst + BALANCE * (layout.prefill.share + layout.decode.share)
    if objective == "latency":
        return latency + THRIFT * layout.gpus
    return layout.gpus + BALANCE * latency


@dataclass(frozen=True, slots=True)
class Built:
    """A program and where each candidate's variable is."""

    program: Program
    prefill: tuple[tuple[int, Candidate], ...]
    decode: tuple[tuple[int, Candidate], ...]


def build(
    prefill: Sequence[Candidate],
    decode: Sequence[Candidate],
    *,
    limits: Limits,
    objective: Objective,
    excluded: Iterable[tuple[Candidate, Candidate]] = (),
) -> Built:
    """Build the program: ``latency`` minimises within the limits, ``cost`` seeks the fewest GPUs within the SLO."""
    program = Program()
    u = tuple((program.add_variable(_name("u", c), "binary"), c) for c in prefill)
    v = tuple((program.add_variable(_name("v", c), "binary"), c) for c in decode)
    z = program.add_variable("Z", "continuous")
    zp = program.add_variable("Zp", "continuous")
    zd = program.add_variable("Zd", "continuous")
    built = Built(program, u, v)
    one_group_per_role(built)
    latency_of_prefill(built, zp=zp, z=z)
    latency_of_decode(built, zd=zd, z=z)
    gpu_budget(built, limits.gpus)
    pool_budget(built, limits.pool_gpus)
    worker_bounds(built, limits)
    node_shapes(built, limits)
    no_good_cuts(built, excluded)
    if objective == "cost":
        slo_ceiling(built, z=z)
    minimise(built, z=z, zp=zp, zd=zd, objective=objective)
    return built


def one_group_per_role(built: Built) -> None:
    """Require sum_a u[a] = 1 and sum_b v[b] = 1: both phases run, each with one degree."""
    built.program.add("one prefill group", ((i, 1.0) for i, _ in built.prefill), lower=1, upper=1)
    built.program.add("one decode group", ((i, 1.0) for i, _ in built.decode), lower=1, upper=1)


def latency_of_prefill(built: Built, *, zp: int, z: int) -> None:
    """Require Zp >= sum_a (tau_pre[a] / TTFT_thres) u[a] and Z >= Zp (C1 of Eq. (5), normalised)."""
    built.program.add("C1", [(zp, 1.0), *((i, -c.share) for i, c in built.prefill)], lower=0)
    built.program.add("Z over Zp", [(z, 1.0), (zp, -1.0)], lower=0)


def latency_of_decode(built: Built, *, zd: int, z: int) -> None:
    """Require Zd >= sum_b (tau_dec[b] / ITL_thres) v[b] and Z >= Zd (C2 of Eq. (5), normalised)."""
    built.program.add("C2", [(zd, 1.0), *((i, -c.share) for i, c in built.decode)], lower=0)
    built.program.add("Z over Zd", [(z, 1.0), (zd, -1.0)], lower=0)


def gpu_budget(built: Built, gpus: int) -> None:
    """Require sum_a n k u[a] + sum_b n k v[b] <= N (C3 of Eq. (5))."""
    built.program.add("C3", ((i, float(c.gpus)) for i, c in (*built.prefill, *built.decode)), upper=gpus)


def pool_budget(built: Built, pool_gpus: dict[str, int]) -> None:
    """Require, for each pool p, sum over candidates in p of n k x[c] <= GPUs of p."""
    for pool, gpus in pool_gpus.items():
        inside = [(i, float(c.gpus)) for i, c in (*built.prefill, *built.decode) if c.pool == pool]
        built.program.add(f"pool {pool}", inside, upper=gpus)


def worker_bounds(built: Built, limits: Limits) -> None:
    """Require, for each role, min <= sum of k x[c] <= max."""
    sides: tuple[tuple[Role, tuple[tuple[int, Candidate], ...]], ...] = (
        ("prefill", built.prefill),
        ("decode", built.decode),
    )
    for role, chosen in sides:
        least, most = limits.workers[role]
        built.program.add(f"{role} workers", ((i, float(c.replicas)) for i, c in chosen), lower=least, upper=most)


def node_shapes(built: Built, limits: Limits) -> None:
    """Require x[c] = 0 for a group that does not pack onto its pool's nodes, u[a] + v[b] <= 1 for two that do not."""
    nodes = {pool: node_sizes(gpus, limits.node_gpus[pool]) for pool, gpus in limits.pool_gpus.items()}
    alone: set[int] = set()
    for i, c in (*built.prefill, *built.decode):
        if not placeable(nodes[c.pool], [(c.degree, c.replicas)]):
            alone.add(i)
            built.program.add(f"no room for {_name('x', c)}", [(i, 1.0)], upper=0)
    for (i, a), (j, b) in product(built.prefill, built.decode):
        if i in alone or j in alone or a.pool != b.pool or a.gpus + b.gpus > limits.pool_gpus[a.pool]:
            continue  # ruled out or kept apart already
        if not placeable(nodes[a.pool], [(a.degree, a.replicas), (b.degree, b.replicas)]):
            built.program.add(f"no room for {_name('u', a)} and {_name('v', b)}", [(i, 1.0), (j, 1.0)], upper=1)


def no_good_cuts(built: Built, excluded: Iterable[tuple[Candidate, Candidate]]) -> None:
    """Require u[a] + v[b] <= 1 for each layout already found, so that the next best comes out."""
    index_of = {c: i for i, c in (*built.prefill, *built.decode)}
    for a, b in excluded:
        if a in index_of and b in index_of:
            built.program.add("found already", [(index_of[a], 1.0), (index_of[b], 1.0)], upper=1)


def slo_ceiling(built: Built, *, z: int) -> None:
    """Require Z <= 1: both latencies within the SLO."""
    built.program.add("SLO", [(z, 1.0)], upper=1)


def minimise(built: Built, *, z: int, zp: int, zd: int, objective: Objective) -> None:
    """Minimise Z + 1e-4 (Zp + Zd) + 1e-6 GPUs, or for cost GPUs + 1e-4 (Z + 1e-4 (Zp + Zd))."""
    latency, gpu = (1.0, THRIFT) if objective == "latency" else (BALANCE, 1.0)
    weights = {z: latency, zp: latency * BALANCE, zd: latency * BALANCE}
    weights |= {i: gpu * c.gpus for i, c in (*built.prefill, *built.decode)}
    built.program.minimise(weights)


def extract(built: Built, values: Sequence[float]) -> Layout:
    """Read the chosen layout from a solution's values."""
    return Layout(prefill=_chosen(built.prefill, values), decode=_chosen(built.decode, values))


def _chosen(side: Sequence[tuple[int, Candidate]], values: Sequence[float]) -> Candidate:
    return max(side, key=lambda pair: values[pair[0]])[1]


def _name(kind: Literal["u", "v", "x"], candidate: Candidate) -> str:
    return f"{kind}[{candidate.pool},{candidate.degree},{candidate.replicas}]"
