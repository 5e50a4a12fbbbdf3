"""The demo refuses what it cannot finish, touches only what it was told to, and tells its steps and problems."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from weft_e2e import images
from weft_e2e.cluster import prerequisites
from weft_e2e.cluster.prerequisites import Task
from weft_e2e.demo import cli, install
from weft_e2e.demo.collect import collect, next_steps, write
from weft_e2e.demo.facts import Facts
from weft_e2e.demo.install import CRDS, check_setup, ensure_namespace, take_down
from weft_e2e.demo.playing import ReplayRun, at_rest, progress
from weft_e2e.demo.run import choose, manifest_for
from weft_e2e.demo.settings import MARK, NAMESPACE, REPLAY_DEADLINE_S, SYSTEM_NAMESPACE, TRACE_LIMITS, Settings
from weft_e2e.demo.steps import DemoFailed, Steps
from weft_e2e.replay.records import ReplayResult, RoundRecord
from weft_e2e.service import Service
from weft_e2e_tests.demo_samples import LOAD, PLAN, a_round, facts, many_rounds
from weft_e2e_tests.fake_kube import FakeKube, Recorder


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Stand in for a user's own cluster."""
    recorder = Recorder()
    monkeypatch.setattr(install, "NamedContext", lambda _context: recorder)
    return recorder


def test_your_own_cluster_needs_images_it_can_pull() -> None:
    with pytest.raises(DemoFailed, match="make images push REGISTRY="):
        check_setup(Settings(context="mine"))
    check_setup(Settings(context="mine", registry="registry.example.com/team"))


def test_the_local_demo_makes_its_images_beside_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[Task]] = []

    def made(say: Callable[[str], None], *, beside: Sequence[Task]) -> None:
        say("to make: …")
        asked.append(beside)

    monkeypatch.setattr(prerequisites, "install", made)
    monkeypatch.setattr(images, "task", lambda: Task({"weft-router": 15.0}, lambda _work: None))
    lines: list[str] = []
    check_setup(Settings(), lines.append)
    assert [list(task.parts) for task in asked[0]] == [["weft-router"]]
    assert lines == ["to make: …"]


def test_the_images_of_a_registry_become_helm_values() -> None:
    settings = Settings(registry="r.example/x", tag="v1", helm_set=("redis.embedded.enabled=false",))

    assert settings.image_arguments() == [
        *("--set-string", "image.registry=r.example/x"),
        *("--set-string", "image.tag=v1"),
        *("--set", "redis.embedded.enabled=false"),
    ]


def test_taking_down_leaves_alone_what_the_demo_did_not_make(theirs: Recorder) -> None:
    said: list[str] = []

    take_down("mine", said.append)

    assert theirs.changes == []
    assert said == [f"release weft in {SYSTEM_NAMESPACE} is not the demo's: it stays"]


def test_taking_down_removes_all_that_the_demo_made(theirs: Recorder) -> None:
    theirs.marked = {NAMESPACE, SYSTEM_NAMESPACE}

    take_down("mine", lambda _line: None)

    done = [" ".join(c[:3]) for c in theirs.changes]
    assert f"delete namespace {NAMESPACE}" in done
    assert "helm uninstall weft" in done
    assert f"delete namespace {SYSTEM_NAMESPACE}" in done
    assert all(f"delete crd {crd}" in done for crd in CRDS)


def test_taking_down_keeps_weft_while_others_use_it(theirs: Recorder) -> None:
    theirs.marked = {SYSTEM_NAMESPACE}
    theirs.services = ["disagginferenceservice.weft.dev/production"]

    with pytest.raises(DemoFailed, match="1 services still use Weft"):
        take_down("mine", lambda _line: None)
    assert theirs.changes == []


@pytest.mark.parametrize("there", [True, False])
def test_taking_down_the_local_cluster_says_what_stays(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_e2e.cluster.down", lambda _name: there)
    monkeypatch.setenv("WEFT_CACHE", "/somewhere/weft")
    said: list[str] = []

    take_down(None, said.append)

    assert ("gone" in said[0]) is there
    assert all(word in said[-1] for word in ("weft_e2e.images prune", "/somewhere/weft", "out/demo"))


def test_a_release_of_someone_else_is_used_and_not_upgraded(theirs: Recorder) -> None:
    said: list[str] = []

    kube, words = install.bring_up(Settings(context="mine", registry="r"), Steps(said.append))

    assert kube is theirs
    assert words == "context 'mine'"
    assert theirs.changes == []
    assert any("is not the demo's: it is used as it is" in line for line in said)


def test_a_fresh_cluster_gets_a_marked_namespace_and_the_chart(theirs: Recorder) -> None:
    theirs.release = False

    install.bring_up(Settings(context="mine", registry="r"), Steps(lambda _line: None))

    assert theirs.changes[0] == ("create", "-f", "-")
    (made,) = theirs.made
    assert made["kind"] == "Namespace"
    assert made["metadata"] == {"name": SYSTEM_NAMESPACE, "labels": {MARK: "true"}}
    (upgrade,) = [c for c in theirs.changes if c[0] == "helm"]
    assert upgrade[1:4] == ("upgrade", "--install", "weft")
    assert upgrade[-2:] == ("--set-string", "image.registry=r")


def test_an_existing_namespace_is_not_marked() -> None:
    kube = Recorder(marked={"there"})

    ensure_namespace(kube, "there")

    assert kube.changes == []


def test_steps_tell_their_names_details_and_times() -> None:
    said: list[str] = []
    steps = Steps(said.append)

    with steps.step("Do it") as detail:
        detail("half way")

    assert said[0].endswith("s] Do it")
    assert said[1].strip() == "half way"
    assert said[2].strip().startswith("done in 0.")
    assert [s.name for s in steps.done] == ["Do it"]


def test_a_step_that_fails_is_not_called_done() -> None:
    said: list[str] = []
    steps = Steps(said.append)

    with pytest.raises(DemoFailed), steps.step("Do it"):
        raise DemoFailed("no")
    assert steps.done == []
    assert not any("done" in line for line in said)


def test_progress_counts_rounds_sessions_and_failures() -> None:
    selection = choose(Settings())
    said: list[str] = []
    listen = progress(selection, said.append, every_s=0)
    first = selection.sessions[0]

    for k in range(len(first.rounds)):
        listen(a_round(first.name, k))
    listen(a_round(selection.sessions[1].name, 0, outcome="truncated"))

    count = len(first.rounds)
    assert f"{count} of {selection.rounds} rounds, 1 of 12 sessions, 0 failed" in said[-2]
    assert f"{count + 1} of {selection.rounds} rounds, 1 of 12 sessions, 1 failed" in said[-1]


ROUTER_PAGE = """# TYPE weft_router_kv_bytes_total counter
weft_router_kv_bytes_total{direction="prefill_to_decode"} 5
# TYPE weft_router_history_tokens_total counter
"""
ENGINE_PAGE = """# TYPE weft_mock_kv_protocol_errors_total counter
weft_mock_kv_protocol_errors_total{reason="x"} %d
# TYPE weft_mock_refused_handles_total counter
# TYPE weft_mock_failed_reads_total counter
# TYPE weft_mock_lost_seconds_total counter
weft_mock_lost_seconds_total 0.5
# TYPE weft_mock_worst_lateness_seconds gauge
weft_mock_worst_lateness_seconds 0.25
"""


def gather(
    records: tuple[RoundRecord, ...],
    pages: dict[str, str],
    restarted: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
    baseline: tuple[RoundRecord, ...] = (),
) -> Facts:
    monkeypatch.setattr(Service, "plan", lambda _self: PLAN)
    manifest, _notes = manifest_for(Settings(), choose(Settings()))
    played = ReplayRun(ReplayResult(records=records, started_at="now", wall_s=1.0, load=LOAD), {}, pages)
    beside = ReplayRun(ReplayResult(records=baseline, started_at="later", wall_s=1.0, load=LOAD), pages, pages)
    return collect(
        Service(Recorder(), "n", "s"),
        manifest,
        played,
        baseline=beside if baseline else None,
        words="here",
        choices=("chosen",),
        restarted=Counter(restarted),
        context=None,
        steps=Steps(lambda _line: None),
    )


def test_a_clean_run_has_no_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    made = gather(many_rounds(3), {"c": ROUTER_PAGE, "d/engine": ENGINE_PAGE % 0}, {}, monkeypatch)

    assert made.problems == ()
    assert made.kv is not None
    assert made.kv.prefill_to_decode_bytes == 5
    assert made.pace is not None
    assert (made.pace.lost_s, made.pace.worst_step_s) == (0.5, 0.25)


def test_every_problem_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    records = (a_round("a"), a_round("b", outcome="truncated", error="x"))
    made = gather(records, {"c": ROUTER_PAGE, "d/engine": ENGINE_PAGE % 2}, {"d-0/engine": 1}, monkeypatch)

    assert made.problems == (
        "2 KV transfers had wrong parameters",
        "1 of 2 rounds failed: 1 truncated",
        "container d-0/engine was restarted during the replay",
    )


def test_problems_of_the_baseline_are_named_as_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {"c": ROUTER_PAGE, "d/engine": ENGINE_PAGE % 0}
    failed = (a_round("a", route="local"), a_round("b", outcome="truncated", error="x"))

    made = gather(many_rounds(3), pages, {}, monkeypatch, baseline=failed)

    assert made.problems == (
        "baseline: 1 of 2 rounds failed: 1 truncated",
        "baseline: 1 prefills ran on a decode worker, though all were to be remote",
    )
    assert made.baseline is not None
    assert (made.baseline.summary.rounds, made.baseline.policy) == (2, "remote-jsq")


def test_figures_without_metrics_are_left_out_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    made = gather(many_rounds(2), {"c": ""}, {}, monkeypatch)

    assert made.kv is None
    assert made.pace is None
    assert made.problems == ("no metrics page declares weft_router_kv_bytes_total; pages read: c",)


def test_the_next_steps_name_the_cluster_that_was_used() -> None:
    service = Service(Recorder(), "n", "s")

    here, theirs = "\n".join(next_steps(service, context=None)), "\n".join(next_steps(service, context="mine"))

    assert ".venv/bin/weft cluster kubectl --name demo get dis,sts,pods -n n" in here
    assert "KUBE_CONTEXT" not in here
    assert "kubectl --context mine get dis,sts,pods -n n" in theirs
    assert "make demo-down KUBE_CONTEXT=mine" in theirs


def test_report_and_figures_are_written(tmp_path: Path) -> None:
    write(facts(), tmp_path / "deep")

    assert (tmp_path / "deep/report.html").read_text().startswith("<!doctype html>")
    assert json.loads((tmp_path / "deep/figures.json").read_text())["summary"]["sessions"] == 30


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the demo find a machine on which a cluster runs, with everything installed."""
    monkeypatch.setattr(cli, "choose_form", lambda *_: "cluster")


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize(("problems", "status"), [((), 0), (("it broke",), 1)])
def test_the_exit_status_tells_of_problems(
    problems: tuple[str, ...],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(cli, "run", lambda _settings, _say: facts(problems=problems))

    assert cli.main(["up", "--out", str(tmp_path)]) == status

    out = capsys.readouterr().out
    assert "What to look at next:" in out
    assert ("PROBLEM" in out) == bool(problems)


@pytest.mark.usefixtures("prepared")
def test_a_failed_step_gives_one_line_and_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_settings: Settings, _say: object) -> Facts:
        raise DemoFailed("the service was not planned: TooFewGpus: 2 needed")

    monkeypatch.setattr(cli, "run", broken)

    assert cli.main(["up"]) == 1
    assert capsys.readouterr().err == "weft demo: the service was not planned: TooFewGpus: 2 needed\n"


def test_limits_that_make_no_sense_are_refused_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["up", "--sessions", "0"]) == 1
    assert "sessions must be at least 1" in capsys.readouterr().err


@pytest.mark.usefixtures("prepared")
def test_given_limits_replace_those_of_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Settings] = []

    def remember(settings: Settings, _say: object) -> Facts:
        seen.append(settings)
        return facts()

    monkeypatch.setattr(cli, "run", remember)

    cli.main(["up", "--trace", "gaia_whowhen", "--max-rounds", "2", "--seed", "5"])
    cli.main(["up"])

    assert seen[0].limits == replace(TRACE_LIMITS["gaia_whowhen"], max_rounds=2, min_rounds=2, seed=5)
    assert seen[1].limits == TRACE_LIMITS["claude_code"]
    assert seen[1].limits == Settings().limits


@pytest.mark.parametrize("trace", sorted(TRACE_LIMITS))
def test_the_replay_is_as_long_as_promised(trace: str) -> None:
    selection = choose(Settings(trace=trace, limits=TRACE_LIMITS[trace]))
    # Unloaded: 17 ms a token and half a second to the first one.
    ends = [s.arrival_s + sum(r.gap_s + 0.5 + 0.017 * r.decode_tokens for r in s.rounds) for s in selection.sessions]

    assert max(ends) < 48, "each trace is replayed twice, and a warm demo takes 3 minutes in all"
    assert 2 * max(ends) < REPLAY_DEADLINE_S


class Counting(Service):
    """A service whose routers serve so many requests at each reading; the last number stays."""

    serving: ClassVar[list[int]]

    def metrics_pages(self) -> dict[str, str]:
        count = self.serving.pop(0) if len(self.serving) > 1 else self.serving[0]
        text = '# TYPE weft_router_inflight gauge\nweft_router_inflight{role="decode"} '
        return {"d": f"{text}{count}\n", "p": f"{text}0\n"}


def test_counters_are_read_once_no_router_serves_any_more() -> None:
    said: list[str] = []
    service = Counting(FakeKube(), "n", "s")

    Counting.serving = [2, 1, 0]
    assert at_rest(service.metrics_pages, said.append)["d"].endswith(" 0\n")
    assert said == []

    Counting.serving = [1]
    assert at_rest(service.metrics_pages, said.append, timeout_s=0)["d"].endswith(" 1\n")
    assert said == ["a router still serves requests 0 s after the last round: its counts are not complete"]
