"""Random small requests, and the proof that each answer is a plan that keeps every limit or a refusal that is true.

``python -m weft_planner_tests.checked_plans 1000`` proves it of as many requests.
"""

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from weft_core.cost import LINKS, CostProfile, DecodePiece, DegreeCosts, Link, PrefillPiece, TransferCost
from weft_core.parallelism import Degree
from weft_core.plan import Plan, PlannedGroup, plan_from_json
from weft_core.profile_json import profile_to_json
from weft_planner.request.reading import request_of
from weft_planner_tests.effort import answered, shorten
from weft_planner_tests.plan_checker import broken_layout, broken_limits, changed, confirms, every_layout

DEGREES = (1, 2, 3, 4)
LAYOUTS = [["disaggregated"], ["disaggregated", "colocated"]]
LAYOUTS_OF_BOTH = [["disaggregated", "symmetric"], ["disaggregated", "colocated", "symmetric", "hybrid"]]
"""Lists of layouts that a service may name where an engine's workers can have both roles."""


def random_body(seed: int) -> dict[str, Any]:
    """Return a request of up to 8 GPUs in one or two pools, with every kind of limit in some of the requests."""
    rng = random.Random(seed)

    def sometimes(share: float) -> bool:
        return rng.random() < share

    gpus = rng.randint(2, 8)
    priced = sometimes(0.5)
    pools = [_pool(rng, name, priced=priced) for name in ("a", "b")[: rng.choice([1, 1, 2])]]
    profiles = [profile_to_json(_profile(rng, kind)) for kind in sorted({pool["gpuType"] for pool in pools})]
    bounds: dict[str, Any] = {
        "prefill": {"min": rng.choice([1, 1, 1, 2, 4])},
        "decode": {"min": rng.choice([1, 1, 2])} | ({"max": rng.randint(2, 4)} if sometimes(0.3) else {}),
    }
    if sometimes(0.2):
        bounds["ratio"] = rng.choice([{"min": 2.0}, {"max": 0.5}, {"min": 1.0, "max": 1.0}, {"min": 3.5}])
    kind = rng.choice(["", "vllm", "sglang", "tensorrt-llm", "neuron", "mock"])
    allowed = LAYOUTS[:1] if kind in ("sglang", "neuron") else LAYOUTS
    engine: dict[str, Any] = {
        "type": kind,
        "bidirectional": sometimes(0.7),
        "mixedDegrees": sometimes(0.3),
        "layouts": rng.choice(allowed + (LAYOUTS_OF_BOTH if kind in ("", "vllm", "mock") else [])),
    }
    if sometimes(0.15):
        engine["pairs"] = [[rng.choice(DEGREES), rng.choice(DEGREES)] for _ in range(rng.randint(1, 2))]
    if sometimes(0.1):
        engine["blockSizes"] = {"prefill": 16, "decode": rng.choice([16, 32])}
    body: dict[str, Any] = {
        "model": {"name": "m", "maxModelLen": rng.choice([2_000] * 6 + [8_000, 30_000, 200_000])},
        "engine": engine,
        "slo": {"ttft": rng.choice([0.2, 1.0, 5.0]), "itl": rng.choice([0.02, 0.05, 0.2])},
        "workload": {
            "arrivalRate": rng.choice([0.05, 0.5, 3.0]),
            "rounds": rng.choice([1, 3, 6]),
            "firstPrompt": rng.choice([50, 400, 1_200]),
            "increment": rng.choice([20, 100]),
            "decode": rng.choice([10, 80]),
            "gap": rng.choice([0.0, 2.0]),
        },
        "capacity": {"gpus": gpus, "pools": pools},
        "profile": profiles[0],
        "profiles": profiles[1:],
        "bounds": bounds,
        "objective": rng.choice(["latency", "cost"]),
        "seed": rng.randint(0, 3),
    }
    if priced and sometimes(0.4):
        body["budgetPerHour"] = rng.choice([2.5, 6.0, 15.0])
    return body


def _pool(rng: random.Random, name: str, *, priced: bool) -> dict[str, Any]:
    size = rng.choice([2, 3, 4, 8])
    usable = [n for n in DEGREES if n <= size or n % size == 0]
    pool: dict[str, Any] = {
        "name": name,
        "gpuType": rng.choice(["g", "h"]),
        "gpusPerNode": size,
        "degrees": sorted({rng.choice(usable) for _ in range(3)}),
        "roles": rng.choice([["prefill", "decode"]] * 16 + [["prefill"], ["decode"]]),
    }
    if rng.random() < 0.3:
        pool["gpus"] = rng.randint(1, 8)
    if rng.random() < 0.4:
        pool["nodes"] = [rng.randint(0, size) for _ in range(rng.randint(1, 4))]
    if priced:
        pool["pricePerGpuHour"] = rng.choice([1.0, 2.0, 3.5])
    return pool


def _profile(rng: random.Random, gpu: str) -> CostProfile:
    speed = rng.choice([1.0, 3.0])
    costs: dict[Degree, DegreeCosts] = {
        n: DegreeCosts(
            prefill=(PrefillPiece(0.01, per_token=4e-4 / n / speed, per_pair=1e-8), PrefillPiece(0.03 / speed)),
            decode=(DecodePiece(0.01 / speed, 2e-4 / n, 1e-8, per_chunk_token=4e-4 / n),),
            weight_bytes_per_gpu=10**9,
            kv_capacity_tokens=15_000 * n,
        )
        for n in DEGREES
    }
    transfers: dict[tuple[Degree, Degree, Link], TransferCost] = {
        (s, d, link): TransferCost(0.002, 1e-6) for s in costs for d in costs for link in LINKS
    }
    return CostProfile("m", gpu, "e", 1000, costs, transfers)


def check_answer(seed: int) -> str:
    """Check what the planner answers to one random request; return the reason of a refusal, "" for a plan."""
    body = random_body(seed)
    answer = answered(request_of(body))
    if answer["status"] == "ok":
        plan = plan_from_json(cast(Mapping[str, object], answer["plan"]))
        assert not broken_limits(body, plan), f"seed {seed}: {broken_limits(body, plan)}"
        for other in plan.alternatives:
            if other.runnable:
                assert not broken_layout(body, other.groups), f"seed {seed}: {broken_layout(body, other.groups)}"
        return ""
    reason, message = str(answer["reason"]), str(answer["message"])
    assert confirms(body, reason, message), f"seed {seed}: {message} is not what keeps layouts out"
    for remedy in cast(dict[str, Any], answer["shortfall"])["remedies"]:
        helped = changed(body, remedy["path"], remedy["value"])
        assert next(every_layout(helped), None), f"seed {seed}: {remedy} is no remedy"
    return f"{reason}, together" if "several limits at once" in message else reason


Mutation = Callable[[dict[str, Any], Plan], tuple[dict[str, Any], Plan]]


def _grown(index: int, **changes: int | str) -> Mutation:
    def mutated(body: dict[str, Any], plan: Plan) -> tuple[dict[str, Any], Plan]:
        groups = list(plan.groups)
        groups[index] = replace(groups[index], **cast(Any, changes))
        return body, replace(plan, groups=tuple(groups))

    return mutated


def _predicted(**changes: object) -> Mutation:
    return lambda body, plan: (body, replace(plan, predicted=replace(plan.predicted, **cast(Any, changes))))


def _asked(path: str, value: object) -> Mutation:
    return lambda body, plan: (changed(body, path, value), plan)


def _more_of_the_same(body: dict[str, Any], plan: Plan) -> tuple[dict[str, Any], Plan]:
    first = plan.groups[0]
    other = PlannedGroup(first.role, 1 if first.degree != 1 else 2, 1, first.pool)
    return body, replace(plan, groups=(other, *plan.groups))


MUTATIONS: dict[str, Mutation] = {
    "more workers than GPUs": _grown(0, replicas=9),
    "a degree that the pool has not": _grown(1, degree=5),
    "a pool that is not there": _grown(1, pool="c"),
    "no prefill": lambda body, plan: (body, replace(plan, groups=plan.groups[1:])),
    "two groups of a role": _more_of_the_same,
    "fewer workers than asked": _asked("bounds.prefill.min", 5),
    "more workers than asked": _asked("bounds.decode.max", 0.5),
    "another ratio": _asked("bounds.ratio", {"min": 7.0}),
    "fewer GPUs": _asked("capacity.gpus", 1),
    "smaller nodes": _asked("capacity.pools.0.nodes", []),
    "a longer context": _asked("model.maxModelLen", 10**6),
    "no pair": _asked("engine.pairs", [[7, 7]]),
    "blocks that do not pair": _asked("engine.blockSizes", {"prefill": 16, "decode": 17}),
    "another layout": _asked("engine.layouts", ["colocated"]),
    "a role that the pool may not hold": _asked("capacity.pools.0.roles", []),
    "a dearer plan": _asked("budgetPerHour", 0.01),
    "another price": _predicted(cost_per_hour=0.5),
    "an SLO that is met by word alone": _predicted(slo_met=False),
    "faster than a lone prefill": _predicted(ttft_p95_s=1e-3),
    "faster than a lone step": _predicted(itl_p95_s=1e-4),
    "more load than there is time": _asked("workload.arrivalRate", 1e4),
    "no use": _predicted(use=()),
    "other GPUs": _predicted(gpus=99),
}
"""What must not pass the checker: a plan that keeps every limit, or its request, changed in one thing."""


def kept_plan() -> tuple[dict[str, Any], Plan]:
    """Return a request whose plan keeps every limit and its SLO, with prices and both roles."""
    for seed in range(1000):
        body = random_body(seed)
        if len(body["engine"]["layouts"]) > 1 or "budgetPerHour" in body or body["engine"]["mixedDegrees"]:
            continue
        body["engine"] |= {"type": "vllm"}
        for pool in body["capacity"]["pools"]:
            pool["pricePerGpuHour"] = 2.0
        answer = answered(request_of(body))
        if answer["status"] == "ok":
            plan = plan_from_json(cast(Mapping[str, object], answer["plan"]))
            if (
                plan.predicted.slo_met
                and len({group.pool for group in plan.groups}) == 1
                and plan.groups[0].pool == "a"
            ):
                return body, plan
    raise AssertionError("no such plan")


def main() -> int:
    """Check as many answers as the command line says, with the short simulations of the tests."""
    shorten(setattr)
    begin = time.perf_counter()
    reasons = Counter(check_answer(seed) for seed in range(int(sys.argv[1])))
    told = ", ".join(f"{count} {reason or 'plans'}" for reason, count in reasons.most_common())
    sys.stdout.write(f"answers: {reasons.total()} checked in {time.perf_counter() - begin:.0f} s: {told}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
