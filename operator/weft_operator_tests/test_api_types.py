"""The API types refuse what the CRD refuses, and accept the examples."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from weft_operator.api import CostProfileSpec, DisaggInferenceService
from weft_operator.commands.manifest_checks import service_messages
from weft_operator.errors import StalledError
from weft_operator.kube.stored_service import parse_service
from weft_operator.planning.request import planner_request
from weft_operator_tests.invalid import CASES, OPERATOR_ONLY_CASES, PROFILE_CASES
from weft_operator_tests.invalid_case import Case, plain_rule
from weft_operator_tests.valid import (
    PROFILE,
    changed,
    front_service,
    rich_service,
    service,
    traced_service,
    vllm_service,
)
from weft_planner.request.reading import request_of

EXAMPLES = sorted((Path(__file__).parents[2] / "docs" / "examples").glob("*.yaml"))


def test_there_are_enough_invalid_manifests() -> None:
    assert len(CASES) + len(PROFILE_CASES) >= 50
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_invalid_services_are_refused(case: Case) -> None:
    with pytest.raises(ValidationError) as caught:
        DisaggInferenceService.model_validate(case.body)
    if case.rule:
        assert case.rule in [plain_rule(error["msg"]) for error in caught.value.errors()]


@pytest.mark.parametrize("case", [*PROFILE_CASES, *OPERATOR_ONLY_CASES], ids=lambda case: case.name)
def test_invalid_profiles_are_refused(case: Case) -> None:
    with pytest.raises(ValidationError) as caught:
        CostProfileSpec.model_validate(case.body["spec"])
    if case.rule:
        assert case.rule in [error["msg"] for error in caught.value.errors()]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_are_valid(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        if document and document.get("kind") == "DisaggInferenceService":
            assert DisaggInferenceService.model_validate(document).spec.capacity.gpus >= 2


@pytest.mark.parametrize(
    "body",
    [service(), vllm_service(), rich_service(), traced_service(), front_service()],
    ids=["mock", "vllm", "distributions", "trace", "front"],
)
def test_reading_and_writing_again_gives_the_same(body: dict[str, object]) -> None:
    parsed = DisaggInferenceService.model_validate(body)
    again = DisaggInferenceService.model_validate(parsed.model_dump(mode="json", by_alias=True, exclude_none=True))
    assert again == parsed


def test_a_valid_profile_is_accepted() -> None:
    assert [row.degree for row in CostProfileSpec.model_validate(PROFILE["spec"]).degrees] == [4, 8]


def test_the_operator_names_the_field_of_a_stored_object_that_is_invalid() -> None:
    with pytest.raises(StalledError, match=r"spec\.slo\.ttft: Field required") as caught:
        parse_service(changed(service(), "spec.slo", {"itl": "1s"}))
    assert caught.value.reason == "InvalidSpec"
    with pytest.raises(StalledError, match=r"^spec\.slo\.ttft: must be longer"):
        parse_service(changed(service(), "spec.slo", {"itl": "3s", "ttft": "1s"}))


def test_the_workload_of_the_guide_is_valid() -> None:
    page = (Path(__file__).parents[2] / "docs" / "workload.md").read_text()
    blocks = [block.partition("```")[0] for block in page.split("```yaml\n")[1:]]
    written = yaml.safe_load(next(block for block in blocks if block.startswith("spec:")))["spec"]
    body = changed(changed(service(), "spec.workload", written["workload"]), "spec.slo", written["slo"])
    spec = DisaggInferenceService.model_validate(body).spec
    assert [item.name for item in spec.workload.classes or ()] == ["chat", "agents"]
    request = planner_request(spec)
    asked = request_of({key: value for key, value in request.items() if value is not None}).workload
    assert all("scaled" not in clause for clause in asked.assumptions)


def test_one_gpu_is_enough_for_a_co_located_layout() -> None:
    body = changed(changed(service(), "spec.capacity.gpus", 1), "spec.planning.layouts", ["colocated"])
    assert DisaggInferenceService.model_validate(body).spec.capacity.gpus == 1
    with pytest.raises(ValidationError, match="too few"):
        DisaggInferenceService.model_validate(changed(body, "spec.planning.decode", {"min": 2}))


@pytest.mark.parametrize(
    ("layouts", "gpus", "fits"),
    [
        (None, 1, True),  # one co-located worker
        (["disaggregated"], 1, False),
        (["symmetric"], 1, False),
        (["symmetric"], 2, True),
        (["disaggregated", "hybrid"], 1, False),
        (["disaggregated", "symmetric"], 2, True),
    ],
)
def test_gpus_must_be_enough_for_the_layouts_that_are_allowed(layouts: list[str] | None, gpus: int, fits: bool) -> None:
    body = changed(changed(service(), "spec.capacity.gpus", gpus), "spec.planning.layouts", layouts)
    if fits:
        assert DisaggInferenceService.model_validate(body).spec.planning.layouts == layouts
    else:
        with pytest.raises(ValidationError, match="too few"):
            DisaggInferenceService.model_validate(body)


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        (
            {"parallelism": [{"tp": 8}, {"tp": 4, "pp": 3}]},
            (
                "parallelism[1]: tp x pp x dp above gpusPerNode must fill whole nodes; choose a multiple of "
                "gpusPerNode (got tp4pp3: 12 GPUs, nodes of 8; tp4pp2 fits)"
            ),
        ),
        (
            {"parallelism": [{"tp": 8, "pp": 2, "dp": 2}]},
            (
                "parallelism[0]: data-parallel ranks lie on one node each and fill it; choose a tp x pp that divides "
                "gpusPerNode (got tp8pp2dp2: 32 GPUs, nodes of 8; tp4pp2dp2 fits)"
            ),
        ),
        (
            {"parallelism": [{"tp": 8, "dp": 65}]},
            "lower dp, pp or tp (got tp8dp65: 520 GPUs, nodes of 8; tp8dp64 fits)",
        ),
        (
            {"degrees": [1, 2, 8], "gpusPerNode": 3},
            (
                "degrees[2]: those above gpusPerNode fill whole nodes; choose multiples of gpusPerNode "
                "(got 8: 8 GPUs, nodes of 3; 2 fits)"
            ),
        ),
    ],
)
def test_strategies_that_do_not_lie_on_the_nodes_are_refused_with_numbers_and_one_that_does(
    pool: dict[str, Any], words: str
) -> None:
    body = service()
    body["spec"]["capacity"]["pools"][0] |= pool
    (message,) = service_messages(body)
    assert message.startswith("spec.capacity.pools[0].")
    assert words in message
