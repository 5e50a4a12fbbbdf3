"""Bad HTTP at the front door: a 4xx in OpenAI's form that names the field, and a stack that stays up."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from weft_router_tests.stack import MODEL, TOKEN, Stack, free_port, until

pytestmark = pytest.mark.component

CHAT = "/v1/chat/completions"
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
OK = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("path", "raw", "status", "param"),
    [
        (CHAT, b"", 400, None),
        (CHAT, b"{", 400, None),
        (CHAT, b"[1]", 400, None),
        (CHAT, b"\xff\xfe", 400, None),
        (CHAT, b'{"a":' * 500 + b"1" + b"}" * 500, 400, None),
        (CHAT, orjson.dumps({**OK, "model": "other"}), 404, "model"),
        (CHAT, orjson.dumps({"messages": OK["messages"]}), 400, "model"),
        (CHAT, orjson.dumps({"model": MODEL}), 400, "messages"),
        (CHAT, orjson.dumps({**OK, "messages": [{"content": "x"}]}), 400, "messages[0].role"),
        (CHAT, orjson.dumps({**OK, "stream": "yes"}), 400, "stream"),
        (CHAT, orjson.dumps({**OK, "n": 5}), 400, "n"),
        (CHAT, orjson.dumps({**OK, "max_tokens": 10**9}), 400, "max_tokens"),
        (CHAT, orjson.dumps({**OK, "messages": [{"role": "user", "content": "x" * 100_000}]}), 400, "messages"),
        (CHAT, b'{"a":"' + b"x" * 1_000_001 + b'"}', 413, "limits.maxBodyBytes"),
        (CHAT, b'{"messages":[],"documents":[' + b"{}," * 300_000 + b"{}]}", 413, "limits.maxBodyNodes"),
        ("/v1/completions", orjson.dumps({"model": MODEL, "prompt": ["a", ""]}), 400, "prompt[1]"),
        ("/v1/completions", orjson.dumps({"model": MODEL, "prompt": ["a", 5]}), 400, "prompt[1]"),
        ("/v1/completions", orjson.dumps({"model": MODEL, "prompt": ["a"] * 1025}), 400, "prompt"),
        ("/v1/completions", orjson.dumps({"model": MODEL, "prompt": [1] * 5000}), 400, "prompt"),
        ("/v1/embeddings", orjson.dumps(OK), 404, None),
        ("/internal/prefill", orjson.dumps(OK), 404, None),
        ("/v1/chat/completions/../../../drain", orjson.dumps(OK), 401, None),
    ],
)
async def test_bad_requests_are_refused_in_openai_form(
    stack: Stack, path: str, raw: bytes, status: int, param: str | None
) -> None:
    await stack.up(prefill=0)
    async with stack.http.post(stack.front + path, data=raw) as response:
        assert response.status == status
        error = (await response.json())["error"]
    assert error["message"]
    assert error["type"]
    assert error["param"] == param
    assert not stack.engines["d0"].seen
    assert (await stack.chat([{"role": "user", "content": "x"}])).status == 200


async def test_methods_encodings_and_hostile_session_ids_are_refused(stack: Stack) -> None:
    await stack.up(prefill=0)
    async with stack.http.get(stack.front + CHAT) as response:
        assert response.status == 405
    for encoding, status in (("gzip", 400), ("br", 415), ("gzip, gzip", 415)):
        async with stack.http.post(stack.front + CHAT, data=b"x", headers={"Content-Encoding": encoding}) as response:
            assert response.status == status
    async with stack.http.post(stack.front + CHAT, json=OK, headers={"X-Session-Id": "x" * 300}) as response:
        assert (response.status, (await response.json())["error"]["param"]) == (400, "X-Session-Id")
    async with stack.http.post(stack.front + CHAT, json={**OK, "session_id": 7}) as response:
        assert (response.status, (await response.json())["error"]["param"]) == (400, "session_id")


async def test_a_body_that_never_comes_is_given_up(stack: Stack) -> None:
    await stack.up(prefill=0)
    port = stack.processes["c0"].settings.port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    answer = await asyncio.wait_for(reader.readline(), 10)
    assert b" 408 " in answer
    writer.close()


@pytest.mark.parametrize(
    "raw",
    [
        POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        POST + b"Content-Length: +5\r\n\r\n{}{}{",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
        b"garbage\r\n\r\n",
    ],
)
async def test_broken_framing_is_refused_and_the_connection_closed(
    stack: Stack, raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await stack.up(prefill=0)
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.processes["c0"].settings.port)
    writer.write(raw)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert "aaaa" not in caplog.text
    assert answer.split(b"\r\n")[0].split(b" ")[1] in (b"400", b"431")
    assert answer.count(b"HTTP/1.1 4") == 1
    assert not stack.engines["d0"].seen


async def test_sidecars_serve_the_routers_own_hops_only(sidecars: Stack) -> None:
    await sidecars.up()
    for name, path in (("d0", CHAT), ("p0", "/internal/prefill"), ("d0", "/drain"), ("c0", "/drain")):
        for given in ({}, {"X-Weft-Token": TOKEN}, {"X-Weft-Proof": "a" * 64}, {"X-Weft-Proof": "ü"}):
            async with sidecars.http.post(sidecars.processes[name].url + path, json=OK, headers=given) as response:
                assert response.status == 401
    assert not sidecars.engines["d0"].seen
    assert not sidecars.engines["p0"].seen


async def test_open_endpoints_answer_without_a_token(sidecars: Stack) -> None:
    await sidecars.up()
    for name in ("c0", "d0", "p0"):
        url = sidecars.processes[name].url
        for path in ("/healthz", "/readyz", "/metrics"):
            async with sidecars.http.get(url + path) as response:
                assert response.status == 200, (name, path)
        async with sidecars.http.get(url + "/health") as response:
            assert response.status == (200 if name == "c0" else 404), "clients ask only where the API is"
    for name in ("d0", "p0"):
        url = sidecars.processes[name].url
        async with sidecars.http.get(url + "/engine/livez") as response:
            assert response.status == 200
        async with sidecars.http.get(url + "/engine/metrics") as response:
            assert "vllm:kv_cache_usage_perc" in await response.text()
        sidecars.engines[name].script.health = 500
        async with sidecars.http.get(url + "/engine/livez") as response:
            assert response.status == 503
    async with sidecars.http.get(sidecars.front + "/v1/models") as response:
        body: dict[str, Any] = await response.json()
    assert [entry["id"] for entry in body["data"]] == [MODEL]


async def test_a_sidecar_without_an_engine_is_alive_but_not_ready(sidecars: Stack) -> None:
    await sidecars.router("decode", "lonely", engine_url=f"http://127.0.0.1:{free_port()}")
    url = sidecars.processes["lonely"].url

    async def not_ready() -> bool:
        async with sidecars.http.get(url + "/readyz") as response:
            return response.status == 503 and "engine" in await response.text()

    await until(not_ready)
    async with sidecars.http.get(url + "/healthz") as response:
        assert response.status == 200


async def test_who_may_send_nothing_now_is_refused_before_the_body_comes(stack: Stack, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sk-one rps=0.01\n")
    await stack.up(prefill=0, keys=keys)
    authorization = "Bearer sk-one"
    url, headers = stack.front + CHAT, {"Authorization": authorization}
    async with stack.http.post(url, json=OK, headers=headers) as response:
        assert response.status == 200
    async with stack.http.post(url, data=b"this is not looked at", headers=headers) as response:
        assert response.status == 429
    settings = stack.processes["c0"].settings
    reader, writer = await asyncio.open_connection(settings.host, settings.port)
    try:
        writer.write(POST + f"Authorization: {authorization}\r\nContent-Length: 900000\r\n\r\n".encode())
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    finally:
        writer.close()
    assert head.startswith(b"HTTP/1.1 429")
    assert b"Retry-After: " in head
    assert await stack.count("weft_router_rejected_total", reason="requests") == 2
