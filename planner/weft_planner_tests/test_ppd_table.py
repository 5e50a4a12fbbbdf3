"""The table of policy ppd is learned from rounds that ran both ways, and is what a service's manifest takes."""

import json
from pathlib import Path

import pytest
import yaml

import weft_cli as cli
from weft_core.policies.registry import parameters
from weft_core.policies.routing.ppd import CLASSES, CONTEXT_SHORT, RATE_HIGH, RATE_LOW, TPOT_RISE, TTFT_FALL
from weft_planner_tests.test_cli import SERVICE

FEW = ["--learn-ppd", "--rounds", "600", "--seeds", "2"]


def learned(tmp_path: Path, capsys: pytest.CaptureFixture[str], layout: str) -> dict[str, dict[str, float]]:
    path = tmp_path / "dis.yaml"
    path.write_text(SERVICE)
    assert cli.main(["simulate", "-f", str(path), "--layout", layout, *FEW, "-o", "json"]) == 0
    found: dict[str, dict[str, float]] = json.loads(capsys.readouterr().out)
    return found


def test_the_table_is_what_the_policy_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = learned(tmp_path, capsys, "P2x1 D4x2")
    params = parameters("ppd", overrides=found["routing"]["params"])  # type: ignore[arg-type]
    assert len(found["rounds"]) == CLASSES**3
    assert sum(found["rounds"].values()) > 500
    assert params[RATE_LOW] < params[RATE_HIGH]
    assert params[CONTEXT_SHORT] > 1
    falls, rises = params[TTFT_FALL : TTFT_FALL + CLASSES**3], params[TPOT_RISE:]
    # One slow prefill worker before two fast decode workers: rounds start much sooner where they decode, the more so
    # the busier it is, and those that decode there pay for it.
    assert min(falls) > 0.3
    busy, calm = falls[2::CLASSES], falls[0::CLASSES]
    assert sum(busy) > sum(calm)
    assert max(rises) > 0


def test_it_is_printed_as_a_part_of_the_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "dis.yaml"
    path.write_text(SERVICE)
    assert cli.main(["simulate", "-f", str(path), "--layout", "P4x2 D8x1", *FEW]) == 0
    routing = yaml.safe_load(capsys.readouterr().out)["spec"]["routing"]
    assert routing["policy"] == "ppd"
    assert len(routing["params"]) <= 64, "what a service's params may hold"
    parameters("ppd", overrides=routing["params"])


def test_without_another_worker_there_is_nothing_to_learn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "dis.yaml"
    path.write_text(SERVICE)
    assert cli.main(["simulate", "-f", str(path), "--layout", "C4x4", *FEW]) == 1
    assert "a colocated one has no other worker to prefill on" in capsys.readouterr().err
