"""The straight way does what the general one does: same bytes to engines and clients, same books, whatever fails."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from weft_router.context import COMPILED
from weft_router.express.decode_lane import DecodeLane
from weft_router.express.lane import Lane
from weft_router.express.prefill_lane import PrefillLane
from weft_router.wire.exchange import Exchange
from weft_router_tests.fake_engine import Script
from weft_router_tests.stack import MODEL, Answer, Composition, Stack, is_so, router_json, until

pytestmark = pytest.mark.component

LANES = (Lane, DecodeLane, PrefillLane)
OF: dict[Composition, tuple[type, ...]] = {"standalone": (Lane,), "sidecars": LANES}
"""The lanes of a composition."""

Scene = Callable[[Stack], Awaitable[list[Answer]]]

_TIMED = re.compile(
    r"_bucket\{|_created|^process_|^python_|_seconds_sum|_age_|windowed|_tokens_sum|weft_router_requests_total.*/"
)
_IDS = re.compile(
    rb"[0-9a-f]{32}|weft-[0-9a-f]{16}|req-[0-9-]+|chatcmpl-[0-9a-z-]+|cmpl-[0-9a-z-]+|127\.0\.0\.1:\d+|\"created\":\d+"
)
SHOWN = ("X-Weft-Route", "X-Weft-Reason", "X-Weft-Worker", "X-Weft-Prefill-Worker", "X-Weft-Session")
_PORTS = re.compile(rb"\"remote_port\":\d+")


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[type, bool]]:
    """Count which requests each lane takes, and which it leaves."""
    found: Counter[tuple[type, bool]] = Counter()
    for lane in LANES:
        _count(lane, found, monkeypatch)
    return found


def _count(lane: Any, found: Counter[tuple[type, bool]], monkeypatch: pytest.MonkeyPatch) -> None:
    takes = lane.takes

    def counting(self: object, exchange: Exchange) -> bool:
        asked = exchange.path.startswith(("/v1/", "/internal/prefill"))
        answer: bool = takes(self, exchange)
        found[lane, answer] += asked
        return answer

    monkeypatch.setattr(lane, "takes", counting)


Starts = Callable[[bool], Awaitable[Stack]]


@pytest.fixture
async def two(tmp_path: Path, composition: Composition) -> AsyncIterator[Starts]:
    """Start stacks, with the straight way or without."""
    made: list[Stack] = []

    async def up(lane: bool) -> Stack:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        stack = Stack(folder, composition, config=router_json(engine={"leaseSeconds": 60}))
        made.append(stack)
        await stack.up(decode=2, prefill=2)
        for process in stack.processes.values():
            if not lane:
                process.server._lane = None
        return stack

    yield up
    for stack in made:
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
    """What the lane leaves: streams, several answers, fields to be dropped, wrong ones, names in a body."""
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


@pytest.mark.parametrize("composition", OF)
@pytest.mark.parametrize("name", SCENES)
async def test_both_ways_do_the_same(
    two: Starts, taken: Counter[tuple[type, bool]], name: str, composition: Composition
) -> None:
    found = []
    for lane in (True, False):
        stack = await two(lane)
        answers = await SCENES[name](stack)
        await until(partial(quiet, stack))
        told = [
            (one.status, bare(repr([one.headers.get(name) for name in SHOWN]).encode()), bare(one.raw))
            for one in answers
        ]
        seen = {name: [bare(orjson.dumps(body)) for body in engine.seen] for name, engine in stack.engines.items()}
        found.append((told, seen, await books(stack), ledger(stack)))
    straight, general = found
    for one, other in zip(straight, general, strict=True):
        assert one == other
    if name == "unusual":
        assert taken[Lane, False], taken
    elif name == "nameless":
        assert (taken[Lane, True], taken[Lane, False]) == (10, 1), taken
    else:
        assert all(taken[way, True] for way in OF[composition]), taken


async def quiet(stack: Stack) -> bool:
    """Tell whether no engine has anything to do."""
    return not any(engine.running for engine in stack.engines.values())


def bare(raw: bytes) -> bytes:
    """Return bytes without what is another in each run."""
    return _IDS.sub(b"#", _PORTS.sub(b"", raw))


async def books(stack: Stack) -> dict[str, dict[str, float]]:
    """Return the counters of each process, and how often each histogram was told something."""
    return {
        name: {
            key: value
            for key, value in (await stack.metrics(name)).items()
            if ("_total" in key or "_count" in key) and not _TIMED.search(key) and "slice" not in key
        }
        for name in stack.processes
    }


def ledger(stack: Stack) -> dict[str, Any]:
    """Return what processes hold when nothing is under way: of admission, of each engine, of what was sent there."""
    duty: Any = stack.processes["c0"].duty
    admission = duty._front.admission
    classes = admission.of_classes.values()
    found: dict[str, Any] = {
        "waiting": sum(of.waiting for of in classes), "running": sum(of.running for of in classes),
        "room": len(admission._room), "inflight": [one.server.inflight for one in stack.processes.values()],
    }  # fmt: skip
    for name in stack.engines:
        worker = stack.worker_of(name)
        engine = worker.engine
        sent = [stack.decoding(one).remote.dispatched.sent(name) for one in ("d0", "d1")]
        found[name] = (
            worker.live.count, len(engine._waiting), engine._strikes, engine._progress > 0, engine.healthy,
            len(worker.queue), worker.queue.tokens, sent,
        )  # fmt: skip
    return found


@pytest.mark.parametrize("composition", OF)
@pytest.mark.parametrize("where", ["prefill", "decode"])
async def test_a_client_that_leaves_frees_everything(
    two: Starts, taken: Counter[tuple[type, bool]], where: str
) -> None:
    stack = await two(True)
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
    assert taken[Lane, True] == 1
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
        assert stack.decoding(name).answering.batch == 0
    for name in ("p0", "p1"):
        assert stack.worker_of(name).live.count == 0
        assert len(stack.worker_of(name).queue) == 0


async def over(stack: Stack, processes: list[str]) -> bool:
    """Tell whether processes have no request under way."""
    return not any([await stack.count("weft_router_inflight", name) for name in processes])


@pytest.mark.parametrize("composition", ["standalone"])
async def test_a_busy_queue_is_waited_for_on_the_general_way(two: Starts, taken: Counter[tuple[type, bool]]) -> None:
    stack = await two(True)
    gate = asyncio.Event()
    for name, engine in stack.engines.items():
        if name.startswith("p"):
            engine.script.gate = gate
    asked = [asyncio.create_task(stack.chat(say(f"q{k} " * 20), session=f"s{k}", max_tokens=4)) for k in range(12)]
    await until(lambda: is_so(sum(taken.values()) == 12))
    dispatched = stack.decoding("d0").remote.dispatched
    sent = [dispatched.sent("p0"), dispatched.sent("p1")]
    gate.set()
    answers = await asyncio.gather(*asked)
    assert [one.status for one in answers] == [200] * 12
    assert taken[Lane, True] == 12
    assert sent == [6, 6], "each is decided with those before it in sight"
    assert {one.headers["X-Weft-Route"] for one in answers} == {"remote"}


async def test_sessions_that_two_coordinators_bind_in_redis_go_straight(
    redis_stack: Stack, taken: Counter[tuple[type, bool]]
) -> None:
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
    assert taken[Lane, True] == taken[DecodeLane, True] == 48


@pytest.mark.parametrize("composition", ["sidecars"])
@pytest.mark.parametrize("left", [True, False])
async def test_prefills_that_are_lost_together_are_blamed_on_their_own_worker(
    two: Starts, taken: Counter[tuple[type, bool]], left: bool
) -> None:
    """Rounds whose prefill worker dies are prefilled elsewhere, and no other worker is taken out of use for it."""
    stack = await two(True)
    if not left:
        stack.processes["p1"].stop.set()
        await asyncio.wait_for(stack.processes["p1"].task, 10)
        await stack.settle(decode=2, prefill=1)
    stack.engines["p0"].script = Script(hang=True)
    asked = [asyncio.create_task(stack.chat(say(f"q{k} " * 20), session=f"s{k}", max_tokens=4)) for k in range(12)]
    await until(lambda: is_so(taken[Lane, True] == 12))
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


class Failing:
    """A lane that cannot tell whether a request is usual."""

    def takes(self, exchange: Exchange) -> bool:
        raise KeyError(exchange.path)


async def test_what_a_lane_fails_at_goes_the_general_way(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await stack.up(prefill=0)
    monkeypatch.setattr(stack.processes["c0"].server, "_lane", Failing())
    caplog.clear()
    assert (await stack.chat(say("hello"))).status == 200
    failed = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [(record.message, record.exc_info is not None) for record in failed] == [("not_taken", True)]
