"""The demo's replan: what is told of each moment, and that one screen and the report show it."""

import io
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from weft_core.plan import Alternative, plan_to_json
from weft_e2e.cluster import ClusterError
from weft_e2e.demo import drift, table
from weft_e2e.demo.collect import write
from weft_e2e.demo.page import render
from weft_e2e.demo.run import _changed
from weft_e2e.demo.scene import Drifted, Rounds, Story
from weft_e2e.demo.screen import screen
from weft_e2e.demo.steps import Steps
from weft_e2e.kube import KubeError
from weft_e2e.replay.client import Target
from weft_e2e.scenarios import arriving
from weft_e2e.scenarios.replan_scenarios import ANSWERS, PROMPTS, USUAL_MIX
from weft_e2e.service import Service
from weft_e2e_tests.demo_samples import facts
from weft_e2e_tests.demo_scenes import (
    LARGE,
    SMALL,
    WHY,
    a_pod,
    a_service,
    a_story,
    drifted,
    later_moments,
    moments,
    sessions_page,
)
from weft_e2e_tests.fake_kube import Done, FakeKube, Recorder


def shown(story: Story, number: int = -1, *, width: int = 100) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(screen(story.scenes[number]))
    return out.getvalue()


def test_the_story_tells_each_fact_once_and_in_order() -> None:
    told = a_story().facts
    words = [fact for _, fact in told]
    assert len(words) == len(set(words))
    assert told == sorted(told, key=lambda fact: fact[0])
    assert words[:2] == ["drift: the planner is asked for the traffic that is seen", "another plan is active"]
    assert set(words[2:6]) == {
        "drift-w2-1-0 serves",
        "drift-w2-0-0 serves",
        "drift-w1-1-0 drains",
        "drift-w1-0-0 drains, with 5 sessions to finish or move",
    }
    assert set(words[6:]) == {"drift-w1-1-0 is gone", "drift-w1-0-0 is gone"}


def test_a_worker_that_changes_its_role_is_told_of_once() -> None:
    story = Story(SMALL)
    service = a_service(SMALL, "PlanReady", "", rate=0.5, prompt=600.0)
    for at_s, role in ((0.0, "prefill"), (5.0, "decode"), (6.0, "decode")):
        pods = [a_pod("drift-w1-0-0", "decode", 1), a_pod("drift-w1-1-0", role, 1)]
        story.take(service, pods, {}, at_s=at_s, arrives="much", rounds=Rounds(1, 0, 0))
    assert story.facts == [(5.0, "drift-w1-1-0 changes its role from prefill to decode")]


def test_one_screen_says_what_arrives_what_is_seen_why_it_changed_and_who_serves() -> None:
    text = shown(a_story(), 3)
    for words in ("1.48 sessions/s", "P1x1 D1x1 → P2x1 D2x1", WHY[:40], "1 -> 0", "draining", "5 sessions", "0 failed"):
        assert words in text, words
    assert len(text.splitlines()) <= 36, "one screen"
    assert max(map(len, text.splitlines())) <= 100


def test_why_the_plan_changed_stays_on_the_screen_when_nothing_is_seen_for_a_while() -> None:
    story = a_story()
    blind = a_service(
        LARGE, "MetricsUnavailable", "the plan is kept, for nothing may be concluded: Partial", rate=1.0, prompt=1.0
    )
    story.take(blind, [a_pod("d", "decode", 2)], {}, at_s=40.0, arrives="much", rounds=Rounds(140, 0, 0))
    text = shown(story)
    assert WHY[:40] in text
    assert "nothing may be concluded" not in text
    blind["status"]["observed"] = {"metricsReason": "Partial", "window": "20s"}
    story.take(blind, [a_pod("d", "decode", 2)], {}, at_s=41.0, arrives="much", rounds=Rounds(140, 0, 0))
    assert "nothing for now (Partial), so nothing is concluded" in shown(story)


def test_what_the_new_plan_should_bring_stands_beside_what_the_old_one_would() -> None:
    story = Story(SMALL)
    service = a_service(LARGE, "Replanned", f"it was made, because {WHY}; it holds", rate=1.5, prompt=1190.0)
    worse = replace(SMALL.predicted, ttft_p95_s=4.2)
    weighed = replace(LARGE, alternatives=(Alternative(SMALL.groups, worse, 4.2),))
    parts: dict[str, Any] = {"at_s": 1.0, "arrives": "much", "rounds": Rounds(1, 0, 0)}
    assert "predicted TTFT: 4.2 s -> 1.1 s" in story.take(service, [], {}, weighed=weighed, **parts).diff
    other = replace(weighed, revision="another")
    assert "predicted TTFT: 1.1 s" in story.take(service, [], {}, weighed=other, **parts).diff


def test_the_plan_is_read_with_those_it_was_weighed_against() -> None:
    kept = {
        "kind": "ConfigMap",
        "metadata": {"name": "drift-plan"},
        "data": {"plan.json": json.dumps(plan_to_json(LARGE))},
    }
    assert Service(FakeKube([kept]), "n", "drift").weighed_plan() == LARGE
    for body in ({}, {"plan.json": "{}"}, {"plan.json": "{"}):
        assert Service(FakeKube([{**kept, "data": body}]), "n", "drift").weighed_plan() is None
    assert Service(FakeKube(), "n", "drift").weighed_plan() is None


def test_before_anything_is_seen_the_screen_says_so() -> None:
    story = Story(SMALL)
    service = a_service(SMALL, "PlanReady", "", rate=0.5, prompt=1.0)
    del service["status"]["observed"]
    story.take(service, [a_pod("d", "decode", 1)], {}, at_s=0.0, arrives="much", rounds=Rounds(0, 0, 1))
    text = shown(story)
    assert "nothing yet" in text
    assert "because" not in text
    assert "1 failed" in text


def test_table_and_report_tell_of_the_replan(tmp_path: Path) -> None:
    made = facts(replans=(drifted(),))
    text = table.render(made)
    assert "drift: P1x1 D1x1 -> P2x1 D2x1, because 1187 tokens" in text
    assert "active 21 s after the traffic changed, alone after 38 s" in text
    page = render(made)
    assert "When the traffic changed" in page
    assert "prefill workers of 1 GPU in h20: 1 -&gt; 0" in page
    assert "When the traffic changed" not in render(facts())
    write(made, tmp_path)
    (told,) = json.loads((tmp_path / "figures.json").read_text())["replans"]
    assert told["plans"] == ["P1x1 D1x1", "P2x1 D2x1"]
    assert told["rounds"] == {"served": 131, "running": 7, "failed": 0}


def test_a_plan_that_stayed_is_said_to_have_stayed() -> None:
    story = a_story()
    story.scenes = story.scenes[:1]
    text = table.render(facts(replans=(Drifted("drift", story, ("no other plan",)),)))
    assert "P1x1 D1x1 stayed, although 1.5 sessions/s arrive" in text


def test_the_traffic_triples_with_longer_prompts_and_then_its_answers_get_longer() -> None:
    assert PROMPTS.sessions_per_s == pytest.approx(3 * USUAL_MIX.sessions_per_s)
    assert PROMPTS.rounds[0].added_tokens > USUAL_MIX.rounds[0].added_tokens > ANSWERS.rounds[0].added_tokens
    assert ANSWERS.sessions_per_s == PROMPTS.sessions_per_s
    assert ANSWERS.rounds[0].decode_tokens > PROMPTS.rounds[0].decode_tokens


class Playing(FakeKube):
    """A cluster in which each look at the service finds the next moment of the replan."""

    def __init__(self) -> None:
        super().__init__()
        self.later = [*moments(), *later_moments()]
        self.held: dict[str, int] = {}
        self.next()

    def next(self) -> None:
        _, service, pods, self.held, _ = self.later.pop(0) if len(self.later) > 1 else self.later[0]
        self.objects = [service, *pods]

    def kubectl(self, *args: str, **options: Any) -> Done:
        if "--raw" in args:
            name = args[2].split("/pods/")[1].split(":")[0]
            return subprocess.CompletedProcess(args, 0, sessions_page(self.held.get(name, 0)), "")
        if args[1] == "pods":
            self.next()
        return super().kubectl(*args, **options)


@pytest.mark.parametrize("terminal", [True, False])
def test_the_demo_watches_until_the_new_plan_serves_alone(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def reachable(_self: Service, *, run: str = "") -> Iterator[Target]:
        assert run.startswith("drift-")
        yield Target("http://127.0.0.1:1", "m")

    async def session(*_: object, **__: object) -> None:
        pass

    monkeypatch.setattr(Service, "reachable", reachable)
    monkeypatch.setattr(arriving, "run_session", session)
    monkeypatch.setattr(drift, "EVERY_S", 0.01)
    monkeypatch.setattr(drift, "USUAL_S", 0.01)
    monkeypatch.setattr(drift, "Console", lambda: Console(force_terminal=terminal, width=100))
    said: list[str] = []
    grown, switched = drift.show(Service(Playing(), "n", "drift"), Steps(said.append), ready_s=1.0)
    assert grown.problems == switched.problems == ()
    assert grown.last.plans == ("P1x1 D1x1", "P2x1 D2x1")
    assert [worker.state for worker in grown.last.workers] == ["ready", "ready"]
    assert switched.last.plans == ("P2x1 D2x1", "D2x1 B2x1")
    assert "drift-w2-1-0 changes its role from prefill to both" in [words for _, words in switched.story.facts]
    shown = re.sub("\x1b[^a-zA-Z]*[a-zA-Z]", "", capsys.readouterr().out)
    assert "P1x1 D1x1 → P2x1 D2x1" in shown
    assert "P2x1 D2x1 → D2x1 B2x1" in shown
    assert "160 tokens in an answer (plan: 60)" in shown
    assert any("drains, with 5 sessions" in line for line in said) is not terminal


def test_a_plan_that_never_comes_is_a_problem() -> None:
    story = a_story()
    story.scenes = story.scenes[:1]
    found = drift._problems(story, [])
    assert len(found) == 1
    assert "no other plan was active" in found[0]


def test_the_second_service_has_gpus_of_its_own() -> None:
    recorder = Recorder(services=["node/node-1", "node/node-2"])
    service = drift.prepare(recorder)
    assert [call[1] for call in recorder.calls if call[0] == "patch"] == ["node/node-1", "node/node-2"]
    (made,) = recorder.made
    assert made["spec"]["capacity"]["pools"][0]["resource"] == drift.RESOURCE
    assert (service.namespace, service.name) == ("weft-demo", "drift")


@pytest.mark.parametrize("error", [KubeError("no answer"), ClusterError("no answer"), TimeoutError("no answer")])
def test_trouble_with_the_second_service_is_a_problem_and_no_end(error: Exception) -> None:
    def act() -> str:
        raise error

    assert _changed(act) == "the second service: no answer"
