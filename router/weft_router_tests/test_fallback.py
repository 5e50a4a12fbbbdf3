"""What a service refuses because it is overloaded, its fallback service serves: once, and in good form."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from weft_router.config import RouterConfig
from weft_router_tests.stack import MODEL, Answer, Composition, Stack, free_port, is_so, router_json, until

pytestmark = pytest.mark.component

HELLO = [{"role": "user", "content": "hello"}]
LATE: dict[str, Any] = {"classes": {"default": {"earlyRejection": True, "tolerance": 1e-6}}}
"""Every first token is predicted to be late."""
SMALL = "test/small"


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Stack]:
    """Give the service that is asked instead."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = Stack(folder, config=router_json(model={"name": SMALL}))
    made.config["service"] = "small"
    yield await made.up(prefill=0)
    await asyncio.wait_for(made.close(), 15)


@pytest.fixture(params=["sidecars", "standalone"])
async def busy(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    """Give a service that is not started yet."""
    composition: Composition = request.param
    made = Stack(tmp_path, composition)
    yield made
    await asyncio.wait_for(made.close(), 15)


def falls_back(stack: Stack, to: str, qos: dict[str, Any]) -> None:
    stack.config["qos"] = {**qos, "fallback": {"service": "small", "url": to}}


async def asked(stack: Stack, **fields: Any) -> Answer:
    return await stack.chat(HELLO, max_tokens=8, session="s", **fields)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "qos", [LATE, {"classes": {"default": {"queueLimit": 0}}}, {"classes": {"default": {"concurrent": 1}}}]
)
async def test_the_other_service_answers_with_its_own_model(
    busy: Stack, small: Stack, qos: dict[str, Any], stream: bool
) -> None:
    falls_back(busy, small.front, qos)
    await busy.up()
    engine = busy.engines["d0"]
    first = None
    if "concurrent" in qos.get("classes", {}).get("default", {}):
        engine.script.delay_s = 1.0
        first = asyncio.create_task(asked(busy))
        await until(lambda: is_so(bool(engine.seen)))
    answer = await asked(busy, stream=stream)
    assert answer.status == 200
    assert answer.headers["X-Weft-Fallback"] == "small"
    assert answer.headers["x-weft-worker"] == "d0"
    assert answer.text
    assert answer.whole or not stream
    model = answer.chunks[0]["model"] if stream else answer.json["model"]
    assert model == SMALL
    assert small.engines["d0"].seen
    if first is None:
        assert not engine.seen
    else:
        assert (await first).status == 200
    assert await busy.count("weft_router_fallbacks_total", result="served") == 1


async def test_a_service_without_workers_is_stood_in_for(small: Stack, sidecars: Stack) -> None:
    falls_back(sidecars, small.front, {})
    await sidecars.router("coordinator", "c0")
    assert (await asked(sidecars)).headers["X-Weft-Fallback"] == "small"


async def test_a_request_that_loses_the_last_worker_is_served_by_the_other_service(
    small: Stack, sidecars: Stack
) -> None:
    falls_back(sidecars, small.front, {})
    await sidecars.up(prefill=0)
    engine = sidecars.engines["d0"]
    engine.script.delay_s = 5.0
    request = asyncio.create_task(asked(sidecars))
    await until(lambda: is_so(bool(engine.seen)))
    registry: Any = sidecars.registry("c0")
    lost = registry._workers["d0"]
    registry._exclude(lost, "unreachable")
    registry._gone(lost, "unreachable")
    answer = await asyncio.wait_for(request, 15)
    assert (answer.status, answer.headers["X-Weft-Fallback"]) == (200, "small")


async def test_what_the_other_one_refuses_or_does_not_answer_is_refused_as_without_it(
    busy: Stack, small: Stack
) -> None:
    small_keys = small.folder / "keys"
    small_keys.write_text("sk-of-small\n")
    await small.router("coordinator", "closed", keys=small_keys)
    falls_back(busy, small.processes["closed"].url, LATE)
    await busy.up()
    refused = await asked(busy)
    assert (refused.status, refused.json["error"]["code"]) == (429, "predicted_ttft")
    assert "Retry-After" in refused.headers
    assert "X-Weft-Fallback" not in refused.headers
    let_in = await asked(busy, headers={"Authorization": "Bearer sk-of-small"})
    assert let_in.status == 200, "the client's own credentials are shown to the other service"
    assert await busy.count("weft_router_fallbacks_total", result="refused") == 1


async def test_an_address_where_nobody_answers_changes_nothing(busy: Stack) -> None:
    falls_back(busy, f"http://127.0.0.1:{free_port()}", LATE)
    await busy.up()
    assert (await asked(busy)).status == 429
    assert await busy.count("weft_router_fallbacks_total", result="failed") == 1


async def test_two_services_that_name_each_other_ask_once(busy: Stack, small: Stack) -> None:
    port = free_port()
    falls_back(small, f"http://127.0.0.1:{port}", {"classes": {"default": {"queueLimit": 0}}})
    await small.router("coordinator", "late")
    falls_back(busy, small.processes["late"].url, LATE)
    await busy.up()
    assert (await asked(busy)).status == 429
    assert await small.count("weft_router_fallbacks_total", process="late") == 0


async def test_only_overload_is_passed_on(busy: Stack, small: Stack) -> None:
    falls_back(busy, small.front, {"classes": {"gold": {"queueLimit": 0}}})
    busy.config["limits"] = {**busy.config["limits"], "rates": {"requestsPerSecond": 0.1, "burstSeconds": 10}}
    await busy.up()
    assert "X-Weft-Fallback" not in (await asked(busy)).headers
    limited = await asked(busy)
    assert (limited.status, limited.json["error"]["code"]) == (429, "rate_limit_exceeded")
    assert not small.engines["d0"].seen, "a key's own bounds hold, whoever would serve it"


async def test_a_stream_that_the_other_one_breaks_off_ends_with_an_error(busy: Stack, small: Stack) -> None:
    falls_back(busy, small.front, LATE)
    await busy.up()
    small.engines["d0"].script.gap_s = 0.1
    body = {"model": MODEL, "messages": HELLO, "stream": True, "max_tokens": 64}
    async with busy.http.post(busy.front + "/v1/chat/completions", json=body) as response:
        first = await response.content.readuntil(b"\n\n")
        await small.kill("c0")
        rest = await response.content.read()
    whole = Answer(response.status, dict(response.headers), first + rest)
    assert whole.error is not None
    assert whole.error["code"] == "stream_interrupted"


def test_the_address_is_that_of_a_service() -> None:
    for bad in ("small", "ftp://small", "http://small/v1", ""):
        body = router_json()
        body["qos"] = {"fallback": {"service": "small", "url": bad}}
        with pytest.raises(ValueError, match=r"fallback\.url|qos"):
            RouterConfig.model_validate_json(orjson.dumps(body))
