"""`weft plan -f` must ask the planner exactly what the operator asks, or the preview would be of another plan."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from weft_operator.api.objects import Manifest
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.planning.request import planner_request
from weft_operator.render.engines.adapters import has_fixed_roles
from weft_operator.scaling.schedules import bounded, in_force, manifest_at
from weft_operator_tests.samples import PROFILE_JSON
from weft_operator_tests.valid import PROFILE, changed, pools_service, rich_service, service, spec, vllm_service
from weft_planner.request.engines import layouts_of
from weft_planner.request.manifest import request_from_service
from weft_planner.request.reading import Request, RequestError, request_of

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
MINIMAL = """
spec:
  model: {name: Qwen/Qwen3-32B, kvCacheDtype: fp8_e4m3, config: {model_type: qwen3, rope_scaling: {factor: 4}}}
  engine: {type: mock, memoryFraction: 0.8}
  slo: {ttft: 1s, itl: 40ms}
  workload:
    arrivalRate: 1
    rounds: {mean: 3}
    firstPrompt: {mean: 800}
    increment: {mean: 300}
    decode: {mean: 100}
  capacity:
    gpus: 8
    pools: [{name: a, gpuType: nvidia-h100, degrees: [4, 2], roles: [decode, prefill]}]
  profile: {analytic: {compute: 0.5}}
  planning: {objective: cost, prefill: {max: 2}, seed: 3}
"""
ROUTINGS = (
    "{}",
    "{policy: ampd, alpha: 0.7, window: 5, statsWindow: 30s}",
    "{policy: ampd, beta: 0.5, ageingCap: 6}",
    "{policy: weft}",
    "{policy: weft, mode: remote-jsq, order: edf, binding: least-requests, params: {width: 0.1}}",
    "{policy: remote-jsq, ageingCap: 9}",
)


def manifests() -> list[Manifest]:
    texts = [path.read_text() for path in sorted(EXAMPLES.glob("*.yaml"))]
    texts += [MINIMAL, *(f"{MINIMAL}  routing: {routing}\n" for routing in ROUTINGS)]
    found = [document for text in texts for document in yaml.safe_load_all(text) if document]
    found = [body for body in found if "slo" in body.get("spec", {}) and "ref" not in body["spec"].get("profile", {})]
    return [*found, service(), vllm_service(), rich_service(), pools_service()]


@pytest.mark.parametrize("body", manifests())
def test_the_preview_asks_what_the_operator_asks(body: Manifest) -> None:
    parsed = DisaggInferenceServiceSpec.model_validate(body["spec"])
    assert request_from_service(body) == request_of(planner_request(parsed))


def test_within_the_hours_of_a_schedule_too() -> None:
    weekend = {"name": "weekend", "days": ["Sat", "Sun"], "begin": "00:00", "end": "00:00", "timeZone": "Europe/Berlin"}
    bounds = {"prefill": {"max": 3}, "decode": {"min": 2}, "gpus": 8}
    given = changed(service(), "spec.planning.prefill", {"min": 2})
    body = changed(given, "spec.planning.schedules", [{**weekend, **bounds}])
    parsed = DisaggInferenceServiceSpec.model_validate(body["spec"])
    asked = []
    for text in ("2026-11-21T12:00+00:00", "2026-11-23T12:00+00:00"):
        now = datetime.fromisoformat(text)
        found = manifest_at(body, now)
        assert found is not None
        within = bounded(parsed, in_force(parsed.planning.schedules, now))
        assert request_from_service(found[0]) == request_of(planner_request(within)), text
        asked.append(found[0]["spec"]["capacity"]["gpus"])
    assert asked == [8, parsed.capacity.gpus]
    assert parsed.capacity.gpus != 8, "the test would pass without the hours"


FIELDS: tuple[tuple[str, Any, str, Any], ...] = (
    ("slo.percentile", 99, "slo.percentile", 99),
    ("slo.attainment", 0.99, "slo.attainment", 0.99),
    ("slo.unit", "round", "slo.unit", "round"),
    ("slo.itlStatistic", "max", "slo.itl_statistic", "max"),
    ("planning.layouts", ["colocated", "disaggregated"], "engine.layouts", ("colocated", "disaggregated")),
    ("planning.mixedDegrees", True, "engine.mixed_degrees", True),
    (
        "planning.degreePairs",
        [{"prefill": 8, "decode": 4}, {"prefill": 4, "decode": 4}],
        "engine.pairs",
        ((4, 4), (8, 4)),
    ),
    ("planning.objective", "cost", "objective", "cost"),
    ("planning.headroom", 0.5, "headroom", 0.5),
    ("planning.minImprovement", 0.2, "min_improvement", 0.2),
    ("planning.prefill", {"min": 2, "max": 3}, "bounds.prefill.max", 3),
    ("planning.decode", {"min": 2}, "bounds.decode.min", 2),
    ("planning.ratio", {"min": 0.5, "max": 2}, "bounds.ratio.min", 0.5),
    ("planning.predictionError", 0.3, "routing.prediction_error", 0.3),
    ("planning.seed", 5, "seed", 5),
    ("engine.kvTransfer", {"bidirectional": False}, "engine.bidirectional", False),
    ("engine.memoryFraction", 0.7, "analytic.memory_fraction", 0.7),
    ("engine.prefill", {"memoryFraction": 0.6}, "analytic.memory_fraction", 0.6),
    ("engine.decode", {"memoryFraction": 0.6}, "analytic.memory_fraction", 0.6),
    ("engine.quantization", "fp8", "model.dtype", "fp8"),
    ("profile", {"analytic": {"kvLink": 0.4}}, "analytic.kv_link", 0.4),
    ("capacity.gpus", 12, "capacity.gpus", 12),
    ("capacity.pools.0.gpus", 8, "capacity.pools.0.gpus", 8),
    ("capacity.pools.0.gpusPerNode", 16, "capacity.pools.0.gpus_per_node", 16),
    ("capacity.pools.0.degrees", [4, 2], "capacity.pools.0.degrees", (2, 4)),
    ("capacity.pools.0.pricePerGpuHour", 3.5, "capacity.pools.0.price_per_gpu_hour", 3.5),
    ("capacity.pools.0.interconnect", {"acrossNodes": 25}, "capacity.pools.0.interconnect.across_nodes", 25e9),
    ("model.maxModelLen", 16384, "model.max_model_len", 16384),
    ("model.kvCacheDtype", "fp8_e5m2", "model.kv_cache_dtype", "fp8"),
    ("routing.statsWindow", "1m", "routing.stats_window", 60.0),
)


@pytest.mark.parametrize(("field", "value", "at", "expected"), FIELDS, ids=[field for field, *_ in FIELDS])
def test_what_is_set_reaches_the_planner_both_ways(field: str, value: Any, at: str, expected: Any) -> None:
    body = changed(service(), f"spec.{field}", value)
    for request in (request_from_service(body), request_of(planner_request(spec(body)))):
        assert value_at(request, at) == expected
        assert value_at(request_from_service(service()), at) != expected, "the test would pass without the field"


def test_the_planner_learns_where_workers_keep_their_role_both_ways() -> None:
    """As the pods are rendered: what one role has of its own, and what repeats the setting of both."""
    cases: list[tuple[Manifest, dict[str, Any]]] = [
        (service(), {}),
        (vllm_service(), {}),
        (vllm_service(), {"spec.engine.decode": {"memoryFraction": 0.9, "args": []}}),
        (vllm_service(), {"spec.engine.decode": {"memoryFraction": 0.8}}),
        (vllm_service(), {"spec.engine.maxNumSeqs": 64, "spec.engine.prefill": {"maxNumSeqs": 64}}),
        (vllm_service(), {"spec.engine.prefill": {"maxNumSeqs": 64}, "spec.engine.decode": {"maxNumSeqs": 64}}),
        (vllm_service(), {"spec.engine.prefill": {"args": ["--seed=7"]}}),
        (
            vllm_service(),
            {"spec.engine.kvTransfer": {"bidirectional": False, "blockTokens": {"prefill": 16, "decode": 32}}},
        ),
        (vllm_service(), {"spec.engine.kvTransfer.blockTokens": {"prefill": 16, "decode": 16}}),
        (vllm_service(), {"spec.podTemplates": [{"component": "decode", "patch": {"metadata": {}}}]}),
        (vllm_service(), {"spec.podTemplates": [{"component": "coordinator", "patch": {"metadata": {}}}]}),
        (vllm_service(), {"spec.podTemplates": [{"patch": {"metadata": {}}}]}),
    ]
    seen = set()
    for body, changes in cases:
        for field, value in changes.items():
            body = changed(body, field, value)
        fixed = has_fixed_roles(spec(body))
        for request in (request_from_service(body), request_of(planner_request(spec(body)))):
            assert request.engine.fixed_roles == fixed, changes
            assert ("symmetric" in layouts_of(request.engine)) == (not fixed)
        seen.add(fixed)
    assert seen == {True, False}


def test_layouts_that_workers_of_one_role_each_cannot_make_are_refused_with_the_fix() -> None:
    body = changed(vllm_service(), "spec.engine.decode", {"maxNumSeqs": 9})
    body = changed(body, "spec.planning.layouts", ["hybrid"])
    words = "hybrid layouts have workers with both roles, .*; remove hybrid, or name no layouts"
    with pytest.raises(RequestError, match=rf"spec\.planning\.layouts: {words}"):
        request_from_service(body)


def value_at(request: Request, path: str) -> Any:
    """Return a field of a request by its dotted path, None behind what is not there."""
    at: Any = request
    for name in path.split("."):
        at = at[int(name)] if isinstance(at, tuple) else getattr(at, name, None)
    return at


def test_pools_prices_and_a_budget_reach_the_planner_both_ways() -> None:
    for request in (request_from_service(pools_service()), request_of(planner_request(spec(pools_service())))):
        h20, h100 = request.capacity.pools
        assert (h20.price_per_gpu_hour, h100.price_per_gpu_hour, request.budget_per_hour) == (2.5, 6, 80)
        assert h100.interconnect is not None
        assert (h100.interconnect.in_node, h100.interconnect.across_nodes) == (200e9, 40e9)
        assert request.engine.mixed_degrees, "several pools may be mixed"
    single = changed(pools_service(), "spec.planning.mixedDegrees", False)
    assert not request_of(planner_request(spec(single))).engine.mixed_degrees


def test_a_profile_for_each_gpu_type_reaches_the_planner_both_ways() -> None:
    other = changed(changed(PROFILE, "metadata.name", "h100"), "spec.gpu", "nvidia-h100")
    body = changed(pools_service(), "spec.profile", {"refs": [{"name": "measured"}, {"name": "h100"}]})
    bodies = [PROFILE_JSON, {**PROFILE_JSON, "gpu": "nvidia-h100"}]
    for request in (
        request_from_service(body, [other, PROFILE]),
        request_of(planner_request(spec(body), profiles=bodies)),
    ):
        assert [request.profile, *request.profiles] == bodies
        assert request.analytic is None
