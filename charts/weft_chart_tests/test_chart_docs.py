"""What docs/install.md says about the chart is true."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from weft_chart_tests.rendering import CHART, NAMESPACE, REGISTRY, Helm, arguments
from weft_operator.api.service import DisaggInferenceServiceSpec

ROOT = Path(__file__).resolve().parents[2]
INSTALL = (ROOT / "docs/install.md").read_text()
CLUSTER = (ROOT / "docs/your-cluster.md").read_text()


def values_by_path(values: dict[str, Any], prefix: str = "") -> set[str]:
    """Return every dotted path of the chart's values."""
    paths: set[str] = set()
    for name, value in values.items():
        paths.add(f"{prefix}{name}")
        if isinstance(value, dict):
            paths |= values_by_path(value, f"{prefix}{name}.")
    return paths


@pytest.mark.parametrize("guide", [INSTALL, CLUSTER], ids=["install", "your-cluster"])
def test_every_value_that_the_guide_names_exists(guide: str) -> None:
    known = values_by_path(yaml.safe_load((CHART / "values.yaml").read_text()))
    tops = "|".join(sorted({path.partition(".")[0] for path in known}))
    text = re.sub(r"[\w.-]+\.(?:ai|io|md|sh|tar|yaml)\b", "", guide)  # API groups and files
    named = set(re.findall(rf"(?<![\w./-])((?:{tops})\.[A-Za-z.]*[A-Za-z])", text))
    assert len(named) >= 12
    assert named <= known


def examples() -> list[Any]:
    """Return every YAML document in the blocks of the guide about clusters."""
    blocks = re.findall(r"```yaml\n(.*?)```", CLUSTER, re.DOTALL)
    return [document for block in blocks for document in yaml.safe_load_all(block)]


def test_values_in_the_guide_about_clusters_are_ones_that_the_chart_takes(helm: Helm, tmp_path: Path) -> None:
    tops = set(yaml.safe_load((CHART / "values.yaml").read_text()))
    found = [document for document in examples() if set(document) <= tops]
    assert len(found) >= 4
    for number, values in enumerate(found):
        path = tmp_path / f"{number}.yaml"
        path.write_text(yaml.safe_dump(values))
        done = helm("template", "weft", str(CHART), "-n", NAMESPACE, "-f", str(path), *arguments([REGISTRY]))
        assert done.returncode == 0, f"{values}: {done.stderr}"


def test_services_in_the_guide_about_clusters_are_ones_that_the_operator_takes() -> None:
    whole = yaml.safe_load((ROOT / "docs/examples/llama-3.1-70b-h100-vllm.yaml").read_text())["spec"]
    found = [document["spec"] for document in examples() if set(document) == {"spec"}]
    assert len(found) >= 3
    for parts in found:
        merged = {
            name: {**whole.get(name, {}), **part} if isinstance(part, dict) else part for name, part in parts.items()
        }
        DisaggInferenceServiceSpec.model_validate({**whole, **merged})


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
