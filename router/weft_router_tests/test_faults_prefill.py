"""A prefill worker that dies before its KV is handed over costs a prefill and no request, as the service wants it."""

import time
from typing import Any

import pytest

from weft_router_tests.fake_engine import prompt_ids, reply_text
from weft_router_tests.stack import Stack, crowd, failures, is_so, router_json, until

pytestmark = pytest.mark.component

DEATHS = 10
REQUESTS = 100


def asked(k: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"question {k}"}]


def expected(messages: list[dict[str, Any]]) -> str:
    return reply_text(prompt_ids({"messages": messages}))


async def over(stack: Stack, name: str, **labels: str) -> float:
    """Return a counter summed over the processes of decode workers."""
    hosts = {id(stack.host(worker)): worker for worker in stack.engines if worker.startswith("d")}
    return sum([await stack.count(name, worker, **labels) for worker in hosts.values()])


@pytest.mark.parametrize("where", ["before_headers", "after_headers", "after_body"])
async def test_prefills_that_die_before_the_hand_over_fail_no_request(stack: Stack, where: str) -> None:
    await stack.up(decode=2, prefill=1)
    dying = stack.engines["p0"].script
    dying.die_at, dying.every, dying.times = where, 3, DEATHS

    async def send(k: int) -> str | None:
        started = time.monotonic()
        answer = await stack.chat(asked(k), session=f"s{k}", stream=k % 2 == 0)
        if answer.status != 200 or answer.text != expected(asked(k)):
            return f"status {answer.status}, {answer.raw[:100]!r}"
        return None if time.monotonic() - started < 3 else "took more than a prefill and a second longer"

    failed = await crowd(REQUESTS, 8, send)
    assert not failed, failures(failed, REQUESTS)
    assert stack.engines["p0"].died == DEATHS
    reason = "kv-load-failed" if where == "after_body" else "prefill-failed"
    assert await over(stack, "weft_router_decisions_total", reason=reason, route="local") == DEATHS
    lost = await over(stack, "weft_router_prefill_failures_total")
    assert lost == (0 if where == "after_body" else DEATHS)
    await until(lambda: is_so(not stack.engines["p0"].held))


@pytest.mark.parametrize(("rule", "route"), [("local", "local"), ("other", "remote"), ("error", "")])
@pytest.mark.parametrize("where", ["before_headers", "after_headers"])
async def test_a_lost_prefill_is_done_as_the_service_says(stack: Stack, rule: str, route: str, where: str) -> None:
    stack.config = router_json(routing={"onPrefillFailure": rule})
    await stack.up(prefill=2)
    dying = stack.engines["p0"].script
    dying.die_at, dying.times = where, 1
    answer = await stack.chat(asked(0))
    assert stack.engines["p0"].died == 1
    if rule == "error":
        assert (answer.status, answer.json["error"]["code"]) == (502, "prefill_failed")
        assert not stack.engines["d0"].seen
    else:
        assert answer.text == expected(asked(0))
        assert answer.headers["X-Weft-Route"] == route
    assert len(stack.engines["p1"].seen) == (rule == "other")
    assert (await stack.chat(asked(1))).headers["X-Weft-Route"] == "remote"


@pytest.mark.parametrize("rule", ["local", "other", "error"])
async def test_a_prefill_worker_that_was_gone_before_it_began_is_replaced_under_every_rule(
    stack: Stack, rule: str
) -> None:
    stack.config = router_json(routing={"onPrefillFailure": rule})
    await stack.up(prefill=2)
    await stack.engines["p0"].stop()
    answer = await stack.chat(asked(0))
    assert (answer.status, answer.headers["X-Weft-Prefill-Worker"]) == (200, "p1")


async def test_with_no_prefill_worker_left_rounds_are_local_or_refused_as_the_service_says(stack: Stack) -> None:
    stack.config = router_json(routing={"onPrefillFailure": "other"})
    await stack.up(prefill=2)
    for name in ("p0", "p1"):
        stack.engines[name].script.die_at = "before_headers"
    answer = await stack.chat(asked(0))
    assert (answer.status, answer.headers["X-Weft-Route"]) == (200, "local")
    assert [stack.engines[name].died for name in ("p0", "p1")] == [1, 1]


async def test_a_killed_prefill_pod_costs_no_request(sidecars: Stack) -> None:
    await sidecars.up(decode=2, prefill=2)
    for engine in sidecars.engines.values():
        engine.script.delay_s = 0.005

    async def send(k: int) -> str | None:
        if k == REQUESTS // 4:
            await sidecars.kill("p0")
            await sidecars.engines["p0"].stop()
        answer = await sidecars.chat(asked(k), session=f"s{k}", stream=k % 2 == 0)
        return None if answer.text == expected(asked(k)) else f"status {answer.status}, {answer.raw[:100]!r}"

    failed = await crowd(REQUESTS, 8, send)
    assert not failed, failures(failed, REQUESTS)
    assert (await sidecars.chat(asked(0))).headers["X-Weft-Prefill-Worker"] == "p1"
