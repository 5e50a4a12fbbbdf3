"""One address for two services over real sockets: a request reaches the service of its model and comes back whole."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from weft_router_tests.gateway_kit import RunningGateway, gateway, listed, recorder
from weft_router_tests.stack import MODEL, Composition, Stack, free_port, is_so, router_json, until

pytestmark = pytest.mark.component

SMALL = "test/small"
LLAMA_NAMES: dict[str, Any] = {"aliases": ["gpt-4"], "adapters": ["sql"]}
CHAT = "/v1/chat/completions"


@pytest.fixture(params=["sidecars", "standalone"])
async def llama(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    """Give a service with an alias and an adapter, in both compositions."""
    composition: Composition = request.param
    made = service(tmp_path / "llama", MODEL, composition=composition, **LLAMA_NAMES)
    yield await made.up(prefill=0)
    await asyncio.wait_for(made.close(), 15)


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Stack]:
    """Give another service."""
    made = service(tmp_path / "small", SMALL, composition="standalone")
    yield await made.up(prefill=0)
    await asyncio.wait_for(made.close(), 15)


def service(folder: Path, model: str, *, composition: Composition = "sidecars", **names: Any) -> Stack:
    folder.mkdir()
    return Stack(folder, composition, config=router_json(model={"name": model, **names}))


@pytest.fixture
async def front(tmp_path: Path, llama: Stack, small: Stack) -> AsyncIterator[RunningGateway]:
    """Give a gateway before both services."""
    both = (listed(llama.front, **LLAMA_NAMES), listed(small.front, name="small", model=SMALL))
    async with gateway(tmp_path / "gateway", *both) as made:
        yield made


async def test_models_of_all_services_are_listed_under_all_their_names(front: RunningGateway) -> None:
    found = (await front.send("/v1/models", method="GET")).json["data"]
    assert [entry["id"] for entry in found] == [MODEL, "gpt-4", "sql", SMALL]
    assert {entry["id"]: entry["root"] for entry in found}["gpt-4"] == MODEL
    assert {entry["id"]: entry["parent"] for entry in found}["sql"] == MODEL
    one = await front.send(f"/v1/models/{SMALL}", method="GET")
    assert (one.status, one.json["id"]) == (200, SMALL)
    assert (await front.send("/v1/models/none", method="GET")).status == 404


@pytest.mark.parametrize("stream", [False, True])
async def test_each_name_leads_to_its_service(front: RunningGateway, llama: Stack, small: Stack, stream: bool) -> None:
    for name, stack in ((MODEL, llama), ("gpt-4", llama), ("sql", llama), (SMALL, small)):
        before = len(stack.engines["d0"].seen)
        answer = await front.send(model=name, stream=stream, headers={"X-Session-Id": "mine"})
        assert answer.status == 200, answer.raw
        assert answer.whole or not stream
        assert answer.text
        assert answer.headers["X-Weft-Session"] == "mine", "headers go both ways"
        assert answer.headers["X-Weft-Worker"] == "d0"
        assert ("Content-Length" in answer.headers) is not stream
        assert len(stack.engines["d0"].seen) == before + 1
    assert llama.engines["d0"].seen[-1]["model"] == "sql"
    assert await front.count("weft_router_gateway_requests_total", service="team-a/llama", code="200") == 3
    assert await front.count("weft_router_gateway_requests_total", service="team-a/small", code="200") == 1


async def test_events_of_a_stream_come_as_the_engine_makes_them(front: RunningGateway, small: Stack) -> None:
    engine = small.engines["d0"]
    engine.script.gap_s, engine.script.length = 0.02, 500
    body = {"model": SMALL, "messages": [{"role": "user", "content": "hello"}], "stream": True, "max_tokens": 500}
    async with front.http.post(front.url + CHAT, json=body) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        events = [await response.content.readuntil(b"\n\n") for _ in range(3)]
        assert engine.running == 1, "they came before the last one was made"
        response.close()
    assert all(event.startswith(b"data: ") for event in events)


async def test_messages_of_anthropics_api_are_routed_and_answered_in_its_form(front: RunningGateway) -> None:
    body = {"model": "gpt-4", "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}], "stream": True}
    answer = await front.send("/v1/messages", body)
    assert answer.status == 200
    assert b"event: message_stop" in answer.raw
    unknown = await front.send("/v1/messages", {**body, "model": "none"})
    assert unknown.status == 404
    assert unknown.json["error"]["type"] == "not_found_error"


async def test_an_unknown_model_is_a_404_that_lists_the_names(front: RunningGateway) -> None:
    answer = await front.send(model="none")
    error = answer.json["error"]
    assert (answer.status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert all(name in error["message"] for name in ("'none'", MODEL, "gpt-4", "sql", SMALL))
    nameless = await front.send(body={"messages": []})
    assert (nameless.status, nameless.json["error"]["param"]) == (400, "model")
    assert (await front.send("/v1/nothing")).status == 404
    assert (await front.send(body=b"{")).status == 400


async def test_a_client_that_goes_away_ends_the_work_for_it(front: RunningGateway, llama: Stack) -> None:
    engine = llama.engines["d0"]
    engine.script.gap_s, engine.script.length = 0.05, 500
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "stream": True, "max_tokens": 500}
    async with front.http.post(front.url + CHAT, json=body) as response:
        await response.content.readuntil(b"\n\n")
        response.close()
    await until(lambda: is_so(engine.aborted == 1))
    await until(lambda: is_so(not front.app._pool.requests))
    assert await front.count("weft_router_cancelled_total") == 1


@pytest.mark.parametrize(("path", "end"), [(CHAT, b'"code":"stream_interrupted"'), ("/v1/messages", b"event: error")])
async def test_a_service_that_dies_in_a_stream_ends_it_with_an_error_event(
    tmp_path: Path, small: Stack, path: str, end: bytes
) -> None:
    engine = small.engines["d0"]
    engine.script.gap_s, engine.script.length = 0.05, 500
    body = {"model": SMALL, "messages": [{"role": "user", "content": "hello"}], "stream": True, "max_tokens": 500}
    async with gateway(tmp_path / "gateway", listed(small.front, model=SMALL)) as front:
        async with front.http.post(front.url + path, json=body) as response:
            await response.content.readuntil(b"\n\n")
            await small.kill("c0")
            rest = await response.content.read()
        assert rest.endswith(b"\n\n")
        assert end in rest.split(b"\n\n")[-2]
        assert (await front.send(model=SMALL)).status == 503


async def test_a_service_that_does_not_answer_is_named_in_a_503(tmp_path: Path) -> None:
    async with gateway(tmp_path, listed(f"http://127.0.0.1:{free_port()}")) as front:
        answer = await front.send()
        assert (answer.status, answer.headers["Retry-After"]) == (503, "2")
        assert "team-a/llama does not answer" in answer.json["error"]["message"]
        assert await front.count("weft_router_gateway_failures_total", service="team-a/llama", reason="connect") == 1
        assert await front.count("weft_router_gateway_requests_total", service="team-a/llama", code="503") == 1
        assert (await front.send("/readyz", method="GET")).status == 200, "the gateway itself is well"


async def test_an_answer_may_take_as_long_as_its_service_says(
    tmp_path: Path, small: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft_router.gateway.served_service.PATIENCE_S", 0.0)
    small.engines["d0"].script.delay_s = 1.5
    async with gateway(tmp_path / "gateway", listed(small.front, model=SMALL, total=0.2)) as front:
        late = await front.send(model=SMALL)
        assert (late.status, late.json["error"]["type"]) == (504, "server_error")
        front.serve(listed(small.front, model=SMALL, total=60.0, name="patient"))
        await until(lambda: is_so("team-a/patient" in front.app.table.services))
        assert (await front.send(model=SMALL)).status == 200


async def test_services_come_and_go_while_the_gateway_serves(tmp_path: Path, small: Stack) -> None:
    async with gateway(tmp_path / "gateway") as front:
        assert (await front.send(model=SMALL)).status == 404
        assert (await front.send("/v1/models", method="GET")).json["data"] == []
        front.serve(listed(small.front, name="small", model=SMALL))
        await front.knows(1)
        assert (await front.send(model=SMALL)).status == 200
        assert await front.count("weft_router_gateway_services") == 1
        front.services_file.write_text("{")
        front.serve(listed(small.front, name="small", model=SMALL), listed(small.front, name="again", model=SMALL))
        await front.knows(2)
        assert await front.count("weft_router_gateway_name_conflicts") == 1
        front.serve()
        await front.knows(0)
        assert (await front.send(model=SMALL)).status == 404


async def test_the_first_of_two_services_with_one_name_has_it_and_the_header_names_the_other(tmp_path: Path) -> None:
    async with recorder() as first, recorder() as second:
        both = (listed(first.url, name="old"), listed(second.url, name="new", aliases=["other"]))
        async with gateway(tmp_path, *both) as front:
            assert (await front.send()).status == 200
            assert (len(first.seen), len(second.seen)) == (1, 0)
            assert (await front.send(headers={"X-Weft-Service": "team-a/new"})).status == 200
            assert (await front.send(model="other")).status == 200
            assert (len(first.seen), len(second.seen)) == (1, 2)
            assert "x-weft-service" not in second.seen[0][2]
            unknown = await front.send(headers={"X-Weft-Service": "team-b/new"})
            assert unknown.status == 404


ENDPOINTS = (
    CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/tokenize",
    "/v1/embeddings", "/v1/rerank", "/v2/rerank", "/rerank", "/v1/score",
)  # fmt: skip


async def test_every_endpoint_of_services_goes_on_as_it_came(tmp_path: Path) -> None:
    async with recorder() as made, gateway(tmp_path, listed(made.url)) as front:
        made.headers = {"X-Request-Id": "weft-1", "X-Weft-Reason": "why", "Retry-After": "3", "Connection": "close"}
        sent = {
            "X-Session-Id": "s", "X-Weft-Class": "gold", "traceparent": "00-1-2-03", "X-Custom": "a",
            "Origin": "http://x",
            "Authorization": "Bearer sk-mine", "Connection": "X-Hop", "X-Hop": "1",
        }  # fmt: skip
        for path in ENDPOINTS:
            raw = b'{"model" : "test/model", "model":"test/model", "x": [1, 2]}'
            answer = await front.send(f"{path}?a=b%20c", raw, headers=sent)
            method, place, headers, body = made.seen[-1]
            assert (method, place, body) == ("POST", f"{path}?a=b%20c", raw), "not a byte of the body is another one"
            assert headers["authorization"] == "Bearer sk-mine"
            assert (headers["x-session-id"], headers["x-weft-class"], headers["x-custom"]) == ("s", "gold", "a")
            assert headers["traceparent"] == "00-1-2-03"
            assert headers["host"] == made.url.removeprefix("http://")
            assert not {"origin", "x-hop"} & headers.keys()
            assert (answer.status, answer.raw) == (200, made.body)
            shown = {name.lower(): value for name, value in answer.headers.items()}
            assert (shown["x-request-id"], shown["retry-after"], shown["server"]) == ("weft-1", "3", "weft")
        assert len(made.seen) == len(ENDPOINTS)
        for status in (400, 404, 429, 503):
            made.status = status
            assert (await front.send()).status == status


async def test_compressed_bodies_are_decoded_and_too_large_ones_refused(tmp_path: Path) -> None:
    limits = {"maxBodyBytes": 100_000}
    async with recorder() as made, gateway(tmp_path, listed(made.url), limits=limits) as front:
        raw = json.dumps({"model": MODEL, "prompt": "a" * 1000}).encode()
        answer = await front.send("/v1/completions", gzip.compress(raw), headers={"Content-Encoding": "gzip"})
        assert answer.status == 200
        assert made.seen[-1][3] == raw
        assert "content-encoding" not in made.seen[-1][2]
        large = json.dumps({"model": MODEL, "prompt": "a" * 100_000}).encode()
        for body, headers in ((large, {}), (gzip.compress(large), {"Content-Encoding": "gzip"})):
            answer = await front.send("/v1/completions", body, headers=headers)
            assert (answer.status, answer.json["error"]["code"]) == (413, "request_too_large")
        strange = await front.send("/v1/completions", raw, headers={"Content-Encoding": "br"})
        assert strange.status == 415
        assert len(made.seen) == 1


async def test_embeddings_go_to_the_service_that_makes_them(tmp_path: Path) -> None:
    body = {"model": "some/embedder", "input": "a"}
    async with recorder() as plain, recorder() as pooling:
        both = (listed(plain.url), listed(pooling.url, name="small", model=SMALL, pooling=True))
        async with gateway(tmp_path, *both) as front:
            assert (await front.send("/v1/embeddings", body)).status == 200
            assert (len(plain.seen), len(pooling.seen)) == (0, 1)
            front.serve(*both, listed(pooling.url, name="third", model="third", pooling=True))
            await front.knows(3)
            asked = await front.send("/v1/embeddings", body)
            assert asked.status == 404
            assert "team-a/small, team-a/third" in asked.json["error"]["message"]
            named = await front.send("/v1/embeddings", body, headers={"X-Weft-Service": "team-a/third"})
            assert named.status == 200


async def test_a_session_is_ended_at_the_service_of_its_model_or_at_all(tmp_path: Path) -> None:
    path = "/v1/sessions/my%2Fsession"
    async with recorder() as first, recorder() as second:
        both = (listed(first.url), listed(second.url, name="small", model=SMALL))
        first.status = second.status = 204
        async with gateway(tmp_path, *both) as front:
            answer = await front.send(f"{path}?model={SMALL}", method="DELETE")
            assert (answer.status, len(first.seen), len(second.seen)) == (204, 0, 1)
            assert (await front.send(path, method="DELETE")).status == 204
            assert [seen[:2] for seen in first.seen] == [("DELETE", path)]
            assert [seen[:2] for seen in second.seen][1:] == [("DELETE", path)]
            second.status = 401
            assert (await front.send(path, method="DELETE")).status == 204, "it is none of that service's"
            second.status = 503
            answer = await front.send(path, method="DELETE")
            assert answer.status == 503
            assert "team-a/small" in answer.json["error"]["message"]
            first.status = second.status = 401
            assert (await front.send(path, method="DELETE")).status == 401
            front.serve(*(listed(first.url, name=f"s{i}", model=f"m{i}") for i in range(33)))
            await front.knows(33)
            assert (await front.send(path, method="DELETE")).json["error"]["param"] == "model"


async def test_pages_of_allowed_origins_may_ask_the_gateway(tmp_path: Path) -> None:
    origin = {"Origin": "https://chat.example.com"}
    cors = {"allowedOrigins": ["https://chat.example.com"]}
    async with recorder() as made, gateway(tmp_path, listed(made.url), cors=cors) as front:
        asked = {**origin, "Access-Control-Request-Method": "POST"}
        preflight = await front.send(CHAT, method="OPTIONS", headers=asked)
        assert preflight.status == 204
        answer = await front.send(headers=origin)
        assert answer.headers["Access-Control-Allow-Origin"] == "https://chat.example.com"


async def test_a_service_at_zero_is_woken_by_a_request_that_waits_at_its_coordinator(tmp_path: Path) -> None:
    """Coordinators stay while there are no workers; they hold the request, and have the operator bring workers back."""
    asleep = service(tmp_path / "llama", MODEL)
    asleep.config["hold"] = {"seconds": 60.0, "most": 8}
    await asleep.router("coordinator", "c0")
    async with gateway(tmp_path / "gateway", listed(asleep.front)) as front:
        request = asyncio.create_task(front.send(stream=True))

        async def held() -> bool:
            return await asleep.count("weft_router_held") == 1

        await until(held)
        await asleep.worker("decode", "d0")
        assert (await request).whole
    await asyncio.wait_for(asleep.close(), 15)


async def test_a_client_that_does_not_read_holds_up_nobody_else(front: RunningGateway, small: Stack) -> None:
    engine = small.engines["d0"]
    engine.script.length, engine.script.padding = 1000, 4000
    body = {"model": SMALL, "messages": [{"role": "user", "content": "hello"}], "stream": True, "max_tokens": 1000}
    async with aiohttp.ClientSession(read_bufsize=2**10) as slow, slow.post(front.url + CHAT, json=body) as response:
        await response.content.readuntil(b"\n\n")
        engine.script.length, engine.script.padding = 8, 0
        assert (await front.send(model=SMALL, stream=True)).whole
        response.close()
