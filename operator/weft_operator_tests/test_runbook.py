"""``weft explain`` and the runbook: every reason has words, and words that are none are told."""

import json
import re
from pathlib import Path

import click
import pytest
import yaml

from weft_cli import weft
from weft_cli.commands import known_help
from weft_operator.commands.live import service_document
from weft_operator.status.reasons.catalogue import CONDITIONS, GROUP_REASONS, REASONS
from weft_operator.status.runbook import FIRST_COMMANDS, explained, remedy_of, runbook_page
from weft_operator_tests.served import call, refusal, serving
from weft_planner.cli.explain import explain
from weft_planner.cli.stored import stored_plan


def test_a_reason_is_explained_in_full() -> None:
    text = call(explain, "unschedulable").output
    assert "Unschedulable, a reason of the condition Progressing" in text
    assert "Usually because: Other pods took the GPUs" in text
    assert "What helps: See the message: GPUs" in text
    assert "weft rollout status NAME" in text


def test_a_condition_and_no_word_list_reasons() -> None:
    rows = json.loads(call(explain, "SLOMet", "-o", "json").output)["reasons"]
    assert [row["reason"] for row in rows] == list(REASONS["SLOMet"])
    every = yaml.safe_load(call(explain, "-o", "yaml").output)["reasons"]
    assert len(every) == sum(len(reasons) for reasons in (*REASONS.values(), *GROUP_REASONS.values()))
    rows = json.loads(call(explain, "workergroup ready", "-o", "json").output)["reasons"]
    assert [row["reason"] for row in rows] == list(GROUP_REASONS["Ready"])
    assert "Planned: A plan for the current spec is active." in call(explain).output


def test_a_reason_of_two_conditions_is_explained_for_both() -> None:
    found = explained("UpToDate")
    assert found is not None
    assert [row["condition"] for row in found[0]["reasons"]] == ["Progressing", "WorkerGroup Progressing"]
    assert "kubectl describe wg GROUP" in found[1]


def test_an_unknown_word_gets_the_nearest() -> None:
    assert "did you mean Unschedulable?" in refusal(call(explain, "Unscheduleable"))
    assert explained("Nonsense") is None
    assert remedy_of("Planned", "Nonsense") == remedy_of("Nonsense", "PlanReady") == ""


@pytest.mark.parametrize("condition", CONDITIONS)
def test_what_needs_a_remedy_has_a_cause(condition: str) -> None:
    lacking = [name for name, reason in REASONS[condition].items() if reason.remedy and not reason.cause]  # type: ignore[index]
    assert not lacking


def test_the_runbook_has_every_reason_that_asks_for_something() -> None:
    page = runbook_page()
    for condition, reasons in REASONS.items():
        assert FIRST_COMMANDS[condition]
        for name, reason in reasons.items():
            assert (f"### {condition}: {name}\n" in page) == bool(reason.remedy or reason.cause)
    for kind, reasons in GROUP_REASONS.items():
        for name, reason in reasons.items():
            assert bool(reason.cause) >= bool(reason.remedy)
            assert (f"### WorkerGroup {kind}: {name}\n" in page) == bool(reason.remedy or reason.cause)
    known = known_help()
    for line in page.splitlines():
        if line.startswith("weft "):
            assert line.split()[1] in known, line


def test_every_command_that_a_remedy_names_is_there() -> None:
    named = sorted(set(re.findall(r"`weft ([a-z][^`]*)`", runbook_page())))
    assert any(words.startswith("rollout upgrade ") for words in named)
    for words in named:
        command: click.Command = weft
        for word in words.split():
            if not isinstance(command, click.Group):
                break
            found = command.get_command(click.Context(command), word)
            assert found is not None, f"there is no command weft {words}"
            command = found


def test_the_runbook_that_is_checked_in_is_todays() -> None:
    path = Path(__file__).parents[2] / "docs/reference/runbook.md"
    assert path.read_text(encoding="utf-8") == runbook_page(), "run make generate"


@pytest.mark.component
def test_a_running_service_is_a_plan_to_compare_with(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(monkeypatch) as server:
        server.service["status"]["plan"] |= {
            "inputsHash": "0", "objective": "cost", "gpus": 6,
            "groups": [{"role": "decode", "degree": 1, "replicas": 5, "pool": "h20"}],
        }  # fmt: skip
        server.service["status"]["plan"]["predicted"] |= {"gpus": 6, "ttftMean": 1.0, "itlMean": 0.02}
        server.publish()
        assert service_document("demo", None)["kind"] == "DisaggInferenceService"
        for path, name in (("live", "demo"), ("live:demo", None), ("live:default/demo", None)):
            found = stored_plan(path, name=name)
            assert [group.replicas for group in found.plan.groups] == [5]
            assert found.name == "demo"
        text = call(explain, "live:demo")
        assert text.return_value == 0, text.exception
        assert "there is no service 'nobody'" in refusal(call(explain, "live:nobody"))
        assert "names no service" in refusal(call(explain, "live:"))
