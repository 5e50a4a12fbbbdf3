"""``weft ppd learn`` writes a table, learned from rounds that ran both ways, as a ConfigMap that a service names."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import weft_cli as cli
from weft_core.policies.ppd_cells import CLASSES
from weft_core.policies.ppd_file import table_from_json
from weft_core.policies.registry import parameters
from weft_core.policies.routing.ppd import CONTEXT_SHORT, RATE_HIGH, RATE_LOW, TPOT_RISE, TTFT_FALL
from weft_planner.cli.ppd import learn
from weft_planner.request.error import RequestError
from weft_planner.request.manifest import request_from_service
from weft_planner_tests.test_cli import SERVICE

FEW = ["--rounds", "600", "--seeds", "2"]


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The ConfigMap of one slow prefill worker before two fast decode workers."""
    folder = tmp_path_factory.mktemp("ppd")
    (folder / "dis.yaml").write_text(SERVICE)
    words = ["-f", str(folder / "dis.yaml"), "--layout", "P2x1 D4x2", *FEW, "-o", str(folder / "table.yaml")]
    assert learn.main(words, standalone_mode=False) == 0
    found: dict[str, Any] = yaml.safe_load((folder / "table.yaml").read_text())
    return found


def test_the_table_is_what_the_policy_takes(learned: dict[str, Any]) -> None:
    params = parameters("ppd", overrides=table_from_json(learned["data"]["table.json"]))
    assert params[RATE_LOW] < params[RATE_HIGH]
    assert params[CONTEXT_SHORT] > 1
    falls, rises = params[TTFT_FALL : TTFT_FALL + CLASSES**3], params[TPOT_RISE:]
    # Rounds start much sooner where they decode, the more so the busier it is, and those that decode there pay for it.
    assert min(falls) > 0.3
    busy, calm = falls[2::CLASSES], falls[0::CLASSES]
    assert sum(busy) > sum(calm)
    assert max(rises) > 0


def with_reference(learned: dict[str, Any]) -> dict[str, Any]:
    service: dict[str, Any] = yaml.safe_load(SERVICE)
    reference = {"name": learned["metadata"]["name"], "key": "table.json"}
    service["spec"]["routing"] = {"policy": "ppd", "tableConfigMapRef": reference, "params": {"w_tpot": 3}}
    return service


def test_a_service_that_names_the_config_map_is_planned_with_its_table(learned: dict[str, Any]) -> None:
    service = with_reference(learned)
    assert learned["metadata"]["name"] == f"{service['metadata']['name']}-ppd"
    params = request_from_service(service, [learned]).routing.params
    assert params == {**table_from_json(learned["data"]["table.json"]), "w_tpot": 3}
    with pytest.raises(
        RequestError, match=r"spec\.routing\.tableConfigMapRef\.name: no ConfigMap named '.*-ppd' is in the"
    ):
        request_from_service(service)
    assert request_from_service(service, routing_table=False).routing.params == {"w_tpot": 3}
    bad = {**learned, "data": {"table.json": "{}"}}
    with pytest.raises(RequestError, match=r"ConfigMap .*-ppd, table\.json: context_short: is missing"):
        request_from_service(service, [bad])


def test_the_config_map_has_the_name_that_the_service_refers_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = yaml.safe_load(SERVICE)
    service["metadata"]["namespace"] = "llm"
    service["spec"]["routing"] = {"policy": "ppd", "tableConfigMapRef": {"name": "mine", "key": "cells"}}
    (tmp_path / "dis.yaml").write_text(yaml.safe_dump(service))
    words = ["-f", str(tmp_path / "dis.yaml"), "--layout", "P4x2 D8x1", *FEW]
    assert learn.main(words, standalone_mode=False) == 0
    printed = capsys.readouterr().out
    found = yaml.safe_load(printed)
    assert (found["kind"], found["metadata"]) == ("ConfigMap", {"name": "mine", "namespace": "llm"})
    assert '    "ttft_fall.short.decode-heavy.low":' in printed.replace("     ", "    "), "a line for each cell"
    table_from_json(found["data"]["cells"])


def test_without_another_worker_there_is_nothing_to_learn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "dis.yaml"
    path.write_text(SERVICE)
    assert cli.main(["ppd", "learn", "-f", str(path), "--layout", "C4x4", *FEW]) == 1
    assert "a colocated one has no other worker to prefill on" in capsys.readouterr().err
