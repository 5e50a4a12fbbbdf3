"""A checker of plans that shares nothing with the planner but the request's JSON and the plan's data types.

It reads the request as its author wrote it and derives every limit again: ``broken_limits`` names those that a plan
breaks, ``every_layout`` tries every layout of a small request, ``confirms`` tells whether a refusal is true.
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

from weft_core.layouts import ROLES, WORKER_ROLES, PlannedGroup, duties_of
from weft_core.parallelism import Degree, gpus_of
from weft_core.plan import Plan

Json = Mapping[str, Any]
Groups = Sequence[PlannedGroup]

ROUNDING = 1e-6
PREDICTED = 1e-3
"""Predictions are rounded to six places; latencies below a millisecond are none that a plan depends on."""
DIVIDING = ("vllm", "sglang", "neuron")
"""Engines of which one degree has to divide the other for KV to be exchanged."""
UNBOUNDED = 4096
PLENTY = 24
"""GPUs, and nodes, that are enough for whatever a small request asks."""


def broken_limits(body: Json, plan: Plan) -> list[str]:
    """Return what a plan breaks of what its request asks, empty when it keeps everything."""
    broken = broken_layout(body, plan.groups)
    if broken:
        return broken
    predicted, slo = plan.predicted, body["slo"]
    broken = [f"sloMet: {predicted.slo_met}, yet a shortfall"] if predicted.slo_met and plan.shortfall else []
    broken += ["shortfall: none, yet the SLO is missed"] if not predicted.slo_met and not plan.shortfall else []
    if predicted.gpus != plan.gpus:
        broken.append(f"predicted.gpus: {predicted.gpus} is not {plan.gpus}")
    prices = {pool["name"]: pool.get("pricePerGpuHour") for pool in body["capacity"]["pools"]}
    if all(price is not None for price in prices.values()):
        cost = sum(group.gpus * prices[group.pool] for group in plan.groups)
        if predicted.cost_per_hour is None or not math.isclose(predicted.cost_per_hour, cost, rel_tol=1e-4):
            broken.append(f"costPerHour: {predicted.cost_per_hour} is not {cost}")
    if predicted.attainment is None:
        broken.append("attainment: none")
    elif predicted.slo_met != (predicted.attainment.value >= slo.get("attainment", 0.9)):
        broken.append(f"sloMet: {predicted.slo_met} at an attainment of {predicted.attainment.value}")
    placed = {(group.role, group.degree, group.pool) for group in plan.groups}
    if {(use.role, use.degree, use.pool) for use in predicted.use} != placed:
        broken.append("use: not of the plan's groups")
    broken += [f"kvPeak: {use.kv_peak} of the KV cache" for use in predicted.use if use.kv_peak > 1 + ROUNDING]
    broken += [f"utilisation: {use.utilisation}" for use in predicted.use if use.utilisation > 1 + ROUNDING]
    alone = min(lone_prefill_s(body, group, 1.0) for group in plan.groups)
    if predicted.ttft_p95_s < alone - PREDICTED:
        broken.append(f"ttftP95: {predicted.ttft_p95_s} s, yet a prefill alone on an idle worker takes {alone} s")
    step = min(step_s(body, group) for group in plan.groups if group.role != "prefill")
    if predicted.itl_p95_s < step - PREDICTED:
        broken.append(f"itlP95: {predicted.itl_p95_s} s, yet a step with one sequence takes {step} s")
    offered = offered_prefill(body, plan.groups)
    workers = sum(group.replicas for group in plan.groups)
    if predicted.slo_met and offered > workers * (1 + ROUNDING):
        broken.append(f"sloMet: prefill alone keeps {offered:.2f} workers busy, there are {workers}")
    return broken


def broken_layout(body: Json, groups: Groups) -> list[str]:
    """Return which limits on workers, GPUs, nodes, memory, pairs and money a layout breaks."""
    pools = {pool["name"]: pool for pool in body["capacity"]["pools"]}
    strange = [group.pool for group in groups if group.pool not in pools]
    if strange:
        return [f"pool: {strange[0]} is none of the request's"]
    return [
        *_broken_groups(body, pools, groups),
        *_broken_counts(body, groups),
        *_broken_room(body, pools, groups),
        *_broken_pairs(body, groups),
    ]


def _broken_groups(body: Json, pools: Mapping[str, Json], groups: Groups) -> Iterator[str]:
    engine = body.get("engine", {})
    kind = _kind(groups)
    alone = kind == "colocated"
    if kind not in engine["layouts"]:
        yield f"layout: {kind} is none of {engine['layouts']}"
    if not any("decode" in duties_of(group.role) for group in groups):
        yield "decode: no group"
    for role in WORKER_ROLES:
        count = sum(group.role == role for group in groups)
        if count > 1 and not engine.get("mixedDegrees", False):
            yield f"{role}: {count} groups without mixedDegrees"
    if len({(group.role, group.pool, group.degree) for group in groups}) < len(groups):
        yield "groups: one is there twice"
    for group in groups:
        pool = pools[group.pool]
        node = pool.get("gpusPerNode", 8)
        # Co-located workers do both.
        for role in ROLES if alone else duties_of(group.role):
            if role not in pool.get("roles", ROLES):
                yield f"{group.pool}: may not hold {role}"
        if group.degree not in pool.get("degrees", (1, 2, 4, 8)):
            yield f"{group.pool}: degree {group.degree} is none of the pool's"
        if gpus_of(group.degree) > node and gpus_of(group.degree) % node:
            yield f"{group.pool}: degree {group.degree} fills nodes of {node} GPUs in part"
        costs = costs_of(body, pool["gpuType"]).get(group.degree)
        if costs is None:
            yield f"{group.pool}: degree {group.degree} is not in the profile"
        elif costs["kvCapacityTokens"] < body["model"].get("maxModelLen", 32768):
            yield f"{group.pool}: a context does not fit a worker of degree {group.degree}"


def _kind(groups: Groups) -> str:
    roles = {group.role for group in groups}
    if "both" in roles:
        return "symmetric" if roles == {"both"} else "hybrid"
    return "colocated" if roles == {"decode"} else "disaggregated"


def _broken_counts(body: Json, groups: Groups) -> Iterator[str]:
    bounds = body.get("bounds", {})
    total = {role: sum(group.replicas for group in groups if role in duties_of(group.role)) for role in ROLES}
    alone = _kind(groups) == "colocated"
    for role in ROLES[1:] if alone else ROLES:
        bound = bounds.get(role, {})
        least, most = bound.get("min", 1), bound.get("max") or UNBOUNDED
        if not least <= total[role] <= most:
            yield f"bounds.{role}: {total[role]} workers are not {least} to {most}"
    ratio = bounds.get("ratio", {})
    low, high = ratio.get("min") or 0.0, ratio.get("max") or math.inf
    if not alone and not low * total["decode"] - ROUNDING <= total["prefill"] <= high * total["decode"] + ROUNDING:
        yield f"bounds.ratio: {total['prefill']} to {total['decode']} is not {low} to {high}"


def _broken_room(body: Json, pools: Mapping[str, Json], groups: Groups) -> Iterator[str]:
    most = body["capacity"]["gpus"]
    used = sum(gpus_of(group.degree) * group.replicas for group in groups)
    if used > most:
        yield f"capacity.gpus: {used} of {most}"
    for name, pool in pools.items():
        here = [group for group in groups if group.pool == name]
        taken = sum(gpus_of(group.degree) * group.replicas for group in here)
        if taken > (pool.get("gpus") or most):
            yield f"{name}: {taken} GPUs of {pool.get('gpus')}"
        node = pool.get("gpusPerNode", 8)
        parts = [
            part
            for group in here
            for _ in range(group.replicas)
            for part in ([group.degree] if group.degree <= node else [node] * (group.degree // node))
        ]
        if not _packs(tuple(sorted(nodes_of(pool, most))), tuple(sorted(parts))):
            yield f"{name}: the nodes have no room for {parts}"
    budget = body.get("budgetPerHour")
    if budget is not None:
        cost = sum(gpus_of(group.degree) * group.replicas * pools[group.pool]["pricePerGpuHour"] for group in groups)
        if cost > budget + ROUNDING:
            yield f"budgetPerHour: {cost} of {budget}"


def _broken_pairs(body: Json, groups: Groups) -> Iterator[str]:
    engine = body.get("engine", {})
    sizes = engine.get("blockSizes") or {}
    if len(sizes) == 2 and sizes["prefill"] != sizes["decode"]:
        listed = [list(pair) for pair in engine.get("blockPairs", [])]
        free = not listed and engine.get("type", "") not in (*DIVIDING, "tensorrt-llm")
        if _kind(groups) != "colocated" and not (free or [sizes["prefill"], sizes["decode"]] in listed):
            yield f"engine.blockSizes: {sizes} do not pair"
    for one, other in product(groups, groups):
        if "prefill" not in duties_of(one.role) or "decode" not in duties_of(other.role):
            continue
        n, m = one.degree, other.degree
        if engine.get("pairs") is not None:
            if [n, m] not in [list(pair) for pair in engine["pairs"]]:
                yield f"engine.pairs: {n} with {m} is not listed"
        elif engine.get("type", "") in DIVIDING and max(gpus_of(n), gpus_of(m)) % min(gpus_of(n), gpus_of(m)):
            yield f"engine: {n} and {m} do not divide each other"


def nodes_of(pool: Json, gpus: int) -> list[int]:
    """Return the free GPUs of each node: those that were seen, else full nodes and one with the rest."""
    if pool.get("nodes") is not None:
        return list(pool["nodes"])
    left, size = min(pool.get("gpus") or gpus, gpus), pool.get("gpusPerNode", 8)
    return [min(size, left - at) for at in range(0, left, size)]


@cache
def _packs(nodes: tuple[int, ...], parts: tuple[int, ...]) -> bool:
    """Return whether each part has room on one node, by trying every node for each; both are sorted."""
    if not parts:
        return True
    *rest, largest = parts
    if sum(parts) > sum(nodes):
        return False
    return any(
        _packs(tuple(sorted([*nodes[:at], free - largest, *nodes[at + 1 :]])), tuple(rest))
        for at, free in enumerate(nodes)
        # Of nodes with the same room one is enough.
        if free >= largest and free not in nodes[:at]
    )


def costs_of(body: Json, gpu: str) -> dict[Degree, Json]:
    """Return the request's own cost figures of a GPU type by degree."""
    given = [body["profile"], *body.get("profiles", [])]
    return {row["degree"]: row for profile in given if profile["gpu"] == gpu for row in profile["degrees"]}


def lone_prefill_s(body: Json, group: PlannedGroup, tokens: float) -> float:
    """Return what prefilling a prompt takes on an idle worker of a group: the slowest of the regimes."""
    pool = next(pool for pool in body["capacity"]["pools"] if pool["name"] == group.pool)
    slowest = max(
        piece["alpha"] + piece["perToken"] * tokens + piece["perPair"] * tokens * tokens / 2
        for piece in costs_of(body, pool["gpuType"])[group.degree]["prefill"]
    )
    return float(slowest)


def step_s(body: Json, group: PlannedGroup) -> float:
    """Return what a decode step with one sequence takes at least."""
    pool = next(pool for pool in body["capacity"]["pools"] if pool["name"] == group.pool)
    return float(max(p["alpha"] + p["perSequence"] for p in costs_of(body, pool["gpuType"])[group.degree]["decode"]))


def offered_prefill(body: Json, groups: Groups) -> float:
    """Return how many workers the prefills keep busy at least, as if every history were cached everywhere.

    The cost of a prefill is convex in its length, so that the mean length costs less than the mean of the costs.
    """
    load = body["workload"]
    first, later = (
        min(lone_prefill_s(body, group, load[key]) for group in groups) for key in ("firstPrompt", "increment")
    )
    return float(load["arrivalRate"] * (first + (load["rounds"] - 1) * later))


def every_layout(body: Json) -> Iterator[tuple[PlannedGroup, PlannedGroup]]:
    """Yield every layout of one prefill and one decode group that keeps all limits, by trying all counts."""
    most = body["capacity"]["gpus"]
    prefill, decode = (
        [
            PlannedGroup(role, degree, count, pool["name"])
            for pool in body["capacity"]["pools"]
            if role in pool.get("roles", ROLES) and _holds_context(body, pool)
            for degree in pool.get("degrees", (1, 2, 4, 8))
            for count in range(1, most // degree + 1)
        ]
        for role in ROLES
    )
    for groups in product(prefill, decode):
        if sum(group.gpus for group in groups) <= most and not broken_layout(body, groups):
            yield groups


def confirms(body: Json, reason: str, message: str) -> bool:
    """Return whether a refusal is true: no layout keeps all limits, and its reason is what keeps them out.

    No pool for a role and no room for a context keep every layout out, whatever else does; of the others each layout
    must be kept out by the named limit alone, unless the message says that several are.
    """
    if next(every_layout(body), None) is not None:
        return False
    able = [pool for pool in body["capacity"]["pools"] if _holds_context(body, pool)]
    if reason == "ContextDoesNotFit":
        return not able
    if reason == "NoPoolForRole":
        return any(all(role not in pool.get("roles", ROLES) for pool in able) for role in ROLES)
    if "several limits at once" in message:
        return all(next(every_layout(freed), None) is None for freed in _freed_by_one(body))
    return next(every_layout(_without(body, reason)), None) is not None


def _freed_by_one(body: Json) -> Iterator[dict[str, Any]]:
    """Yield the request without each single limit in turn."""
    for path in ("bounds.prefill.min", "bounds.decode.min", "bounds.decode.max", "bounds.ratio", "budgetPerHour"):
        yield changed(body, path, None)
    yield changed(body, "capacity.gpus", PLENTY)
    for i, pool in enumerate(body["capacity"]["pools"]):
        if pool.get("gpus") is not None:
            yield changed(body, f"capacity.pools.{i}.gpus", PLENTY)
        if pool.get("nodes") is not None:
            yield changed(body, f"capacity.pools.{i}.nodes", [pool.get("gpusPerNode", 8)] * PLENTY)
    yield _without(body, "NoPairOfDegrees")


def _holds_context(body: Json, pool: Json) -> bool:
    costs, node = costs_of(body, pool["gpuType"]), pool.get("gpusPerNode", 8)
    return any(
        costs[n]["kvCapacityTokens"] >= body["model"].get("maxModelLen", 32768)
        for n in pool.get("degrees", (1, 2, 4, 8))
        if n in costs and (n <= node or n % node == 0)
    )


def _without(body: Json, reason: str) -> dict[str, Any]:
    """Return a request without the limit that a refusal names; all other limits stay."""
    free = copy.deepcopy(dict(body))
    if reason in ("TooFewGpus", "NotPlaceable"):
        free["capacity"]["gpus"] = PLENTY
        for pool in free["capacity"]["pools"]:
            pool.pop("gpus", None)
            pool["nodes"] = [pool.get("gpusPerNode", 8)] * PLENTY
    elif reason == "BoundsUnsatisfiable":
        free.pop("bounds", None)
    elif reason == "NoPairOfDegrees":
        free["engine"] = {**free.get("engine", {}), "type": "", "pairs": None, "blockSizes": None}
    elif reason == "OverBudget":
        free["budgetPerHour"] = None
    else:
        raise AssertionError(f"{reason} is no reason that this checker knows")
    return free


def changed(body: Json, path: str, value: object) -> dict[str, Any]:
    """Return the request with one field set, or removed where the value is None; list places are numbers."""
    result = copy.deepcopy(dict(body))
    target: Any = result
    *parents, last = path.split(".")
    for key in parents:
        target = target[int(key)] if isinstance(target, list) else target.setdefault(key, {})
    if value is None:
        target.pop(last, None)
    else:
        target[last] = value
    return result
