"""How long answers may take, what one bad request may cost, and what a router that must go tells its clients."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from weft_core.policies.snapshot import PrefillTask
from weft_router_tests.fake_engine import FakeEngine
from weft_router_tests.stack import PROOF, Stack, is_so, router_json, until

pytestmark = pytest.mark.component

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]


def seen(stack: Stack, role: str) -> int:
    return sum(len(engine.seen) for name, engine in stack.engines.items() if name.startswith(role))


async def test_answers_in_one_piece_decode_side_by_side(stack: Stack) -> None:
    await stack.up(prefill=0)
    engine = stack.engines["d0"]
    engine.script.gate = asyncio.Event()
    pending = [asyncio.ensure_future(stack.chat(HELLO, session=f"s{i}")) for i in range(4)]
    await until(lambda: is_so(engine.running == 4))
    batch = stack.worker_of("d0").batch
    await until(lambda: is_so(len(batch) == 4))
    engine.script.gate.set()
    assert [answer.status for answer in await asyncio.gather(*pending)] == [200] * 4
    assert len(batch) == 0
    assert len(stack.worker_of("d0").queue) == 0
    page = await stack.metrics("d0")
    assert page['weft_router_ttft_seconds_count{phase="first",route="local",class="default"}'] == 4


async def test_a_slow_answer_in_one_piece_is_waited_for(stack: Stack) -> None:
    stack.config = router_json(timeouts={"firstByte": 0.2})
    await stack.up(decode=2, prefill=0)
    for engine in stack.engines.values():
        engine.script.delay_s = 1.5
    assert (await stack.chat(HELLO)).status == 200
    assert seen(stack, "d") == 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prefill", [0, 1])
async def test_an_answer_that_takes_too_long_is_not_begun_anew(stack: Stack, stream: bool, prefill: int) -> None:
    stack.config = router_json(timeouts={"firstByte": 0.3, "total": 0.4})
    await stack.up(decode=2, prefill=prefill)
    for name in ("d0", "d1"):
        stack.engines[name].script.hang = True
    answer = await stack.chat(HELLO, session="s", stream=stream)
    assert answer.status == 504
    assert answer.json["error"]["type"] == "server_error"
    assert seen(stack, "d") == 1
    coordinator: Any = stack.processes["c0"].app
    assert len(coordinator._registry.ready("decode")) == 2
    assert not [n for n in await stack.metrics("c0") if n.startswith("weft_router_replays_total{")]


async def test_a_coordinator_cut_short_says_when_to_come_back_and_blames_nobody(stack: Stack) -> None:
    await stack.up(decode=2, prefill=0)
    for engine in stack.engines.values():
        engine.script.hang = True
    pending = asyncio.ensure_future(stack.chat(HELLO))
    await until(lambda: is_so(seen(stack, "d") == 1))
    coordinator: Any = stack.processes["c0"].app
    coordinator.terminate()
    answer = await pending
    assert answer.status == 503
    assert int(answer.headers["Retry-After"]) >= 1
    assert seen(stack, "d") == 1
    assert len(coordinator._registry.ready("decode")) == 2


@pytest.mark.parametrize("leg", ["p", "d"])
async def test_a_decode_sidecar_cut_short_hands_its_requests_back(sidecars: Stack, leg: str) -> None:
    await sidecars.up(decode=2)
    bound = (await sidecars.chat(HELLO, session="s")).headers["X-Weft-Worker"]
    held = sidecars.engines["p0" if leg == "p" else bound]
    held.script.gate = asyncio.Event()
    pending = asyncio.ensure_future(sidecars.chat(HELLO, session="s"))
    await until(lambda: is_so(held.running == 1))
    sidecars.processes[bound].app.terminate()
    held.script.gate.set()
    answer = await pending
    assert answer.status == 200
    assert answer.headers["X-Weft-Worker"] != bound


async def test_a_request_that_hurts_engines_reaches_few_of_them(stack: Stack) -> None:
    await stack.up(decode=3, prefill=3)
    for engine in stack.engines.values():
        engine.script.status = 500
    assert (await stack.chat(HELLO)).status == 502
    assert (seen(stack, "p"), seen(stack, "d")) == (2, 2)


async def test_a_reply_that_is_too_large_is_not_asked_for_again(stack: Stack) -> None:
    stack.config = router_json(limits={"maxReplyBytes": 1024})
    await stack.up(decode=2, prefill=0)
    answer = await stack.chat([{"role": "user", "content": "x" * 2000}])
    assert answer.status == 502
    assert "reply-too-large" in answer.json["error"]["message"]
    assert seen(stack, "d") == 1


async def test_only_workers_of_one_revision_pair(sidecars: Stack) -> None:
    sidecars.config = {**router_json(), "planRevision": "old"}
    await sidecars.worker("prefill", "p0")
    sidecars.config = {**router_json(), "planRevision": "new"}
    await sidecars.worker("decode", "d0")
    await sidecars.router("coordinator", "c0")
    await sidecars.settle(decode=1, prefill=1)
    answer = await sidecars.chat(HELLO)
    assert (answer.headers["X-Weft-Route"], answer.headers["X-Weft-Reason"]) == ("local", "no-prefill-worker")
    await sidecars.worker("prefill", "p1")
    await sidecars.settle(decode=1, prefill=2)
    assert (await sidecars.chat(HELLO)).headers["X-Weft-Prefill-Worker"] == "p1"
    await sidecars.engines["p1"].stop()
    answer = await sidecars.chat(HELLO)
    assert (answer.status, answer.headers["X-Weft-Route"]) == (200, "local")
    assert len(sidecars.engines["p0"].seen) == 0


async def test_prefilled_kv_that_nobody_takes_is_counted(stack: Stack) -> None:
    await stack.up()
    engine = stack.engines["d0"]
    engine.script.status = 400
    assert (await stack.chat(HELLO)).status == 400
    assert await outcomes(stack, "orphaned") == 1
    engine.script.status, engine.script.hang = 200, True
    await leave(stack, lambda: engine.running == 1, HELLO)
    await until(lambda: counted(stack, "orphaned", 2))


async def test_a_handle_whose_reader_was_called_off_is_counted_as_lost(stack: Stack) -> None:
    await stack.up()
    first = await stack.chat(HELLO, session="s")
    follow = [*HELLO, {"role": "assistant", "content": first.text}, {"role": "user", "content": "more"}]
    engine = stack.engines["p0"]
    engine.script.hang = True
    await leave(stack, lambda: engine.running == 1, follow)
    assert engine.seen[-1]["kv_transfer_params"]["remote_engine_id"] == "d0"
    await until(lambda: counted(stack, "lost", 1))


async def test_streams_ask_for_a_handle_only_where_streams_bring_one(stack: Stack) -> None:
    await stack.up(prefill=0)
    engine = stack.engines["d0"]
    engine.script.plugin = False
    for stream in (True, True, False, True):
        await stack.chat(HELLO, stream=stream)
    assert ["kv_transfer_params" in body for body in engine.seen] == [True, False, True, False]
    engine.script.plugin = True
    for _ in range(2):
        await stack.chat(HELLO, stream=True)
    assert ["kv_transfer_params" in body for body in engine.seen[4:]] == [False, True]


async def test_an_engine_without_the_plug_in_is_known_before_its_first_stream(stack: Stack) -> None:
    engine = stack.engines["d0"] = FakeEngine("d0")
    engine.script.plugin = False
    await stack.up(prefill=0)
    await until(lambda: is_so(stack.worker_of("d0").engine.plugin is False))
    await stack.chat(HELLO, stream=True)
    await stack.chat(HELLO)
    assert ["kv_transfer_params" in body for body in engine.seen] == [False, True]
    assert (await stack.metrics("d0"))['weft_router_engine_plugins{state="absent"}'] == 1


async def test_engines_are_shown_that_transfer_parameters_come_from_their_router(stack: Stack) -> None:
    await stack.up()
    first = await stack.chat(HELLO, session="s", stream=True)
    follow = [*HELLO, {"role": "assistant", "content": first.text}, {"role": "user", "content": "more"}]
    await stack.chat(follow, session="s")
    for engine in stack.engines.values():
        assert len(engine.seen) == 2
        assert all("kv_transfer_params" in body for body in engine.seen)
        assert [headers.get("X-Weft-Engine-Proof") for headers in engine.headers] == [PROOF] * 2


async def test_a_prefill_without_a_handle_is_noted_as_the_work_it_is(stack: Stack) -> None:
    await stack.up()
    stack.engines["d0"].script.plugin = False
    first = await stack.chat(HELLO, session="s", stream=True)
    follow = [*HELLO, {"role": "assistant", "content": first.text}, {"role": "user", "content": "more " * 100}]
    engine = stack.engines["p0"]
    engine.script.gate = asyncio.Event()
    pending = asyncio.ensure_future(stack.chat(follow, session="s", stream=True))
    await until(lambda: is_so(engine.running == 1))
    workers = stack.decoding("d0").prefill_workers.in_flight._workers
    (noted,) = [entry.task for known in workers.values() for entry in known.under_way.values()]
    assert isinstance(noted, PrefillTask)
    assert noted.read == 0
    assert noted.history < noted.increment, "its own prefix cache has the first prompt, and nothing of the answer"
    assert noted.increment > 100
    engine.script.gate.set()
    assert (await pending).status == 200


async def test_an_engine_that_fails_under_a_green_health_check_rests_and_is_tried_again(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft_router.engines.watch.REST_S", 1.0)
    monkeypatch.setattr("weft_router.engines.watch.POLL_S", 0.1)
    await stack.up(decode=2, prefill=0)
    bound = (await stack.chat(HELLO, session="s")).headers["X-Weft-Worker"]
    sick = stack.engines[bound]
    worker = stack.worker_of(bound)
    await until(lambda: is_so(len(stack.registry(bound).ready("decode")) == 2))
    sick.script.status = 500
    for i in range(3):
        answers = await asyncio.gather(*(stack.chat(HELLO, session=f"s{i}{k}") for k in range(4)))
        assert {answer.status for answer in answers} == {200}
        if worker.ready() is not None:
            break
    assert worker.ready() is not None
    sick.script.status = 200
    await until(lambda: is_so(worker.ready() is None))
    await stack.settle(decode=2, prefill=0)


async def test_the_last_decode_worker_does_not_rest(stack: Stack) -> None:
    await stack.up(prefill=0)
    stack.engines["d0"].script.status = 500
    for _ in range(5):
        assert (await stack.chat(HELLO)).status in (502, 503)
    assert len(stack.engines["d0"].seen) >= 4
    assert stack.worker_of("d0").ready() is None


async def leave(stack: Stack, when: Any, messages: list[dict[str, Any]]) -> None:
    pending = asyncio.ensure_future(stack.chat(messages, session="s"))
    await until(lambda: is_so(when()))
    pending.cancel()
    await asyncio.wait([pending])


async def outcomes(stack: Stack, outcome: str) -> float:
    return (await stack.metrics("d0")).get(f'weft_router_kv_handles_total{{outcome="{outcome}"}}', 0)


async def counted(stack: Stack, outcome: str, count: int) -> bool:
    return await outcomes(stack, outcome) == count


async def answer_to(port: int, request: bytes) -> bytes:
    """Return the status that a request of which no more comes is answered with."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return (await asyncio.wait_for(reader.readline(), 10)).split()[1]
    finally:
        writer.close()


@pytest.mark.parametrize("name", ["c0", "p0", "d0"])
async def test_without_a_key_there_is_no_path_that_takes_a_body(sidecars: Stack, tmp_path: Path, name: str) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sk-one\n")
    await sidecars.up(keys=keys)
    server = sidecars.processes[name].server
    await server.health.start("127.0.0.1", 0)
    for port in (sidecars.processes[name].settings.port, server.health.port):
        for path in [*server._routes, "/other"]:
            head = b"GET %b HTTP/1.1\r\nHost: x\r\n" % path.encode()
            unfinished = (b"Content-Length: 900000\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n9\r\n{")
            for body in (*unfinished, b"Content-Length: 2\r\n\r\n{}"):
                assert await answer_to(port, head + body) in (b"400", b"401", b"404", b"405"), (path, body)
                assert server.budget.used == 0, (path, body)


async def test_only_beside_an_engine_anybody_may_wait_for_a_drain(stack: Stack) -> None:
    await stack.up()
    async with stack.http.get(stack.front + "/engine/prestop") as answer:
        assert answer.status == 404
