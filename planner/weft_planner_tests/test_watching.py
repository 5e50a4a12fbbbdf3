"""What somebody sees who waits for a plan: bars, an early ranking while the simulator is compiled, and after Ctrl-C."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress as Bars

import weft_cli as cli
from weft_cli.running import INTERRUPTED
from weft_planner.cli import progress
from weft_planner.plan import solve
from weft_planner.simulation import compiled, loading
from weft_planner.stages import COMPILING
from weft_planner_tests.effort import short_runs
from weft_planner_tests.test_cli import SERVICE

__all__ = ["short_runs"]

Tell = Callable[[str, int, int], None]


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    path = tmp_path / "dis.yaml"
    path.write_text(SERVICE)
    return str(path)


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_a_log_only_hears_of_the_compilation(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.show_progress() as tell:
        tell("drawing sessions", 0, 1)
        tell(COMPILING, 0, 1)
        tell(COMPILING, 1, 1)
        tell.say("kept")
    show_progress = capsys.readouterr()
    assert (show_progress.out, show_progress.err) == ("", f"weft: {COMPILING}\nkept\n")


def test_what_is_over_is_shown_as_done() -> None:
    with Bars(console=Console(file=io.StringIO(), force_terminal=True)) as bars:
        tell = progress._Moving(bars)
        tell("drawing sessions", 0, 1)
        tell("simulating", 2, 9)
        assert [(task.description, task.completed, task.total) for task in bars.tasks] == [
            ("drawing sessions", 1, 1),
            ("simulating", 2, 9),
        ]


def test_the_simulator_is_loaded_once_and_a_compilation_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int, int]] = []

    def tell(*what: Any) -> None:
        told.append(what)

    loading.load_simulator(tell)
    assert told == [], "the machine code of this version is kept, or loaded already"
    monkeypatch.delitem(sys.modules, "weft_planner.simulation.event_loop")
    monkeypatch.setattr(compiled, "compiled_before", lambda: False)
    loading.load_simulator(tell)
    assert told == [(COMPILING, 0, 1), (COMPILING, 1, 1)]


@pytest.mark.usefixtures("short_runs")
def test_the_ranking_by_phases_is_there_while_the_simulator_is_compiled(
    manifest: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiling(tell: Tell) -> None:
        tell(COMPILING, 0, 1)
        tell(COMPILING, 1, 1)

    monkeypatch.setattr(solve, "load_simulator", compiling)
    assert cli.main(["plan", "-f", manifest]) == 0
    show_progress = capsys.readouterr()
    assert show_progress.err.startswith("Preliminary ranking for demo: ")
    assert show_progress.err.index("LAYOUT") < show_progress.err.index(COMPILING)
    assert show_progress.out.startswith("Plan ")
    assert cli.main(["plan", "-f", manifest, "-o", "json"]) == 0
    assert capsys.readouterr().err == f"weft: {COMPILING}\n"


def test_an_interrupted_plan_prints_the_ranking_by_phases(
    manifest: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solve, "rank", interrupt)
    assert cli.main(["plan", "-f", manifest]) == INTERRUPTED
    show_progress = capsys.readouterr()
    assert show_progress.out.startswith("Preliminary ranking for demo: ")
    assert "interrupted: no layout was simulated whole; ranked by phases" in show_progress.err
    assert cli.main(["plan", "-f", manifest, "-o", "json"]) == INTERRUPTED
    body = json.loads(capsys.readouterr().out)
    assert body["status"] == "interrupted"
    assert len(body["preliminary"]) == solve.EARLY
    assert body["preliminary"][0]["gpus"] <= 16
    assert body["preliminary"][0]["ttftP95"] > 0


def test_a_plan_interrupted_at_once_says_so(
    manifest: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solve, "prepare_inputs", interrupt)
    assert cli.main(["plan", "-f", manifest]) == INTERRUPTED
    show_progress = capsys.readouterr()
    assert show_progress.out == ""
    assert show_progress.err == "weft plan: interrupted: nothing was ranked by then\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["plan", "-f", "x", "--arrival-rate", "nan"], "nan is no number; it must be in the range 0<x<=100000"),
        (["plan", "-f", "x", "--arrival-rate", "inf"], "inf is not in the range 0<x<=100000"),
        (["simulate", "-f", "x", "--rate", "nan"], "nan is no number"),
        (["workload", "fit", "x", "--fill-arrivals", "-1"], "-1.0 is not in the range 0<x<=100000"),
        (["workload", "fit", "x", "--rate", "nan"], "nan is no number"),
        (["workload", "fit", "x", "--rounds", "0"], "0.0 is not in the range 1<=x<=10000"),
        (["workload", "fit", "x", "--decode", "nan"], "nan is no number"),
        (["profile", "fit", "x.csv", "--link-rate", "25"], "25.0 is not in the range 1000000.0<=x<=100000000000000.0"),
        (["profile", "fit", "x.csv", "--noise", "-0.1"], "-0.1 is not in the range 0<=x<=10"),
    ],
)
def test_a_number_out_of_range_names_the_range(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    show_progress = capsys.readouterr()
    assert show_progress.out == ""
    assert told in " ".join(show_progress.err.split())
