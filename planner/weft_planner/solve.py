"""Make a plan: costs, then each phase's latency at every group size, then the integer program, then the words."""

from collections.abc import Sequence
from dataclasses import dataclass

from weft_core.cost import CostProfile, CostProfileError
from weft_core.plan import (
    ROLES,
    Alternative,
    Objective,
    Plan,
    PlannedGroup,
    Prediction,
    Role,
    content_hash,
    plan_revision,
    plan_to_json,
)
from weft_core.profile_json import profile_to_json
from weft_planner import enumeration, scip
from weft_planner.costs import profile_of
from weft_planner.ilp import Candidate, Layout, Limits, build, extract, score, share_of_slo
from weft_planner.infeasible import Infeasible, degrees_of, explain_no_degree, explain_no_layout, pool_gpus
from weft_planner.reasons import reason_for, slo_reading
from weft_planner.sessions import draw
from weft_planner.tau import PhaseInputs, phase_inputs, tau_dec, tau_pre
from weft_planner.workload import Request

ALTERNATIVES = 3
SOLVER_LIMIT_S = 10.0
"""Programs of this form take some 10 ms; at the limit the best layout found so far is used."""
EVERY_COUNT_UP_TO = 16
"""Worker counts are simulated one by one up to here, then in steps of a quarter: beyond, one worker matters little."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """A request made ready: its profile, usable degrees by pool, limits and phase simulations."""

    request: Request
    profile: CostProfile
    usable: dict[str, list[int]]
    limits: Limits
    phases: PhaseInputs


def answer(request: Request) -> dict[str, object]:
    """Return the JSON-ready answer to a request: a plan with its profile, or why none is possible."""
    try:
        plan, profile = solve(request)
    except Infeasible as error:
        return {"status": "infeasible", "reason": error.reason, "message": error.message}
    return {"status": "ok", "plan": plan_to_json(plan), "profile": profile_to_json(profile)}


def solve(request: Request) -> tuple[Plan, CostProfile]:
    """Return the best plan for a request and the profile that it was made with; the same request, the same plan.

    Raises:
        Infeasible: no layout is possible, whatever its latency.
    """
    inputs = prepare(request)
    if not all(_groups(inputs, role) for role in ROLES):
        raise explain_no_layout(request, inputs.usable)
    try:
        sides = {role: candidates(inputs, role) for role in ROLES}
    except CostProfileError as error:
        raise Infeasible("ProfileInvalid", f"profile.{error}") from error
    ranked, notes = _rank(inputs, sides)
    if not ranked:
        raise explain_no_layout(request, inputs.usable)
    return _plan(inputs, ranked, notes), inputs.profile


def prepare(request: Request) -> Inputs:
    """Get costs, usable degrees and sample sessions for a request.

    Raises:
        Infeasible: the model cannot run at any degree of the pools.
    """
    profile = profile_of(request)
    pools = request.capacity.pools
    usable = {pool.name: degrees_of(pool, profile, request.model.max_model_len) for pool in pools}
    degrees = sorted({n for listed in usable.values() for n in listed})
    if not degrees:
        raise explain_no_degree(request, profile)
    sample = draw(
        request.workload,
        max_model_len=request.model.max_model_len,
        round_seconds=request.slo.ttft + request.workload.mean_decode * request.slo.itl,
        seed=request.seed,
    )
    return Inputs(
        request=request,
        profile=profile,
        usable=usable,
        limits=Limits(
            gpus=request.capacity.gpus,
            pool_gpus={pool.name: pool_gpus(pool, request) for pool in pools},
            node_gpus={pool.name: pool.gpus_per_node for pool in pools},
            workers={role: (request.bounds.of(role).min, request.bounds.of(role).max) for role in ROLES},
        ),
        phases=phase_inputs(
            sample,
            profile,
            degrees=degrees,
            percentile=request.slo.percentile,
            bidirectional=request.engine.bidirectional,
        ),
    )


def candidates(inputs: Inputs, role: Role) -> list[Candidate]:
    """Return every group that a role may have, with its simulated latency as a share of the SLO."""
    slo = inputs.request.slo
    threshold = slo.ttft if role == "prefill" else slo.itl
    measure = tau_pre if role == "prefill" else tau_dec
    groups = _groups(inputs, role)
    table = {
        degree: measure(inputs.phases, degree=degree, counts=sorted({k for _, n, k in groups if n == degree}))
        for degree in sorted({n for _, n, _ in groups})
    }
    return [
        Candidate(role, pool, n, k, share=share_of_slo(table[n][k], threshold), tau=table[n][k])
        for pool, n, k in groups
    ]


def _groups(inputs: Inputs, role: Role) -> list[tuple[str, int, int]]:
    """Return (pool, degree, workers) of every group that a role may have."""
    return [
        (pool.name, degree, k)
        for pool in inputs.request.capacity.pools
        if role in pool.roles
        for degree in inputs.usable[pool.name]
        for k in _counts(inputs, role, pool_gpus=inputs.limits.pool_gpus[pool.name], degree=degree)
    ]


def _counts(inputs: Inputs, role: Role, *, pool_gpus: int, degree: int) -> list[int]:
    """Return the worker counts to consider: what the pool holds beside the other role's least, within the bounds."""
    least, most = inputs.limits.workers[role]
    other: Role = "decode" if role == "prefill" else "prefill"
    degrees = [n for pool in inputs.request.capacity.pools if other in pool.roles for n in inputs.usable[pool.name]]
    spare = min(degrees, default=0) * inputs.limits.workers[other][0]
    top = min(pool_gpus, inputs.limits.gpus - spare) // degree
    top = top if most is None else min(top, most)
    counts = []
    k = least
    while k < top:
        counts.append(k)
        k += max(1, k // 4) if k >= EVERY_COUNT_UP_TO else 1
    return [*counts, top] if top >= least else []


def _rank(inputs: Inputs, sides: dict[Role, list[Candidate]]) -> tuple[list[Layout], list[str]]:
    """Return layouts, best first, and notes on how they were found.

    For ``cost`` the layouts within the SLO come first by GPUs; when none holds it, the order is that of latency.
    """
    notes: list[str] = []
    ranked = _best(inputs, sides, inputs.request.objective, ALTERNATIVES + 1, notes)
    if inputs.request.objective == "cost" and len(ranked) <= ALTERNATIVES:
        extra = _best(inputs, sides, "latency", ALTERNATIVES + 1 - len(ranked), notes, found=ranked)
        ranked += extra
    if inputs.request.objective == "latency" and ranked and ranked[0].holds:
        cheapest = _best(inputs, sides, "cost", 1, notes)
        if cheapest and cheapest[0].gpus < ranked[0].gpus and cheapest[0] not in ranked:
            ranked = [*ranked[:ALTERNATIVES], cheapest[0]]
    return ranked, notes


def _best(
    inputs: Inputs,
    sides: dict[Role, list[Candidate]],
    objective: Objective,
    count: int,
    notes: list[str],
    *,
    found: Sequence[Layout] = (),
) -> list[Layout]:
    """Return the ``count`` best layouts that are not ``found`` yet, by SCIP, or by enumeration when SCIP fails."""
    layouts: list[Layout] = []
    for _ in range(count):
        excluded = [(layout.prefill, layout.decode) for layout in (*found, *layouts)]
        built = build(sides["prefill"], sides["decode"], limits=inputs.limits, objective=objective, excluded=excluded)
        try:
            solved = scip.solve(built.program, time_limit_s=SOLVER_LIMIT_S)
        except scip.SolverError as error:
            notes.append(f"{error}; the layouts were enumerated instead")
            known = {*found, *layouts}
            every = enumeration.best_layouts(
                sides["prefill"],
                sides["decode"],
                limits=inputs.limits,
                objective=objective,
                count=count + len(found),
            )
            return [*layouts, *(layout for layout in every if layout not in known)][:count]
        if solved is None:
            break
        if not solved.optimal:
            notes.append(f"the solver's limit of {SOLVER_LIMIT_S:g} s passed; this is the best layout found by then")
        layouts.append(extract(built, solved.values))
    return sorted(layouts, key=lambda layout: score(layout, objective))


def _plan(inputs: Inputs, ranked: Sequence[Layout], notes: Sequence[str]) -> Plan:
    request = inputs.request
    best = ranked[0]
    groups = groups_of(best)
    engine_inputs = {
        "model": request.model.model_dump(by_alias=True),
        "engine": request.engine.model_dump(by_alias=True),
    }
    profile = profile_to_json(inputs.profile)
    return Plan(
        groups=groups,
        predicted=predict(best),
        objective=request.objective,
        inputs_hash=content_hash(request.model_dump(by_alias=True, mode="json"), 16),
        revision=plan_revision(groups, profile=profile, engine_inputs=engine_inputs),
        reason=reason_for(request, ranked, sample=inputs.phases.sample, notes=notes),
        slo_reading=slo_reading(request, rows=inputs.phases.sample.rows),
        alternatives=tuple(
            Alternative(groups=groups_of(layout), predicted=predict(layout), score=round(layout.worst, 4))
            for layout in ranked[1 : ALTERNATIVES + 1]
        ),
    )


def groups_of(layout: Layout) -> tuple[PlannedGroup, ...]:
    """Return a layout's groups, prefill first."""
    return tuple(PlannedGroup(c.role, c.degree, c.replicas, c.pool) for c in (layout.prefill, layout.decode))


def predict(layout: Layout) -> Prediction:
    """Return what a layout should give, rounded to a microsecond: more digits would only pretend to be known."""
    return Prediction(
        ttft_p95_s=round(layout.prefill.tau.quantile_s, 6),
        itl_p95_s=round(layout.decode.tau.quantile_s, 6),
        ttft_mean_s=round(layout.prefill.tau.mean_s, 6),
        itl_mean_s=round(layout.decode.tau.mean_s, 6),
        gpus=layout.gpus,
        slo_met=layout.holds,
    )
