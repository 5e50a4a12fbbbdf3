"""Explain a stored plan: what decided it, why the others lost, what it assumes, and what would change it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from weft_core.layouts import layout_name, named_workers
from weft_core.plan import Alternative, Plan
from weft_core.prediction import Prediction
from weft_planner.tables.figures import money

SEARCHES = {
    "optimal": "Candidates are proved best by the integer program.",
    "incumbent": "The solver's time ran out: the best layout found by then; a better one may exist.",
    "enumeration": "Every layout was tried, because the solver gave no answer.",
    "heuristic": "Found by a rule of thumb, because the solver gave no answer; a better one may exist.",
}
SIMULATED = " They were then simulated with the rules that will run, beside co-located, symmetric and hybrid layouts."


@dataclass(frozen=True, slots=True)
class RejectedLayout:
    """A layout under a policy that was not chosen, and why."""

    name: str
    policy: str
    gpus: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Sections of sentences about a plan."""

    chosen: str
    how_found: str
    constraints: tuple[str, ...]
    rejected: tuple[RejectedLayout, ...]
    assumptions: tuple[str, ...]


def explain(plan: Plan) -> Explanation:
    """Return the explanation."""
    return Explanation(
        chosen=layout_name(plan.groups, plan.layout),
        how_found=SEARCHES[plan.search] + (SIMULATED if plan.predicted.source == "simulation" else ""),
        constraints=tuple(_constraints(plan)),
        rejected=tuple(
            RejectedLayout(
                layout_name(other.groups, other.layout),
                "-" if other.policy is None else str(other.policy),
                other.predicted.gpus,
                tuple(_reasons(plan, other)),
            )
            for other in plan.alternatives
        ),
        assumptions=tuple(_assumptions(plan)),
    )


def _constraints(plan: Plan) -> Iterator[str]:
    """Yield what the layout runs into, the nearest first."""
    words = {
        "compute": "the {workers} compute {share:.0%} of the time",
        "kv": "the fullest KV cache of the {workers} is {share:.0%} full at its peak",
        "link": "KV transfers take {share:.0%} of the links",
        "ttft": "TTFT takes {share:.0%} of its threshold",
        "itl": "ITL takes {share:.0%} of its threshold",
    }
    for limit in plan.predicted.limits:
        workers = "workers" if limit.role is None else named_workers(limit.role)
        text = words[limit.kind].format(workers=workers, share=limit.share)
        yield text + (": this is where it breaks first" if limit == plan.predicted.limits[0] else "")
    if plan.predicted.kv_headroom is not None:
        yield f"{plan.predicted.kv_headroom:.0%} of the KV memory stays free at the peak"
    if not plan.nodes_seen:
        yield "nodes were taken as empty and of the pool's shape: free GPUs of real nodes were not known"
    if plan.shortfall is not None:
        yield f"the SLO is missed for want of {plan.shortfall.binding}: {plan.shortfall.message}"


def _reasons(plan: Plan, other: Alternative) -> Iterator[str]:
    """Yield why an alternative ranks lower; at least one reason."""
    mine, theirs = plan.predicted, other.predicted
    found = [*_better(mine, theirs)] if not other.runnable else []
    found += _worse(plan, mine, theirs)
    if other.note:
        found.append(other.note)
    elif not other.runnable:
        found.append("this operator cannot deploy it")
    if found:
        yield from found
    elif plan.objective == "cost" and theirs.gpus == mine.gpus:
        yield "it takes as many GPUs and comes later in order"
    else:
        yield "it predicts no better, so the plan's order decided"


def _better(mine: Prediction, theirs: Prediction) -> Iterator[str]:
    """Yield what a layout that cannot run would bring."""
    if theirs.goodput and mine.goodput and theirs.goodput.value > mine.goodput.value > 0:
        apart = "" if theirs.goodput.low > mine.goodput.high else ", within the error of both"
        yield f"its goodput would be {theirs.goodput.value / mine.goodput.value - 1:+.0%}{apart}"


def _worse(plan: Plan, mine: Prediction, theirs: Prediction) -> Iterator[str]:
    if mine.slo_met and not theirs.slo_met:
        yield "it misses the SLO"
    if theirs.goodput and mine.goodput and theirs.goodput.value < mine.goodput.value:
        apart = "" if theirs.goodput.high < mine.goodput.low else ", within the error of both"
        yield f"its goodput is {theirs.goodput.value / mine.goodput.value - 1:+.0%}{apart}"
    if theirs.gpus > mine.gpus:
        yield f"it takes {theirs.gpus - mine.gpus} more GPUs"
    elif theirs.gpus < mine.gpus and plan.objective == "latency":
        yield f"it takes {mine.gpus - theirs.gpus} fewer GPUs, but the objective is latency"
    if _much(theirs.ttft_p95_s, mine.ttft_p95_s):
        yield f"its TTFT is {_times(theirs.ttft_p95_s, mine.ttft_p95_s)}"
    if _much(theirs.itl_p95_s, mine.itl_p95_s):
        yield f"its ITL is {_times(theirs.itl_p95_s, mine.itl_p95_s)}"
    if theirs.cost_per_hour and mine.cost_per_hour and theirs.cost_per_hour > mine.cost_per_hour:
        yield f"it costs {money(theirs.cost_per_hour - mine.cost_per_hour)} more an hour"


def _much(theirs: float, mine: float) -> bool:
    """Return whether a latency is more than a hundredth longer: less is beyond what predictions know."""
    return theirs > mine * 1.01


def _times(theirs: float, mine: float) -> str:
    return "unbounded" if not math.isfinite(theirs) else f"{theirs / mine:.3g} times as long"


def _assumptions(plan: Plan) -> Iterator[str]:
    if plan.slo_reading:
        yield plan.slo_reading
    if plan.predicted.source == "phases":
        yield "Each phase was predicted alone; prefill and decode disturbing each other is not in the figures."
    yield from plan.notes
