"""Make a plan: the integer programs prune, full simulations with the policy that will run decide, then the words."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from weft_core.cost import CostProfile, CostProfileError
from weft_core.plan import Alternative, Plan, PlannedGroup, Shortfall, content_hash, plan_revision, plan_to_json
from weft_core.profile_json import profile_to_json
from weft_core.shortfall import shortfall_to_json
from weft_planner.evaluation.candidates import Candidate, current_groups
from weft_planner.evaluation.ranking import Evaluation, rank
from weft_planner.evaluation.shortlist import prune
from weft_planner.evaluation.trials import KnownRuns, Trials, options_of
from weft_planner.plan.misses import shortfall_of
from weft_planner.plan.reasons import reason_for, slo_reading
from weft_planner.plan.relaxing import explain_no_layout
from weft_planner.plan.validity import validity_of
from weft_planner.programs.group_options import LayoutPair
from weft_planner.programs.inputs import PlanInputs, prepare_inputs
from weft_planner.programs.left_out import left_out_notes
from weft_planner.programs.search import LayoutSearch
from weft_planner.programs.solver import Solver
from weft_planner.programs.strategies import with_best_strategies
from weft_planner.request.costs import source_notes, speculation_notes
from weft_planner.request.infeasible import Infeasible
from weft_planner.request.reading import Request
from weft_planner.simulation.loading import load_simulator
from weft_planner.stages import Progress, ignore_progress

ALTERNATIVES = 6
EARLY = 5
"""Layouts of the ranking that is shown before any is simulated whole."""

Early = Callable[[Sequence[LayoutPair]], None]
"""Gets what the phases alone rank best, before anything is simulated whole: all there is after an early Ctrl-C."""


def answer(
    request: Request,
    *,
    top: int = ALTERNATIVES,
    progress: Progress | None = None,
    early: Early | None = None,
    solver: Solver | None = None,
    known: KnownRuns | None = None,
) -> dict[str, object]:
    """Return the JSON-ready answer to a request: a plan with its profile, or why none is possible.

    ``top`` alternatives at most; ``progress`` gets (stage, done, total), ``early`` what the phases alone rank best.
    ``solver`` and ``known`` as in ``solve``.
    """
    try:
        plan, profiles = solve(request, top=top, progress=progress, early=early, solver=solver, known=known)
    except Infeasible as error:
        return {
            "status": "infeasible",
            "reason": error.reason,
            "message": error.message,
            "shortfall": shortfall_to_json(error.shortfall),
        }
    return {
        "status": "ok",
        "plan": plan_to_json(plan),
        "profile": profile_to_json(profiles[plan.groups[0].pool]),
        "profiles": {pool: profile_to_json(profile) for pool, profile in profiles.items()},
    }


def solve(
    request: Request,
    *,
    top: int = ALTERNATIVES,
    progress: Progress | None = None,
    early: Early | None = None,
    solver: Solver | None = None,
    known: KnownRuns | None = None,
) -> tuple[Plan, dict[str, CostProfile]]:
    """Return the best plan for a request and the profiles, by pool, that it was made with; the same request, same plan.

    ``solver`` is a running one to use; without it one is started, and stopped with the plan. ``known`` runs are not
    run again; new ones join them, with the layouts that were chosen among.

    Raises:
        Infeasible: no layout is possible, whatever its latency.
    """
    report = progress or ignore_progress
    with contextlib.nullcontext(solver) if solver is not None else Solver() as solving:  # loads meanwhile
        report("drawing sessions", 0, 1)
        try:
            allowed = prepare_inputs(request)
            inputs = with_best_strategies(allowed)
            search = LayoutSearch(solving)
            report("simulating each phase", 0, 1)
            space = prune(inputs, search)
            if space is None:
                raise explain_no_layout(request, inputs.profiles)
            if early is not None:
                early(space.best(EARLY))
            load_simulator(report)
            report("trying layouts in short runs", 0, 1)
            if known is not None:
                known.space = space
            trials = Trials(inputs, known)
            evaluations = rank(space, trials, progress=report)
            chosen = next((one for one in evaluations if one.candidate.runnable), None)
            if chosen is None:
                raise _nothing_runs(evaluations[0])
            ranked = [chosen, *(one for one in evaluations if one is not chosen)]
            shortfall = None if chosen.predicted.slo_met else shortfall_of(space, trials, chosen)
        except CostProfileError as error:
            raise Infeasible("ProfileInvalid", f"profile.{error}") from error
    return _plan(inputs, ranked, search, shortfall, top=top, left_out=left_out_notes(allowed)), dict(inputs.profiles)


def rank_for_other_objective(request: Request, known: KnownRuns, *, count: int) -> list[Evaluation]:
    """Return the best layouts for a request that differs from a plan's in its objective, from what that plan knows.

    ``count`` are looked for, and none that could not be deployed; none when the plan knows nothing.
    """
    if known.space is None:
        return []
    with Solver() as solving:
        space = replace(known.space, inputs=known.space.inputs.asking(request), search=LayoutSearch(solving))
        return rank(space, Trials(space.inputs, known), few=count)


def _nothing_runs(best: Evaluation) -> Infeasible:
    return Infeasible(
        "NoFeasibleLayout",
        f"planning.layouts: the best layout is {best.candidate}, and {best.candidate.note}; no layout that could be "
        "deployed keeps the limits",
    )


def _plan(
    inputs: PlanInputs,
    ranked: list[Evaluation],
    search: LayoutSearch,
    shortfall: Shortfall | None,
    *,
    top: int,
    left_out: list[str],
) -> Plan:
    request = inputs.request
    best = ranked[0]
    engine_inputs = {
        "model": request.model.model_dump(by_alias=True),
        "engine": request.engine.model_dump(by_alias=True),
    }
    notes = [
        *request.workload.assumptions,
        *source_notes(request, inputs.profiles),
        *speculation_notes(request, inputs.profiles),
        *left_out,
        *search.notes,
        *best.remarks,
    ]
    return Plan(
        groups=best.groups,
        predicted=best.predicted,
        objective=request.objective,
        inputs_hash=content_hash(request.model_dump(by_alias=True, mode="json"), 16),
        revision=plan_revision(best.groups, profile=_costs(inputs, best), engine_inputs=engine_inputs),
        reason=reason_for(request, ranked, sample=inputs.sample, notes=search.notes),
        slo_reading=slo_reading(request),
        alternatives=tuple(
            Alternative(
                groups=one.groups,
                predicted=one.predicted,
                score=round(max(_worst(request, one)), 4),
                layout=one.candidate.kind,
                policy=one.candidate.planned_policy(chunked=is_chunked(request, one.candidate)),
                runnable=one.candidate.runnable,
                note=one.candidate.note,
            )
            for one in _shown(ranked, current_groups(inputs), top=top)
        ),
        layout=best.candidate.kind,
        policy=best.candidate.planned_policy(chunked=is_chunked(request, best.candidate)),
        search=search.how,
        shortfall=shortfall,
        nodes_seen=all(pool.nodes is not None for pool in request.capacity.pools),
        notes=tuple(dict.fromkeys(notes)),
        validity=validity_of(request, best),
    )


def _shown(ranked: list[Evaluation], running: tuple[PlannedGroup, ...], *, top: int) -> list[Evaluation]:
    """Return the best alternatives, and what runs now wherever it ranks: a change is judged against it."""
    rest = ranked[1:]
    return rest[:top] + [one for one in rest[top:] if running and one.groups == running]


def _costs(inputs: PlanInputs, best: Evaluation) -> dict[str, object]:
    """Return what names a plan beside its groups: their cost profile, or one for each pool where pools differ."""
    used = {pool: profile_to_json(inputs.profiles[pool]) for pool in sorted({group.pool for group in best.groups})}
    first = used[best.groups[0].pool]
    return first if all(profile == first for profile in used.values()) else dict(used)


def _worst(request: Request, one: Evaluation) -> tuple[float, float]:
    return one.predicted.ttft_p95_s / request.slo.ttft, one.predicted.itl_p95_s / request.slo.itl


def is_chunked(request: Request, candidate: Candidate) -> bool:
    """Return whether local prefills are simulated in chunks."""
    stated = options_of(request, candidate).chunked
    return candidate.policy.mode in ("imd", "whole-or-chunked") if stated is None else stated
