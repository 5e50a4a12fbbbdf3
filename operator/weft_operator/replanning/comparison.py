"""Comparison of another plan with the active one: equality, size, gain, and room for live sessions. Pure."""

from collections.abc import Mapping
from itertools import product
from typing import Any

from weft_core.layouts import ROLES, duties_of
from weft_core.parallelism import degree_to_json
from weft_core.plan import Alternative, Plan, Prediction, Role
from weft_operator.api.planning import Planning, WorkerRatio
from weft_operator.api.scaling import Bounds
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.metrics.observation import WorkerPressure
from weft_operator.render.inputs import PlanRecord

FULL = 0.9
"""Share of a smaller plan's KV cache that live sessions may take; the rest is for new ones."""

ROUNDING = 1e-6
"""Rounding error of a product with a ratio, in workers."""


def same_rules(old: Plan, new: Plan) -> bool:
    """Return whether workers, layout and routing policy are the same."""
    return same_workers(old, new) and old.policy == new.policy


def same_workers(old: Plan, new: Plan) -> bool:
    """Return whether no worker starts or stops."""
    return sorted(old.groups) == sorted(new.groups) and old.layout == new.layout


def shrinks(old: Plan, new: Plan) -> bool:
    """Return whether the new plan has fewer GPUs."""
    return new.gpus < old.gpus


def within_bounds(spec: DisaggInferenceServiceSpec, plan: Plan) -> str:
    """Return which limit of the spec a plan breaks, "" for none; plans of the planner process are checked, too.

    The cost is computed from the spec's prices, which may differ from those of an older plan.
    """
    planning, capacity = spec.planning, spec.capacity
    if plan.gpus > capacity.gpus:
        return f"it takes {plan.gpus} GPUs and spec.capacity.gpus is {capacity.gpus}"
    cost = 0.0
    for pool in capacity.pools:
        gpus = sum(group.gpus for group in plan.groups if group.pool == pool.name)
        if pool.gpus is not None and gpus > pool.gpus:
            return f"it takes {gpus} GPUs of pool {pool.name} and spec.capacity.pools[{pool.name}].gpus is {pool.gpus}"
        cost += gpus * (pool.price_per_gpu_hour or 0.0)
    if planning.budget_per_hour is not None and cost > planning.budget_per_hour * (1 + 1e-9):
        return f"it costs {cost:g} an hour and spec.planning.budgetPerHour is {planning.budget_per_hour:g}"
    return _workers_within(planning, plan)


def _workers_within(planning: Planning, plan: Plan) -> str:
    workers = {role: sum(group.replicas for group in plan.groups if role in duties_of(group.role)) for role in ROLES}
    shared = plan.layout == "colocated"
    limits: tuple[tuple[Role, Bounds], ...] = (("prefill", planning.prefill), ("decode", planning.decode))
    for role, bounds in limits:
        if shared and role == "prefill":
            continue
        if workers[role] < bounds.min or (bounds.max is not None and workers[role] > bounds.max):
            upper = "" if bounds.max is None else f" to {bounds.max}"
            return f"it has {workers[role]} {role} workers and spec.planning.{role} allows {bounds.min}{upper}"
    if shared:
        return ""
    ratio = planning.ratio or WorkerRatio()
    there = f"it has {workers['prefill']} prefill for {workers['decode']} decode workers and spec.planning.ratio"
    if ratio.min is not None and workers["prefill"] < ratio.min * workers["decode"] - ROUNDING:
        return f"{there}.min is {ratio.min:g}"
    if ratio.max is not None and workers["prefill"] > ratio.max * workers["decode"] + ROUNDING:
        return f"{there}.max is {ratio.max:g}"
    degrees = {role: sorted({one.degree for one in plan.groups if role in duties_of(one.role)}) for role in ROLES}
    allowed = {(pair.prefill, pair.decode) for pair in planning.degree_pairs or ()}
    for pair in product(degrees["prefill"], degrees["decode"]):
        if allowed and pair not in allowed:
            return f"it pairs degrees {pair[0]} and {pair[1]} and spec.planning.degreePairs does not have them"
    return ""


def no_gain(in_force: Plan, candidate: Plan, *, min_improvement: float) -> str:
    """Return why a plan is not worth its change, "" when it is better by ``min_improvement`` with 95 % confidence.

    Both are compared at the same traffic: the planner lists what runs now among the alternatives. A plan that holds
    the SLO where the present one does not is better. For objective ``cost`` what holds the SLO counts by its price,
    else by the sessions per second that it carries within the SLO.
    """
    stays = _as_it_runs(in_force, candidate)
    new = candidate.predicted
    if stays is None:
        # It may not go on as it is (a degree or a bound forbids it), so there is nothing to compare with.
        return ""
    old = stays.predicted
    if new.slo_met != old.slo_met:
        return "" if new.slo_met else "it would miss the SLO, which the active plan holds"
    if candidate.objective == "cost" and new.slo_met:
        before, after = _price(old), _price(new)
        if after < before * (1 - min_improvement):
            return ""
        if after >= before:
            return f"it costs {after / before - 1:.1%} more, and the active plan holds the SLO"
        return f"it saves {1 - after / before:.1%} and spec.planning.minImprovement is {min_improvement:.1%}"
    if new.goodput is None or old.goodput is None or old.goodput.value <= 0:
        return "" if new.goodput is not None and new.goodput.low > 0 else "neither is known to hold the SLO at any load"
    gain = new.goodput.value / old.goodput.value - 1
    if gain <= 0:
        return f"it carries {gain:+.1%} within the SLO"
    if gain <= min_improvement:
        return f"it carries {gain:+.1%} within the SLO and spec.planning.minImprovement is {min_improvement:.1%}"
    if new.goodput.low <= old.goodput.high:
        return f"it carries {gain:+.1%} within the SLO, but that is within the simulations' error"
    return ""


def _as_it_runs(in_force: Plan, candidate: Plan) -> Alternative | None:
    """Return what runs now as the planner judged it at the new traffic, with its own policy where that was tried."""
    same = [
        one
        for one in candidate.alternatives
        if sorted(one.groups) == sorted(in_force.groups) and one.layout == in_force.layout
    ]
    return min(same, key=lambda one: one.policy != in_force.policy, default=None)


def _price(predicted: Prediction) -> float:
    return predicted.cost_per_hour if predicted.cost_per_hour is not None else float(predicted.gpus)


def too_small(record: PlanRecord, candidate: Plan, profiles: Mapping[str, Any], pressure: WorkerPressure) -> str:
    """Return why live sessions would not fit into a plan, "" when they do.

    Their KV is taken to fill every decode worker as far as the fullest one; prompts that wait need every prefill GPU.
    """
    use = pressure.kv_use.get("decode")
    before = _kv_tokens(record.plan, {"": record.profile, **record.profiles})
    after = _kv_tokens(candidate, profiles)
    if after < before and use is None:
        return "no worker tells how full its KV cache is"
    if use is not None and use * before > FULL * after:
        return f"sessions hold up to {use:.0%} of {before:.0f} KV tokens, and it has room for {after:.0f}"
    fewer = _gpus(candidate, "prefill") < _gpus(record.plan, "prefill")
    workers = sum(group.replicas for group in record.plan.groups)
    if fewer and pressure.queue is not None and pressure.queue > workers:
        return f"{pressure.queue:.0f} prefills wait or run on {workers} workers"
    return ""


def _kv_tokens(plan: Plan, profiles: Mapping[str, Any]) -> float:
    """Return the tokens of KV that decode workers hold; ``profiles`` by pool, "" is that of all others."""
    total = 0.0
    for group in plan.groups:
        if group.role != "prefill":
            profile = profiles.get(group.pool) or profiles[""]
            rows = {row["degree"]: row for row in profile["degrees"]}
            total += group.replicas * float(rows.get(degree_to_json(group.degree), {}).get("kvCapacityTokens", 0))
    return total


def _gpus(plan: Plan, role: Role) -> int:
    return sum(group.gpus for group in plan.groups if role in duties_of(group.role))
