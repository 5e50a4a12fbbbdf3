"""weft simulate, compare and plan --report: what they print, how they refuse, and what an interrupt leaves."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import weft_cli as cli
from weft_cli.running import INTERRUPTED
from weft_core.plan import plan_to_json
from weft_planner.simulation.layout import PolicyChoice
from weft_planner.simulation.outcome import Outcome
from weft_planner.study import report_facts
from weft_planner.study.naming import NamingError, layout_from, policy_from
from weft_planner.study.scenario import Scenario, at_speed
from weft_planner_tests.effort import short_runs
from weft_planner_tests.plans import PLAN
from weft_planner_tests.simulated import profile
from weft_planner_tests.test_cli import SERVICE

__all__ = ["short_runs"]

FEW = ["--rounds", "300", "--seeds", "2"]
LAYOUT = ["--layout", "P4x2 D8x1"]


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    path = tmp_path / "dis.yaml"
    path.write_text(SERVICE)
    return str(path)


@pytest.mark.parametrize(
    ("text", "kind", "groups"),
    [
        ("P4x2 D8x1", "disaggregated", [("prefill", 4, 2, "a"), ("decode", 8, 1, "a")]),
        ("D8x1 P2x1 P4x2@b", "disaggregated", [("decode", 8, 1, "a"), ("prefill", 2, 1, "a"), ("prefill", 4, 2, "b")]),
        ("C4x4", "colocated", [("decode", 4, 4, "a")]),
        ("B2x8@b", "symmetric", [("both", 2, 8, "b")]),
        ("P2x1 B2x3", "hybrid", [("prefill", 2, 1, "a"), ("both", 2, 3, "a")]),
        ("P2x1 D2x1 B2x1", "hybrid", [("prefill", 2, 1, "a"), ("decode", 2, 1, "a"), ("both", 2, 1, "a")]),
    ],
)
def test_layouts_are_read_as_people_write_them(text: str, kind: str, groups: list[tuple[object, ...]]) -> None:
    found, listed = layout_from(text, pools=["a", "b"])
    assert found == kind
    assert [(g.role, g.degree, g.replicas, g.pool) for g in listed] == groups


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no group of workers"),
        ("P4", "'P4' is no group of workers; write P4x2 D8x1"),
        ("P4x0 D8x1", "degree and workers are 1 or more"),
        ("P4x2", "a layout has P and D groups"),
        ("C4x1 D4x1", "a layout has P and D groups"),
        ("P4x2 D8x1@c", "there is no pool 'c'; the pools are a, b"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_with_its_form(text: str, words: str) -> None:
    with pytest.raises(NamingError, match=words.replace("(", r"\(")):
        layout_from(text, pools=["a", "b"])


def test_policies_are_read_as_people_write_them() -> None:
    assert policy_from("weft/ia+edf@round-robin") == PolicyChoice("weft", "ia", "round-robin", "edf")
    assert policy_from("ampd").order == "ampd-window"
    assert policy_from("remote-jsq").mode == ""
    own = PolicyChoice(params={"itl_statistic": 1.0}, binding="least-requests")
    assert policy_from("weft", like=own).params == own.params
    assert policy_from("ampd", like=own).params == {}
    assert policy_from("ampd", like=own).binding == "least-requests"
    for wrong, words in (
        ("weft/fast", "mode 'fast'"),
        ("ampd/ia", "has no modes"),
        ("fly", "policy 'fly' is not one of"),
    ):
        with pytest.raises(NamingError, match=words):
            policy_from(wrong)


def test_slower_gpus_take_longer_for_all_but_transfers() -> None:
    full, half = profile(), at_speed(profile(), 0.5)
    assert half.t_pre(history=100, increment=50, degree=2) == pytest.approx(
        2 * full.t_pre(history=100, increment=50, degree=2)
    )
    assert half.t_dec(batch=4, context=900, degree=1) == pytest.approx(2 * full.t_dec(batch=4, context=900, degree=1))
    assert half.transfers == full.transfers
    assert half.kv_capacity(1) == full.kv_capacity(1)


def test_simulate_prints_a_row_for_each_rate(manifest: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "-f", manifest, *LAYOUT, *FEW, "--rate", "0.4", "--rate", "6", "--policy", "ampd"]
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    assert "P4x2 D8x1 (16 GPUs) under ampd+ampd-window" in shown
    rows = [line.split() for line in shown.splitlines() if line.startswith(("       0.4", "         6"))]
    assert [row[-1] for row in rows] == ["yes", "no"]
    assert cli.main([*words, "-o", "json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert [rate["arrivalRate"] for rate in body["rates"]] == [0.4, 6.0]
    assert body["complete"] is True
    assert body["rates"][0]["runs"] == 2
    assert body["rates"][0]["attainment"]["value"] > body["rates"][1]["attainment"]["value"]


def test_the_same_simulation_gives_the_same_bytes(manifest: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "-f", manifest, *LAYOUT, *FEW, "--rate", "1", "-o", "json"]
    assert cli.main(words) == 0
    first = capsys.readouterr().out
    assert cli.main(words) == 0
    assert capsys.readouterr().out == first
    assert cli.main([*words, "--seed", "5"]) == 0
    assert capsys.readouterr().out != first


def test_wrong_predictions_cost_attainment(manifest: str, capsys: pytest.CaptureFixture[str]) -> None:
    shares = []
    for sigma in ("0", "1"):
        words = ["simulate", "-f", manifest, *LAYOUT, "--rounds", "1000", "--seeds", "1", "--rate", "2.4", "-o", "json"]
        assert cli.main([*words, "--prediction-error", sigma]) == 0
        shares.append(json.loads(capsys.readouterr().out)["rates"][0]["attainment"]["value"])
    assert shares[1] < shares[0]


def test_simulate_takes_the_layout_of_a_stored_plan(
    manifest: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = tmp_path / "plan.yaml"
    stored.write_text(yaml.safe_dump(plan_to_json(PLAN)))
    words = ["simulate", "-f", manifest, "--plan", str(stored), *FEW, "--rate", "0.5", "-o", "yaml"]
    assert cli.main(words) == 0
    body = yaml.safe_load(capsys.readouterr().out)
    assert (body["layout"], body["policy"]) == ("P4x2 D8x1", "weft/ia+moore-hodgson")


def test_compare_pairs_its_seeds(manifest: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "ampd,ampd", "remote-jsq", "-f", manifest, *LAYOUT, *FEW, "--arrival-rate", "1.5", "--goodput"]
    assert cli.main([*words, "-o", "json"]) == 0
    first, second, third = json.loads(capsys.readouterr().out)["policies"]
    assert first["attainmentAgainstFirst"] is None
    assert second["attainmentAgainstFirst"] == {"value": 0.0, "low": 0.0, "high": 0.0}, "the same sessions"
    assert second["goodputOfFirst"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert third["goodput"]["value"] > 0
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    assert "+0.0 (+0.0 to +0.0)" in shown
    assert "x 1.00 (1.00-1.00)" in shown


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["simulate", "--layout", "P4"], "Invalid value for --layout: 'P4' is no group of workers; write P4x2 D8x1"),
        (["simulate", "--layout", "P1x2 D8x1"], "degree 1 cannot run this model on pool h20; usable are 2, 4, 8"),
        (
            ["simulate", *LAYOUT, "--policy", "fly"],
            "Invalid value for --policy: policy 'fly' is not one of always-local",
        ),
        (["simulate", *LAYOUT, "--rate", "0"], "0.0 is not in the range 0<x<=100000"),
        (["simulate", *LAYOUT, "--rounds", "5"], "5 is not in the range 200<=x<=200000"),
        (["simulate", *LAYOUT, "--plan", "x.json"], "--layout and --plan: give one of them"),
        (["compare", "ampd,fly", *LAYOUT], "policy 'fly' is not one of always-local, always-remote"),
        (["compare", *LAYOUT], "Missing argument 'POLICY...'"),
        (["plan", "--report", "nowhere/x.html"], "the folder nowhere is not there; make it first"),
        (
            ["plan", "--report", "/proc/x.html"],
            "/proc/x.html cannot be written: No such file or directory; name another",
        ),
        (["plan", "--gpus", "0"], "0 is not in the range 1<=x<=4096"),
        (["plan", "--seed", "-1"], "-1 is not in the range x>=0"),
        (["plan", "--capacity", "{here}"], "capacity: 0 in the file; give one object of the form of spec.capacity"),
        (["plan", "--trace", "{here}"], "is of no known form"),
        (["plan", "--trace", "none.jsonl"], "none.jsonl: cannot be read (No such file or directory); check the path"),
        (["plan", "--diff", "{here}"], "holds no plan; give a plan of"),
    ],
)
def test_bad_input_is_refused_with_the_field_and_the_fix(
    words: list[str], told: str, manifest: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "here.yaml"
    here.write_text('{"kind": "Pod"}\n')
    command, *rest = (word.format(here=here) for word in words)
    assert cli.main([command, *rest, "-f", manifest]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert told in " ".join(shown.err.split())


def test_plan_takes_the_capacity_of_another_file(
    manifest: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], short_runs: None
) -> None:
    capacity = tmp_path / "capacity.yaml"
    pool = {**yaml.safe_load(SERVICE)["spec"]["capacity"]["pools"][0], "name": "other"}
    capacity.write_text(yaml.safe_dump({"gpus": 8, "pools": [pool]}))
    assert cli.main(["plan", "-f", manifest, "--capacity", str(capacity), "--top", "1", "-o", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert plan["gpus"] <= 8
    assert {group["pool"] for group in plan["groups"]} == {"other"}
    assert plan["alternatives"] == []


def test_faults_of_another_capacity_are_told_under_its_own_file(
    manifest: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capacity = tmp_path / "capacity.yaml"
    pools = yaml.safe_load(SERVICE)["spec"]["capacity"]["pools"]
    capacity.write_text(yaml.safe_dump({"gpus": 99999, "pools": pools}))
    assert cli.main(["plan", "-f", manifest, "--capacity", str(capacity)]) == 2
    assert capsys.readouterr().err.startswith(f"{capacity}: spec.capacity.gpus: ")


def test_a_bad_line_of_a_plans_trace_says_how_to_skip_it(
    manifest: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"session": "a", "turns": [{"incr_prefill": 0, "decode": 1}]}\n')
    assert cli.main(["plan", "-f", manifest, "--trace", str(trace)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"{trace}: line 1: turns[0].incr_prefill: must be a whole number of tokens from 1")
    assert "`weft workload fit --skip-bad -o FILE`" in told


def test_a_layout_of_more_gpus_than_there_are_is_simulated_and_said(
    manifest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["simulate", "-f", manifest, "--layout", "P8x2 D8x2", *FEW, "--rate", "0.5"]) == 0
    assert capsys.readouterr().err == "weft simulate: the layout takes 32 GPUs, spec.capacity.gpus is 16\n"


def interrupted_after(monkeypatch: pytest.MonkeyPatch, runs: int) -> None:
    """Press Ctrl-C when this many simulations are through."""
    real: Callable[..., Outcome] = Scenario.run
    left = iter(range(runs))

    def run(self: Scenario, *args: Any, **kwargs: Any) -> Outcome:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Scenario, "run", run)


def test_an_interrupted_simulation_prints_what_is_done(
    manifest: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted_after(monkeypatch, 5)
    words = ["simulate", "-f", manifest, *LAYOUT, *FEW, "--rate", "0.3", "--rate", "0.5", "--rate", "0.7", "-o", "json"]
    assert cli.main(words) == INTERRUPTED
    shown = capsys.readouterr()
    assert [rate["arrivalRate"] for rate in json.loads(shown.out)["rates"]] == [0.3, 0.5]
    assert json.loads(shown.out)["complete"] is False
    assert shown.err == "weft simulate: interrupted after 2 of 3 rates\n"


def test_an_interrupted_comparison_prints_what_is_done(
    manifest: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted_after(monkeypatch, 3)
    assert cli.main(["compare", "ampd,weft", "-f", manifest, *LAYOUT, *FEW]) == INTERRUPTED
    shown = capsys.readouterr()
    assert "ampd" in shown.out
    assert shown.err == "weft compare: interrupted after 1 of 2 policies\n"


@pytest.fixture
def quick_report(monkeypatch: pytest.MonkeyPatch, short_runs: None) -> None:
    monkeypatch.setattr(report_facts, "SEEDS", 2)
    monkeypatch.setattr(report_facts, "RATES", (0.5, 1.0))
    monkeypatch.setattr(report_facts, "SPEEDS", (0.8, 1.0))


@pytest.mark.usefixtures("quick_report")
def test_a_report_is_written_beside_the_table(
    manifest: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "r.html"
    assert cli.main(["plan", "-f", manifest, "--report", str(target)]) == 0
    shown = capsys.readouterr()
    assert "LAYOUT" in shown.out
    assert f"weft plan: report written: {target}" in shown.err
    text = target.read_text()
    assert text.count("<svg") == 8
    assert "If the assumptions are off" in text
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.usefixtures("quick_report")
def test_an_interrupted_report_holds_what_is_done(
    manifest: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted_after(monkeypatch, 4)
    target = tmp_path / "r.html"
    assert cli.main(["plan", "-f", manifest, "--report", str(target)]) == INTERRUPTED
    text = target.read_text()
    assert "The study was interrupted" in text
    assert "How it behaves as load grows" in text
    assert "If the assumptions are off" not in text
    assert "interrupted: the report holds what was done" in capsys.readouterr().err


@pytest.mark.usefixtures("short_runs")
def test_diff_says_what_changes_and_why(manifest: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = tmp_path / "old.json"
    assert cli.main(["plan", "-f", manifest, "-o", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    live = {**yaml.safe_load(SERVICE), "status": {"plan": answer["plan"]}}
    old.write_text(json.dumps(live))
    assert cli.main(["plan", "-f", manifest, "--diff", str(old), "-o", "json"]) == 0
    same = json.loads(capsys.readouterr().out)["difference"]
    assert same["sameWorkers"] is True
    assert same["sameInputs"] is True
    assert same["spec"] == []
    smaller = tmp_path / "new.yaml"
    smaller.write_text(SERVICE.replace("gpus: 16", "gpus: 8"))
    assert cli.main(["plan", "-f", str(smaller), "--diff", str(old)]) == 0
    shown = capsys.readouterr().out
    assert "spec.capacity.gpus" in shown
    assert "Why:" in shown
