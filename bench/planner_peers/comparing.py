"""Compare both planners in a cell: each answers for every SLO and workload, and both models judge both answers."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.paper.layouts import large_request
from bench.planner_peers import peer
from bench.planner_peers.cells import SINGLE, Cell, Slo, Traffic
from bench.planner_peers.judging import Judge
from bench.planner_peers.peer import Configuration, Unsupported
from bench.planner_peers.planning import PlanAnswer, plan_for, rate_matched, request, strategies_for
from bench.planner_peers.record import Comparison, Contender
from bench.planner_peers.tables import NoTables, profile_of_tables

from weft_core.cost import CostProfile
from weft_core.layouts import LayoutKind
from weft_core.parallelism import gpus_of
from weft_planner.evaluation.candidates import Candidate
from weft_planner.plan.solve import solve
from weft_planner.programs.solver import Solver
from weft_planner.request.infeasible import Infeasible
from weft_planner.request.reading import Request
from weft_planner.simulation import PolicyChoice

log = logging.getLogger("bench.planner_peers")
KINDS: tuple[LayoutKind, ...] = ("disaggregated", "colocated")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A cell's comparisons; without any, why it is left out. ``notes`` say what was not to be had."""

    cell: str
    comparisons: tuple[Comparison, ...] = ()
    left_out: str = ""
    notes: tuple[str, ...] = ()


def compare(cell: Cell, slos: Sequence[Slo], traffics: Sequence[Traffic]) -> Outcome:
    """Return what a cell shows."""
    notes: list[str] = []
    asked = [(slo, traffic) for slo in slos for traffic in traffics]
    answers = {(slo, traffic.name): dict(_answers(cell, slo, traffic, notes)) for slo, traffic in asked}
    theirs = [group.degree for found in answers.values() for one in found.values() for group in one.groups]
    try:
        tables = profile_of_tables(cell, list(dict.fromkeys((*cell.strategies, *theirs))))
    except NoTables as error:
        return Outcome(str(cell), left_out="; ".join((str(error), *notes)))
    notes += tables.left_out
    with Solver() as solver:
        solve(large_request(8), solver=solver)  # loads the simulator: plans are timed
        found = [
            _comparison(cell, slo, traffic, tables.profile, answers[slo, traffic.name], solver, notes)
            for slo, traffic in asked
            if answers[slo, traffic.name]
        ]
    kept = tuple(one for one in found if one is not None)
    return Outcome(str(cell), kept, "" if kept else "; ".join(notes), tuple(dict.fromkeys(notes)))


def _answers(cell: Cell, slo: Slo, traffic: Traffic, notes: list[str]) -> Iterator[tuple[LayoutKind, Configuration]]:
    for kind in KINDS:
        try:
            yield kind, peer.best(cell, slo, traffic, kind)
        except Unsupported as error:
            notes.append(f"aiconfigurator, {kind}, {traffic.name}, {slo.name}: {error}")


def _comparison(
    cell: Cell,
    slo: Slo,
    traffic: Traffic,
    profile: CostProfile,
    answers: dict[LayoutKind, Configuration],
    solver: Solver,
    notes: list[str],
) -> Comparison | None:
    osl = traffic.lengths[1]
    most = max(one.tokens_per_s_gpu for one in answers.values())
    rate = most * cell.gpus / osl / traffic.rounds
    strategies = strategies_for(profile, cell, slo, traffic)
    asked = request(cell, slo, traffic, profile, rate=rate, strategies=strategies)
    try:
        mine = plan_for(asked, solver)
    except Infeasible as error:
        notes.append(f"Weft, {traffic.name}, {slo.name}: {error}")
        return None
    known = dict(_simulated(cell, slo, traffic, profile, answers, notes))
    groups = [*mine.candidate.groups, *(group for one in known.values() for group in one.groups)]
    judge = Judge(cell, slo, traffic, profile, rate=rate, groups=groups)
    contenders = {kind: _contender(one, known.get(kind), judge) for kind, one in answers.items()}
    return Comparison(
        cell=str(cell),
        slo=slo.name,
        workload=traffic.name,
        rate=rate,
        weft=_weft(cell, slo, traffic, mine, judge),
        disaggregated=contenders.get("disaggregated"),
        aggregated=contenders.get("colocated"),
        weft_s=mine.seconds,
        weft_cpu_s=mine.cpu_seconds,
        peer_s=sum(one.seconds for one in answers.values()),
        matched=_matched(cell, slo, traffic, profile, asked),
    )


def _weft(cell: Cell, slo: Slo, traffic: Traffic, mine: PlanAnswer, judge: Judge) -> Contender:
    candidate = mine.candidate
    goodput = judge.goodput(candidate)
    return Contender(
        layout=str(candidate),
        gpus=candidate.gpus,
        policy=str(candidate.policy),
        tokens_per_s_gpu=peer.rate(cell, slo, traffic, candidate.kind, candidate.groups),
        goodput=goodput,
        rerouted=goodput,
    )


def _matched(cell: Cell, slo: Slo, traffic: Traffic, profile: CostProfile, asked: Request) -> Contender | None:
    """Return Weft's rate matching of single rounds, by aiconfigurator's model alone."""
    if traffic != SINGLE:
        return None
    found = rate_matched(asked, profile)
    if found is None:
        return Contender("no layout holds the SLO", 0, "")
    return Contender(str(found), found.gpus, "", peer.rate(cell, slo, traffic, found.kind, found.groups))


def _simulated(
    cell: Cell,
    slo: Slo,
    traffic: Traffic,
    profile: CostProfile,
    answers: dict[LayoutKind, Configuration],
    notes: list[str],
) -> Iterator[tuple[LayoutKind, Configuration]]:
    """Yield the configurations to simulate: the answers, or the best of workers that the profile has."""
    for kind, one in answers.items():
        found = one
        if not _known(one, profile):
            try:
                found = peer.best(cell, slo, traffic, kind, sizes=sorted(set(map(gpus_of, profile.degrees))))
            except Unsupported:
                found = one
        if _known(found, profile):
            yield kind, found
        else:
            notes.append(f"aiconfigurator's {kind} answer ({_layout(one)}), {traffic.name}, {slo.name}: not simulated")


def _known(found: Configuration, profile: CostProfile) -> bool:
    return all(group.degree in profile.degrees for group in found.groups)


def _contender(answer: Configuration, found: Configuration | None, judge: Judge) -> Contender:
    gpus, layout = sum(group.gpus for group in answer.groups), _layout(answer)
    if found is None:
        return Contender(layout, gpus, "", answer.tokens_per_s_gpu)
    goodput, policy = judge.of_routers(found)
    simulated = _layout(found)
    return Contender(
        layout,
        gpus,
        policy,
        answer.tokens_per_s_gpu,
        goodput,
        judge.rerouted(found),
        "" if simulated == layout else simulated,
    )


def _layout(found: Configuration) -> str:
    return str(Candidate(found.kind, found.groups, PolicyChoice()))
