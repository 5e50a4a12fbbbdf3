"""What clients see when engines and router processes fail, hang, or go away, and what clients do to them."""

import asyncio
import time
from functools import partial
from typing import Any

import orjson
import pytest

from weft_router_tests.stack import MODEL, Stack, get, is_so, router_json, until

pytestmark = pytest.mark.component

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]


async def test_a_failing_prefill_engine_is_replaced_by_another_one(stack: Stack) -> None:
    await stack.up(prefill=2)
    await stack.engines["p0"].stop()
    for i in range(4):
        answer = await stack.chat(HELLO, session=f"s{i}")
        assert answer.status == 200
        assert answer.headers["X-Weft-Prefill-Worker"] == "p1"


async def test_without_a_working_prefill_worker_rounds_are_local(stack: Stack) -> None:
    await stack.up()
    stack.engines["p0"].script.status = 500
    answer = await stack.chat(HELLO, stream=True)
    assert answer.status == 200
    assert (answer.headers["X-Weft-Route"], answer.headers["X-Weft-Reason"]) == ("local", "prefill-failed")


async def test_a_killed_prefill_sidecar_fails_no_request(sidecars: Stack) -> None:
    await sidecars.up()
    sidecars.engines["p0"].script.hang = True
    pending = asyncio.ensure_future(sidecars.chat(HELLO))
    await until(lambda: is_so(sidecars.engines["p0"].running == 1))
    await sidecars.kill("p0")
    answer = await pending
    assert answer.status == 200
    assert answer.headers["X-Weft-Route"] == "local"


async def test_a_refused_handle_costs_one_more_call_and_no_failure(stack: Stack) -> None:
    await stack.up()
    first = await stack.chat(HELLO, session="s")
    stack.engines["p0"].script.refuse_handles = True
    follow = [*HELLO, {"role": "assistant", "content": first.text}, {"role": "user", "content": "more " * 100}]
    second = await stack.chat(follow, session="s")
    assert second.status == 200
    assert second.headers["X-Weft-Route"] == "remote"
    sent = [body["kv_transfer_params"]["remote_engine_id"] for body in stack.engines["p0"].seen]
    assert sent == [None, "d0", None]
    assert (await stack.metrics("d0"))['weft_router_kv_handles_total{outcome="refused"}'] == 1


async def test_an_expired_handle_is_not_offered(stack: Stack) -> None:
    # Less than the margin: dead on arrival.
    stack.config = router_json(engine={"leaseSeconds": 2, "handleTtlSeconds": 2})
    await stack.up()
    first = await stack.chat(HELLO, session="s")
    follow = [*HELLO, {"role": "assistant", "content": first.text}, {"role": "user", "content": "more " * 100}]
    assert (await stack.chat(follow, session="s")).status == 200
    assert all(body["kv_transfer_params"]["remote_engine_id"] is None for body in stack.engines["p0"].seen)
    assert (await stack.metrics("d0"))['weft_router_kv_handles_total{outcome="expired"}'] == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_kv_that_the_decode_engine_cannot_load_is_computed_there(stack: Stack, stream: bool) -> None:
    await stack.up()
    stack.engines["d0"].script.refuse_handles = True
    answer = await stack.chat(HELLO, stream=stream)
    assert answer.status == 200
    assert (answer.headers["X-Weft-Route"], answer.headers["X-Weft-Reason"]) == ("local", "kv-load-failed")
    assert (await stack.metrics("d0"))['weft_router_kv_handles_total{outcome="orphaned"}'] == 1


async def test_an_error_event_before_the_first_token_is_a_failed_leg(stack: Stack) -> None:
    await stack.up(decode=2, prefill=0)
    first = await stack.chat(HELLO, session="s", stream=True)
    bound = first.headers["X-Weft-Worker"]
    stack.engines[bound].script.error_event = True
    answer = await stack.chat(HELLO, session="s", stream=True)
    assert answer.status == 200
    assert answer.headers["X-Weft-Worker"] != bound
    assert b"error" not in answer.raw


@pytest.mark.parametrize("token", [0, 1, 4, 7])
async def test_a_decode_engine_that_dies_is_replaced_before_the_first_token_and_told_about_after(
    stack: Stack, token: int
) -> None:
    stack.config = router_json(routing={"resume": "off"})
    await stack.up(decode=2)
    whole = await stack.chat(HELLO, session="s", stream=True)
    bound = whole.headers["X-Weft-Worker"]
    stack.engines[bound].script.die_at_token = token
    started = time.monotonic()
    answer = await stack.chat(HELLO, session="s", stream=True)
    assert answer.status == 200
    assert time.monotonic() - started < 5
    if token == 0:
        assert answer.text == whole.text
        assert answer.headers["X-Weft-Worker"] != bound
        assert b"error" not in answer.raw
    else:
        assert answer.text == whole.text[:token]
        assert answer.chunks[-1]["error"]["code"] == "stream_interrupted"
        assert b"[DONE]" not in answer.raw


async def test_a_stream_that_just_ends_is_not_passed_off_as_whole(stack: Stack) -> None:
    await stack.up()
    stack.engines["d0"].script.cut_short = True
    answer = await stack.chat(HELLO, stream=True)
    assert answer.chunks[-1]["error"]["code"] == "stream_interrupted"


async def test_a_decode_pod_lost_mid_stream_ends_in_an_error_event(sidecars: Stack) -> None:
    await sidecars.up(prefill=0)
    sidecars.engines["d0"].script.gap_s = 0.1
    async with sidecars.http.post(
        sidecars.front + "/v1/chat/completions", json={"model": MODEL, "messages": HELLO, "stream": True}
    ) as response:
        await response.content.readuntil(b"\n\n")
        await sidecars.kill("d0")
        rest = await response.read()
    assert b'"code":"stream_interrupted"' in rest
    assert rest.endswith(b"\n\n")


async def test_a_decode_pod_lost_before_the_first_byte_is_replayed_unseen(sidecars: Stack) -> None:
    await sidecars.up(decode=2, prefill=0)
    bound = (await sidecars.chat(HELLO, session="s")).headers["X-Weft-Worker"]
    sidecars.engines[bound].script.hang = True
    pending = asyncio.ensure_future(sidecars.chat(HELLO, session="s", stream=True))
    await until(lambda: is_so(sidecars.engines[bound].running == 1))
    await sidecars.kill(bound)
    answer = await pending
    assert answer.status == 200
    assert answer.headers["X-Weft-Worker"] != bound
    again = await sidecars.chat(HELLO, session="s")
    assert again.headers["X-Weft-Worker"] == answer.headers["X-Weft-Worker"]


async def test_a_worker_that_falls_silent_with_open_connections_is_given_up(
    sidecars: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A powered-off node closes nothing: its address stops answering and its heartbeats stop.

    There is no other worker. The answer has what a fallback service is asked for.
    """
    monkeypatch.setattr("weft_router.state.registry.SILENT_S", 0.3)
    monkeypatch.setattr("weft_router.state.registry.PROBE_EVERY_S", 0.2)
    monkeypatch.setattr("weft_router.state.registry.REFRESH_S", 0.1)
    await sidecars.up(prefill=0)
    sidecars.engines["d0"].script.gap_s = 30.0
    pending = asyncio.ensure_future(sidecars.chat(HELLO, stream=True))
    await until(lambda: is_so(sidecars.engines["d0"].running == 1))

    async def dead(_: object, __: str) -> str:
        return "dead"

    watcher: Any = sidecars.registry("c0")
    watcher._probe = lambda url: dead(None, url)
    heartbeat: Any = sidecars.worker_of("d0").heartbeat
    heartbeat._store = _Deaf()
    started = time.monotonic()
    answer = await pending
    assert time.monotonic() - started < 10
    assert (answer.status, answer.headers["Retry-After"]) == (503, "2")
    assert "(worker lost), and no other one is ready" in answer.json["error"]["message"]


class _Deaf:
    async def heartbeat(self, _: object) -> None:
        return

    async def withdraw(self, _: str) -> None:
        return


async def test_a_client_that_leaves_stops_both_engines(stack: Stack) -> None:
    await stack.up()
    decode, prefill = stack.engines["d0"], stack.engines["p0"]
    prefill.script.hang = True
    await _leave(stack, lambda: prefill.running == 1)
    await until(lambda: is_so(prefill.running == 0 and prefill.aborted == 1))
    prefill.script.hang = False
    decode.script.hang = True
    await _leave(stack, lambda: decode.running == 1)
    await until(lambda: is_so(decode.running == 0 and decode.aborted == 1))
    decode.script.hang = False
    decode.script.gap_s = 0.2
    async with stack.http.post(
        stack.front + "/v1/chat/completions", json={"model": MODEL, "messages": HELLO, "stream": True}
    ) as response:
        await response.content.readuntil(b"\n\n")
        response.close()
    await until(lambda: is_so(decode.running == 0 and decode.aborted == 2))
    for name in stack.processes:
        await until(partial(_gauge, stack, name))


async def test_a_prefill_still_queued_is_given_up_with_its_client(stack: Stack) -> None:
    await stack.up()
    prefill = stack.engines["p0"]
    prefill.script.gate = asyncio.Event()
    served = [asyncio.ensure_future(stack.chat(HELLO, session=name)) for name in ("a", "b")]
    await until(lambda: is_so(prefill.running == 2))  # one at work, and one that goes to the engine ahead of its turn
    queued = asyncio.ensure_future(stack.chat(HELLO, session="c"))
    await until(lambda: _queue_is(stack, 3))
    assert prefill.running == 2
    queued.cancel()
    await asyncio.wait([queued])
    await until(lambda: _queue_is(stack, 2))
    prefill.script.gate.set()
    assert [(await one).status for one in served] == [200, 200]
    assert len(prefill.seen) == 2


async def test_an_engines_own_400_reaches_the_client(stack: Stack) -> None:
    await stack.up()
    for name in ("p0", "d0"):
        stack.engines[name].script.status = 400
        stack.engines[name].script.error_body = {
            "error": {"message": "too long by 7", "type": "BadRequestError", "param": "messages", "code": 400}
        }
    for stream in (True, False):
        answer = await stack.chat(HELLO, stream=stream)
        assert answer.status == 400
        assert answer.json["error"]["message"] == "too long by 7"
        assert answer.json["error"]["param"] == "messages"
    assert len(stack.engines["d0"].seen) == 0


@pytest.mark.parametrize("status", [429, 499, 529])
@pytest.mark.parametrize("prefill", [0, 1])
async def test_an_engines_own_status_reaches_the_client_though_http_does_not_know_it(
    stack: Stack, prefill: int, status: int
) -> None:
    """429 is known, and another worker's engine may be less busy: it is tried there, and here there is no other."""
    await stack.up(prefill=prefill)
    for engine in stack.engines.values():
        engine.script.status = status
        engine.script.error_body = {"error": {"message": "not now", "type": "overloaded", "code": status}}
    for stream in (True, False):
        answer = await stack.chat(HELLO, stream=stream)
        if status == 429:
            assert answer.status == 502
            continue
        assert (answer.status, answer.json["error"]["message"]) == (status, "not now")
        assert answer.json["error"]["type"] == ("invalid_request_error" if status < 500 else "server_error")
    body = {"model": MODEL, "prompt": "hello"}
    async with stack.http.post(stack.front + "/tokenize", json=body) as response:
        assert response.status != 500
    assert await stack.count("weft_router_requests_total", code="500") == 0


async def test_nothing_ready_is_refused_at_once_and_served_when_it_is_back(stack: Stack) -> None:
    await stack.up(prefill=0)
    assert (await stack.chat(HELLO)).status == 200
    stack.engines["d0"].script.health = 503

    async def refused() -> bool:
        return (await stack.chat(HELLO)).status == 503

    await until(refused)
    answer, took = await stack.chat(HELLO), []
    for _ in range(5):  # the quickest counts: other processes may hold the CPU for a moment
        started = time.monotonic()
        answer = await stack.chat(HELLO)
        took.append(time.monotonic() - started)
    assert min(took) < 0.1
    assert answer.status == 503
    assert int(answer.headers["Retry-After"]) >= 1
    assert answer.json["error"]["type"] == "service_unavailable"
    if stack.composition == "sidecars":  # a coordinator that left its Service would have connections refused
        assert await _status_is(stack, "/readyz", 200)
    stack.engines["d0"].script.health = 200

    async def served() -> bool:
        return (await stack.chat(HELLO)).status == 200

    await until(served)


async def _leave(stack: Stack, when: Any) -> None:
    pending = asyncio.ensure_future(stack.chat(HELLO))
    await until(lambda: is_so(when()))
    pending.cancel()
    await asyncio.wait([pending])


async def _gauge(stack: Stack, name: str) -> bool:
    page = await stack.metrics(name)
    return all(value == 0 for key, value in page.items() if key.startswith("weft_router_inflight"))


async def _queue_is(stack: Stack, length: int) -> bool:
    return (await stack.metrics("p0"))["weft_router_queue_length"] == length


async def _status_is(stack: Stack, path: str, status: int) -> bool:
    return (await get(stack, stack.front + path))[0] == status


async def test_a_request_that_fails_two_engines_is_not_tried_on_a_third(stack: Stack) -> None:
    await stack.up(decode=3, prefill=0)
    for engine in stack.engines.values():
        engine.script.status = 500
    answer = await stack.chat(HELLO)
    assert answer.status == 502
    assert answer.json["error"]["code"] == "worker_failed"
    assert sum(len(engine.seen) for engine in stack.engines.values()) == 2


async def test_a_connection_closed_while_idle_costs_no_request(stack: Stack) -> None:
    await stack.up(prefill=0)
    engine = stack.engines["d0"]
    assert (await stack.chat(HELLO)).status == 200
    engine.script.close_reused = True
    assert (await stack.chat(HELLO)).status == 200


async def test_a_client_that_does_not_read_is_cut_off(stack: Stack) -> None:
    stack.config = router_json(timeouts={"idle": 0.5})
    await stack.up(prefill=0)
    engine = stack.engines["d0"]
    engine.script.padding = 4_000_000
    body = orjson.dumps({"model": MODEL, "messages": HELLO, "stream": True})
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.processes["c0"].settings.port, limit=1024)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await reader.readline()
    await until(lambda: _gauge(stack, "c0"))
    await until(lambda: _gauge(stack, "d0"))
    await until(lambda: is_so(engine.running == 0))
    assert (await stack.metrics("c0"))['weft_router_broken_streams_total{reason="slow client"}'] == 1
    writer.close()


async def test_connections_that_ask_for_nothing_are_closed(stack: Stack) -> None:
    stack.config = router_json(timeouts={"header": 0.2})
    await stack.up(prefill=0)
    stack.engines["d0"].script.gap_s = 0.1
    live = asyncio.ensure_future(stack.chat(HELLO, stream=True))
    for sent in (b"", b"GET /healthz HTTP/1.1\r\nHost:"):
        reader, writer = await asyncio.open_connection("127.0.0.1", stack.processes["c0"].settings.port)
        writer.write(sent)
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
    assert (await live).raw.endswith(b"data: [DONE]\n\n")
