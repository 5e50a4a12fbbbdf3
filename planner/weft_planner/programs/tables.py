"""Tabulate both phases' latencies: by worker count for form A's candidates, by load for form B's kinds of workers."""

from weft_core.parallelism import Degree, gpus_of
from weft_core.plan import ROLES, Role
from weft_planner.phases.latency import PhaseInputs, at_load, decode_latency, full_load, prefill_latency
from weft_planner.programs.group_options import CEILING, GroupOption, share_of_slo
from weft_planner.programs.inputs import PlanInputs
from weft_planner.programs.mixed import LoadLevel, WorkerOption
from weft_planner.request.capacity import Pool

EVERY_COUNT_UP_TO = 12
"""Worker counts are simulated one by one up to here, then in steps of a quarter: beyond, one worker matters little."""
LEVELS = (0.2, 0.4, 0.55, 0.7, 0.8, 0.88, 0.94)
"""Loads of form B as shares of what one worker carries at all."""


def group_options(inputs: PlanInputs, role: Role) -> list[GroupOption]:
    """Return every group that a role may have, with its simulated latency as a share of the SLO."""
    found: list[GroupOption] = []
    measure = prefill_latency if role == "prefill" else decode_latency
    shared: dict[tuple[int, Degree], list[tuple[Pool, list[int]]]] = {}
    for pool in inputs.pools(role):
        for degree in inputs.degrees[pool.name]:
            counts = _counts(inputs, pool, role, degree)
            shared.setdefault((id(inputs.phases[pool.name]), degree), []).append((pool, counts))
    for (_, degree), places in shared.items():  # pools of one profile share one table
        phases = inputs.phases[places[0][0].name]
        table = measure(phases, degree=degree, counts=sorted({k for _, counts in places for k in counts}))
        for pool, counts in places:
            kv = inputs.profiles[pool.name].kv_capacity(degree)
            found += [
                GroupOption(
                    role, pool.name, degree, k, share_of_slo(table[k], _threshold(inputs, role)), table[k], kv_tokens=kv
                )
                for k in counts
            ]
    order = {pool.name: i for i, pool in enumerate(inputs.request.capacity.pools)}
    return sorted(found, key=lambda c: (order[c.pool], c.degree, c.replicas))


def worker_options(inputs: PlanInputs) -> list[WorkerOption]:
    """Return form B's kinds of workers, each with its latency at rising loads; kinds that hold no load are left out."""
    tables: dict[tuple[int, Role, Degree], tuple[LoadLevel, ...]] = {}
    found = []
    for role in ROLES:
        for pool in inputs.pools(role):
            phases = inputs.phases[pool.name]
            for degree in inputs.degrees[pool.name]:
                key = (id(phases), role, degree)
                if key not in tables:
                    tables[key] = _levels(phases, role, degree, threshold=_threshold(inputs, role))
                if tables[key] and inputs.limits.room_for(pool.name, degree):
                    kv = inputs.profiles[pool.name].kv_capacity(degree)
                    found.append(WorkerOption(role, pool.name, degree, levels=tables[key], kv_tokens=kv))
    return found


def _threshold(inputs: PlanInputs, role: Role) -> float:
    return inputs.request.slo.ttft if role == "prefill" else inputs.request.slo.itl


def _counts(inputs: PlanInputs, pool: Pool, role: Role, degree: Degree) -> list[int]:
    """Return the worker counts to consider: what the pool holds beside the other role's least, within the bounds."""
    limits = inputs.limits
    least, most = limits.workers[role]
    other: Role = "decode" if role == "prefill" else "prefill"
    smallest = min((gpus_of(n) for p in inputs.pools(other) for n in inputs.degrees[p.name]), default=0)
    room = min(limits.gpus_of(pool.name), limits.gpus - smallest * limits.workers[other][0]) // gpus_of(degree)
    top = min(room, limits.room_for(pool.name, degree))
    top = top if most is None else min(top, most)
    running = limits.current.get((role, pool.name, degree), 0)
    counts = {running} if least <= running <= top else set()
    k = least
    while k < top:
        counts.add(k)
        k += max(1, k // 4) if k >= EVERY_COUNT_UP_TO else 1
    return sorted({*counts, top}) if top >= least else []


def _levels(phases: PhaseInputs, role: Role, degree: Degree, *, threshold: float) -> tuple[LoadLevel, ...]:
    full = full_load(phases, role, degree)
    measure = prefill_latency if role == "prefill" else decode_latency
    found = []
    for part in LEVELS:
        tau = measure(at_load(phases, part * full), degree=degree, counts=[1])[1]
        share = share_of_slo(tau, threshold)
        if share < CEILING:
            found.append(LoadLevel(load=part * full, share=share))
    return tuple(found)
