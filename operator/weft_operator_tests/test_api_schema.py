"""The generated CRDs are structural, bounded and up to date, and the reference pages follow the code."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weft_operator.api.crd import cost_profile_crd, service_crd, worker_group_crd
from weft_operator.commands.generate import generated_files
from weft_operator.status.reasons.catalogue import CONDITIONS, REASONS, status_page

ROOT = Path(__file__).parents[2]
CRDS = [service_crd(), cost_profile_crd(), worker_group_crd()]


def schema_of(crd: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


@pytest.mark.parametrize("path", [path for path, _ in generated_files()])
def test_generated_files_are_up_to_date(path: str) -> None:
    text = dict(generated_files())[path]
    assert (ROOT / path).read_text() == text, "run make generate"


@pytest.mark.parametrize("crd", CRDS, ids=lambda crd: crd["spec"]["names"]["kind"])
def test_schemas_are_structural(crd: dict[str, Any]) -> None:
    for path, node in nodes(schema_of(crd)):
        assert "$ref" not in node, path
        assert not {"allOf", "oneOf", "not"} & set(node), path
        assert "anyOf" not in node or node["x-kubernetes-int-or-string"], path
        assert node.get("additionalProperties") is not False, path
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path
        assert isinstance(node.get("exclusiveMinimum", True), bool), path


@pytest.mark.parametrize("crd", CRDS, ids=lambda crd: crd["spec"]["names"]["kind"])
def test_every_spec_field_is_described_and_bounded(crd: dict[str, Any]) -> None:
    for path, node in nodes(schema_of(crd)["properties"]["spec"], "spec"):
        inside = path.endswith(("[]", "{}"))
        assert inside or node.get("description"), f"{path} has no description"
        if node.get("type") == "array":
            assert "maxItems" in node, path
        if node.get("type") == "string" and "enum" not in node:
            assert "maxLength" in node, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path


def test_rules_name_a_field_and_end_as_a_sentence_part() -> None:
    rules = [
        rule for crd in CRDS for _, node in nodes(schema_of(crd)) for rule in node.get("x-kubernetes-validations", ())
    ]
    assert len(rules) >= 25
    for rule in rules:
        field, _, fix = rule["message"].partition(": ")
        assert field.split(".")[0] in ("spec", "metadata", "tolerations"), rule
        assert len(fix) > 20, rule


def test_the_status_subresource_and_columns_are_there() -> None:
    version = service_crd()["spec"]["versions"][0]
    assert version["subresources"] == {"status": {}}
    names = [column["name"] for column in version["additionalPrinterColumns"]]
    assert names == ["Ready", "Plan", "Workers", "GPUs", "SLO", "TTFT", "ITL", "Age", "Layout", "Cost/h"]
    assert service_crd()["spec"]["names"]["shortNames"] == ["dis"]


def test_every_reason_is_documented_on_the_page() -> None:
    page = status_page()
    for condition in CONDITIONS:
        for name, reason in REASONS[condition].items():
            assert f"| `{name}` |" in page
            assert reason.meaning.endswith(".")
