"""Rounds of every kind, and what fails in them, leave nothing behind; each is decided with the others in sight."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from weft_router.context import COMPILED
from weft_router_tests.fake_engine import Script
from weft_router_tests.stack import MODEL, Answer, Composition, Stack, is_so, router_json, until

pytestmark = pytest.mark.component

Scene = Callable[[Stack], Awaitable[list[Answer]]]

COMPOSITIONS = ["standalone", "sidecars"]


@pytest.fixture
async def started(tmp_path: Path, composition: Composition) -> AsyncIterator[Stack]:
    """Start a stack of two decode and two prefill workers."""
    stack = Stack(tmp_path, composition, config=router_json(engine={"leaseSeconds": 60}))
    await stack.up(decode=2, prefill=2)
    yield stack
    await asyncio.wait_for(stack.close(), 15)


def say(*texts: str) -> list[dict[str, Any]]:
    return [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(texts)]


async def conversation(stack: Stack) -> list[Answer]:
    """Three rounds of a session, each with all that was said, beside sessions of one round."""
    answers, said = [], ["What is a loom? " * 8]
    for k in range(3):
        answers.append(await stack.chat(say(*said), session="weaver", max_tokens=8, temperature=0))
        said += [answers[-1].text, f"And then? {k} " * (40 if k else 2)]
        answers.append(await stack.chat(say(f"alone {k}"), session=f"s{k}", max_tokens=4, stop=["x"]))
    answers.append(await stack.complete("once upon a time " * 9, session="teller", max_tokens=4))
    return answers


async def nameless(stack: Stack) -> list[Answer]:
    """Conversations that are known by what was said, of which one is gone back in and two begin alike; and texts."""
    answers, said = [], ["What is a weft? " * 8]
    for k in range(3):
        answers.append(await stack.chat(say("Please: " + said[0], *said[1:]), max_tokens=8))
        answers.append(await stack.chat(say(*said), max_tokens=8))
        answers.append(await stack.complete("once upon a time " * 9, max_tokens=4))
        said += [answers[-2].text, f"And then? {k} " * (40 if k else 2)]
    answers.append(await stack.chat(say(*said[:-1], "Or else? "), max_tokens=8))
    answers.append(await stack.chat(say(*said), max_tokens=8, prompt_cache_key="mine"))
    assert len({one.headers.get("X-Weft-Session") for one in answers}) == 2 + 3 + 1
    return answers


async def unusual(stack: Stack) -> list[Answer]:
    """Streams, several answers, fields to be dropped, wrong ones, names in a body."""
    asked: list[dict[str, Any]] = [
        {"session": "a", "stream": True}, {"session": "b", "n": 2}, {"session": "c", "kv_transfer_params": {"a": 1}},
        {"session": "d", "max_tokens": 0}, {"session": "e" * 300}, {"session": "f", "model": "other"},
        {"conversation_id": "c"},
    ]  # fmt: skip
    return [await stack.chat(say("hello there " * 5), **{"max_tokens": 4, **fields}) for fields in asked]


async def long(stack: Stack) -> list[Answer]:
    """Prompts so long that both legs share one, to engines of which some break off: two rounds, streams, texts."""
    answers, words = [], 'a "quoted" text and \n more of it ' * 500
    for k, role in enumerate(("", "p", "d", "")):
        for name, engine in stack.engines.items():
            engine.script = Script(die_at="after_headers", times=1) if role and name.startswith(role) else Script()
        answers.append(await stack.chat(say(f"{k} {words}"), session=f"s{k}", max_tokens=4))
        said = say(f"{k} {words}", answers[-1].text, f"go on with {k} {words}")
        answers.append(await stack.chat(said, session=f"s{k}", max_tokens=4))
        answers.append(await stack.chat(say(f"{k} {words}"), session=f"t{k}", max_tokens=4, stream=True))
    answers.append(await stack.complete(words, session="teller", max_tokens=4))
    assert [one.status for one in answers] == [200] * len(answers)
    return answers


def failing(role: str, **script: Any) -> Scene:
    """Let the engines of a role fail while a few sessions have two rounds."""

    async def scene(stack: Stack) -> list[Answer]:
        for name, engine in stack.engines.items():
            if name.startswith(role):
                engine.script = Script(**script)
        answers = []
        for k in range(4):
            first = await stack.chat(say(f"question {k} " * 9), session=f"s{k}", max_tokens=4)
            answers.append(first)
            if first.status == 200:
                said = say(f"question {k} " * 9, first.text, "go on " * 60)
                answers.append(await stack.chat(said, session=f"s{k}", max_tokens=4))
        return answers

    return scene


def broken(method: str) -> Scene:
    """Let a fault of the router itself hit one round, as it makes a leg's request."""

    async def scene(stack: Stack) -> list[Answer]:
        if COMPILED:
            pytest.skip("a compiled adapter's methods cannot be replaced by one that fails")
        adapter: Any = stack.decoding("d0")._adapter
        right = getattr(adapter, method)

        def wrong(*_: object) -> object:
            delattr(adapter, method)
            raise RuntimeError("a fault of the test")

        setattr(adapter, method, wrong)
        answers = [await stack.chat(say(f"question {k} " * 9), session=f"s{k}", max_tokens=4) for k in range(3)]
        assert getattr(adapter, method) == right
        assert [one.status for one in answers] == [500, 200, 200]
        return answers

    return scene


async def refused(stack: Stack) -> list[Answer]:
    """An engine that finds the request itself wrong."""
    for engine in stack.engines.values():
        engine.script = Script(status=400, error_body={"error": {"message": "no such template", "param": "x"}})
    return [await stack.chat(say("hello " * 9), session=f"s{k}", max_tokens=4) for k in range(2)]


SCENES: dict[str, Scene] = {
    "conversation": conversation,
    "nameless": nameless,
    "unusual": unusual,
    "long": long,
    "prefill-status": failing("p", status=500, times=1),
    "prefill-cut": failing("p", die_at="after_headers", times=1),
    "prefill-silent": failing("p", die_at="before_headers", times=1),
    "prefill-no-params": failing("p", no_params=True, times=1),
    "handles-refused": failing("p", refuse_handles=True),
    "decode-status": failing("d", status=500, times=1),
    "decode-cut": failing("d", die_at="after_headers", times=1),
    "decode-no-usage": failing("d", no_usage=True),
    "decode-tool-call": failing("d", tool_call=True),
    "refused": refused,
    "prefill-fault": broken("prefill"),
    "read-fault": broken("read_prefill"),
    "decode-fault": broken("decode"),
}


@pytest.mark.parametrize("composition", COMPOSITIONS)
@pytest.mark.parametrize("name", SCENES)
async def test_rounds_leave_nothing_behind(started: Stack, name: str) -> None:
    await SCENES[name](started)
    await until(partial(quiet, started))
    await until(lambda: is_so(not any(ledger(started).values())))


async def quiet(stack: Stack) -> bool:
    """Return whether no engine has anything to do."""
    return not any(engine.running for engine in stack.engines.values())


def ledger(stack: Stack) -> dict[str, int]:
    """Return what processes hold: of admission, of each engine, of what was sent there."""
    app: Any = stack.processes["c0"].app
    admission = app._front.admission
    classes = admission.of_classes.values()
    found = {
        "waiting": sum(of.waiting for of in classes), "running": sum(of.running for of in classes),
        "room": len(admission._room), "inflight": sum(one.server.inflight for one in stack.processes.values()),
    }  # fmt: skip
    for name in stack.engines:
        worker = stack.worker_of(name)
        found[f"{name} live"] = worker.live.count
        found[f"{name} legs"] = len(worker.engine._waiting)
        found[f"{name} queue"] = len(worker.queue) + int(worker.queue.tokens)
        found[f"{name} sent"] = sum(stack.decoding(one).prefill_workers.in_flight.sent(name) for one in ("d0", "d1"))
    return found


@pytest.mark.parametrize("composition", COMPOSITIONS)
@pytest.mark.parametrize("where", ["prefill", "decode"])
async def test_a_client_that_leaves_frees_everything(started: Stack, where: str) -> None:
    stack = started
    for name, engine in stack.engines.items():
        engine.script = Script(hang=name.startswith(where[0]))
    body = orjson.dumps({"model": MODEL, "messages": say("hello " * 20), "max_tokens": 4})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Session-Id: s\r\nContent-Length: {len(body)}\r\n\r\n"
    _, writer = await asyncio.open_connection("127.0.0.1", stack.processes["c0"].settings.port)
    writer.write(head.encode() + body)
    hanging = [engine for name, engine in stack.engines.items() if name.startswith(where[0])]
    await until(lambda: is_so(any(engine.running for engine in hanging)))
    writer.transport.abort()
    await until(lambda: is_so(not any(engine.running for engine in hanging)), seconds=2)
    asked = [name for name in stack.processes if name[0] in ("c", "d")]
    await until(partial(over, stack, asked))
    cancelled = {name: await stack.count("weft_router_cancelled_total", name) for name in asked}
    assert cancelled["c0"] == 1
    assert sum(cancelled.values()) == (1 if stack.composition == "standalone" else 2)
    for name in stack.processes:
        assert await stack.count("weft_router_queue_length", name) == 0
    orphaned = sum([await stack.count("weft_router_kv_handles_total", name, outcome="orphaned") for name in asked])
    assert orphaned == (1 if where == "decode" else 0), "KV that nobody read is counted, and given back"
    for engine in stack.engines.values():
        engine.script = Script()
    answer = await stack.chat(say("hello " * 20), session="s", max_tokens=4)
    assert answer.status == 200
    for name in ("d0", "d1"):
        assert stack.worker_of(name).live.count == 0
        assert len(stack.worker_of(name).batch) == 0
    for name in ("p0", "p1"):
        assert stack.worker_of(name).live.count == 0
        assert len(stack.worker_of(name).queue) == 0


async def over(stack: Stack, processes: list[str]) -> bool:
    """Return whether processes have no request under way."""
    return not any([await stack.count("weft_router_inflight", name) for name in processes])


@pytest.mark.parametrize("composition", ["standalone"])
async def test_each_round_is_decided_with_those_before_it_in_sight(started: Stack) -> None:
    stack = started
    gate = asyncio.Event()
    for name, engine in stack.engines.items():
        if name.startswith("p"):
            engine.script.gate = gate
    asked = [asyncio.create_task(stack.chat(say(f"q{k} " * 20), session=f"s{k}", max_tokens=4)) for k in range(12)]
    in_flight = stack.decoding("d0").prefill_workers.in_flight
    await until(lambda: is_so(in_flight.sent("p0") + in_flight.sent("p1") == 12))
    sent = [in_flight.sent("p0"), in_flight.sent("p1")]
    gate.set()
    answers = await asyncio.gather(*asked)
    assert [one.status for one in answers] == [200] * 12
    assert sent == [6, 6]
    assert {one.headers["X-Weft-Route"] for one in answers} == {"remote"}


async def test_two_coordinators_agree_on_the_sessions_that_they_bind_in_redis(redis_stack: Stack) -> None:
    await redis_stack.up(decode=3, prefill=1, coordinators=2)
    fronts = [redis_stack.processes[name].url for name in ("c0", "c1")]
    sessions = [f"s{k % 12}" for k in range(48)]
    answers = await asyncio.gather(*(
        redis_stack.chat(say("hello " * 20), session=session, max_tokens=4, front=fronts[k % 5 % 2])
        for k, session in enumerate(sessions)
    ))  # fmt: skip
    assert [one.status for one in answers] == [200] * 48
    by = {session: one.headers["X-Weft-Worker"] for session, one in zip(sessions, answers, strict=True)}
    assert [one.headers["X-Weft-Worker"] for one in answers] == [by[session] for session in sessions]
    assert len(set(by.values())) == 3


@pytest.mark.parametrize("composition", ["sidecars"])
@pytest.mark.parametrize("left", [True, False])
async def test_prefills_that_are_lost_together_are_blamed_on_their_own_worker(started: Stack, left: bool) -> None:
    """Rounds whose prefill worker dies are prefilled elsewhere, and no other worker is taken out of use for it."""
    stack = started
    if not left:
        stack.processes["p1"].stop.set()
        await asyncio.wait_for(stack.processes["p1"].task, 10)
        await stack.settle(decode=2, prefill=1)
    stack.engines["p0"].script = Script(hang=True)
    asked = [asyncio.create_task(stack.chat(say(f"q{k} " * 20), session=f"s{k}", max_tokens=4)) for k in range(12)]
    front = stack.processes["c0"].server
    await until(lambda: is_so(front.inflight + sum(one.done() for one in asked) == 12))
    await until(lambda: is_so(stack.engines["p0"].running > 0))
    await stack.kill("p0")
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", stack.processes["p0"].settings.port)
    answers = await asyncio.gather(*asked)
    assert [one.status for one in answers] == [200] * 12
    for name in ("d0", "d1", "c0"):
        known = stack.registry(name)
        assert known.get("d0") is not None
        assert known.get("d1") is not None
        assert (known.get("p1") is not None) is left
        assert await stack.count("weft_router_replays_total", name) == 0
