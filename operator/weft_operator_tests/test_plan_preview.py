"""`weft plan -f` must ask the planner exactly what the operator asks, or the preview would be of another plan."""

from pathlib import Path

import pytest
import yaml

from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.planning.request import planner_request
from weft_planner.manifest import request_from_service
from weft_planner.workload import request_of

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


def manifests() -> list[str]:
    services = (path.read_text() for path in sorted(EXAMPLES.glob("*.yaml")))
    routed = [f"{MINIMAL}  routing: {routing}\n" for routing in ROUTINGS]
    return [MINIMAL, *routed, *(text for text in services if "kind: DisaggInferenceService" in text)]


@pytest.mark.parametrize("text", manifests())
def test_the_preview_asks_what_the_operator_asks(text: str) -> None:
    for document in yaml.safe_load_all(text):
        if not document or "slo" not in document.get("spec", {}) or "ref" in document["spec"].get("profile", {}):
            continue
        spec = DisaggInferenceServiceSpec.model_validate(document["spec"])
        assert request_from_service(document) == request_of(planner_request(spec))
