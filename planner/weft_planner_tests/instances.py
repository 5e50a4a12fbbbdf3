"""Small random instances of both integer programs, and the proof that SCIP finds what trying everything finds.

``python -m weft_planner_tests.instances 1000`` proves it on as many instances of each form and prints the times.
"""

import heapq
import random
import sys
import time
from collections.abc import Callable, Sequence
from itertools import product

from weft_core.parallelism import Degree, gpus_of
from weft_core.plan import ROLES, Objective, Role, WorkerRole
from weft_planner.phases.latency import PhaseLatency
from weft_planner.programs import form_a, form_b, scip
from weft_planner.programs.enumeration import assign_load, best_layouts
from weft_planner.programs.group_options import GroupOption, LayoutPair, PlanLimits, keeps_limits, objective_value
from weft_planner.programs.mixed import LoadLevel, MixedLayout, WorkerOption
from weft_planner.programs.pairs import feasible
from weft_planner.programs.program import Program

POOLS = ("a", "b")
TAU = PhaseLatency(1.0, 1.0, 0.5)
BEST = 3


def limits_of(rng: random.Random, *, largest: int, degrees: tuple[int, ...]) -> PlanLimits:
    """Return limits of every kind, each there in some of the instances."""

    def sometimes(share: float) -> bool:
        return rng.random() < share

    nodes = {pool: [rng.randint(2, 8) for _ in range(rng.randint(1, max(1, largest // 5)))] for pool in POOLS}
    node_gpus: dict[str, int] = {}
    racks: dict[str, list[int]] = {}
    if sometimes(0.4) and 3 not in degrees:  # workers of two and four nodes, in racks
        node_gpus = dict.fromkeys(POOLS, 2 if largest > 8 else 1)
        nodes = {pool: [min(size, node_gpus[pool]) for size in sizes] for pool, sizes in nodes.items()}
        racks = {pool: _racks(rng, sum(size == node_gpus[pool] for size in nodes[pool])) for pool in POOLS}
    current: dict[tuple[WorkerRole, str, Degree], int] = {}
    if sometimes(0.5):
        current = {("prefill", "a", rng.choice(degrees)): 2, ("decode", rng.choice(POOLS), rng.choice(degrees)): 1}
    return PlanLimits(
        gpus=rng.randint(largest // 2, largest),
        nodes=nodes,
        workers={
            "prefill": (1 + sometimes(0.2), 4 if sometimes(0.3) else None),
            "decode": (1, 5 if sometimes(0.3) else None),
        },
        pool_gpus={pool: rng.randint(largest // 3, largest) for pool in POOLS},
        ratio=(0.5 if sometimes(0.2) else None, 2.0 if sometimes(0.2) else None),
        kv_tokens=rng.choice([40.0, 90.0]) if sometimes(0.3) else 0.0,
        barred=frozenset((rng.choice(degrees), rng.choice(degrees)) for _ in range(rng.choice([0, 0, 1, 2]))),
        prices=rng.choice([{}, {"a": 2.0, "b": 3.5}]),
        budget=rng.choice([20.0, 60.0]) if sometimes(0.3) else None,
        current=current,
        inertia=rng.choice([0.0, 0.01]) if current else 0.0,
        node_gpus=node_gpus,
        racks=racks,
    )


def _racks(rng: random.Random, nodes: int) -> list[int]:
    """Return how many of the nodes lie in each of some racks."""
    racks = [0] * rng.randint(1, 3)
    for _ in range(nodes):
        racks[rng.randrange(len(racks))] += 1
    return racks


def candidates_of(rng: random.Random, role: Role, degrees: tuple[int, ...]) -> list[GroupOption]:
    """Return up to eight groups of one role."""
    cells = {(rng.choice(POOLS), rng.choice(degrees), rng.randint(1, 6)) for _ in range(rng.randint(1, 8))}
    return [
        GroupOption(role, pool, degree, k, share=rng.uniform(0.05, 1.6), tau=TAU, kv_tokens=degree * 20)
        for pool, degree, k in sorted(cells)
    ]


def check_form_a(seed: int) -> int:
    """Compare the best layouts of one instance of form A; return how many there are."""
    rng = random.Random(seed)
    degrees = rng.choice([(1, 2, 4, 8), (1, 2, 3, 4, 8)])
    objective: Objective = rng.choice(["latency", "cost"])
    prefill, decode = candidates_of(rng, "prefill", degrees), candidates_of(rng, "decode", degrees)
    limits = limits_of(rng, largest=32, degrees=degrees)
    every = (LayoutPair(a, b) for a, b in product(prefill, decode))
    kept = [x for x in every if feasible(x, limits) and (objective == "latency" or x.worst <= 1)]
    by_hand = sorted(score(x, objective, limits) for x in kept)[:BEST]
    as_arrays = best_layouts(prefill, decode, limits=limits, objective=objective, count=BEST)
    _assert_same([score(x, objective, limits) for x in as_arrays], by_hand, seed=seed)
    found = []
    for layout in form_a.best(prefill, decode, limits=limits, objective=objective, solve=optimum):
        found.append(layout)
        if len(found) == BEST:
            break
    assert all(feasible(layout, limits) for layout in found), seed
    assert len(set(found)) == len(found), seed
    _assert_same([score(x, objective, limits) for x in found], by_hand, seed=seed)
    return len(found)


def check_form_b(seed: int) -> int:
    """Compare the best layouts of one instance of form B; return how many there are."""
    rng = random.Random(seed)
    degrees = rng.choice([(1, 2), (2, 3), (2, 4)])
    objective: Objective = rng.choice(["latency", "cost"])
    places: list[tuple[Role, str, int]] = [
        (role, pool, n) for role in ROLES for pool in POOLS[: rng.choice([1, 1, 2])] for n in degrees
    ]
    if len(places) > 6:  # trying everything grows too fast with the kinds
        places = [place for place in places if place[2] == degrees[-1] or rng.random() < 0.4]
    kinds = [
        WorkerOption(
            role,
            pool,
            n,
            levels=tuple(
                LoadLevel(load=(g + 1) * n * 0.3, share=rng.uniform(0.05, 0.5) * (g + 1))
                for g in range(rng.randint(1, 3))
            ),
            kv_tokens=n * 20,
        )
        for role, pool, n in places
    ]
    limits = limits_of(rng, largest=8, degrees=degrees)
    rate = rng.uniform(0.2, 1.8)
    by_hand = best_mixed(kinds, rate=rate, limits=limits, objective=objective, count=BEST)
    found: list[MixedLayout] = []
    for mixed in form_b.best(kinds, rate=rate, limits=limits, objective=objective, solve=optimum):
        found.append(mixed)
        if len(found) == BEST:
            break
    assert len({mixed.groups for mixed in found}) == len(found), seed

    def value(mixed: MixedLayout) -> float:
        return objective_value(mixed.groups, mixed.shares, limits=limits, objective=objective)

    _assert_same([value(x) for x in found], [value(x) for x in by_hand], seed=seed)
    return len(found)


def score(layout: LayoutPair, objective: Objective, limits: PlanLimits) -> float:
    """Return what form A minimises for a layout."""
    shares = layout.prefill.share, layout.decode.share
    return objective_value(layout.groups, shares, limits=limits, objective=objective)


def best_mixed(
    kinds: Sequence[WorkerOption], *, rate: float, limits: PlanLimits, objective: Objective, count: int
) -> list[MixedLayout]:
    """Return up to ``count`` feasible layouts of form B by rising score, from every count of every kind."""
    ranges = [
        range(min(limits.room_for(k.pool, k.degree), limits.gpus_of(k.pool) // gpus_of(k.degree)) + 1) for k in kinds
    ]
    found = []
    for counts in product(*ranges):
        mixed = assign_load(kinds, counts, rate=rate)
        if mixed is not None and (objective == "latency" or max(mixed.shares) <= 1):
            kv = sum(k.kv_tokens * n for k, n in zip(kinds, counts, strict=True) if k.role == "decode")
            if keeps_limits(mixed.groups, limits, kv_tokens=kv):
                found.append((objective_value(mixed.groups, mixed.shares, limits=limits, objective=objective), mixed))
    return [mixed for _, mixed in heapq.nsmallest(count, found, key=lambda item: item[0])]


def optimum(program: Program) -> tuple[float, ...] | None:
    """Return SCIP's proved optimum."""
    solved = scip.solve(program, time_limit_s=10)
    assert solved is None or solved.optimal
    return None if solved is None else solved.values


def _assert_same(found: list[float], expected: list[float], *, seed: int) -> None:
    assert len(found) == len(expected), f"seed {seed}: {found} is not {expected}"
    for one, other in zip(found, expected, strict=True):
        assert abs(one - other) < 1e-6 * max(1.0, abs(other)), f"seed {seed}: {found} is not {expected}"


def main() -> int:
    """Check as many instances of each form as the command line says."""
    count = int(sys.argv[1])
    checks: tuple[tuple[str, Callable[[int], int]], ...] = (("A", check_form_a), ("B", check_form_b))
    for name, check in checks:
        begin = time.perf_counter()
        layouts = [check(seed) for seed in range(count)]
        took = time.perf_counter() - begin
        sys.stdout.write(
            f"form {name}: {count} instances equal, {sum(n > 0 for n in layouts)} feasible, "
            f"{sum(layouts)} layouts, {took:.1f} s\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
