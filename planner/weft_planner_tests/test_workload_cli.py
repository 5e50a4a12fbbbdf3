"""``weft workload fit`` and ``show``: tables, files, refusals by file and line, and no traceback."""

import json
from pathlib import Path

import pytest
import yaml

from weft_cli.running import run
from weft_planner.cli.workload import workload
from weft_planner.workload.file import read_fragment
from weft_planner.workload.traffic import Workload
from weft_planner_tests.test_workload_presets import trace


def weft(*args: str | Path) -> int:
    return run(workload, [str(arg) for arg in args], prog="weft workload")


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "t.jsonl"
    path.write_text(trace(kind="main"))
    return path


def test_a_trace_is_fitted_shown_and_written(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = recorded.parent / "w.yaml"
    assert weft("fit", recorded, "--fill-gaps", "2s", "--fill-arrivals", "0.5", "-o", target) == 0
    shown = capsys.readouterr().out
    assert "40 sessions, 120 rounds; Poisson arrivals, 0.5 sessions/s" in shown
    assert "shift" in shown
    assert "Gaps are not recorded: filled with a mean of 2s." in shown
    text = target.read_text()
    assert text.startswith("# Fitted to t.jsonl by weft workload fit.\n# gaps are not recorded")
    body = read_fragment(text, name="w.yaml")
    assert body is not None
    assert Workload.model_validate(body).mean_rounds == 3
    assert weft("show", target) == 0
    assert "whole session" in capsys.readouterr().out
    first = target.read_bytes()
    assert weft("fit", recorded, "--fill-gaps", "2s", "--fill-arrivals", "0.5", "-o", target) == 0
    assert target.read_bytes() == first


def test_what_the_trace_lacks_is_asked_for(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert weft("fit", recorded) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"{recorded}: gaps: ")
    assert "--fill-arrivals" in said


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (("--fill-gaps", "soon", "--fill-arrivals", "1"), "--fill-gaps: 'soon' is not a duration"),
        (("--fill-gaps", "2s", "--fill-arrivals", "0"), "0.0 is not in the range 0<x<=100000"),
        (("--where", "kind"), "--where kind: write FIELD=VALUE"),
        (("--where", "kind=side"), "--where kind=side: no session has it"),
        (("--link",), "only requests can be linked"),
        (("--classes-by", "colour", "--fill-gaps", "2s", "--fill-arrivals", "1"), "'colour'"),
    ],
)
def test_options_that_make_no_sense_are_named(
    recorded: Path, args: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert weft("fit", recorded, *args) == 2
    assert named in capsys.readouterr().err


def test_a_bad_line_is_named_or_skipped(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded.write_text(recorded.read_text() + "\n{\n")
    fill = ("--fill-gaps", "2s", "--fill-arrivals", "1")
    assert weft("fit", recorded, *fill) == 2
    assert "line 41: is not JSON" in capsys.readouterr().err
    assert weft("fit", recorded, *fill, "--skip-bad") == 0
    assert "1 line skipped" in capsys.readouterr().out.lower()


def test_gaps_are_taken_from_another_trace(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = recorded.parent / "other.jsonl"
    turns = [{"incr_prefill": 5, "decode": 5, "gap_s": 0.0}, {"incr_prefill": 5, "decode": 5, "gap_s": 7.0}]
    other.write_text(json.dumps({"session": "a", "arrival_s": 0.0, "turns": turns}))
    assert weft("fit", recorded, "--fill-gaps", other, "--fill-arrivals", "1") == 0
    assert "the 1 recorded gaps of other.jsonl" in " ".join(capsys.readouterr().out.split()).lower()
    assert weft("fit", recorded, "--fill-gaps", recorded, "--fill-arrivals", "1") == 2
    assert "records no gaps itself" in capsys.readouterr().err


def test_presets_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert weft("show") == 0
    assert "ampd/gaia" in capsys.readouterr().out
    assert weft("show", "ampd/gaia", "-o", "json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["workload"]["rounds"] == {"mean": 11.32}
    assert shown["slo"]["Qwen3-32B"] == {"ttft": 1.0, "itl": 0.035}
    assert weft("show", "ppd/mix", "-o", "yaml") == 0
    assert len(yaml.safe_load(capsys.readouterr().out)["workload"]["classes"]) == 6
    assert weft("show", "ampd/gaja") == 2
    assert "is no file and no preset" in capsys.readouterr().err
