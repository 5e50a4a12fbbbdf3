"""``weft local`` with real processes: it answers, continues sessions, replays, names what falls, and leaves nothing."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from weft_e2e.local import kept, manifest
from weft_e2e.waiting import until
from weft_e2e_tests.local_runs import EXAMPLE, SERVES, LocalRun, alive, local_run
from weft_router.ask import ask as ask_internally

# A start takes some 4 s of processor time, and these tests share the machine with others.
pytestmark = pytest.mark.component

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
GENEROUS_S = 10.0
"""For a start, on a machine that has its cores to itself; the aim is 5 s."""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRun]:
    """Give a service that answers, planned anew, with engines five times faster than their profile."""
    request = manifest.read(str(EXAMPLE), name=None, profiles=()).request
    (kept.folder() / kept.name_of(request)).unlink(missing_ok=True)
    with local_run(tmp_path_factory.mktemp("local"), "--time-scale", "0.2") as run:
        run.wait_for(SERVES)
        yield run


def ask(run: LocalRun, path: str, body: object = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of an answer."""
    connection = http.client.HTTPConnection(urlsplit(run.url).netloc, timeout=10)
    try:
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        data = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, data, {"Content-Type": "application/json", **told})
        reply = connection.getresponse()
        return reply.status, dict(reply.getheaders()), reply.read()
    finally:
        connection.close()


def chat(messages: list[dict[str, str]], **more: object) -> dict[str, object]:
    """Return the body of a chat."""
    return {"model": MODEL, "messages": messages, "max_tokens": 8, **more}


def test_it_is_ready_within_seconds_and_says_what_it_runs(serving: LocalRun) -> None:
    others = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))

    assert serving.ready_s <= GENEROUS_S * others
    assert "llama-3-1-8b: meta-llama/Llama-3.1-8B-Instruct on 4 mock engines for 4 x nvidia-l40s" in serving.said
    assert "1 x TP1 prefill, 3 x TP1 decode; 4 GPUs; policy weft" in serving.said
    assert "TTFT P95" in serving.said
    assert "% within the SLO (90 % asked for)" in serving.said
    assert f"curl -N {serving.url}/v1/chat/completions" in serving.said
    assert serving.url.startswith("http://127.0.0.1:")


def test_it_answers_and_the_session_goes_on_where_its_history_is(serving: LocalRun) -> None:
    messages = [{"role": "user", "content": "one two three four five six seven eight " * 8}]
    status, headers, first = ask(serving, "/v1/chat/completions", chat(messages), X_Session_Id="goes-on")
    assert status == 200
    answer = json.loads(first)["choices"][0]["message"]

    messages += [answer, {"role": "user", "content": "and nine"}]
    status, later, second = ask(serving, "/v1/chat/completions", chat(messages), X_Session_Id="goes-on")

    assert status == 200
    assert later["X-Weft-Worker"] == headers["X-Weft-Worker"]
    assert later["X-Weft-Worker"].startswith("llama-3-1-8b-d1-")
    usage = json.loads(second)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 64, "the history was computed again"


def test_it_streams(serving: LocalRun) -> None:
    body = chat([{"role": "user", "content": "hello"}], stream=True, stream_options={"include_usage": True})

    status, _headers, stream = ask(serving, "/v1/chat/completions", body, X_Session_Id="streams")

    assert status == 200
    events = [line[6:] for line in stream.decode().split("\n") if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["usage"]["completion_tokens"] == 8
    assert sum(bool(c["delta"].get("content")) for e in events[:-2] for c in json.loads(e)["choices"]) == 8


def test_the_policy_is_that_of_the_file(serving: LocalRun) -> None:
    ask(serving, "/v1/chat/completions", chat([{"role": "user", "content": "decide"}]), X_Session_Id="decided")

    status, page = ask_internally(serving.url + "/debug/decisions", token=serving.token.encode())

    assert status == 200
    decisions = json.loads(page)["decisions"]
    assert {decision["policy"].split("/")[0] for decision in decisions} == {"weft"}


def test_another_policy_is_taken_over_while_it_runs(serving: LocalRun) -> None:
    live = serving.logs / "live.json"
    told = json.loads(live.read_text())
    live.write_text(json.dumps({**told, "routing": {**told["routing"], "policy": "remote-jsq", "mode": "imd"}}))

    def decided() -> bool:
        ask(serving, "/v1/chat/completions", chat([{"role": "user", "content": "anew"}]))
        page = ask_internally(serving.url + "/debug/decisions?n=1", token=serving.token.encode())[1]
        return bool(json.loads(page)["decisions"][0]["policy"] == "remote-jsq")

    until(decided, what="a decision by the new policy", timeout_s=20, every_s=0.5)


def test_engines_that_run_already_are_used_and_stay(serving: LocalRun, tmp_path: Path) -> None:
    workers = json.loads((serving.logs / "workers.json").read_text())["workers"]
    given = [word for worker in workers for word in ("--engine", f"{worker['role']}={worker['url']}")]

    with local_run(tmp_path, *given) as run:
        run.wait_for(SERVES)
        assert "on 4 given engines for 4 x nvidia-l40s" in run.said
        assert "planned before: the same service, the same planner" in run.said
        status, headers, _answer = ask(run, "/v1/chat/completions", chat([{"role": "user", "content": "hello"}]))
        assert status == 200
        assert headers["X-Weft-Worker"].startswith("decode-")
        parts = run.pids()
        assert len(parts) == 2, "the router and its parent"
        assert run.end(signal.SIGTERM) == 0
        assert alive(parts) == []
    assert ask(serving, "/readyz")[0] == 200


def test_a_service_of_neuron_is_served_by_engines_that_hold_its_rules(tmp_path: Path) -> None:
    """The example is planned, rendered and routed: each round has two legs that name each other, and none is cached."""
    prompts: list[int] = []
    with local_run(tmp_path, "--time-scale", "0.02", file=EXAMPLE.with_name("llama-3.3-70b-trainium2.yaml")) as run:
        run.wait_for(SERVES)
        messages = []
        for text in ("one two three four five six seven eight " * 8, "and nine"):
            messages.append({"role": "user", "content": text})
            body = chat(messages, model="meta-llama/Llama-3.3-70B-Instruct")
            status, _, reply = ask(run, "/v1/chat/completions", body, X_Session_Id="neuron")
            assert status == 200
            answer = json.loads(reply)
            prompts.append(answer["usage"]["prompt_tokens"])
            messages.append(answer["choices"][0]["message"])
        urls = [worker["url"] for worker in json.loads((run.logs / "workers.json").read_text())["workers"]]
        until(lambda: all(ledger_of(url)["holds"]["total"] == 0 for url in urls), what="rest", timeout_s=10.0)
        ledgers = [ledger_of(url) for url in urls]
    assert [one["violations"] for one in ledgers] == [{}] * len(urls)
    recent = {
        role: [r for one in ledgers if one["role"] == role for r in one["recent"]] for role in ("prefill", "decode")
    }
    assert sorted((r["cached"], r["computed"]) for r in recent["prefill"]) == [(0, tokens) for tokens in prompts]
    assert sorted((r["computed"], r["read"]) for r in recent["decode"]) == [(0, tokens) for tokens in prompts]


def ledger_of(url: str) -> dict[str, Any]:
    """Return the ledger of a mock engine."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
    try:
        connection.request("GET", "/mock/ledger")
        ledger: dict[str, Any] = json.loads(connection.getresponse().read())
        return ledger
    finally:
        connection.close()


def test_a_workers_role_changes_while_it_runs(serving: LocalRun) -> None:
    assert "another role: weft local role llama-3-1-8b-d1-0 prefill | decode | both" in serving.said
    messages = [{"role": "user", "content": "one two three four five six seven eight " * 8}]
    for worker, role in (("p1-0", "both"), ("d1-1", "prefill"), ("d1-1", "decode"), ("p1-0", "prefill")):
        argv = [sys.executable, "-m", "weft_e2e.local", "role", f"llama-3-1-8b-{worker}", role]
        asked = subprocess.run(
            [*argv, "--logs", str(serving.logs)], capture_output=True, text=True, check=True, timeout=60
        )
        assert re.fullmatch(rf"llama-3-1-8b-{worker}: \w+ -> {role} in [0-9.]+ s", asked.stdout.strip())
        for number in range(4):
            status, headers, _answer = ask(
                serving, "/v1/chat/completions", chat(messages), X_Session_Id=f"roles-{number}"
            )
            assert status == 200
            if (worker, role) == ("d1-1", "prefill"):
                assert headers["X-Weft-Worker"] != "llama-3-1-8b-d1-1"


def test_ctrl_c_ends_all_of_it(serving: LocalRun) -> None:
    """Stands last among those that use the running service."""
    parts = serving.pids()
    assert len(parts) == 6, "four engines, the router and their parent"

    assert serving.end(signal.SIGINT) == 0

    assert serving.said.endswith("ending")
    assert alive(parts) == []


def test_an_engine_that_falls_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    with local_run(tmp_path, "--time-scale", "0.2") as run:
        run.wait_for(SERVES)
        parts = run.pids()
        engine = json.loads((tmp_path / "workers.json").read_text())["workers"][0]
        netloc = urlsplit(engine["url"]).netloc
        connection = http.client.HTTPConnection(netloc, timeout=5)
        connection.request("POST", "/mock/faults", json.dumps({"die_at": "before_headers", "times": 1}))
        assert connection.getresponse().status == 200
        connection.close()
        dies = http.client.HTTPConnection(netloc, timeout=5)
        dies.request("POST", "/v1/completions", json.dumps({"model": MODEL, "prompt": "x", "max_tokens": 1}))
        with pytest.raises((http.client.HTTPException, OSError)):
            dies.getresponse()
        dies.close()

        assert run.process.wait(20) == 1
        run.wait_for(f"the last lines of {tmp_path}/{engine['name']}.log:", timeout_s=5)
        assert f"weft local: {engine['name']} ended " in run.said
        assert "engine_started" in run.said
        assert alive(parts) == []


def test_nothing_stays_behind_one_that_was_killed(tmp_path: Path) -> None:
    with local_run(tmp_path, "--time-scale", "0.2") as run:
        run.wait_for(SERVES)
        parts = run.pids()
        assert len(parts) == 6

        run.process.kill()
        run.process.wait(10)

        until(lambda: not alive(parts), what="the end of every part", timeout_s=15, every_s=0.1)


def test_the_end_of_the_parent_of_all_parts_is_the_end_of_all(tmp_path: Path) -> None:
    with local_run(tmp_path, "--replay", "claude_code") as run:
        run.wait_for("Replay 12 sessions")
        parts = run.pids()

        os.kill(parts[0], signal.SIGKILL)

        assert run.process.wait(20) == 1
        run.wait_for("weft local: the parent of all parts ended by signal SIGKILL", timeout_s=5)
        until(lambda: not alive(parts), what="the end of every part", timeout_s=10, every_s=0.1)


def test_a_replay_writes_the_report_of_the_demo(tmp_path: Path) -> None:
    report = tmp_path / "deep/report.html"
    service = tmp_path / "service.yaml"
    text = EXAMPLE.read_text()
    assert text.count("routing: {policy: weft}") == 1
    # Its plan may send every prefill to prefill workers, and there would be no baseline.
    service.write_text(text.replace("routing: {policy: weft}", "routing: {policy: weft, mode: imd}"))
    args = ("--replay", "claude_code", "--sessions", "3", "--time-scale", "0.1", "--report", str(report))
    with local_run(tmp_path / "logs", *args, file=service) as run:
        assert run.process.wait(120) == 0, run.said
        run.wait_for("Report: ", timeout_s=5)

    page = report.read_text()
    assert "Weft demo report" in page
    assert "this machine, without Kubernetes" in page
    assert "at 10 times its speed" in page
    figures = json.loads((report.parent / "figures.json").read_text())
    assert figures["problems"] == []
    assert figures["summary"]["sessions_complete"] == 3
    served = json.loads((report.parent / "records.json").read_text())["records"]
    beside = json.loads((report.parent / "records-baseline.json").read_text())["records"]
    assert len(served) == len(beside)
    assert {record["route"] for record in beside} == {"remote"}
    assert not any(record["cached_tokens"] for record in beside if record["index"] == 0), "nothing was left in caches"
    assert figures["baseline"]["summary"]["sessions_complete"] == 3
    assert "always remote" in run.said


def test_a_wrong_manifest_ends_it_with_the_field_and_status_2(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(EXAMPLE.read_text().replace("degrees: [1]", "degrees: [3]"))

    with local_run(tmp_path / "logs", file=file) as run:
        assert run.process.wait(60) == 2
        run.wait_for("spec.capacity.pools[0].degrees: must be powers of two", timeout_s=5)
