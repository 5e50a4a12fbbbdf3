"""What clients see while routers are drained and stopped."""

import asyncio
from time import monotonic
from typing import Any

import aiohttp
import pytest

from weft_router.roles.drain import Drain
from weft_router_tests.stack import MODEL, PROFILE, Stack, get, is_so, proven, until

pytestmark = pytest.mark.component

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]


async def test_a_draining_worker_finishes_its_streams_and_gets_nothing_new(sidecars: Stack) -> None:
    await sidecars.up(decode=2, prefill=0)
    bound = (await sidecars.chat(HELLO, session="s")).headers["X-Weft-Worker"]
    sidecars.engines[bound].script.gap_s = 0.1
    live = asyncio.ensure_future(sidecars.chat(HELLO, session="s", stream=True))
    await until(lambda: is_so(sidecars.engines[bound].running == 1))
    running = sidecars.processes[bound]
    async with sidecars.http.post(running.url + "/drain") as refused:
        assert refused.status == 401
    prestop = asyncio.ensure_future(get(sidecars, running.url + "/engine/prestop"))
    await drain(sidecars, bound)
    moved = await sidecars.chat(HELLO, session="s")
    assert moved.headers["X-Weft-Worker"] != bound
    assert not prestop.done()
    assert (await live).raw.endswith(b"data: [DONE]\n\n")
    assert await prestop == (200, "drained\n")
    assert (await get(sidecars, running.url + "/readyz"))[0] == 503


async def test_prestop_without_a_drain_does_not_wait(sidecars: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_router.roles.drain.PRESTOP_GRACE_S", 0.05)
    await sidecars.up(prefill=0)
    assert await get(sidecars, sidecars.processes["d0"].url + "/engine/prestop") == (200, "not draining\n")


async def test_a_coordinator_that_must_go_fails_no_request_of_its_keep_alive_clients(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    # These clients never go elsewhere, so the coordinator closes its listener after the longest time.
    monkeypatch.setattr("weft_router.roles.lifecycle.LAME_DUCK_MOST_S", 0.3)
    await stack.up(prefill=0)
    going = stack.processes["c0"]
    statuses: list[int] = []
    closed = 0
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http:

        async def client() -> None:
            nonlocal closed
            while True:
                body = {"model": MODEL, "messages": HELLO}
                try:
                    async with http.post(going.url + "/v1/chat/completions", json=body) as response:
                        await response.read()
                        statuses.append(response.status)
                        closed += response.headers.get("Connection") == "close"
                except aiohttp.ClientConnectorError:
                    return  # nobody listens any more: Kubernetes had time to send new connections elsewhere

        clients = [asyncio.ensure_future(client()) for _ in range(3)]
        await until(lambda: is_so(len(statuses) >= 5))
        going.stop.set()
        await asyncio.wait_for(asyncio.gather(*clients), 15)
    await asyncio.wait_for(going.task, 10)
    assert set(statuses) == {200}
    assert closed >= 3


async def test_a_coordinator_takes_new_connections_while_requests_still_come(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft_router.roles.lifecycle.LAME_DUCK_S", 0.5)
    await stack.up(prefill=0)
    going = stack.processes["c0"]
    body = {"model": MODEL, "messages": HELLO}
    going.stop.set()
    start = last = monotonic()
    while monotonic() < start + 1.5:  # as where a node's kube-proxy is late
        last = monotonic()
        async with aiohttp.ClientSession() as http, http.post(going.url + "/v1/chat/completions", json=body) as reply:
            assert reply.status == 200
        await asyncio.sleep(0.1)
    host, port = going.url.removeprefix("http://").split(":")

    async def refuses() -> bool:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except ConnectionRefusedError:
            return True
        writer.close()
        return False

    await until(refuses)
    assert monotonic() - last >= 0.5
    await asyncio.wait_for(going.task, 10)


@pytest.mark.parametrize(("seconds", "most_s", "drain_s"), [(0.2, 0.6, 30.0), (0.2, 30.0, 0.6)], ids=["most", "drain"])
async def test_requests_that_never_end_hold_the_listener_for_a_bounded_time(
    stack: Stack, seconds: float, most_s: float, drain_s: float
) -> None:
    await stack.up(prefill=0)
    drain = Drain(stack.processes["c0"].app, seconds=drain_s, grace_s=0.0, on_begin=lambda: None)
    drain.begin()

    async def ask() -> None:
        while True:
            drain.last_begin = monotonic()
            await asyncio.sleep(0.01)

    asking = asyncio.ensure_future(ask())
    start = monotonic()
    await asyncio.wait_for(drain.wait_quiet(seconds, most_s=most_s), 10)
    asking.cancel()
    assert 0.55 <= monotonic() - start < 5


async def test_stopping_waits_for_live_requests(stack: Stack) -> None:
    await stack.up(prefill=0)
    stack.engines["d0"].script.gap_s = 0.05
    live = asyncio.ensure_future(stack.chat(HELLO, stream=True))
    await until(lambda: is_so(stack.engines["d0"].running == 1))
    for name in stack.processes:
        stack.processes[name].stop.set()
    assert (await live).raw.endswith(b"data: [DONE]\n\n")
    for name in stack.processes:
        await asyncio.wait_for(stack.processes[name].task, 10)


async def drain(stack: Stack, name: str) -> None:
    """Tell a worker to drain, as its pod's hook does."""
    running = stack.processes[name]
    async with proven(running.url) as http, http.post(running.url + "/drain") as accepted:
        assert accepted.status == 200


async def session_of_two_on(stack: Stack) -> tuple[str, str, list[dict[str, Any]]]:
    """Have one round of session ``s``; return its worker, the other one, and the conversation with a new question."""
    first = await stack.chat(LONG, session="s")
    bound = first.headers["X-Weft-Worker"]
    await until(lambda: is_so(len(stack.registry(bound).ready("decode")) == 2))
    talk = [*LONG, {"role": "assistant", "content": first.text}, {"role": "user", "content": "and now?"}]
    return bound, "d1" if bound == "d0" else "d0", talk


LONG: list[dict[str, Any]] = [{"role": "user", "content": "a long history that pays to be read " * 20}]


async def test_an_idle_session_moves_with_its_handle_at_its_next_round(sidecars: Stack) -> None:
    await sidecars.up(decode=2, prefill=1)
    bound, other, talk = await session_of_two_on(sidecars)
    held = sum(sidecars.engines[bound].held.values())
    assert held > 0, "the round left KV to be read"
    prestop = asyncio.ensure_future(get(sidecars, sidecars.processes[bound].url + "/engine/prestop"))
    await drain(sidecars, bound)
    await until(lambda: is_so(sidecars.registry("c0").get(bound) is None))
    assert not prestop.done(), "its next round is waited for"

    second = await sidecars.chat(talk, session="s")

    assert second.status == 200
    assert second.headers["X-Weft-Worker"] == other
    assert second.headers["X-Weft-Reason"] == "moved"
    assert sidecars.engines["p0"].seen[-1]["kv_transfer_params"]["remote_engine_id"] == bound
    assert not sidecars.engines[bound].held, "the prefill worker read the history where it was"
    assert await prestop == (200, "drained\n"), "nothing is left, long before the drain time is over"
    assert await sidecars.count("weft_router_sessions_moved_total", other, by="handle") == 1
    assert await sidecars.count("weft_router_kv_handles_total", other, outcome="used") == 1
    assert await sidecars.count("weft_router_sessions", bound) == 0
    third = await sidecars.chat([*talk, {"role": "assistant", "content": second.text}, HELLO[0]], session="s")
    assert third.headers["X-Weft-Worker"] == other
    assert third.headers["X-Weft-Reason"] != "moved"


async def test_a_history_that_is_sooner_computed_than_read_moves_without_its_handle(sidecars: Stack) -> None:
    slow = {**PROFILE, "transfers": [{**PROFILE["transfers"][0], "perToken": 1.0}]}
    sidecars.config["profile"] = slow
    await sidecars.up(decode=2, prefill=1)
    bound, other, talk = await session_of_two_on(sidecars)
    await drain(sidecars, bound)
    await until(lambda: is_so(sidecars.registry("c0").get(bound) is None))
    assert (await get(sidecars, sidecars.processes[bound].url + "/engine/prestop"))[1] == "drained\n"

    second = await sidecars.chat(talk, session="s")

    assert (second.status, second.headers["X-Weft-Worker"]) == (200, other)
    assert "remote_engine_id" not in (sidecars.engines["p0"].seen[-1].get("kv_transfer_params") or {}) or (
        sidecars.engines["p0"].seen[-1]["kv_transfer_params"]["remote_engine_id"] is None
    )
    await until(lambda: is_so(not sidecars.engines[bound].held))
    assert await sidecars.count("weft_router_sessions_moved_total", other, by="prefill") == 1
    assert await sidecars.count("weft_router_history_tokens_total", other, kind="recomputed") > 0


async def test_what_outlasts_the_drain_time_goes_on_elsewhere_with_the_same_words(sidecars: Stack) -> None:
    await sidecars.up(decode=2, prefill=1)
    whole = await sidecars.chat(LONG, session="t", stream=True, max_tokens=40)
    bound = (await sidecars.chat(HELLO, session="s")).headers["X-Weft-Worker"]
    sidecars.engines[bound].script.gap_s = 0.2
    live = asyncio.ensure_future(sidecars.chat(LONG, session="s", stream=True, max_tokens=40, temperature=0))
    await until(lambda: is_so(sidecars.engines[bound].running == 1))
    server = sidecars.processes[bound].server
    prestop = asyncio.ensure_future(get(sidecars, sidecars.processes[bound].url + "/engine/prestop"))
    await drain(sidecars, bound)
    server.drain._end = asyncio.get_running_loop().time() + 0.5

    answer = await live

    assert answer.text == whole.text
    assert answer.raw.endswith(b"data: [DONE]\n\n")
    assert b'"error"' not in answer.raw
    assert (await prestop)[1] == "drained\n"
    assert await sidecars.count("weft_router_resumes_total", outcome="resumed") == 1


@pytest.mark.parametrize("drains", [True, False])
async def test_an_engine_told_to_end_breaks_no_stream_of_a_worker_that_drains(sidecars: Stack, drains: bool) -> None:
    await sidecars.up(decode=2, prefill=1)
    whole = await sidecars.chat(LONG, session="t", stream=True, max_tokens=40)
    bound = (await sidecars.chat(HELLO, session="s")).headers["X-Weft-Worker"]
    engine, told = sidecars.engines[bound], asyncio.Event()
    engine.script.gap_s, engine.script.told_to_end = 0.05, told
    live = asyncio.ensure_future(sidecars.chat(LONG, session="s", stream=True, max_tokens=40, temperature=0))
    await until(lambda: is_so(engine.streamed >= 3))
    if drains:
        await drain(sidecars, bound)
    told.set()

    answer = await live

    assert (answer.text == whole.text) is drains
    assert (b'"error"' in answer.raw) is not drains, "otherwise it may be the request that the engine fails on"
    assert await sidecars.count("weft_router_resumes_total", outcome="resumed") == int(drains)


async def test_nobody_gives_a_session_away_without_a_drain(sidecars: Stack) -> None:
    await sidecars.up(decode=2, prefill=1)
    bound, _, _ = await session_of_two_on(sidecars)
    running = sidecars.processes[bound]
    sent = {"X-Weft-Session": "s"}
    async with proven(running.url) as http, http.post(running.url + "/internal/take", headers=sent) as answer:
        assert answer.status == 404
    assert await sidecars.count("weft_router_sessions", bound) == 1
    async with sidecars.http.post(running.url + "/internal/take") as answer:
        assert answer.status == 401


async def test_a_draining_prefill_worker_hands_back_its_queue_and_waits_for_its_readers(sidecars: Stack) -> None:
    sidecars.config["routing"]["prefillConcurrency"] = 1
    await sidecars.up(decode=1, prefill=2)
    gate = asyncio.Event()
    for name in ("p0", "p1"):
        sidecars.engines[name].script.gate = gate
    asked = [asyncio.ensure_future(sidecars.chat(LONG, session=f"s{k}")) for k in range(8)]
    await until(lambda: is_so(all(sidecars.worker_of(name).queue.waiting >= 1 for name in ("p0", "p1"))))
    going, stays = sidecars.processes["p0"], sidecars.worker_of("p1")
    waiting = sidecars.worker_of("p0").queue.waiting
    before = len(stays.queue)
    sidecars.engines["p0"].kv_usage = 0.3
    prestop = asyncio.ensure_future(get(sidecars, going.url + "/engine/prestop"))
    await drain(sidecars, "p0")
    await until(lambda: is_so(len(stays.queue) == before + waiting))
    gate.set()
    assert {(await answer).status for answer in asked} == {200}
    assert not prestop.done(), "its engine keeps KV that is still to be read"
    sidecars.engines["p0"].kv_usage = 0.0
    assert (await prestop)[1] == "drained\n"
