"""Say why the best plan misses the SLO: which threshold, the nearest SLO that holds, the GPUs that would hold it."""

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from weft_core.shortfall import Constraint, Remedy, Shortfall
from weft_planner.evaluation.candidates import Candidate, runnable_policies
from weft_planner.evaluation.ranking import SLACK, Evaluation
from weft_planner.evaluation.shortlist import Groups, SearchSpace, least_gpus, prune
from weft_planner.evaluation.slo_units import units_of
from weft_planner.evaluation.trials import Trials, reading_of
from weft_planner.plan.field_search import with_field
from weft_planner.plan.reasons import thresholds
from weft_planner.programs.inputs import PlanInputs, prepare_inputs
from weft_planner.programs.search import LayoutSearch
from weft_planner.request.parts import Objectives
from weft_planner.request.reading import Request
from weft_planner.workload.distributions import Floats

MOST_GPUS = 1024
MARGIN = 1.03
"""A relaxed threshold is above what was seen by a number of such steps, the fewest that the simulation holds."""
STEPS = 24
OTHERS = 4
"""Layouts of the best latencies by phases from which the nearest SLO is looked for, beside the plan's own."""
FAR = 100.0
"""An SLO this many times as loose is none: the queue grows for as long as the simulation runs."""


@dataclass(frozen=True, slots=True)
class _Nearest:
    """The nearest SLO that holds in seconds, and what had to be relaxed."""

    ttft: float
    itl: float
    binding: Constraint


def shortfall_of(space: SearchSpace, trials: Trials, best: Evaluation) -> Shortfall:
    """Return what keeps the best plan from holding the SLO, and what would do."""
    inputs, search = space.inputs, space.search
    request = inputs.request
    overloaded = trials.overloaded(best.candidate, request.workload.arrival_rate)
    nearest = None if overloaded else _nearest(space, trials, best)
    enough = _enough_gpus(inputs, search, best)
    binding: Constraint = nearest.binding if nearest is not None else "gpus"
    if request.budget_per_hour is not None and enough is not None and enough <= request.capacity.gpus:
        binding = "budget"
    free = all(pool.gpus is None and pool.nodes is None for pool in request.capacity.pools)
    remedies = []
    if nearest is not None and nearest.itl == request.slo.itl:
        remedies.append(Remedy("slo.ttft", nearest.ttft))
    elif nearest is not None and nearest.ttft == request.slo.ttft:
        remedies.append(Remedy("slo.itl", nearest.itl))
    if enough is not None and binding == "budget":
        remedies.insert(0, Remedy("budgetPerHour", _price(request, enough)))
    elif enough is not None and free and request.budget_per_hour is None:
        remedies.append(Remedy("capacity.gpus", enough))
    return Shortfall(
        binding=binding,
        message=_message(request, best, nearest, enough, binding),
        nearest_ttft_s=None if nearest is None else nearest.ttft,
        nearest_itl_s=None if nearest is None else nearest.itl,
        least_gpus=enough,
        remedies=tuple(remedies),
    )


def _nearest(space: SearchSpace, trials: Trials, best: Evaluation) -> _Nearest | None:
    """Return the nearest SLO that these GPUs hold: one threshold where that is enough, else both in proportion.

    Policies read the thresholds, so the layout that comes closest to an SLO may not be the best for a looser one. The
    layouts that the phases rank best are therefore tried too, from what the phases alone need.
    """
    found = _from(space.inputs, best.candidate, *_seen(space.inputs, trials, best), nearer=None)
    if best.candidate.kind != "disaggregated":
        return found
    for layout in space.best(OTHERS):
        shares = layout.prefill.share, layout.decode.share
        if max(shares) < FAR:
            other = replace(best.candidate, groups=layout.groups)
            factors = max(1.0, shares[0]), max(1.0, shares[1])
            found = _from(space.inputs, other, factors, (shares[0] > 1, shares[1] > 1), nearer=found) or found
    return found


def _seen(inputs: PlanInputs, trials: Trials, best: Evaluation) -> tuple[tuple[float, float], tuple[bool, bool]]:
    """Return by how much (TTFT, ITL) must be looser, from the runs of the best plan, and which may be raised."""
    slo = inputs.request.slo
    runs = [units_of(outcome, reading_of(inputs.request)) for outcome in trials.outcomes(best.candidate)]
    ttft = np.concatenate([run.ttft / run.ttft_slo for run in runs])
    itl = np.concatenate([run.itl / run.itl_slo for run in runs])
    relaxed = _least_factors(ttft, itl, slo.attainment)
    if slo.itl_statistic == "p95" and relaxed[1] > 1:
        relaxed = relaxed[0], 1.0  # a share of gaps, not a time: begin at the threshold and step
    return relaxed, (relaxed[0] > 1, itl_misses(itl, slo.attainment))


def _from(
    inputs: PlanInputs,
    candidate: Candidate,
    factors: tuple[float, float],
    loosen: tuple[bool, bool],
    *,
    nearer: _Nearest | None,
) -> _Nearest | None:
    """Return the nearest SLO that a layout holds, looser than factors (TTFT, ITL) tell; None beyond ``nearer``.

    The steps are halved by runs of one seed, and the SLO found is confirmed by all. Where the phases alone need no
    looser threshold, both are loosened: the phases interfere.
    """
    slo = inputs.request.slo
    steps = loosen if any(loosen) else (True, True)
    binding: Constraint = "ttft" if factors[0] >= factors[1] else "itl"
    most = FAR if nearer is None else _farther(nearer, slo)

    def looser(count: int) -> _Nearest:
        ttft, itl = (f * MARGIN**count if step else f for f, step in zip(factors, steps, strict=True))
        return _Nearest(_figure(slo.ttft * ttft), _figure(slo.itl * itl), binding)

    def holds(count: int, *, full: bool = False) -> bool:
        tried = looser(count)
        request = with_field(with_field(inputs.request, "slo.ttft", tried.ttft), "slo.itl", tried.itl)
        (shares,) = Trials(inputs.asking(request)).attained([candidate], request.workload.arrival_rate, full=full)
        return fmean(shares) >= slo.attainment

    near = [n for n in range(1, STEPS + 1) if _farther(looser(n), slo) < most]  # none where one is not a number
    first = bisect_left(near, True, key=holds) if near and holds(near[-1]) else len(near)
    return next((looser(count) for count in near[first:] if holds(count, full=True)), None)


def _farther(nearest: _Nearest, slo: Objectives) -> float:
    """Return how many times as loose an SLO is as the one asked for, by the threshold that is looser."""
    return max(nearest.ttft / slo.ttft, nearest.itl / slo.itl)


def _least_factors(ttft: Floats, itl: Floats, goal: float) -> tuple[float, float]:
    """Return by how much (TTFT, ITL) thresholds must grow at least for the goal: one alone where that does."""
    count = max(1, math.ceil(goal * len(ttft)))
    for fixed, grown in ((itl, ttft), (ttft, itl)):
        reach = np.sort(grown[fixed <= 1])
        if len(reach) >= count and math.isfinite(reach[count - 1]):
            factor = max(1.0, float(reach[count - 1]))
            return (factor, 1.0) if fixed is itl else (1.0, factor)
    both = float(np.sort(np.maximum(ttft, itl))[count - 1])
    return both, both


def itl_misses(itl: Floats, goal: float) -> bool:
    """Return whether ITL alone keeps more units out than the goal allows."""
    return float((itl <= 1).mean()) < goal


def _larger(request: Request, best: Evaluation) -> list[int]:
    """Return GPU counts on which to look for enough: about what the goodput says is lacking, and twice that.

    Without any goodput it is not the load that keeps the SLO from holding, so one look is enough.
    """
    gpus = request.capacity.gpus
    if best.goodput <= 0:
        return [min(MOST_GPUS, 2 * gpus)]
    wanted = request.workload.arrival_rate * (1 + request.headroom if request.objective == "cost" else 1.0)
    lacking = max(1.25, 1.25 * wanted / best.goodput)
    return sorted({min(MOST_GPUS, math.ceil(factor * gpus * lacking)) for factor in (1, 2)})


def _enough_gpus(inputs: PlanInputs, search: LayoutSearch, best: Evaluation) -> int | None:
    """Return about the fewest GPUs, in pools without end, on which a layout holds the SLO; None: not found."""
    request = inputs.request
    for gpus in _larger(request, best):
        pools = tuple(pool.model_copy(update={"gpus": None, "nodes": None}) for pool in request.capacity.pools)
        larger = request.model_copy(
            update={
                "capacity": request.capacity.model_copy(update={"gpus": gpus, "pools": pools}),
                "budget_per_hour": None,
            }
        )
        trials_inputs = prepare_inputs(larger)
        space = prune(trials_inputs, search)
        if space is None:
            continue
        trials = Trials(trials_inputs)

        def holds(groups: Groups, trials: Trials = trials) -> bool:
            tries = [Candidate("disaggregated", groups, policy) for policy in runnable_policies(request)]
            rate = request.workload.arrival_rate * (1 + request.headroom if request.objective == "cost" else 1.0)
            goal = request.slo.attainment
            short = trials.attained(tries, rate, sieve=True)
            likely = [c for c, row in zip(tries, short, strict=True) if row[0] >= goal - SLACK]
            longer = trials.attained(likely, rate)
            held = [c for c, row in zip(likely, longer, strict=True) if row[0] >= goal]
            return any(fmean(row) >= goal for row in trials.attained(held, rate, full=True))

        found = least_gpus(space, holds)
        if found is not None:
            return found
    return None


def _price(request: Request, gpus: int) -> float:
    """Return what so many GPUs cost at most."""
    return gpus * max(pool.price_per_gpu_hour or 0.0 for pool in request.capacity.pools)


def _message(
    request: Request, best: Evaluation, nearest: _Nearest | None, enough: int | None, binding: Constraint
) -> str:
    slo = request.slo
    attained = best.predicted.attainment
    share = f"{attained.value:.1%} of {slo.unit}s meet the SLO, {slo.attainment:.0%} are wanted" if attained else ""
    parts = [f"{binding}: {share}"]
    if nearest is not None:
        parts.append(f"an SLO of {thresholds(nearest.ttft, nearest.itl)} would hold on these GPUs")
    else:
        carried = best.goodput / request.workload.arrival_rate
        parts.append(f"these GPUs carry about {carried:.0%} of the arrival rate")
    if enough is not None:
        parts.append(f"{enough} GPUs would hold the SLO")
    else:
        parts.append(f"not even {_larger(request, best)[-1]} GPUs would hold it")
    return "; ".join(parts)


def _figure(value: float) -> float:
    return float(f"{value:.6g}")
