"""`weft plan -f` refuses what the API server refuses, and nothing that it accepts."""

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import yaml

import weft_cli as cli
from weft_core.request_fields import ROUTER_FIELD_PREFIXES, ROUTER_FIELDS
from weft_operator.api.crd import cost_profile_crd, service_crd
from weft_operator.commands.manifest_checks import PATTERN_MESSAGES, profile_messages, service_messages
from weft_operator.errors import StalledError
from weft_operator.kube.stored_service import parse_service
from weft_operator_tests.invalid import CASES, OPERATOR_ONLY_CASES, PROFILE_CASES
from weft_operator_tests.invalid_case import Case, plain_rule
from weft_operator_tests.valid import PROFILE, changed, service, vllm_service
from weft_router.openai.body import sanitise

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
CHECKS = {"DisaggInferenceService": service_messages, "CostProfile": profile_messages}


def test_the_checks_are_found_under_the_kinds() -> None:
    assert {point.name: point.load() for point in entry_points(group="weft.manifest_checks")} == CHECKS


@pytest.mark.parametrize("case", [*CASES, *PROFILE_CASES, *OPERATOR_ONLY_CASES], ids=lambda case: case.name)
def test_an_invalid_manifest_is_refused(case: Case) -> None:
    found = CHECKS[case.body["kind"]](case.body)
    assert found
    if case.rule:
        assert words(case.rule) in [words(plain_rule(message)) for message in found]


def words(message: str) -> str:
    """Return a message without its field: a rule that several fields share names the one that broke it here."""
    return message.partition(": ")[2]


def patterns(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield every pattern that the API server checks somewhere in a schema."""
    if "pattern" in schema:
        yield schema["pattern"]
    inner = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
    for part in inner:
        if isinstance(part, dict):
            yield from patterns(part)


@pytest.mark.parametrize("crd", [service_crd, cost_profile_crd])
def test_no_pattern_is_reported_to_people_as_one(crd: Callable[[], dict[str, Any]]) -> None:
    spec = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    untold = {pattern for pattern in patterns(spec) if pattern not in PATTERN_MESSAGES}
    assert untold == set(), "add a message for the pattern to PATTERN_MESSAGES"


def test_a_url_without_a_scheme_is_told_what_one_looks_like() -> None:
    (said,) = service_messages(changed(service(), "spec.planning.prometheus", {"url": "prometheus:9090"}))
    assert said == (
        "spec.planning.prometheus.url: must be a URL such as http://prometheus.monitoring:9090, without ? and # "
        "(got 'prometheus:9090')"
    )


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_the_examples_pass(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        if document and document.get("kind") in CHECKS:
            assert CHECKS[document["kind"]](document) == []


@pytest.mark.parametrize(
    "body",
    [
        service(),
        vllm_service(),
        changed(service(), "spec.planning", None),
        changed(service(), "spec.model.source", None),
        changed(service(), "spec.capacity.gpus", 16.0),
        changed(service(), "status", {"planSummary": "P4x2 D8x1"}),
        changed(service(), "metadata.annotations", {"a": "b"}),
        changed(service(), "spec.model.config", {"model_type": "gemma3", "text_config": {"sliding_window": None}}),
    ],
    ids=["mock", "vllm", "null with default", "null without", "whole float", "status", "annotations", "model config"],
)
def test_what_the_api_server_accepts_passes(body: dict[str, Any]) -> None:
    assert service_messages(body) == []


def test_a_valid_profile_passes() -> None:
    assert profile_messages(PROFILE) == []
    assert profile_messages(changed(PROFILE, "spec", None)) == ["spec: is missing; add it"]


POOL = "spec.capacity.pools.0"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("apiVersion", "weft.dev/v1", "apiVersion: must be weft.dev/v1alpha1"),
        ("metadata.name", "Bad_NAME", "metadata.name: use at most 40 characters"),
        ("metadata.name", None, "metadata.name: is missing; add it"),
        ("metadata.name", 5, "metadata.name: must be text; put it in quotes (got 5)"),
        ("spec.bogus", 1, "spec.bogus: unknown field; remove it"),
        ("spec.bogus", None, "spec.bogus: unknown field; remove it"),
        ("spec.plannig", {}, "spec.plannig: unknown field; did you mean planning?"),
        ("spec.routing.stats_window", "9s", "spec.routing.stats_window: unknown field; did you mean statsWindow?"),
        ("spec.engine.type", "nonsense", "spec.engine.type: must be 'vllm', 'sglang'"),
        (
            "spec.imagePullSecrets",
            [{"name": "regcred"}],
            "spec.imagePullSecrets[0]: must be the name alone, not an object as in a pod; write regcred",
        ),
        ("spec.routing.policy", "foo", "spec.routing.policy: must be 'always-local', 'always-remote', 'ampd',"),
        ("spec.routing.alpha", "lots", "spec.routing.alpha: must be a number (got 'lots'); ampd: a prefill worker"),
        ("spec.slo.ttft", 5000, "spec.slo.ttft: must be a duration such as 50ms, 5s or 1m30s (got 5000)"),
        ("spec.workload.gap.mean", "3 sec", "spec.workload.gap.mean: must be a duration such as 50ms, 5s or"),
        (
            "spec.workload.decode.quantiles",
            {"at": [0, 0.5], "values": [1, 2]},
            "spec.workload.decode.quantiles: at must rise from 0 to 1",
        ),
        ("spec.planning.decode", {"min": 3, "max": 2}, "spec.planning.decode: min is above max; lower min"),
        (f"{POOL}.degrees", [3], "spec.capacity.pools[0].degrees: must be powers of two"),
        ("spec.capacity.pools", [], "spec.capacity.pools: must have 1 to 16 entries"),
        (
            "spec.profile.analytic.prefillOverhead",
            "15m",
            "spec.profile.analytic.prefillOverhead: must be a number (got '15m'); Seconds added to every prefill",
        ),
        ("spec.slo.itl", "20s", "spec.slo.ttft: must be longer than spec.slo.itl"),
        ("spec.capacity.gpus", "16", "spec.capacity.gpus: must be a whole number (got '16')"),
        ("spec.capacity.gpus", "1Gi", "spec.capacity.gpus: must be a whole number (got '1Gi')"),
        (
            "spec.coordinator.limits.maxBytesInFlight",
            "1Gi",
            "spec.coordinator.limits.maxBytesInFlight: must be a whole number of bytes, such as 1073741824 (got '1Gi')",
        ),
        (
            "spec.coordinator.limits.maxBodyBytes",
            "large",
            "spec.coordinator.limits.maxBodyBytes: must be a whole number of bytes, such as 1073741824 (got 'large')",
        ),
        ("spec.capacity.gpus", True, "spec.capacity.gpus: must be a whole number (got True)"),
        ("spec.capacity.elastic", "true", "spec.capacity.elastic: must be true or false (got 'true')"),
        ("spec.slo", 5, "spec.slo: must be an object (got 5)"),
        ("spec.slo", None, "spec.slo: is missing; add it"),
        (f"{POOL}.degrees", [1, 1, 1, 2], "spec.capacity.pools[0].degrees: 1 is given twice; remove one"),
        (f"{POOL}.rdma.count", -4, "spec.capacity.pools[0].rdma.count: must be greater than or equal to 1 (got -4)"),
        ("spec.engine.resources", {"limits": {"cpu": 0.5}}, "spec.engine.resources.limits.cpu: write a whole number"),
        ("spec.engine.resources", {"limits": {"cpu": "x"}}, "spec.engine.resources.limits.cpu: 'x' is not a quantity"),
    ],
)
def test_messages_name_the_field_and_the_fix(path: str, value: object, message: str) -> None:
    (found,) = service_messages(changed(service(), path, value))
    assert found.startswith(message)


@pytest.mark.parametrize(
    ("path", "value", "culprit"),
    [
        ("spec.engine.args", ["--enforce-eager", "-tp", "4"], "-tp"),
        ("spec.engine.decode", {"args": ["--enforce-eager", "-tp", "4"]}, "-tp"),
        ("spec.engine.prefill", {"args": ["--seed=1", "$(MORE)"]}, "$(MORE)"),
        ("spec.coordinator", {"requests": {"allowedFields": ["chat_template", "rid"]}}, "rid"),
    ],
)
def test_a_rule_over_a_list_says_which_entry_broke_it(path: str, value: object, culprit: str) -> None:
    body = changed(vllm_service(), path, value)
    (found,) = service_messages(body)
    assert found.endswith(f" (got '{culprit}')")
    if path.startswith("spec.engine"):
        assert found.startswith(f"{path.removesuffix('.args')}.args[1]: "), found
    with pytest.raises(StalledError) as caught:
        parse_service(body)
    assert caught.value.message == found


@pytest.mark.parametrize("field", [*ROUTER_FIELDS, *(f"{prefix}x" for prefix in ROUTER_FIELD_PREFIXES)])
def test_no_service_allows_what_the_router_takes_out(field: str) -> None:
    assert sanitise({field: 1}) == [field]
    (found,) = service_messages(changed(vllm_service(), "spec.coordinator", {"requests": {"allowedFields": [field]}}))
    assert found.endswith(f"(got '{field}')")


def test_weft_plan_ends_with_status_2_and_all_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = changed(changed(service(), "spec.bogus", 1), "spec.routing.alpha", "lots")
    manifest = tmp_path / "dis.yaml"
    manifest.write_text(yaml.safe_dump(changed(body, "metadata.name", "Bad_NAME")))
    assert cli.main(["plan", "-f", str(manifest)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    for field in ("spec.bogus", "spec.routing.alpha", "metadata.name"):
        assert f"{manifest}: {field}: " in shown.err
    assert shown.err.count("\n") == 3


@pytest.mark.parametrize("part", ["coordinator", "routing", "engine"])
def test_a_request_above_its_limit_is_refused_with_its_place(part: str) -> None:
    """The API server would refuse the pods one by one, with half of the change carried out."""
    resources = {"requests": {"memory": "2Gi"}, "limits": {"memory": "1500M"}}
    (said,) = service_messages(changed(service(), f"spec.{part}.resources", resources))
    assert said == (
        f"spec.{part}.resources.requests.memory: is above limits.memory (2Gi and 1500M); lower it, or raise the limit"
    )
