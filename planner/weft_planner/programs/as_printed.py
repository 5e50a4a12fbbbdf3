"""AMPD's Eq. (5) exactly as printed (arXiv 2602.14516, section 5), and how many layouts are its optima.

Integers x[n], y[n]: prefill and decode workers of degree n. min Z subject to (C1) Z >= tau_pre(n) where x[n] >= 1,
(C2) Z >= tau_dec(n) where y[n] >= 1, (C3) sum n (x[n] + y[n]) <= N. That both phases have a worker is added: without
it no worker at all would be best.

tau(n) is the P95 of one worker in seconds, whatever the number of workers. At which load the paper does not say; here
it is that of a worker which hardly queues (``IDLE``). So one worker of each phase is as good as any number of them, the
optimum is max(min tau_pre, min tau_dec), and every layout of degrees within it is optimal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from weft_core.layouts import ROLES, PlannedGroup, Role
from weft_core.parallelism import Degree, gpus_of
from weft_planner.phases.latency import at_load, decode_latency, full_load, prefill_latency
from weft_planner.programs.inputs import PlanInputs
from weft_planner.programs.program import Program

IDLE = 0.01
"""The load of one worker, as a share of what it carries at all."""


@dataclass(frozen=True, slots=True)
class WorkerLatency:
    """tau(n) of one worker in seconds, of TTFT (prefill) or of the rounds' mean ITL (decode)."""

    role: Role
    pool: str
    degree: Degree
    seconds: float

    @property
    def gpus(self) -> int:
        """Return the GPUs of one worker."""
        return gpus_of(self.degree)


@dataclass(frozen=True, slots=True)
class PrintedOptimum:
    """What Eq. (5) gives: Z in seconds, the layout that a solver returned, and all layouts with the same Z.

    ``allowed`` are the kinds of workers that optimal layouts have, in any number; ``layouts`` how many such layouts fit
    ``budget`` GPUs, of ``least`` GPUs and more. ``itl_binds``: whether a smaller ITL could make Z smaller.
    """

    kinds: tuple[WorkerLatency, ...]
    z_s: float
    groups: tuple[PlannedGroup, ...]
    allowed: tuple[WorkerLatency, ...]
    layouts: int
    least: int
    budget: int
    itl_binds: bool


def worker_latencies(inputs: PlanInputs) -> tuple[WorkerLatency, ...]:
    """Return tau(n) of every kind of worker that the pools allow."""
    found = []
    for role in ROLES:
        measure = prefill_latency if role == "prefill" else decode_latency
        for pool in inputs.pools(role):
            phases = inputs.phases[pool.name]
            for degree in inputs.degrees[pool.name]:
                alone = at_load(phases, IDLE * full_load(phases, role, degree))
                found.append(
                    WorkerLatency(role, pool.name, degree, measure(alone, degree=degree, counts=[1])[1].quantile_s)
                )
    return tuple(found)


def build(kinds: Sequence[WorkerLatency], *, gpus: int) -> Program:
    """Build Eq. (5): a count and a mark for each kind of worker, in their order, and Z last."""
    program = Program()
    counts = [program.add_variable(f"{'xy'[kind.role == 'decode']}[{kind.degree}]", "integer") for kind in kinds]
    marks = [program.add_variable(f"deployed[{kind.role},{kind.degree}]", "binary") for kind in kinds]
    z = program.add_variable("Z", "continuous")
    for kind, count, mark in zip(kinds, counts, marks, strict=True):
        most = gpus // kind.gpus
        program.add("deployed where there is a worker", [(mark, float(most)), (count, -1.0)], lower=0)
        program.add("C1" if kind.role == "prefill" else "C2", [(z, 1.0), (mark, -kind.seconds)], lower=0)
    program.add("C3", [(i, float(kind.gpus)) for kind, i in zip(kinds, counts, strict=True)], upper=gpus)
    for role in ROLES:
        program.add(
            f"a {role} worker", [(i, 1.0) for kind, i in zip(kinds, counts, strict=True) if kind.role == role], lower=1
        )
    program.minimise({z: 1.0})
    return program


def optimum_of(kinds: Sequence[WorkerLatency], values: Sequence[float], *, gpus: int) -> PrintedOptimum:
    """Return what a solution of ``build`` says, and how many others are as good; ``values`` in its order."""
    counts = [round(value) for value in values[: len(kinds)]]
    used = tuple(
        PlannedGroup(kind.role, kind.degree, count, kind.pool)
        for kind, count in zip(kinds, counts, strict=True)
        if count
    )
    z = max(kind.seconds for kind, count in zip(kinds, counts, strict=True) if count)
    allowed = tuple(kind for kind in kinds if kind.seconds <= z)
    ways = {role: _ways([kind.gpus for kind in allowed if kind.role == role], gpus) for role in ROLES}
    upto = list(accumulate(ways["decode"]))
    smallest = {role: min(kind.gpus for kind in allowed if kind.role == role) for role in ROLES}
    ttft = min(kind.seconds for kind in kinds if kind.role == "prefill")
    itl = min(kind.seconds for kind in kinds if kind.role == "decode")
    return PrintedOptimum(
        tuple(kinds),
        z,
        used,
        allowed,
        layouts=sum(count * upto[gpus - taken] for taken, count in enumerate(ways["prefill"])),
        least=sum(smallest.values()),
        budget=gpus,
        itl_binds=itl > ttft,
    )


def _ways(sizes: Sequence[int], gpus: int) -> list[int]:
    """Return, for each number of GPUs, how many multisets of workers of these sizes take exactly so many; none: 0."""
    ways = [1] + [0] * gpus
    for size in sizes:
        for taken in range(size, gpus + 1):
            ways[taken] += ways[taken - size]
    ways[0] = 0
    return ways
