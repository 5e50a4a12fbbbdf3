"""What people read about plans: ranking, latencies, differences and explanations."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import weft_cli as cli
from weft_core.durations import parse_duration
from weft_core.layouts import layout_name
from weft_core.plan import Plan, plan_to_json
from weft_core.prediction import UNBOUNDED, Limit
from weft_core.shortfall import Remedy
from weft_planner.difference import compare_plans, difference_to_json
from weft_planner.explanation import explain
from weft_planner.request.manifest_change import duration
from weft_planner.request.service import in_manifest
from weft_planner.tables import plan_parts, refusal_parts, text_of
from weft_planner.tables.difference import difference_parts
from weft_planner.tables.figures import rate_interval, share_interval
from weft_planner.tables.remedies import step
from weft_planner.tables.writing import Paragraph, TableCell, TextTable
from weft_planner_tests.plans import MISSED, PLAN, both, decode, predicted, prefill
from weft_planner_tests.requests import request

NAN = float("nan")


def shown(plan: Plan, top: int | None = None) -> str:
    return text_of(plan_parts(plan, request=request(), name="demo", top=top))


def test_the_ranking_has_the_plan_first_and_says_what_each_is() -> None:
    text = shown(PLAN)
    lines = text.splitlines()
    first = next(line for line in lines if line.startswith("1 "))
    assert first.split()[1:4] == ["P4x2", "D8x1", "weft"]
    assert first.endswith("this plan")
    assert "97% (95-100)" in first, "an interval does not leave 0 to 100 %"
    assert any("C8x2" in line and "this operator cannot deploy it" in line for line in lines)
    assert any("P4x1 D4x1" in line and "too small by far" in line for line in lines)
    assert "48.00" in first
    for words in ("Holds the SLO", "first rounds", "later rounds", "60% of compute of prefill workers", "Why: P4x2"):
        assert words in text


def test_a_long_note_goes_below_the_table_once() -> None:
    note = "the router cannot run this mode of the policy with stock engines"
    plan = replace(PLAN, alternatives=tuple(replace(a, note=note) for a in PLAN.alternatives))
    text = shown(plan)
    assert text.count(note) == 1
    assert text.count("see 1)") == 3


def test_top_cuts_the_ranking() -> None:
    assert "C8x2" not in shown(PLAN, top=2)
    assert "P8x1 D8x1" in shown(PLAN, top=2)


def test_a_plan_that_misses_says_what_would_do() -> None:
    text = " ".join(shown(MISSED).split())
    assert "Misses the SLO" in text
    assert "These GPUs hold TTFT 9 s and ITL 60 ms." in text
    assert "24 GPUs would hold the SLO." in text
    assert "Any one of these would do: spec.capacity.gpus: 24; leave spec.planning.budgetPerHour out." in text


def test_a_latency_without_bound_has_no_percentage() -> None:
    limits = (Limit("ttft", UNBOUNDED), Limit("compute", 0.97, "prefill"), Limit("itl", 0.34))
    text = " ".join(shown(replace(MISSED, predicted=replace(MISSED.predicted, limits=limits))).split())
    assert "Limits: unbounded TTFT, 97% of compute of prefill workers, 34% of the ITL threshold is used" in text


def test_a_refusal_names_reason_and_remedy() -> None:
    text = " ".join(text_of(refusal_parts("demo", "TooFewGpus", "2 GPUs do not do", MISSED.shortfall)).split())
    assert text.startswith("No plan for demo: TooFewGpus 2 GPUs do not do Any one of these would do: spec.capacity")


@pytest.mark.parametrize(
    ("remedy", "words"),
    [
        (Remedy("slo.itl", 0.0173139), "spec.slo.itl: 17.4ms"),
        (Remedy("slo.itl", 0.05), "spec.slo.itl: 50ms"),
        (Remedy("slo.ttft", 4.59032), "spec.slo.ttft: 4.6s"),
        (Remedy("budgetPerHour", 12.0), "spec.planning.budgetPerHour: 12"),
        (Remedy("bounds.prefill.min", 2), "spec.planning.prefill.min: 2"),
        (Remedy("capacity.pools.0.degrees", [2, 4]), "spec.capacity.pools[0].degrees: [2, 4]"),
        (Remedy("engine.pairs", None), "leave spec.planning.degreePairs out"),
    ],
)
def test_what_would_do_is_said_as_a_manifest_takes_it(remedy: Remedy, words: str) -> None:
    assert step(remedy) == words


@given(st.floats(1e-4, 1e4))
def test_a_relaxed_threshold_is_never_rounded_down(seconds: float) -> None:
    assert parse_duration(duration(seconds)) >= seconds * (1 - 1e-9)


def test_fields_in_a_message_are_those_of_the_manifest() -> None:
    message = "budgetPerHour: 10 does not pay; lower bounds.prefill.min to 1"
    assert in_manifest(message) == (
        "spec.planning.budgetPerHour: 10 does not pay; lower spec.planning.prefill.min to 1"
    )


def test_tables_are_not_folded_and_carry_no_colour_codes_into_files() -> None:
    wide = TextTable(["A", "B>"], [["x" * 150, "1"], ["y", "22"]], marked=(0,))
    lines = text_of([Paragraph("some words", lead="Lead:"), wide]).splitlines()
    assert lines == ["Lead: some words", "", f"A{' ' * 149}   {' ' * 1}B", f"{'x' * 150}    1", f"y{' ' * 149}   22"]


def test_a_paragraph_is_folded_at_a_readable_width() -> None:
    assert max(len(line) for line in text_of([Paragraph("word " * 100)]).splitlines()) <= 100


@pytest.mark.parametrize(
    ("kind", "groups", "name"),
    [
        ("disaggregated", (decode(8, 1), prefill(2, 3), prefill(4, 1)), "P4x1 P2x3 D8x1"),
        ("colocated", (decode(4, 4),), "C4x4"),
        ("symmetric", (both(4, 4),), "B4x4"),
        ("hybrid", (both(4, 2), decode(4, 1), prefill(4, 2)), "P4x2 D4x1 B4x2"),
        ("disaggregated", (prefill(4, 1, "h100"), decode(8, 1)), "P4x1@h100 D8x1@h20"),
    ],
)
def test_layouts_are_named_as_in_the_papers(kind: str, groups: tuple[object, ...], name: str) -> None:
    assert layout_name(groups, kind) == name  # type: ignore[arg-type]


def test_one_run_has_no_interval() -> None:
    from weft_core.prediction import Estimate

    assert share_interval(Estimate(0.5, NAN, NAN)) == "50%"
    assert rate_interval(Estimate(1.5, NAN, NAN)) == "1.5"
    assert rate_interval(None) == "-"


NEW = replace(PLAN, groups=(prefill(8, 2), decode(8, 1)), predicted=predicted(24, ttft=0.8), inputs_hash="00" * 8)


def test_a_difference_counts_workers_and_gpus() -> None:
    found = compare_plans(PLAN, NEW)
    assert [(c.role, c.degree, c.before, c.after) for c in found.groups] == [("prefill", 4, 2, 0), ("prefill", 8, 0, 2)]
    assert found.gpus == 8
    better = {change.name: change.better for change in found.figures}
    assert better["ttftP95"] is True
    assert better["gpus"] is False
    assert better["itlP95"] is None
    assert found.spec_known is False
    text = text_of(difference_parts(found, old=PLAN, new=NEW, name="demo"))
    for words in ("P4x2 D8x1 (bf4ab90c6d) to P8x2 D8x1", "+8 GPUs in all, 24 after.", "better", "another inputs hash"):
        assert words in text


def test_a_plan_does_not_differ_from_itself() -> None:
    found = compare_plans(PLAN, PLAN)
    assert found.same_workers
    assert found.same_inputs
    assert all(change.better is None for change in found.figures)
    assert "The workers stay as they are, from the same inputs." in text_of(
        difference_parts(found, old=PLAN, new=PLAN, name="")
    )


OLD_SPEC = {
    "slo": {"ttft": "5s"},
    "capacity": {"gpus": 16, "pools": [{"name": "a", "degrees": [1, 2]}, {"name": "b"}]},
    "engine": {"type": "vllm"},
}
NEW_SPEC = {"slo": {"ttft": "5s"}, "capacity": {"gpus": 24, "pools": [{"name": "a", "degrees": [1]}]}}


def test_a_difference_names_the_fields_of_the_spec() -> None:
    found = compare_plans(PLAN, NEW, old_spec=OLD_SPEC, new_spec=NEW_SPEC)
    assert [(c.path, c.before, c.after) for c in found.spec] == [
        ("spec.capacity.gpus", "16", "24"),
        ("spec.capacity.pools[a].degrees", "[1, 2]", "[1]"),
        ("spec.capacity.pools[b]", "{'name': 'b'}", "(absent)"),
        ("spec.engine", "{'type': 'vllm'}", "(absent)"),
    ]
    json.dumps(difference_to_json(found), allow_nan=False)


def test_defaults_that_the_api_server_filled_in_are_no_difference() -> None:
    found = compare_plans(PLAN, NEW, old_spec=OLD_SPEC, new_spec=NEW_SPEC, as_written=False)
    assert "spec.engine" not in [change.path for change in found.spec]


def test_an_explanation_has_a_reason_for_every_alternative() -> None:
    found = explain(PLAN)
    assert found.chosen == "P4x2 D8x1"
    reasons = {rejected_layout.name: "; ".join(rejected_layout.reasons) for rejected_layout in found.rejected}
    assert "its goodput is -4%, within the error of both" in reasons["P8x1 D8x1"]
    assert "its TTFT is 1.82 times as long" in reasons["C8x2"]
    assert "this operator cannot deploy it" in reasons["C8x2"]
    assert "it misses the SLO" in reasons["P4x1 D4x1"]
    assert "8 fewer GPUs, but the objective is latency" in reasons["P4x1 D4x1"]
    assert "the prefill workers compute 60% of the time: this is where it breaks first" in found.constraints


def written(folder: Path, body: object, name: str = "plan.json") -> str:
    path = folder / name
    path.write_text(json.dumps(body) if name.endswith("json") else yaml.safe_dump(body))
    return str(path)


STATUS = {key: value for key, value in plan_to_json(PLAN).items() if key != "alternatives"}
FORMS = {
    "answer": {"status": "ok", "plan": plan_to_json(PLAN)},
    "plan": plan_to_json(PLAN),
    "service": {"kind": "DisaggInferenceService", "metadata": {"name": "demo"}, "status": {"plan": STATUS}},
    "list": {"kind": "List", "items": [{"metadata": {"name": "demo"}, "status": {"plan": STATUS}}]},
    "config map": {"kind": "ConfigMap", "data": {"plan.json": json.dumps(plan_to_json(PLAN)), "spec.json": "{}"}},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["plan.json", "plan.yaml"])
def test_explain_reads_every_form_of_a_stored_plan(
    form: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", written(tmp_path, FORMS[form], name)]) == 0
    assert "P4x2 D8x1 on 16 GPUs" in capsys.readouterr().out
    assert cli.main(["explain", written(tmp_path, FORMS[form], name), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["explanation"]["chosen"] == "P4x2 D8x1"


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ({"kind": "Pod"}, "holds no plan; give a plan of `weft plan -o json`"),
        ({"items": [FORMS["service"], FORMS["service"]]}, "holds 2 plans"),
        ({"status": "infeasible", "reason": "TooFewGpus"}, "status: holds a refusal (TooFewGpus), not a plan"),
        ({**plan_to_json(PLAN), "groups": []}, "plan.groups: at least one group is needed"),
        ({"data": {"plan.json": "{"}}, "data.plan.json: not JSON"),
    ],
)
def test_what_holds_no_plan_is_refused_with_the_fix(
    body: object, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, body)
    assert cli.main(["explain", path]) == 2
    assert capsys.readouterr().err.startswith(f"{path}: {fault}")


def test_the_named_service_of_a_list_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = [{"metadata": {"name": name}, "status": {"plan": {**STATUS, "revision": name}}} for name in ("a", "b")]
    assert cli.main(["explain", written(tmp_path, {"items": items}), "--name", "b"]) == 0
    assert "Plan b of b" in capsys.readouterr().out


RANKED = TextTable(
    ["#>", "LAYOUT", "WITHIN SLO>", "HELD"],
    [
        ["1", "P4x3 D4x1", TableCell("99% (99-100)", short="99%"), "yes"],
        ["2", "P8x1 D8x1", TableCell("7% (0-9)", short="7%"), "no"],
    ],
)


@pytest.mark.parametrize(
    ("columns", "lines"),
    [
        (80, ["#   LAYOUT        WITHIN SLO   HELD", "1   P4x3 D4x1   99% (99-100)   yes"]),
        (34, ["#  LAYOUT       WITHIN SLO  HELD", "1  P4x3 D4x1  99% (99-100)  yes"]),
        (28, ["# LAYOUT    WITHIN SLO HELD", "1 P4x3 D4x1        99% yes"]),
        (23, ["            WITHIN", "# LAYOUT       SLO HELD", "1 P4x3 D4x1    99% yes"]),
        (20, ["         WITHIN", "# LAYOUT    SLO HELD", "1 P4x3      99% yes", "  D4x1"]),
    ],
)
def test_a_table_fits_the_terminal_and_loses_no_figure(
    columns: int, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in text_of([RANKED]).splitlines()]
    assert shown[: len(lines)] == lines
    assert all(len(line) <= columns for line in shown)


def test_sentences_in_a_table_are_folded_in_files_too() -> None:
    lines = text_of([TextTable(["WHY NOT", "BECAUSE~"], [["P4x3 D4x1", "word " * 60]])]).splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert " ".join(lines).count("word") == 60
