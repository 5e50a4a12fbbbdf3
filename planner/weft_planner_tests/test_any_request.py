"""Whatever a readable request asks, the answer is a plan that keeps every limit or a reasoned refusal."""

from collections import Counter
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weft_core.gpus import GPUS
from weft_core.layouts import duties_of
from weft_core.models import MODELS
from weft_core.parallelism import gpus_of
from weft_core.plan import PlannedGroup, canonical_json, plan_from_json
from weft_planner.programs.packing import pack
from weft_planner.programs.placement import node_sizes
from weft_planner.request.reading import request_of
from weft_planner_tests.effort import answered

REASONS = {
    "ModelDoesNotFit",
    "ContextDoesNotFit",
    "TooFewGpus",
    "BoundsUnsatisfiable",
    "NotPlaceable",
    "NoPoolForRole",
    "NoPairOfDegrees",
}


TOKEN_S = 0.05
MOST_SESSIONS = 2000.0
"""At once: tens of thousands take minutes to simulate."""


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    gpus = draw(st.integers(2, 8))
    rounds, decode, gap = draw(st.floats(1, 20)), draw(st.floats(0.5, 2_000)), draw(st.sampled_from([0.0, 0.5, 30.0]))
    seconds = rounds * (gap + TOKEN_S * decode)
    return {
        "model": {"name": draw(st.sampled_from(sorted(MODELS))), "maxModelLen": draw(st.integers(256, 60_000))},
        "engine": {"bidirectional": draw(st.booleans())},
        "slo": {"ttft": draw(st.floats(0.05, 20)), "itl": draw(st.floats(0.005, 0.5))},
        "workload": {
            "arrivalRate": draw(st.sampled_from([r for r in (0.01, 0.3, 2.0, 20.0) if r * seconds <= MOST_SESSIONS])),
            "rounds": rounds,
            "firstPrompt": draw(st.floats(0.5, 20_000)),
            "increment": draw(st.floats(0.5, 5_000)),
            "decode": decode,
            "gap": gap,
        },
        "capacity": {
            "gpus": gpus,
            "pools": [
                {
                    "name": "a",
                    "gpuType": draw(st.sampled_from(sorted(GPUS))),
                    "gpusPerNode": draw(st.sampled_from([2, 3, 4, 8])),
                    "degrees": draw(st.sampled_from([[1], [2], [1, 2, 4, 8], [2, 3]])),
                    "roles": ["prefill", "decode"],
                }
            ],
        },
        "bounds": {"prefill": {"min": draw(st.integers(1, 2))}, "decode": {"max": draw(st.integers(1, 3))}},
        "objective": draw(st.sampled_from(["latency", "cost"])),
        "seed": draw(st.integers(0, 3)),
    }


@given(bodies())
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_answer_keeps_every_limit_or_gives_a_reason(body: dict[str, Any]) -> None:
    result = answered(request_of(body))
    canonical_json(result)  # no NaN, no infinity
    if result["status"] == "infeasible":
        assert result["reason"] in REASONS
        assert len(str(result["message"])) > 40
        return
    assert isinstance(result["plan"], dict)
    plan = plan_from_json(result["plan"])
    pool = body["capacity"]["pools"][0]
    counts = Counter({role: group.replicas for group in plan.groups for role in duties_of(group.role)})
    prefilling = counts["decode" if plan.layout == "colocated" else "prefill"]
    assert prefilling >= body["bounds"]["prefill"]["min"]
    assert 1 <= counts["decode"] <= body["bounds"]["decode"]["max"]
    assert plan.gpus <= body["capacity"]["gpus"]
    nodes = node_sizes(body["capacity"]["gpus"], pool["gpusPerNode"])
    assert fits(nodes, pool["gpusPerNode"], plan.groups)
    assert plan.predicted.attainment is not None
    assert plan.predicted.slo_met == (plan.predicted.attainment.value >= 0.9)
    assert (plan.shortfall is None) == plan.predicted.slo_met
    for alternative in plan.alternatives:
        assert fits(nodes, pool["gpusPerNode"], alternative.groups)
    again = answered(request_of(body))
    assert canonical_json(again) == canonical_json(result)


def fits(nodes: list[int], gpus_per_node: int, groups: tuple[PlannedGroup, ...]) -> bool:
    """Return whether the workers can be placed: one larger than a node takes whole ones, wherever they are."""
    degrees = [gpus_of(group.degree) for group in groups for _ in range(group.replicas)]
    whole = sum(degree // gpus_per_node for degree in degrees if degree > gpus_per_node)
    within = [degree for degree in degrees if degree <= gpus_per_node]
    assert all(degree % gpus_per_node == 0 for degree in degrees if degree > gpus_per_node)
    return pack(nodes, [gpus_per_node] * whole + within) is not None
