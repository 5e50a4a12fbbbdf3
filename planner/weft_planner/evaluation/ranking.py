"""Rank layouts by full runs: goodput at the SLO, or the cheapest that holds it with headroom; ties in one fixed way."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from weft_core.layouts import only_roles_differ
from weft_core.plan import PlannedGroup, Prediction
from weft_planner.evaluation.candidates import (
    Candidate,
    current_groups,
    other_kinds,
    runnable_policies,
    with_policies,
)
from weft_planner.evaluation.goodput_search import CLOSE, STEP, Finalist, GoodputBracket, finalists, goodputs
from weft_planner.evaluation.predictions import predict
from weft_planner.evaluation.shortlist import Groups, SearchSpace, cheapest_layouts, layouts, price_of
from weft_planner.evaluation.threads import in_threads
from weft_planner.evaluation.trials import Trials, remarks
from weft_planner.phases.latency import decode_load
from weft_planner.request.engines import has_fixed_roles
from weft_planner.simulation.statistics import estimate
from weft_planner.stages import IN_FULL, Progress, ignore_progress

RUNNABLE = 4
ADVISED = 2
"""Candidates that are simulated in full, with every seed. Six runnable ones instead of four changed the plan of none of
bench.paper.regret's first 40 random services. The best of another kind, when the service does not allow it, is one of
those that are only advised."""
ROOM = 1.2
"""From this many times the workload's rate on a goodput leaves room enough for queues to settle at once."""
SLACK = 0.1
"""Points of attainment by which a very short run may err: a layout that misses the goal by more is not run longer."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A finalist with its prediction, what an hour costs (GPUs where no prices are known), and whether it would do.

    ``holds``: the SLO is met at the planning load, with headroom for objective cost. ``remarks``: what to know of its
    runs.
    """

    candidate: Candidate
    predicted: Prediction
    money: float
    holds: bool
    remarks: tuple[str, ...] = ()

    @property
    def goodput(self) -> float:
        """Return the sessions per second up to which the SLO holds."""
        return self.predicted.goodput.value if self.predicted.goodput is not None else 0.0

    @property
    def groups(self) -> tuple[PlannedGroup, ...]:
        """Return the groups."""
        return self.candidate.groups

    def shares(self, ttft_slo: float, itl_slo: float) -> tuple[float, float]:
        """Return P95 TTFT and ITL as shares of the SLO, to a percent, so that noise decides no tie."""
        return round(self.predicted.ttft_p95_s / ttft_slo, 2), round(self.predicted.itl_p95_s / itl_slo, 2)


def rank(
    space: SearchSpace, trials: Trials, *, few: int | None = None, progress: Progress | None = None
) -> list[Evaluation]:
    """Return the finalists, best first; the first that is runnable is the plan.

    ``few``: only so many that are runnable, and none that is only advised.
    """
    count = RUNNABLE if few is None else few
    request = space.inputs.request
    rate, goal = request.workload.arrival_rate, request.slo.attainment
    wanted = 1 + request.headroom if request.objective == "cost" else 1.0

    def holds(groups: Groups) -> bool:
        tries = [Candidate("disaggregated", groups, policy) for policy in runnable_policies(request)]
        return any(row[0] >= goal for row in trials.attained(tries, rate * wanted))

    at_least = cheapest_layouts(space, holds)
    chosen = list(dict.fromkeys([*(at_least if request.objective == "cost" else ()), *layouts(space)]))
    entered = with_policies(space.inputs, chosen) + other_kinds(space.inputs, chosen)
    runnable = [c for c in entered if c.runnable]
    advised = [c for c in entered if not c.runnable] if few is None else []
    start = _start(trials, entered, rate)
    picked: list[Finalist] = []
    if request.objective == "cost":
        picked = _cheapest(space, trials, runnable, rate=rate, wanted=wanted, goal=goal, count=count)
    if len(picked) < count:
        best = finalists(trials, runnable, rate=rate, goal=goal, start=start, count=count - len(picked))
        picked += best
    if not any(one.candidate.kind == "disaggregated" for one in picked):  # what the others are compared with
        apart = [c for c in runnable if c.kind == "disaggregated"]
        picked += finalists(trials, apart, rate=rate, goal=goal, start=start, count=1)
    if request.objective == "latency" and at_least:
        least = min(at_least, key=lambda groups: price_of(space, groups))
        thrift = [c for c in with_policies(space.inputs, [least]) if c.runnable]
        picked += finalists(trials, thrift, rate=rate, goal=goal, start=1.0, count=1)
    running = current_groups(space.inputs)
    staying = [c for c in runnable if running and c.groups == running]
    picked += finalists(trials, staying, rate=rate, goal=goal, start=1.0, count=1) if staying else []
    held = max((one.bracket.holds for one in picked), default=0.0)
    carried, start = rate * held, held or start
    others = _largest(c for c in advised if c.kind != "disaggregated")
    picked += finalists(trials, others, rate=rate, goal=goal, start=start, count=1)
    modes = _as_good(trials, [c for c in advised if c.kind == "disaggregated"], rate=carried, goal=goal)
    picked += finalists(trials, modes, rate=rate, goal=goal, start=start, count=ADVISED - bool(others))
    unique = list({standing.candidate.key: standing for standing in picked}.values())
    report = progress or ignore_progress
    report(IN_FULL, 0, len(unique))
    evaluations = []
    for one in in_threads(lambda standing: _in_full(space, trials, standing, rate=rate, goal=goal), unique):
        evaluations.append(one)
        report(IN_FULL, len(evaluations), len(unique))
    return _ranked(space, evaluations)


def _start(trials: Trials, candidates: Sequence[Candidate], rate: float) -> float:
    """Return the multiple of the rate to begin at: a power of STEP at half of what the best could carry at all."""
    most = max(trials.load_bound.most(c.groups) for c in candidates) / rate
    return STEP ** math.floor(math.log(max(0.5 * most, 1e-3)) / math.log(STEP))


def _largest(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return of layouts that differ in the number of workers only the largest: what is advised carries the most."""
    found: dict[object, Candidate] = {}
    for c in sorted(candidates, key=lambda c: -c.gpus):
        shape = c.groups if len(c.groups) > 1 else [(g.pool, g.degree) for g in c.groups]
        found.setdefault((c.kind, str(shape), c.policy.route, c.policy.mode, c.policy.chunk_share), c)
    return list(found.values())


def _as_good(trials: Trials, candidates: Sequence[Candidate], *, rate: float, goal: float) -> list[Candidate]:
    """Return those that hold the SLO at a rate, all of them where it is 0: what carries less is no advice."""
    if rate == 0:
        return list(candidates)
    shares = trials.attained(candidates, rate, sieve=True)
    return [c for c, row in zip(candidates, shares, strict=True) if row[0] >= goal]


def _cheapest(
    space: SearchSpace,
    trials: Trials,
    candidates: Sequence[Candidate],
    *,
    rate: float,
    wanted: float,
    goal: float,
    count: int,
) -> list[Finalist]:
    """Return the ``count`` cheapest candidates that hold the SLO with headroom in a run of one seed.

    The cheapest run first, of those as cheap the ones that do best in a very short run, until there are enough.
    """
    able = [c for c in candidates if not trials.known_to_miss(c, rate * wanted, goal - SLACK)]
    shares = trials.attained(able, rate * wanted, sieve=True)
    likely = [(price_of(space, c.groups), -row[0], c.key, c) for c, row in zip(able, shares, strict=True)]
    left = [c for _, share, _, c in sorted(likely) if -share >= goal - SLACK]
    held: list[Finalist] = []
    while left and len(held) < count:
        tried, left = left[:count], left[count:]
        rows = trials.attained(tried, rate * wanted)
        held += [
            Finalist(c, GoodputBracket(1.0, math.inf), row[0])
            for c, row in zip(tried, rows, strict=True)
            if row[0] >= goal
        ]
    held.sort(key=lambda s: (price_of(space, s.candidate.groups), -s.attained, s.candidate.key))
    return held[:count]


def _in_full(space: SearchSpace, trials: Trials, standing: Finalist, *, rate: float, goal: float) -> Evaluation:
    request, candidate = space.inputs.request, standing.candidate
    values = goodputs(trials, candidate, standing.bracket, rate=rate, goal=goal)
    outcomes = trials.outcomes(candidate, settled=fmean(values) >= ROOM * rate)
    predicted = predict(
        request,
        candidate.groups,
        outcomes,
        space.inputs.profiles,
        goodput=estimate(values),
        carried=_carried(space, candidate),
        overloaded=trials.overloaded(candidate, rate),
    )
    enough = predicted.goodput is not None and predicted.goodput.value >= rate * (1 + request.headroom)
    holds = predicted.slo_met and (request.objective == "latency" or enough)
    money = price_of(space, candidate.groups)
    return Evaluation(candidate, predicted, money, holds, remarks(outcomes))


def _carried(space: SearchSpace, candidate: Candidate) -> dict[PlannedGroup, float]:
    """Return what share of its tokens per second, or KV, a lone decode group uses: batches grow with the load."""
    decode = [group for group in candidate.groups if group.role == "decode"]
    if candidate.kind != "disaggregated" or len(decode) != 1:
        return {}
    (group,) = decode
    load = decode_load(space.inputs.phases[group.pool], degree=group.degree, workers=group.replicas)
    return {group: load.utilisation}


def _ranked(space: SearchSpace, evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Return what is judged in order: what holds first; for cost by money; then by goodput.

    Goodputs within CLOSE of the best that is left, or at the top of what is tried, count as equal: then lower latency
    (as a share of the SLO, the worse of both first, TTFT before ITL), fewer GPUs, and the layout's name decide.
    """
    request = space.inputs.request
    slo = request.slo

    def key(one: Evaluation) -> tuple[float, ...]:
        ttft, itl = one.shares(slo.ttft, slo.itl)
        return max(ttft, itl), ttft, itl, float(one.candidate.gpus)

    def group(one: Evaluation) -> tuple[bool, float]:
        return not one.holds, one.money if request.objective == "cost" and one.holds else 0.0

    left = sorted(evaluations, key=lambda one: (*group(one), -one.goodput, one.candidate.key))
    ranked: list[Evaluation] = []
    while left:
        first = left[0]
        close = [one for one in left if group(one) == group(first) and one.goodput >= (1 - CLOSE) * first.goodput]
        best = min(close, key=lambda one: (key(one), one.candidate.key))
        ranked.append(best)
        left.remove(best)
    return _settled(space, ranked)


def _settled(space: SearchSpace, ranked: list[Evaluation]) -> list[Evaluation]:
    """Put what runs now first, unless the best is better by more than ``minImprovement``: changes have a price.

    Where the engine can, workers change their roles within seconds: then CLOSE is enough for the same workers.
    """
    running = current_groups(space.inputs)
    request = space.inputs.request
    best = next((one for one in ranked if one.candidate.runnable), None)
    stays = next((one for one in ranked if one.candidate.runnable and one.groups == running), None)
    if best is None or stays is None or stays is best or not running or (best.holds and not stays.holds):
        return ranked
    least = request.min_improvement
    if only_roles_differ(best.groups, running) and not has_fixed_roles(request.engine):
        least = min(least, CLOSE)
    if request.objective == "cost" and best.holds:
        better = best.money < (1 - least) * stays.money
    else:
        better = best.goodput > (1 + least) * stays.goodput
    return ranked if better else [stays, *(one for one in ranked if one is not stays)]
