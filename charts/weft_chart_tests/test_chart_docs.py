"""What docs/install.md says about the chart is true."""

import re
from pathlib import Path
from typing import Any

import yaml

from weft_chart_tests.rendering import CHART
from weft_operator.api.service import DisaggInferenceServiceSpec

ROOT = Path(__file__).resolve().parents[2]
INSTALL = (ROOT / "docs/install.md").read_text()


def values_by_path(values: dict[str, Any], prefix: str = "") -> set[str]:
    """Return every dotted path of the chart's values."""
    paths: set[str] = set()
    for name, value in values.items():
        paths.add(f"{prefix}{name}")
        if isinstance(value, dict):
            paths |= values_by_path(value, f"{prefix}{name}.")
    return paths


def test_every_value_that_the_guide_names_exists() -> None:
    known = values_by_path(yaml.safe_load((CHART / "values.yaml").read_text()))
    tops = "|".join(sorted({path.partition(".")[0] for path in known}))
    named = set(re.findall(rf"(?<![\w./-])((?:{tops})\.[A-Za-z.]*[A-Za-z])", INSTALL)) - {"values.yaml"}
    assert len(named) >= 12
    assert named <= known


def test_every_file_that_the_guide_links_to_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", INSTALL)
    assert links
    for link in links:
        assert (ROOT / "docs" / link).resolve().exists(), link


def test_the_example_for_real_gpus_is_one_that_the_operator_takes() -> None:
    manifest = yaml.safe_load((ROOT / "docs/examples/llama-3.1-70b-h100-vllm.yaml").read_text())
    spec = DisaggInferenceServiceSpec.model_validate(manifest["spec"])
    assert spec.engine.type == "vllm"
    assert f"dis {manifest['metadata']['name']} " in INSTALL
    assert f"service/{manifest['metadata']['name']} " in INSTALL
    assert spec.model.name in INSTALL
