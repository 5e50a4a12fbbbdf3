"""An engine with a green health check that hangs or fails is left, tried again, taken back; half of a pool stays."""

import asyncio
import time
from itertools import pairwise
from typing import Any

import pytest

from weft_core.layouts import Role
from weft_router.engines import watch
from weft_router_tests.fake_engine import prompt_ids, reply_text
from weft_router_tests.stack import Stack, crowd, failures, is_so, router_json, until

pytestmark = pytest.mark.component

REAL = {name: float(getattr(watch, name)) for name in ("POLL_S", "REST_S", "STALL_S", "PROBE_S")}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("POLL_S", 0.1), ("REST_S", 0.5), ("STALL_S", 0.3), ("PROBE_S", 0.3)):
        monkeypatch.setattr(watch, name, seconds)


def asked(k: int, text: str = "question") -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"{text} {k}"}]


def expected(k: int) -> str:
    return reply_text(prompt_ids({"messages": asked(k)}))


def test_the_real_times_add_up() -> None:
    assert REAL["STALL_S"] + REAL["POLL_S"] <= 5, "out of use within 5 s"
    assert REAL["REST_S"] == 5, "one try in 5 s"
    assert REAL["REST_S"] + REAL["PROBE_S"] + REAL["POLL_S"] <= 10, "back within 10 s"


async def out(stack: Stack, name: str, *, within: float) -> None:
    await until(lambda: is_so(stack.registry("c0").get(name) is None), seconds=within)


async def acquainted(stack: Stack, name: str, count: int) -> None:
    """Wait until a worker knows that others can do its work."""
    duty: Role = "prefill" if stack.worker_of(name).role == "prefill" else "decode"
    await until(lambda: is_so(len(stack.registry(name).ready(duty)) == count))


@pytest.mark.parametrize("role", ["d", "p"])
async def test_an_engine_that_hangs_is_left_tried_again_and_taken_back(stack: Stack, role: str) -> None:
    await stack.up(decode=2, prefill=2 if role == "p" else 0)
    name = f"{role}0"
    await acquainted(stack, name, 2)
    sick = stack.engines[name]
    sick.script.hang = True

    async def send(k: int) -> str | None:
        answer = await stack.chat(asked(k), session=f"s{k}", stream=True)
        return None if answer.whole and answer.text == expected(k) else f"{answer.status}: {answer.raw[:80]!r}"

    work = asyncio.ensure_future(crowd(60, 6, send))
    await out(stack, name, within=2.0)
    failed = await asyncio.wait_for(work, 10)
    assert not failed, failures(failed, 60)
    before, started = len(sick.seen), time.monotonic()
    await until(lambda: is_so(len(sick.seen) >= before + 2))
    assert time.monotonic() - started > 0.5, "one try in a rest"
    assert all(body.get("max_tokens") == 1 and body.get("prompt") == "a" for body in sick.seen[before:])
    assert stack.registry("c0").get(name) is None
    sick.script.hang = False
    await until(lambda: is_so(stack.registry("c0").get(name) is not None), seconds=4)
    role_name = "decode" if role == "d" else "prefill"
    assert await stack.count("weft_router_ejections_total", name, reason="stalled", role=role_name) == 1
    assert await stack.count("weft_router_readmissions_total", name, role=role_name) == 1


async def test_an_engine_that_fails_is_left_and_taken_back(stack: Stack) -> None:
    await stack.up(decode=2, prefill=0)
    await acquainted(stack, "d0", 2)
    stack.engines["d0"].script.status = 500

    async def send(k: int) -> str | None:
        answer = await stack.chat(asked(k), session=f"s{k}", stream=k % 2 == 0)
        return None if answer.status == 200 and answer.text == expected(k) else f"{answer.status}: {answer.raw[:80]!r}"

    failed = await crowd(40, 4, send)
    assert not failed, failures(failed, 40)
    await out(stack, "d0", within=1.0)
    assert await stack.count("weft_router_ejections_total", "d0", reason="failures", role="decode") == 1
    stack.engines["d0"].script.status = 200
    await until(lambda: is_so(stack.registry("c0").get("d0") is not None), seconds=4)
    assert await stack.count("weft_router_readmissions_total", "d0", role="decode") == 1


@pytest.mark.parametrize(("text", "left"), [("question", 1), ("a long text to read " * 500, 0)])
async def test_an_engine_is_slow_by_what_is_expected_of_it(stack: Stack, text: str, left: int) -> None:
    stack.config["model"]["maxModelLen"] = 16000
    await stack.up(decode=2, prefill=0)
    await acquainted(stack, "d0", 2)
    stack.engines["d0"].script.delay_s = stack.engines["d1"].script.delay_s = 0.6

    async def send(k: int) -> str | None:
        answer = await stack.chat(asked(k, text), session=f"s{k}", stream=True)
        return None if answer.whole or left else f"{answer.status}"

    assert await crowd(4, 4, send) == []
    ejected = {await stack.count("weft_router_ejections_total", name) for name in ("d0", "d1")}
    assert max(ejected) == left


async def test_no_more_than_half_of_a_pool_rests_however_many_fail(stack: Stack) -> None:
    stack.config = router_json(routing={"binding": "round-robin"})
    await stack.up(decode=4, prefill=0)
    for name in ("d0", "d1", "d2"):
        await acquainted(stack, name, 4)
        stack.engines[name].script.status = 500
    seen: list[tuple[float, int]] = []
    stop = asyncio.Event()

    async def look() -> None:
        while not stop.is_set():
            resting = sum(stack.worker_of(f"d{i}").ready() is not None for i in range(4))
            seen.append((time.monotonic(), resting))
            await asyncio.sleep(0.02)

    looking = asyncio.ensure_future(look())

    async def send(k: int) -> str | None:
        answer = await stack.chat(asked(k), session=f"s{k}", stream=k % 2 == 0)
        return None if answer.status in (200, 502, 503) else f"{answer.status}"

    assert await crowd(150, 6, send) == []
    stop.set()
    await looking
    assert max(count for _, count in seen) >= 2
    above = sum(later - now for (now, count), (later, _) in pairwise(seen) if count > 2)
    assert above < 1.0, f"more than half rested for {above:.2f} s"
    assert stack.engines["d3"].seen
