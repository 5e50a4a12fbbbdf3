"""A real API server takes the CRDs and the examples, and refuses every invalid manifest with the right words."""

from pathlib import Path

import pytest
import yaml

from weft_operator_tests.cluster import Kube
from weft_operator_tests.invalid import CASES, PROFILE_CASES
from weft_operator_tests.invalid_case import Case
from weft_operator_tests.valid import (
    PROFILE,
    changed,
    front_service,
    neuron_service,
    rich_service,
    service,
    sglang_service,
    tensorrt_llm_service,
    traced_service,
    vllm_service,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180, func_only=True)]

EXAMPLES = sorted((Path(__file__).parents[2] / "docs" / "examples").glob("*.yaml"))


@pytest.mark.usefixtures("crds")
@pytest.mark.parametrize("case", [*CASES, *PROFILE_CASES], ids=lambda case: case.name)
def test_invalid_manifests_are_refused(kube: Kube, case: Case) -> None:
    done = kube.attempt("apply", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(case.body))
    assert done.returncode != 0, done.stdout
    for words in case.expected:
        assert words in done.stderr


@pytest.mark.usefixtures("crds")
@pytest.mark.parametrize(
    "body",
    [
        service(),
        vllm_service(),
        sglang_service(),
        tensorrt_llm_service(),
        neuron_service(),
        rich_service(),
        traced_service(),
        front_service(),
        PROFILE,
    ],
    ids=["mock", "vllm", "sglang", "tensorrt-llm", "neuron", "distributions", "trace", "front", "profile"],
)
def test_valid_manifests_are_taken(kube: Kube, body: dict[str, object]) -> None:
    assert "server dry run" in kube.apply(body, "--dry-run=server")


@pytest.mark.usefixtures("crds")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_taken(kube: Kube, path: Path) -> None:
    assert "server dry run" in kube.run("apply", "--dry-run=server", "-f", str(path))


@pytest.mark.usefixtures("crds")
def test_the_model_cannot_be_changed(kube: Kube, namespace: str) -> None:
    body = changed(service(), "metadata.namespace", namespace)
    kube.apply(body)
    done = kube.attempt("apply", "-f", "-", stdin=yaml.safe_dump(changed(body, "spec.model.name", "Qwen/Qwen3-32B")))
    assert done.returncode != 0
    assert "spec.model.name: cannot change, because workers of two models cannot exchange KV" in done.stderr
    assert "dis" in kube.run("api-resources", "--api-group=weft.dev", "--categories=weft")
