"""Failure rules that others would make up for: each is taken by itself, so that its loss shows."""

import asyncio
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from weft_core.heartbeat import WorkerRecord
from weft_router.engines import watch
from weft_router.errors import ApiError, StreamBrokenError, UpstreamFailedError
from weft_router.roles import failover
from weft_router.rounds.response_writer import ResponseWriter
from weft_router.sessions.round_request import RoundRequest
from weft_router.state import heartbeat, registry
from weft_router_tests.fake_engine import prompt_ids, reply_text
from weft_router_tests.stack import MODEL, Answer, Stack, get, is_so, prove_self, proven, router_json, settings, until

pytestmark = pytest.mark.component


def asked(k: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"question {k}"}]


async def test_a_prefill_worker_that_does_not_answer_is_asked_once_although_its_heart_beats(sidecars: Stack) -> None:
    await sidecars.up(prefill=2)
    await sidecars.processes["p0"].server.listener.close()
    for k in range(4):
        answer = await sidecars.chat(asked(k), session=f"s{k}")
        assert (answer.status, answer.headers["X-Weft-Prefill-Worker"]) == (200, "p1")
    assert await sidecars.count("weft_router_prefill_failures_total", "d0", reason="connect") == 1


async def test_a_prefill_worker_that_drains_takes_nothing_although_nobody_has_heard_of_it(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "HEARTBEAT_S", 600.0)
    await stack.up(prefill=2)
    stack.worker_of("p0").draining = True
    assert (await stack.chat(asked(0))).headers["X-Weft-Prefill-Worker"] == "p1"
    assert not stack.engines["p0"].seen


async def one_left_and_one_ill(stack: Stack) -> None:
    """Start two decode workers of which the first dies in its first stream and the second is not ready."""
    await stack.up(decode=2, prefill=0)
    stack.engines["d1"].script.health = 500
    await until(lambda: is_so(len(stack.registry("c0").ready("decode")) == 1))
    assert len(stack.registry("c0").known("decode")) == 2
    stack.engines["d0"].script.die_at_token = 3


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "POLL_S", 0.05)
    monkeypatch.setattr(registry, "REFRESH_S", 0.05)


@pytest.mark.usefixtures("quick")
async def test_a_stream_waits_less_than_two_seconds_for_a_worker_that_does_not_come_back(stack: Stack) -> None:
    await one_left_and_one_ill(stack)
    started = time.monotonic()
    answer = await stack.chat(asked(0), stream=True)
    assert time.monotonic() - started < 2
    assert answer.error is not None
    assert answer.text == reply_text(prompt_ids({"messages": asked(0)}))[:3]
    assert not stack.engines["d1"].seen


@pytest.mark.usefixtures("quick")
async def test_a_stream_waits_a_moment_for_a_worker_that_comes_back(stack: Stack) -> None:
    await one_left_and_one_ill(stack)

    async def recover() -> None:
        await until(lambda: is_so(stack.engines["d0"].died == 1))
        stack.engines["d1"].script.health = 200

    recovering = asyncio.ensure_future(recover())
    answer = await stack.chat(asked(0), stream=True)
    await recovering
    assert answer.whole
    assert answer.text == reply_text(prompt_ids({"messages": asked(0)}))


@pytest.mark.usefixtures("quick")
async def test_with_nobody_ready_a_request_is_refused_at_the_door(stack: Stack) -> None:
    await stack.up(decode=1, prefill=0)
    stack.engines["d0"].script.health = 500
    await until(lambda: is_so(not stack.registry("c0").ready("decode")))
    async with stack.http.post(stack.front + "/v1/chat/completions", data=b"not even JSON") as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "2")
    assert await stack.count("weft_router_rejected_total", reason="no-worker") == 1


@pytest.mark.usefixtures("quick")
async def test_nobody_waits_for_a_worker_before_the_first_byte(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    await one_left_and_one_ill(stack)
    stack.engines["d0"].script.status = 500
    monkeypatch.setattr(failover, "RESUME_WAIT_S", 60.0)
    answer = await asyncio.wait_for(stack.chat(asked(0), stream=True), 5)
    assert answer.status == 502
    assert len(stack.engines["d0"].seen) == 1


async def test_a_coordinator_that_must_go_takes_new_connections_for_a_moment(stack: Stack) -> None:
    await stack.up(prefill=0)
    going = stack.processes["c0"]
    going.stop.set()
    await until(lambda: is_so(going.server.drain.draining))
    async with aiohttp.ClientSession() as stranger, stranger.get(going.url + "/v1/models") as response:
        assert (response.status, response.headers["Connection"]) == (200, "close")
    assert [(await get(stack, going.url + path))[0] for path in ("/readyz", "/health")] == [503, 503]


async def test_what_outlasts_the_drain_ends_with_a_word(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_router_tests.stack.settings", partial(settings, drain_s=0.1))
    await stack.up(prefill=0)
    stack.engines["d0"].script.gate = asyncio.Event()
    whole = asyncio.ensure_future(stack.chat(asked(0)))
    await until(lambda: is_so(stack.engines["d0"].running == 1))
    stack.processes["c0"].stop.set()
    answer: Answer = await whole
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")


async def test_without_a_control_plane_the_configuration_in_force_ages(stack: Stack) -> None:
    await stack.up()
    first = await ages(stack)

    async def all_older() -> bool:
        return all(age > before for age, before in zip(await ages(stack), first, strict=True))

    await until(all_older)
    assert max(await ages(stack)) < 60
    assert (await stack.chat(asked(0))).status == 200


async def ages(stack: Stack) -> list[float]:
    pages = [await stack.metrics(name) for name in stack.processes]
    return [page["weft_router_configuration_age_seconds"] for page in pages]


async def test_a_class_that_wants_it_is_refused_when_its_first_token_would_come_too_late(stack: Stack) -> None:
    stack.config = {
        **router_json(routing={"policy": "weft"}, slo={"ttft": 0.001}),
        "qos": {"classes": {"quick": {"earlyRejection": True}}},
    }
    await stack.up()
    answer = await stack.chat(asked(0), headers={"X-Weft-Class": "quick"})
    assert (answer.status, answer.json["error"]["code"]) == (429, "predicted_ttft")
    assert answer.headers["Retry-After"] == "1"
    assert not any(engine.seen for engine in stack.engines.values())
    assert (await stack.chat(asked(0))).status == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
async def test_a_sidecar_takes_out_what_its_coordinator_let_through(sidecars: Stack, path: str) -> None:
    await sidecars.up(prefill=0)
    owned = {"kv_transfer_params": {"remote_host": "10.0.0.9"}, "bootstrap_host": "10.0.0.9", "cache_salt": "mine"}
    headers = {"X-Weft-Session": "s", "X-Request-Id": "weft-1"}
    body = {"model": MODEL, "messages": asked(0), **owned}
    url = sidecars.processes["d0"].url
    async with proven(url) as http, http.post(url + path, json=body, headers=headers) as response:
        await response.read()
    engine = sidecars.engines["d0"]
    (seen,) = engine.seen + engine.strange
    assert seen["messages"] == asked(0)
    assert "10.0.0.9" not in str(seen)
    assert "mine" not in str(seen)


async def test_counting_tokens_takes_no_field_of_the_routers_either(stack: Stack) -> None:
    await stack.up(prefill=0)
    owned = {"kv_transfer_params": {"remote_host": "10.0.0.9"}, "extra_body": {"bootstrap_host": "10.0.0.9"}}
    body = {"model": MODEL, "messages": asked(0), **owned}
    async with stack.http.post(stack.front + "/tokenize", json=body) as response:
        await response.read()
    (seen,) = stack.engines["d0"].strange
    assert seen["messages"] == asked(0)
    assert "10.0.0.9" not in str(seen)


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/v1/completions/", "//v1/completions", ""])
async def test_a_prefill_sidecar_asks_its_engine_for_prefills_only(sidecars: Stack, path: str) -> None:
    await sidecars.up()
    headers = {"X-Weft-Path": path, "X-Weft-History": "0", "X-Weft-Increment": "1"}
    url = sidecars.processes["p0"].url + "/internal/prefill"
    async with proven(url) as http, http.post(url, data=b"{}", headers=headers) as response:
        assert response.status == 400
    engine = sidecars.engines["p0"]
    assert not engine.seen
    assert not engine.strange


async def test_a_decode_worker_forgets_sessions_that_are_idle_for_too_long(stack: Stack) -> None:
    await stack.up(prefill=0)
    sessions = stack.decoding("d0").sessions
    assert (await stack.chat(asked(0), session="s")).status == 200
    await stack.metrics("d0")
    assert len(sessions) == 1
    sessions._clock = lambda: time.monotonic() + 601
    await stack.metrics("d0")
    assert len(sessions) == 0


async def test_a_strangers_large_body_is_not_read(stack: Stack, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a-key-that-is-known\n")
    await stack.up(prefill=0, keys=keys)
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.processes["c0"].settings.port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 900000\r\n\r\n{")
    assert (await asyncio.wait_for(reader.readline(), 5)).split()[1] == b"401"
    writer.close()


class Half:
    """Decode workers that begin a stream and fail."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.begun: list[str] = []

    def endpoints(self, _: ResponseWriter) -> None:
        """Let any worker serve."""

    async def serve(self, record: WorkerRecord, _: RoundRequest, answer_writer: ResponseWriter) -> None:
        self.begun.append(record.worker)
        answer_writer.begin("")
        answer_writer.write(b"data: {}\n\n")
        raise self.error

    async def stream(self, stack: Stack) -> Answer:
        app: Any = stack.processes["c0"].app
        app._front._failover._workers = self
        return await stack.chat(asked(0), stream=True)


@pytest.mark.parametrize("error", [ApiError("no", status=502, retryable=True), UpstreamFailedError("cut-short")])
async def test_no_second_answer_begins_in_a_stream_that_has_begun(stack: Stack, error: Exception) -> None:
    await stack.up(decode=2, prefill=0)
    workers = Half(error)
    answer = await workers.stream(stack)
    assert len(workers.begun) == 1
    assert answer.chunks[0] == {}
    assert answer.error is not None
    assert answer.error["code"] == "stream_interrupted"
    assert b"[DONE]" not in answer.raw


@pytest.mark.parametrize("told", [True, False])
async def test_a_worker_is_left_when_its_stream_breaks_without_a_word(stack: Stack, told: bool) -> None:
    await stack.up(prefill=0)
    turned: list[tuple[str, str]] = []
    stack.registry("c0").on_health_change(lambda record, why: turned.append((record.worker, why)))
    answer = await Half(StreamBrokenError("cut-short", from_worker=told)).stream(stack)
    assert answer.error is not None
    assert (("d0", "failed") in turned) is not told


async def test_half_an_event_of_a_sidecar_that_died_reaches_no_client(sidecars: Stack) -> None:
    await sidecars.up(prefill=0)
    whole = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"A"}}]}\n\n'
    came = whole + whole[:20]

    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await prove_self(reader, writer)
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head + b"%x\r\n%b\r\n" % (len(came), came))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(die, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    app: Any = sidecars.processes["c0"].app
    relay = app._front._failover._workers

    class Elsewhere:
        def endpoints(self, _: ResponseWriter) -> None:
            """Let any worker serve."""

        async def serve(self, record: WorkerRecord, job: RoundRequest, answer_writer: ResponseWriter) -> None:
            await relay.serve(replace(record, url=url), job, answer_writer)

    app._front._failover._workers = Elsewhere()
    answer = await sidecars.chat(asked(0), stream=True, stop=["x"])  # a stream that cannot go on elsewhere
    server.close()
    await server.wait_closed()
    assert answer.raw.startswith(whole + b'data: {"error"')
    assert answer.raw.endswith(b"\n\n")


async def test_engines_that_meet_by_a_number_get_another_one_on_another_worker(stack: Stack) -> None:
    stack.config = router_json(engine={"type": "sglang", "bidirectional": False})
    await stack.up(decode=2, prefill=1)
    stack.engines["d0"].script.status = stack.engines["d1"].script.status = 500
    assert (await stack.chat(asked(0))).status == 502
    rooms = [stack.engines[name].seen[0]["bootstrap_room"] for name in ("d0", "d1")]
    assert rooms[0] != rooms[1]
