"""The verbs that work on a running service, against an API server over a real socket."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from click.shell_completion import ShellComplete

from weft_operator.api.objects import Manifest
from weft_operator.commands import drain as drain_module
from weft_operator.commands import rollout as rollout_module
from weft_operator.commands import top as top_module
from weft_operator.commands.drain import drain
from weft_operator.commands.logs import logs
from weft_operator.commands.rollout import follow, judged, rollout
from weft_operator.commands.sessions import sessions
from weft_operator.commands.top import read_page, rows_of, top
from weft_operator_tests.served import PAGE, ROOT, WEFT, Served, call, pod, refusal, serving

pytestmark = pytest.mark.component

HISTORY = """\
revision  plan       GPUs  predicted                                    since                 because
1         P1x1 D1x2  3     TTFT 900 ms, ITL 20 ms, up to 1 sessions/s   2026-01-01T12:02:00Z  made for spec.workload
2 *       P1x1 D1x5  6     TTFT 900 ms, ITL 20 ms, up to 2.5 sessions/s 2026-01-01T12:05:00Z  1.8 sessions/s"""

SESSIONS = """\
worker     role     degree  pool  node    state  sessions  live rounds  KV tokens  idle
demo-p1-0  prefill  1       h20   node-1  ready         -            -          -     -
demo-d1-1  decode   1       h20   node-1  ready         2            0        700  60 s
demo-d1-0  decode   1       h20   node-1  ready        40            3      90000   0 s

42 sessions, 3 rounds being answered
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with serving(monkeypatch) as served:
        yield served


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_the_history_lists_plans_with_predictions_and_causes(server: Served) -> None:
    result = call(rollout, "history", "demo")
    for shown, wanted in zip(words(result.output)[:3], words(HISTORY), strict=True):
        assert shown[: len(wanted)] == wanted
    assert "weft rollout undo demo --to-revision N" in result.output
    body = json.loads(call(rollout, "history", "demo", "-o", "json").output)
    assert [(row["revision"], row["summary"], row["inForce"]) for row in body["revisions"]] == [
        (1, "P1x1 D1x2", False),
        (2, "P1x1 D1x5", True),
    ]
    assert all("component%3Dplan" in asked[1] for asked in server.asked if "controllerrevisions" in asked[1])


def test_one_revision_is_shown_whole(server: Served) -> None:
    text = call(rollout, "history", "demo", "--revision", "2").output
    assert "revision 2: P1x1 D1x5" in text
    assert "decode   1       h20   5        5" in text
    assert "made from spec.workload: 1.8 sessions/s, right for 1.5 to 2.48" in text
    body = yaml.safe_load(call(rollout, "history", "demo", "--revision", "1", "-o", "yaml").output)
    assert body["plan"]["groups"][0] == {"role": "decode", "degree": 1, "replicas": 2, "pool": "h20"}
    assert body["spec"]["planning"]["revisionHistoryLimit"] == 10
    assert "keeps no revision 9; it keeps 1, 2" in refusal(call(rollout, "history", "demo", "--revision", "9"))


def test_a_revision_that_cannot_be_read_says_so(server: Served) -> None:
    server.plans[0]["data"] = {"plan.json": "{}"}
    server.publish()
    assert "another version of Weft" in call(rollout, "history", "demo", "--revision", "1").output
    assert "another version of Weft" in call(rollout, "undo", "demo", "--yes").output


def test_an_undo_shows_what_changes_and_annotates_what_was_looked_at(server: Served) -> None:
    assert call(rollout, "undo", "demo", stdin="n\n").return_value == 1
    assert not server.patched()
    result = call(rollout, "undo", "demo", stdin="y\n")
    assert result.return_value == 0
    assert "revision 2, P1x1 D1x5 -> revision 1, P1x1 D1x2" in result.output
    assert "decode workers of 1 GPU in h20: 5 -> 2" in result.output
    metadata = {"annotations": {"weft.dev/rollback-to": "1"}, "resourceVersion": "77"}
    assert server.patched() == [(f"{WEFT}/disagginferenceservices/demo", {"metadata": metadata})]


def test_what_cannot_be_undone_is_refused(server: Served) -> None:
    assert "is active already" in refusal(call(rollout, "undo", "demo", "--to-revision", "2"))
    server.on("PATCH", f"{WEFT}/disagginferenceservices/demo", {"message": "changed"}, status=409)
    assert "was changed meanwhile" in refusal(call(rollout, "undo", "demo", "--yes"))
    server.on("PATCH", f"{WEFT}/disagginferenceservices/demo", {"message": "not allowed"}, status=403)
    assert "ask for this right" in refusal(call(rollout, "undo", "demo", "--yes"))
    server.plans.pop(0)
    server.publish()
    assert "one plan only" in refusal(call(rollout, "undo", "demo"))
    server.plans.pop()
    server.publish()
    assert "no plan yet" in refusal(call(rollout, "undo", "demo"))
    assert "has had no plan yet" in call(rollout, "history", "demo").output


def test_a_hold_is_ended_by_taking_the_annotation_away(server: Served) -> None:
    assert "no older plan was requested" in refusal(call(rollout, "resume", "demo"))
    server.service["status"]["conditions"] = [{"type": "Planned", "status": "True", "reason": "RolledBack"}]
    server.publish()
    assert "`weft rollout undo demo --to-revision N`" in refusal(call(rollout, "resume", "demo"))
    server.service["metadata"]["annotations"] = {"weft.dev/rollback-to": "1"}
    server.publish()
    assert call(rollout, "resume", "demo").return_value == 0
    assert server.patched()[0][1]["metadata"]["annotations"] == {"weft.dev/rollback-to": ""}


def test_an_upgrade_names_the_image_that_the_operator_offers(server: Served) -> None:
    assert "names no router yet" in refusal(call(rollout, "upgrade", "demo"))
    server.service["status"]["router"] = {"image": "router:1"}
    server.publish()
    assert "has the operator's router already: router:1" in call(rollout, "upgrade", "demo").output
    server.service["status"]["router"]["offered"] = "router:2"
    server.publish()
    assert call(rollout, "upgrade", "demo", stdin="n\n").return_value == 1
    assert not server.patched()
    result = call(rollout, "upgrade", "demo", "--yes", "-o", "json")
    assert json.loads(result.stdout) == {
        "service": "demo", "namespace": "default", "from": "router:1", "to": "router:2", "requested": True,
    }  # fmt: skip
    assert server.patched()[0][1]["metadata"]["annotations"] == {"weft.dev/upgrade-router-to": "router:2"}


def test_the_output_of_commands_that_change_something_can_be_read_by_a_program(server: Served) -> None:
    body = json.loads(call(rollout, "undo", "demo", "--yes", "-o", "json").stdout)
    assert body == {"service": "demo", "namespace": "default", "from": 2, "to": 1}
    server.service["metadata"]["annotations"] = {"weft.dev/rollback-to": "1"}
    server.publish()
    body = yaml.safe_load(call(rollout, "resume", "demo", "-o", "yaml").stdout)
    assert body == {"service": "demo", "namespace": "default", "released": "1"}


def seen(server: Served, **changes: tuple[str, str, str]) -> Manifest:
    found = copy.deepcopy(server.service)
    for kind, (status, reason, message) in changes.items():
        item = next(item for item in found["status"]["conditions"] if item["type"] == kind)
        item.update(status=status, reason=reason, message=message)
    return found


@pytest.mark.parametrize(
    ("changes", "verdict", "said"),
    [
        ({}, "done", "P4x2 D8x1, revision 2 is carried out"),
        ({"Planned": ("False", "OverBudget", "raise it")}, "stopped", "OverBudget: raise it"),
        ({"Planned": ("True", "RollbackRevisionNotFound", "no 9")}, "stopped", "RollbackRevisionNotFound"),
        ({"Planned": ("Unknown", "Planning", "at work")}, "waiting", "at work"),
        ({"Progressing": ("True", "Unschedulable", "no node")}, "waiting", "Unschedulable: no node"),
        ({"Progressing": ("False", "ApplyFailed", "quota")}, "stopped", "ApplyFailed: quota"),
        ({"Ready": ("False", "CoordinatorNotReady", "starting")}, "waiting", "starting"),
    ],
)
def test_a_rollout_is_assessed(server: Served, changes: Any, verdict: str, said: str) -> None:
    server.service["status"]["plan"]["number"] = 2
    found = judged(seen(server, **changes))
    assert found[0] == verdict
    assert said in found[1]


def test_a_newer_spec_and_a_service_nobody_saw_are_waited_for(server: Served) -> None:
    newer = copy.deepcopy(server.service)
    newer["metadata"]["generation"] = 4
    assert judged(newer) == ("waiting", "the operator has not acted on generation 4 of the spec yet")
    del newer["status"]
    assert judged(newer)[1] == "no operator has looked at it yet"


def test_a_rollout_is_followed_until_it_is_done_or_the_time_is_over(server: Served) -> None:
    moving = seen(server, Progressing=("True", "RollingOut", "1 of 3 workers are ready"))
    looks, now = [moving, moving, server.service], 0.0
    told: list[str] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    found = follow(lambda: looks.pop(0), say=told.append, timeout=60, clock=lambda: now, sleep=sleep)
    assert found[1] == "done"
    assert told == ["Progressing RollingOut: 1 of 3 workers are ready"]
    late = follow(lambda: moving, say=told.append, timeout=5, clock=lambda: now, sleep=sleep)
    assert late[1] == "waiting"
    assert "the time is over" in late[2]


def test_the_status_of_a_rollout_ends_with_what_it_is(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(rollout, "status", "demo").return_value == 0
    monkeypatch.setattr(rollout_module, "POLL_S", 0.01)
    server.service = seen(server, Progressing=("True", "RollingOut", "1 of 3"))
    server.publish()
    result = call(rollout, "status", "demo", "--timeout", "0.05", "-o", "json")
    assert result.return_value == 3
    assert json.loads(result.output)["outcome"] == "waiting"
    server.service = seen(server, Planned=("False", "OverBudget", "raise it"))
    server.publish()
    assert call(rollout, "status", "demo").return_value == 1


def test_sessions_are_listed_by_what_losing_the_worker_costs(server: Served) -> None:
    assert call(sessions, "demo").output == SESSIONS
    body = json.loads(call(sessions, "demo", "-o", "json").output)
    assert body["workers"][1] == {
        "name": "demo-d1-1", "role": "decode", "degree": 1, "pool": "h20", "node": "node-1", "state": "ready",
        "sessions": 2, "liveRounds": 0, "kvTokens": 700, "idleSeconds": 60,
    }  # fmt: skip


def test_workers_that_do_not_tell_and_troubled_ones_are_shown(server: Served) -> None:
    rows: list[dict[str, Any]] = [
        {"name": "a", "ready": True, "draining": True}, {"name": "b", "lost": "its node is gone"},
        {"name": "c", "unschedulable": True}, {"name": "d"}, {"name": "e", "ready": True, "outdated": True},
    ]  # fmt: skip
    server.groups[1]["status"]["workers"] = rows
    server.publish()
    text = call(sessions, "demo").output
    assert "no worker reports its sessions yet" in text
    states = {line[0]: line[5:7] for line in words(text) if line and line[0] in "abcde"}
    assert {name: parts[0] for name, parts in states.items()} == {
        "a": "draining", "b": "lost", "c": "unschedulable", "d": "not", "e": "outdated",
    }  # fmt: skip
    server.groups = []
    server.publish()
    assert call(sessions, "demo").output == "there is no worker\n"


@pytest.mark.parametrize("given", ["demo-d1-1", "demo-d1-1-0"])
def test_a_drain_annotates_the_pods_of_one_worker(server: Served, given: str) -> None:
    server.pods.append(pod("demo-d1-1-1", "decode", worker="demo-d1-1"))
    server.publish()
    result = call(drain, given, "--no-wait", stdin="y\n")
    assert result.return_value == 0
    assert "2 sessions, 0 live rounds, 700 KV tokens" in result.stderr
    body = {"metadata": {"annotations": {"weft.dev/drain": "requested"}}}
    assert server.patched() == [(f"{ROOT}/pods/demo-d1-1-0", body), (f"{ROOT}/pods/demo-d1-1-1", body)]


def test_nothing_is_drained_without_a_yes(server: Served) -> None:
    result = call(drain, "demo-p1-0", stdin="n\n")
    assert result.return_value == 1
    assert "the only ready prefill worker" in result.stderr
    assert not server.patched()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("demo-abc", "no worker or pod 'demo-abc'"),
        ("nobody", "its workers are demo-d1-0, demo-d1-1, demo-p1-0"),
    ],
)
def test_what_is_no_worker_is_named_with_those_there_are(server: Served, given: str, said: str) -> None:
    server.pods.pop(0)
    server.publish()
    assert said in refusal(call(drain, given, "--yes"))


def test_a_coordinator_is_no_worker(server: Served) -> None:
    assert "pod 'demo-abc' is not a worker's" in refusal(call(drain, "demo-abc", "--yes"))


def test_a_drain_waits_until_the_pods_are_gone(server: Served) -> None:
    before = [pod("demo-d1-1-0", "decode", worker="demo-d1-1")]
    ending = [pod("demo-d1-1-0", "decode", worker="demo-d1-1", deletionTimestamp="2026-01-01T00:00:00Z")]
    other = [pod("demo-d1-1-0", "decode", worker="demo-d1-1", uid="another")]
    looks, now = [before, ending, ending, other], 0.0
    told: list[str] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    wanted = {"uid-demo-d1-1-0"}
    found = drain_module.follow(
        lambda: looks.pop(0), uids=wanted, say=told.append, timeout=60, clock=lambda: now, sleep=sleep
    )
    assert found == "gone"
    assert told == ["waiting for the operator", "draining: live rounds finish and sessions migrate"]
    assert (
        drain_module.follow(lambda: before, uids=wanted, say=told.append, timeout=3, clock=lambda: now, sleep=sleep)
        == "waiting"
    )


def test_a_drain_that_takes_too_long_says_so(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_module, "POLL_S", 0.01)
    result = call(drain, "demo-d1-1", "--yes", "--timeout", "0.05", "-o", "json")
    assert result.return_value == 3
    assert json.loads(result.stdout) == {
        "worker": "demo-d1-1", "service": "demo", "namespace": "default", "outcome": "waiting",
    }  # fmt: skip


def page(name: str) -> str:
    return f"{ROOT}/pods/{name}:8080/proxy/metrics"


def test_top_shows_rates_between_two_polls(server: Served) -> None:
    before = {"demo-d1-0-0": read_page(PAGE.format(first=10, later=40, tokens=9000, ttft=10, count=10))}
    after = {"demo-d1-0-0": read_page(PAGE.format(first=12, later=48, tokens=9400, ttft=13, count=12))}
    rows = rows_of(server.pods, before, after, seconds=2.0, memory={"demo-d1-0": 90_000})
    row = next(row for row in rows if row["pod"] == "demo-d1-0-0")
    assert row == {
        "pod": "demo-d1-0-0", "role": "decode", "state": "ready", "inFlight": 3, "queue": 2, "sessions": 41,
        "roundsPerSecond": 5.0, "tokensPerSecond": 200.0, "ttftSeconds": 1.5, "kvTokens": 90_000,
    }  # fmt: skip
    again = rows_of(server.pods, after, before, seconds=2.0, memory={})
    assert "roundsPerSecond" not in next(row for row in again if row["pod"] == "demo-d1-0-0"), "it began anew"


def test_top_reads_pods_through_the_api_server(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    body = PAGE.format(first=1, later=2, tokens=3, ttft=1, count=1).encode()
    server.on("GET", page("demo-d1-0-0"), body)
    server.on("GET", page("demo-p1-0-0"), {"message": "dial tcp: i/o timeout"}, status=503)
    result = call(top, "demo", "--interval", "0.1")
    assert result.return_value == 0
    line = next(line for line in words(result.output) if line and line[0] == "demo-d1-0-0")
    assert line[:7] == ["demo-d1-0-0", "decode", "ready", "3", "2", "41", "90000"]
    assert "3 pods could not be read; allow the API server's address with spec.networkPolicy.workersFrom" in " ".join(
        result.output.split()
    )
    server.answers = {key: value for key, value in server.answers.items() if "proxy" not in key[1]}
    assert call(top, "demo", "--interval", "0.1").return_value == 1
    assert top_module.read_page("garbage\nname value\n") == {}


LOG_A = '2026-01-01T00:00:02.5Z {"level": "info", "event": "drain_started", "inflight": 3, "ts": 1}\n'
LOG_B = "2026-01-01T00:00:01.5Z plain words\n"


def log(name: str) -> str:
    return f"{ROOT}/pods/{name}/log"


def test_logs_of_all_pods_come_in_the_order_of_time(server: Served) -> None:
    server.on("GET", log("demo-abc"), LOG_A.encode())
    server.on("GET", log("demo-d1-0-0"), LOG_B.encode())
    result = call(logs, "demo", "--tail", "7", "--since", "60")
    assert result.stdout.splitlines() == [
        "2026-01-01T00:00:01.5Z demo-d1-0-0/router plain words",
        "2026-01-01T00:00:02.5Z demo-abc/router INFO drain_started inflight=3",
    ]
    assert "demo-p1-0-0/router" in result.stderr
    asked = server.queries("/demo-abc/log")[0]
    assert asked == {"container": ["router"], "timestamps": ["true"], "tailLines": ["7"], "sinceSeconds": ["60"]}
    line = json.loads(call(logs, "demo", "--pod", "demo-abc", "-o", "json").output)
    assert (line["pod"], line["container"]) == ("demo-abc", "router")


def test_logs_of_downloads_are_those_of_jobs_and_of_sidecars(server: Served) -> None:
    job = pod("demo-weights-cfee-x", "weights")
    job["spec"]["containers"] = [{"name": "weights"}]
    server.pods[1]["spec"]["initContainers"].append({"name": "weights"})
    server.pods.append(job)
    server.publish()
    server.on("GET", log("demo-weights-cfee-x"), LOG_A.encode())
    server.on("GET", log("demo-p1-0-0"), LOG_B.encode())
    said = call(logs, "demo", "--container", "weights").stdout.splitlines()
    assert [line.split()[1] for line in said] == ["demo-p1-0-0/weights", "demo-weights-cfee-x/weights"]


def test_logs_name_the_pods_there_are_and_fail_when_none_can_be_read(server: Served) -> None:
    assert "it has demo-abc, demo-d1-0-0" in refusal(call(logs, "demo", "--pod", "nobody"))
    assert call(logs, "demo").return_value == 1
    wrong = call(logs, "demo", "--previous", "--follow")
    assert "--previous and --follow exclude each other" in refusal(wrong)


def test_followed_logs_repeat_no_line(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    server.on("GET", log("demo-abc"), LOG_B.encode())
    rounds = 0

    def pause(_seconds: float) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            server.on("GET", log("demo-abc"), (LOG_B + LOG_A).encode())
        if rounds == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr("weft_operator.commands.logs.time.sleep", pause)
    result = call(logs, "demo", "--pod", "demo-abc", "--follow")
    assert [line.split()[2] for line in result.stdout.splitlines()] == ["plain", "INFO"]
    assert server.queries("/demo-abc/log")[-1]["sinceTime"] == ["2026-01-01T00:00:02Z"]


def completed(verb: Any, *args: str) -> list[str]:
    return [item.value for item in ShellComplete(verb, {}, verb.name, "X").get_completions(list(args[:-1]), args[-1])]


def test_shells_complete_services_and_workers(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    from weft_operator.commands import cluster
    from weft_operator.errors import ForbiddenError

    assert completed(sessions, "de") == ["demo"]
    assert completed(rollout, "undo", "d") == ["demo"]
    assert "demo-d1-1-0" in completed(drain, "demo-d")

    def nothing(**_: object) -> None:
        raise ForbiddenError("no access to a cluster")

    monkeypatch.setattr(cluster, "connect", nothing)
    assert completed(sessions, "de") == []
