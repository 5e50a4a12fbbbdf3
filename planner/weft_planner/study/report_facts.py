"""Gather what a plan's report shows: simulations of the plan and its alternatives at other loads and on other GPUs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft_core.layouts import LayoutKind, PlannedGroup, PlannedPolicy, layout_name
from weft_core.plan import Alternative, Objective, Plan
from weft_core.prediction import Estimate, Prediction
from weft_planner.evaluation import samples
from weft_planner.evaluation.candidates import Candidate, runnable_policies
from weft_planner.evaluation.threads import in_threads
from weft_planner.evaluation.trials import KnownRuns, Trials
from weft_planner.plan.solve import is_chunked, rank_for_other_objective
from weft_planner.programs.inputs import PlanInputs
from weft_planner.report.facts import Facts, LayoutScore, LoadPoint, ReportTimeline, Sensitivity, SensitivityCell
from weft_planner.request.reading import Request
from weft_planner.simulation.layout import PolicyChoice
from weft_planner.simulation.outcome import Outcome
from weft_planner.simulation.statistics import attainment
from weft_planner.stages import Progress
from weft_planner.study.load import load_rows
from weft_planner.study.scenario import PlanSessions, Scenario
from weft_planner.tables.plan import policy_name

SEEDS = 3
LOADS = 8
"""Rates of the curves, from a quarter of the planned rate to beyond what the plan carries."""
MOST_ALTERNATIVES = 6
OTHERS = 3
"""Layouts of the other objective, beside the plan's."""
RATES = (0.5, 0.75, 1.0, 1.5, 2.0)
SPEEDS = (0.8, 1.0, 1.25)
CLEARLY = 0.02
"""Points of attainment by which another layout must be better to be called the better choice: less is noise."""
MOMENTS = 400
"""Points of the timeline."""
WARM_UP = 0.15
"""Share of the window that is not shown: queues begin empty."""


@dataclass(frozen=True, slots=True)
class ConsideredLayout:
    """A layout with rules that was considered; ``runnable`` as in the plan."""

    name: str
    candidate: Candidate
    predicted: Prediction
    policy: PlannedPolicy | None
    runnable: bool


def method_of() -> tuple[str, ...]:
    """Say how the report's own figures are made, a sentence each."""
    curves = (
        f"Curves: {SEEDS} simulated runs at each load, as long as the plan's, under the rules that will run. The "
        "shaded band is the 95 % interval over the runs."
    )
    table = (
        "Table of assumptions: a shorter run for each case, the same sessions for every layout. GPU efficiency changes "
        "computing and memory alike; links stay as they are."
    )
    return (
        curves,
        table,
        "Latencies are predicted from the cost profile; what a real engine does is measured after deployment.",
    )


def considered_layouts(plan: Plan, inputs: PlanInputs) -> list[ConsideredLayout]:
    """Return the plan, then its alternatives."""
    own = runnable_policies(inputs.request)[0]
    several = len(inputs.request.capacity.pools) > 1
    itself = Alternative(plan.groups, plan.predicted, 0.0, plan.layout, plan.policy)
    return [
        ConsideredLayout(
            name=layout_name(row.groups, row.layout, named=several),
            candidate=_candidate_of(row.layout, row.groups, row.policy, own),
            predicted=row.predicted,
            policy=row.policy,
            runnable=row.runnable,
        )
        for row in (itself, *plan.alternatives)
    ]


def with_other_objective(
    considered: Sequence[ConsideredLayout], inputs: PlanInputs, known: KnownRuns
) -> list[ConsideredLayout]:
    """Return the layouts with the best by the other objective: cheaper ones, or faster ones."""
    other: Objective = "cost" if inputs.request.objective == "latency" else "latency"
    request = inputs.request.model_copy(update={"objective": other})
    several = len(request.capacity.pools) > 1
    found = [
        ConsideredLayout(
            name=layout_name(one.groups, one.candidate.kind, named=several),
            candidate=one.candidate,
            predicted=one.predicted,
            policy=one.candidate.planned_policy(chunked=is_chunked(request, one.candidate)),
            runnable=one.candidate.runnable,
        )
        for one in rank_for_other_objective(request, known, count=OTHERS)
    ]
    ranked = {(_shape(e), e.candidate.policy.route, e.candidate.policy.mode) for e in considered}
    return [
        *considered,
        *(e for e in found if (_shape(e), e.candidate.policy.route, e.candidate.policy.mode) not in ranked),
    ]


def _shape(layout: ConsideredLayout) -> tuple[LayoutKind, tuple[PlannedGroup, ...]]:
    return layout.candidate.kind, layout.candidate.groups


def distinct(considered: Sequence[ConsideredLayout], *, runnable: bool) -> list[ConsideredLayout]:
    """Return one entry for each layout, the plan's own first: the first that can run, else (if asked) the first."""
    kept: dict[object, ConsideredLayout] = {}
    for place, layout in enumerate(considered):
        known = kept.get(_shape(layout))
        better = known is None or (layout.runnable and not known.runnable and known is not considered[0])
        if better and (place == 0 or layout.runnable or not runnable):
            kept[_shape(layout)] = layout
    return [*kept.values()]


def _candidate_of(
    kind: LayoutKind, groups: tuple[PlannedGroup, ...], policy: PlannedPolicy | None, own: PolicyChoice
) -> Candidate:
    rules = own
    if policy is not None:
        params = own.params if policy.route == own.route else {}
        rules = replace(
            own,
            route=policy.route,
            mode=policy.mode,
            order=policy.order,
            binding=policy.binding,
            params=params,
            chunk_share=policy.chunk_share,
        )
    return Candidate(kind, groups, rules)


def gather_facts(facts: Facts, known: KnownRuns, progress: Progress) -> Iterator[Facts]:
    """Yield the facts with one part more each time, so that an interrupted report shows what is done.

    ``known`` is what the plan was made with.

    Raises:
        ValueError: no plan was.
    """
    if known.space is None:
        raise ValueError("known: no plan was made with these runs; give those of the plan")
    inputs = known.space.inputs
    considered = considered_layouts(facts.plan, inputs)
    sessions = PlanSessions(inputs, samples.ROUNDS)
    own = Scenario(sessions, considered[0].candidate)
    yield (facts := replace(facts, layouts=_scores(considered)))
    load: list[LoadPoint] = []
    for point in _load(own, facts, progress):
        load.append(point)
        yield (facts := replace(facts, load=tuple(load)))
    yield (facts := replace(facts, timeline=_timeline(own)))
    progress("cheaper or faster layouts", 0, 1)
    considered = with_other_objective(considered, inputs, known)
    progress("cheaper or faster layouts", 1, 1)
    yield (facts := replace(facts, layouts=_scores(considered)))
    yield replace(
        facts, sensitivity=_sensitivity(distinct(considered, runnable=True)[:MOST_ALTERNATIVES], inputs, progress)
    )


def _scores(considered: Sequence[ConsideredLayout]) -> list[LayoutScore]:
    drawn = {id(layout) for layout in distinct(considered, runnable=False)}
    return [
        LayoutScore(
            name=layout.name,
            policy=policy_name(layout.policy),
            chosen=place == 0,
            runnable=layout.runnable or place == 0,
            drawn=id(layout) in drawn,
            gpus=layout.predicted.gpus,
            cost_per_hour=layout.predicted.cost_per_hour,
            goodput=layout.predicted.goodput,
            ttft_s=layout.predicted.ttft_p95_s,
            itl_s=layout.predicted.itl_p95_s,
            held=layout.predicted.slo_met,
        )
        for place, layout in enumerate(considered)
    ]


def _load(own: Scenario, facts: Facts, progress: Progress) -> Iterator[LoadPoint]:
    planned = facts.request.workload.arrival_rate
    carried = facts.plan.predicted.goodput
    top = max(1.5 * planned, 1.25 * carried.value if carried is not None else 0.0)
    rates = [planned * share for share in (0.25, 0.5, 0.75, 1.0)]
    rates += [planned + (top - planned) * k / (LOADS - 4) for k in range(1, LOADS - 3)]
    for row in load_rows(own, rates, seeds=SEEDS, progress=progress, what="load"):
        found = row.summary
        yield LoadPoint(
            rate=row.rate,
            ttft_first=found.ttft_first.p95,
            ttft_later=found.ttft_later.p95,
            itl=found.itl.p95,
            attainment=_share(found.attained),
        )


def _share(found: Estimate) -> Estimate:
    """Return a share whose interval does not leave 0 to 1."""
    return Estimate(found.value, max(0.0, found.low), min(1.0, found.high))


def _timeline(own: Scenario) -> ReportTimeline | None:
    rate = own.sessions.inputs.request.workload.arrival_rate
    window = own.sessions.at(rate, 0).window
    outcome: Outcome = own.run(rate, 0, timeline_s=window / MOMENTS)
    found = outcome.timeline
    if found is None:
        return None
    start = WARM_UP * window
    kept = (found.at >= start) & (found.at <= window)
    share = found.kv / np.maximum(outcome.kv_capacity, 1.0)
    return ReportTimeline(
        at=(found.at[kept] - start).tolist(),
        queued=found.queued.sum(axis=1)[kept].tolist(),
        batch=found.batch.sum(axis=1)[kept].tolist(),
        kv=share.max(axis=1)[kept].tolist(),
    )


def _sensitivity(considered: Sequence[ConsideredLayout], inputs: PlanInputs, progress: Progress) -> Sensitivity:
    request = inputs.request
    cases = [(speed, request.workload.arrival_rate * factor) for speed in SPEEDS for factor in RATES]
    shares = _attained(considered, inputs, cases, progress)
    cells = []
    for of_case in shares:
        best = choice(considered, of_case, goal=request.slo.attainment, objective=request.objective)
        cells.append(SensitivityCell(considered[best].name, of_case[best], of_case[0]))
    rows = [cells[at : at + len(RATES)] for at in range(0, len(cells), len(RATES))]
    return Sensitivity(rates=RATES, speeds=SPEEDS, cells=rows)


def _attained(
    considered: Sequence[ConsideredLayout],
    inputs: PlanInputs,
    cases: Sequence[tuple[float, float]],
    progress: Progress,
) -> list[list[float]]:
    """Return each layout's share within the SLO in each case: a speed of the GPUs, and a rate in sessions per second.

    It is 0 for those that could not be the choice.
    """
    sessions = PlanSessions(inputs, samples.SIEVE_ROUNDS)
    for _, rate in cases:
        sessions.at(rate, 0)  # drawn here, so that threads only read
    trials = Trials(inputs)

    def share(run: tuple[int, int]) -> float:
        case, place = run
        speed, rate = cases[case]
        scenario = Scenario(sessions, considered[place].candidate, speed)
        if trials.hopeless(scenario.candidate, rate / speed):
            return 0.0
        return attainment(scenario.run(rate, 0), scenario.reading)

    def shares(runs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], float]:
        found: dict[tuple[int, int], float] = {}
        progress("sensitivity", 0, len(runs))
        for run, attained in zip(runs, in_threads(share, runs), strict=True):
            found[run] = attained
            progress("sensitivity", len(found), len(runs))
        return found

    own = shares([(case, 0) for case in range(len(cases))])
    rivals = shares(
        [(case, place) for case in range(len(cases)) for place in rivals_of(considered, own[case, 0], inputs.request)]
    )
    known = {**own, **rivals}
    return [[known.get((case, place), 0.0) for place in range(len(considered))] for case in range(len(cases))]


def rivals_of(considered: Sequence[ConsideredLayout], own: float, request: Request) -> list[int]:
    """Return the places of the layouts that ``choice`` could prefer to the first, whose share within the SLO is known.

    For ``latency`` no other is clearly better than nearly all; for ``cost`` one that holds the goal is beaten on fewer
    GPUs only.
    """
    others = range(1, len(considered))
    if request.objective == "cost" and own >= request.slo.attainment:
        return [k for k in others if considered[k].candidate.gpus < considered[0].candidate.gpus]
    return [] if request.objective == "latency" and own + CLEARLY >= 1 else [*others]


def choice(considered: Sequence[ConsideredLayout], shares: Sequence[float], *, goal: float, objective: str) -> int:
    """Return the place of the best layout; the plan's own, the first, unless another is clearly better.

    For ``cost`` the fewest GPUs among those that hold the goal; else the highest attainment.
    """
    holding = [k for k, share in enumerate(shares) if share >= goal]
    if objective == "cost" and holding:
        cheapest = min(holding, key=lambda k: (considered[k].candidate.gpus, k))
        same = 0 in holding and considered[0].candidate.gpus == considered[cheapest].candidate.gpus
        return 0 if same else cheapest
    best = max(range(len(shares)), key=lambda k: (shares[k], -considered[k].candidate.gpus, -k))
    return best if shares[best] > shares[0] + CLEARLY else 0
