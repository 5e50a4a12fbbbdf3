"""The chart's custom resource definitions are those of crds/, and stay when the release goes."""

from pathlib import Path

import pytest
import yaml

from weft_chart_tests.rendering import CHART, Render

SOURCES = Path(__file__).resolve().parents[2] / "crds"
COPIES = CHART / "files/crds"
NAMES = {"costprofiles.weft.dev", "disagginferenceservices.weft.dev", "workergroups.weft.dev"}


def test_copies_equal_the_generated_files() -> None:
    sources = {path.name: path.read_text() for path in SOURCES.glob("*.yaml")}
    copies = {path.name: path.read_text() for path in COPIES.glob("*.yaml")}
    assert sources
    assert copies == sources, "run 'make generate'"


@pytest.mark.parametrize("keep", [True, False])
def test_definitions_are_rendered_unchanged_but_for_the_policy(render: Render, keep: bool) -> None:
    rendered = render(f"crds.keep={str(keep).lower()}")
    generated = [yaml.safe_load(path.read_text()) for path in SOURCES.glob("*.yaml")]
    assert {item["metadata"]["name"] for item in rendered.of_kind("CustomResourceDefinition")} == NAMES
    for expected in generated:
        if keep:
            expected["metadata"]["annotations"] = {"helm.sh/resource-policy": "keep"}
        assert rendered.get("CustomResourceDefinition", expected["metadata"]["name"]) == expected


def test_definitions_can_be_left_to_somebody_else(render: Render) -> None:
    assert render("crds.install=false").of_kind("CustomResourceDefinition") == []
