"""Endpoint pickers behind a real Envoy, whose requests go straight to decode workers, as a coordinator's do."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from weft_router_tests.conftest import RedisServer
from weft_router_tests.envoy import BodyMode, Envoy, Route
from weft_router_tests.picker_kit import CHAT, USER, Behind, answers, picked, picker_process, shown
from weft_router_tests.stack import MODEL, Stack, free_port, proven, router_json, until

pytestmark = pytest.mark.component

MESSAGES = "/v1/messages"
KEYED = {"Authorization": "Bearer key-of-a-client"}
PATIENT = aiohttp.ClientTimeout(total=300)
"""For 200 MB on a busy machine."""


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
async def test_a_conversation_returns_to_its_worker_with_its_history(
    sidecars: Stack, behind: Behind, mode: BodyMode
) -> None:
    await picked(sidecars, decode=3, prefill=1)
    envoy = await behind(sidecars, body_mode=mode)
    said = [{"role": "user", "content": "What is a loom? " * 8}]
    workers = []
    for k in range(3):
        answer = await sidecars.chat(said, session="weaver", front=envoy.url, stream=True, max_tokens=8, temperature=0)
        assert answer.whole, (answer.status, answer.raw)
        assert b": weft-" not in answer.raw, "what sidecars tell the picker is not the client's"
        assert shown(answer, "X-Weft-Session") == "weaver"
        assert "x-weft-tokens" not in {name.lower() for name in answer.headers}
        workers.append(shown(answer, "X-Weft-Worker"))
        said = [
            *said,
            {"role": "assistant", "content": answer.text},
            {"role": "user", "content": f"And then? {k} " * 9},
        ]
    assert len(set(workers)) == 1
    assert sidecars.engines["p0"].pulled > 0, "the prefill engine read the history from the decode engine"
    sent = sidecars.engines[workers[0]].headers[-1]
    assert not [name for name in sent if name.lower() in ("authorization", "x-weft-pass")]
    assert await sidecars.count("weft_router_inflight", "e0") == 0


async def test_answers_in_one_piece_go_through(sidecars: Stack, behind: Behind) -> None:
    await picked(sidecars, prefill=0)
    envoy = await behind(sidecars)
    answer = await sidecars.chat([USER], front=envoy.url)
    assert answer.status == 200
    assert answer.text
    assert shown(answer, "X-Request-Id").startswith("weft-")
    sent = sidecars.engines["d0"].seen[-1]
    assert sent["messages"] == [USER]


async def test_other_names_and_other_apis_are_the_coordinators(sidecars: Stack, behind: Behind) -> None:
    sidecars.config = router_json(model={"aliases": ["gpt-4"]})
    await picked(sidecars, coordinators=1, prefill=0)
    envoy = await behind(sidecars)
    answer = await sidecars.chat([USER], front=envoy.url, model="gpt-4", kv_transfer_params={"do_remote": True})
    assert (answer.status, answer.json["model"]) == (200, MODEL)
    sent = sidecars.engines["d0"].seen[-1]
    assert sent["model"] == MODEL
    message = {"model": MODEL, "max_tokens": 4, "messages": [USER]}
    for stream in (False, True):
        answers = []
        for front in (sidecars.front, envoy.url):
            async with sidecars.http.post(front + MESSAGES, json={**message, "stream": stream}) as response:
                answers.append((response.status, response.content_type, await response.text()))
        assert answers[1][:2] == (200, "text/event-stream" if stream else "application/json")
        assert "message_stop" in answers[1][2] or not stream
        assert len(answers[0][2]) == len(answers[1][2]), "but for ids it is the same"
    for method, path in (("GET", "/v1/models"), ("GET", "/v1/models/gpt-4"), ("DELETE", "/v1/sessions/mine")):
        ways = []
        for front in (sidecars.front, envoy.url):
            async with sidecars.http.request(method, front + path) as response:
                ways.append((response.status, await response.read()))
        assert ways[0] == ways[1]
    both = {"model": MODEL, "prompt": ["a", "b"], "max_tokens": 2}
    async with sidecars.http.post(envoy.url + "/v1/completions", json=both) as response:
        assert response.status == 200
        assert len((await response.json())["choices"]) == 2


async def test_refusals_are_the_coordinators(sidecars: Stack, behind: Behind, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("key-of-a-client\nkey-of-another rps=0.001\n")
    sidecars.config = router_json(limits={"maxBodyBytes": 20_000})
    await picked(sidecars, coordinators=1, keys=keys, prefill=0)
    envoy = await behind(sidecars)
    chat = {"model": MODEL, "messages": [USER]}
    limited = {"Authorization": "Bearer key-of-another"}
    asked: list[tuple[str, str, Any, dict[str, str], int]] = [
        ("POST", CHAT, chat, {}, 401),
        ("POST", CHAT, chat, {"Authorization": "Bearer nobody"}, 401),
        ("POST", CHAT, {**chat, "model": "other"}, KEYED, 404),
        ("POST", CHAT, {**chat, "max_tokens": "many"}, KEYED, 400),
        ("POST", CHAT, {**chat, "chat_template": "x"}, KEYED, 400),
        ("POST", CHAT, {**chat, "user": "x" * 30_000}, KEYED, 413),
        ("POST", MESSAGES, {**chat, "max_tokens": 1, "model": "other"}, KEYED, 404),
        ("POST", "/v1/nothing", chat, KEYED, 404),
        ("GET", CHAT, None, KEYED, 405),
        ("POST", CHAT, chat, {**KEYED, "X-Weft-Class": "none"}, 400),
    ]
    for method, path, body, headers, status in asked:
        answers = []
        for front in (sidecars.front, envoy.url):
            async with sidecars.http.request(method, front + path, json=body, headers=headers) as response:
                answers.append((response.status, response.content_type, await response.read()))
        assert answers[0] == answers[1], (path, headers)
        assert answers[1][0] == status
    async with sidecars.http.post(envoy.url + CHAT, json=chat, headers=limited) as response:
        assert response.status == 200
    async with sidecars.http.post(envoy.url + CHAT, json=chat, headers=limited) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(response.headers["Retry-After"]) > 0
    for path in ("/metrics", "/healthz", "/drain"):
        async with sidecars.http.get(envoy.url + path, headers=KEYED) as response:
            assert response.status == 404


async def test_pages_of_allowed_origins_are_answered_as_by_a_coordinator(sidecars: Stack, behind: Behind) -> None:
    sidecars.config["cors"] = {"allowedOrigins": ["https://chat.example.com"]}
    await picked(sidecars, coordinators=1, prefill=0)
    envoy = await behind(sidecars)
    origin = {"Origin": "https://chat.example.com"}
    asked = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}

    def allowed(headers: Mapping[str, str]) -> dict[str, str]:
        return {name.lower(): value for name, value in headers.items() if name.lower().startswith("access-control-")}

    for method, headers, body in (("OPTIONS", asked, None), ("POST", origin, {"model": MODEL, "messages": [USER]})):
        answers = []
        for front in (sidecars.front, envoy.url):
            async with sidecars.http.request(method, front + CHAT, headers=headers, json=body) as response:
                answers.append((response.status, allowed(response.headers)))
        assert answers[0] == answers[1]
        assert answers[1][0] < 300
        assert answers[1][1]["access-control-allow-origin"] == "https://chat.example.com"


async def test_long_prompts_and_long_answers_go_through(sidecars: Stack, behind: Behind) -> None:
    sidecars.config = router_json(
        model={"maxModelLen": 1_000_000}, limits={"maxBodyBytes": 8_000_000, "maxOutputTokens": 100_000}
    )
    await picked(sidecars, prefill=0)
    envoy = await behind(sidecars)
    sidecars.engines["d0"].script.length = 5000
    words = "a long prompt " * 70_000
    for stream in (False, True):
        answer = await sidecars.chat(
            [{"role": "user", "content": words}], front=envoy.url, stream=stream, max_tokens=5000
        )
        assert answer.status == 200, answer.raw[:1000]
        assert len(answer.text) == 5000
        assert sidecars.engines["d0"].seen[-1]["messages"][0]["content"] == words
    page = await sidecars.metrics("e0")
    assert page["weft_router_client_bytes"] == 0


async def test_a_client_that_does_not_read_holds_up_its_own_stream_alone(sidecars: Stack, behind: Behind) -> None:
    await picked(sidecars, prefill=0)
    envoy = await behind(sidecars)
    engine = sidecars.engines["d0"]
    engine.script.length = 1000
    engine.script.padding = 200_000
    body = {"model": MODEL, "messages": [USER], "stream": True, "max_tokens": 1000}
    async with sidecars.http.post(envoy.url + CHAT, json=body, timeout=PATIENT) as response:
        await response.content.readuntil(b"\n\n")
        before = -1
        while before != engine.streamed:
            before = engine.streamed
            await asyncio.sleep(0.5)
        assert engine.streamed < 1000, "the engine's stream waits"
        other = await sidecars.chat([USER], front=envoy.url, max_tokens=1)
        assert other.status == 200
        rest = await response.read()
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_a_picker_that_dies_ends_its_streams_and_no_others(redis_stack: Stack) -> None:
    await redis_stack.up(coordinators=0, prefill=0)
    redis_stack.engines["d0"].script.gap_s = 0.1
    redis_stack.engines["d0"].script.length = 100
    port, health = free_port(), free_port()
    picker = picker_process(redis_stack, port, health)
    envoy = Envoy(redis_stack.folder, [Route("svc", f"127.0.0.1:{port}")])
    try:
        await until(lambda: answers(redis_stack, health), seconds=60)
        await envoy.start()
        body = {"model": MODEL, "messages": [USER], "stream": True, "max_tokens": 100}
        async with redis_stack.http.post(envoy.url + CHAT, json=body) as response:
            await response.content.readuntil(b"\n\n")
            picker.kill()
            with pytest.raises(aiohttp.ClientError):
                await response.read()
        picker.wait()
        refused = await redis_stack.chat([USER], front=envoy.url)
        assert refused.status >= 500
        picker = picker_process(redis_stack, port, health)
        await until(lambda: answers(redis_stack, health), seconds=60)
        redis_stack.engines["d0"].script.gap_s = 0.0

        async def served() -> bool:
            return (await redis_stack.chat([USER], front=envoy.url)).status == 200

        await until(served, seconds=60)
    finally:
        envoy.close()
        picker.kill()
        picker.wait()


async def test_a_worker_that_cannot_be_reached_is_replaced_unseen(sidecars: Stack, behind: Behind) -> None:
    await picked(sidecars, decode=2, prefill=0)
    envoy = await behind(sidecars)
    first = await sidecars.chat([USER], session="s", front=envoy.url)
    lost = shown(first, "X-Weft-Worker")
    await sidecars.kill(lost)
    answer = await sidecars.chat([USER], session="s", front=envoy.url, stream=True, max_tokens=4)
    assert answer.whole, (answer.status, answer.raw)
    assert shown(answer, "X-Weft-Worker") != lost


async def test_an_engine_that_fails_is_replaced_unseen(sidecars: Stack, behind: Behind) -> None:
    await picked(sidecars, decode=2, prefill=0)
    envoy = await behind(sidecars)
    first = await sidecars.chat([USER], session="s", front=envoy.url)
    broken = shown(first, "X-Weft-Worker")
    sidecars.engines[broken].script.status = 500
    answer = await sidecars.chat([USER], session="s", front=envoy.url)
    assert answer.status == 200, answer.raw
    assert shown(answer, "X-Weft-Worker") != broken


async def test_a_stream_that_breaks_goes_on_elsewhere(sidecars: Stack, behind: Behind) -> None:
    await picked(sidecars, decode=2, prefill=0)
    envoy = await behind(sidecars)
    whole = await sidecars.chat([USER], session="s", front=envoy.url, stream=True, max_tokens=8, temperature=0)
    sidecars.engines[shown(whole, "X-Weft-Worker")].script.die_at_token = 3
    answer = await sidecars.chat([USER], session="s", front=envoy.url, stream=True, max_tokens=8, temperature=0)
    assert answer.whole, (answer.status, answer.raw)
    assert answer.text == whole.text


async def test_a_client_that_leaves_ends_the_engines_work(sidecars: Stack, behind: Behind) -> None:
    await picked(sidecars, prefill=0)
    envoy = await behind(sidecars)
    engine = sidecars.engines["d0"]
    engine.script.gap_s = 0.05
    engine.script.length = 1000
    body = {"model": MODEL, "messages": [USER], "stream": True, "max_tokens": 1000}
    async with sidecars.http.post(envoy.url + CHAT, json=body) as response:
        await response.content.readuntil(b"\n\n")
        response.close()

    async def ended() -> bool:
        return engine.aborted == 1 and await sidecars.count("weft_router_inflight", "e0") == 0

    await until(ended)


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
async def test_without_a_picker_requests_are_refused(sidecars: Stack, behind: Behind, mode: BodyMode) -> None:
    await picked(sidecars, pickers=0, coordinators=1, prefill=0)
    envoy = await behind(sidecars, body_mode=mode)
    answer = await sidecars.chat([USER], front=envoy.url)
    assert answer.status >= 500
    assert not sidecars.engines["d0"].seen


async def test_a_client_cannot_choose_the_destination(sidecars: Stack, behind: Behind) -> None:
    await picked(sidecars, prefill=0)
    envoy = await behind(sidecars)
    headers = {"X-Gateway-Destination-Endpoint": "127.0.0.1:9", "X-Weft-Tenant": "other", "X-Weft-Cap": "1"}
    answer = await sidecars.chat([USER], front=envoy.url, headers=headers)
    assert answer.status == 200


async def test_workers_take_nothing_from_clients(sidecars: Stack) -> None:
    await picked(sidecars, pickers=0, prefill=0)
    body = {"model": MODEL, "messages": [USER]}
    url = sidecars.processes["d0"].url + CHAT
    for headers in ({}, {"X-Weft-Pass": "1.2.3"}, {"X-Weft-Session": "s"}):
        async with sidecars.http.post(url, json=body, headers=headers) as response:
            assert response.status == 401
    async with proven(sidecars.processes["d0"].url) as hop, hop.post(url, json=body) as response:
        assert response.status == 400, "a hop has to name the session"


async def test_pickers_share_their_sessions(redis_stack: Stack, behind: Behind) -> None:
    await picked(redis_stack, pickers=2, decode=4, prefill=0)
    settings = [redis_stack.processes[name].settings for name in ("e0", "e1")]
    envoys = []
    for one in settings:
        envoy = Envoy(redis_stack.folder, [Route(f"p{one.port}", f"127.0.0.1:{one.port}")])
        envoys.append(envoy)
        await envoy.start()
    try:
        for k in range(6):
            workers = set()
            for envoy in envoys:
                answer = await redis_stack.chat([USER], session=f"s{k}", front=envoy.url)
                workers.add(shown(answer, "X-Weft-Worker"))
            assert len(workers) == 1
    finally:
        for envoy in envoys:
            envoy.close()


async def test_a_picker_goes_on_without_redis(redis_stack: Stack, redis_server: RedisServer, behind: Behind) -> None:
    await picked(redis_stack, decode=3, prefill=0)
    envoy = await behind(redis_stack)
    first = await redis_stack.chat([USER], session="s", front=envoy.url)
    redis_server.stop()
    for session in ("s", "new"):
        answer = await redis_stack.chat([USER], session=session, front=envoy.url)
        assert answer.status == 200, answer.raw
        if session == "s":
            assert shown(answer, "X-Weft-Worker") == shown(first, "X-Weft-Worker")
