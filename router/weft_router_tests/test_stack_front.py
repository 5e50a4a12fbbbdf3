"""The front door over real sockets: who is let in, who has to wait, and that nothing secret is told."""

import asyncio
import json
import logging
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from jwt.algorithms import OKPAlgorithm

from weft_router_tests.canary import KEY, PROMPT, assert_no_secrets
from weft_router_tests.stack import Stack, router_json, until

pytestmark = pytest.mark.component

ED = ed25519.Ed25519PrivateKey.generate()
HELLO = [{"role": "user", "content": PROMPT}]


def bearer(key: str, **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}", **more}


def token(**claims: Any) -> str:
    body = {"iss": "https://i.example.com", "aud": "weft", "sub": "by-token", "exp": time.time() + 60, **claims}
    return jwt.encode(body, ED, algorithm="EdDSA", headers={"kid": "ed"})


async def test_holders_of_keys_and_tokens_are_let_in_by_class_and_rate(
    stack: Stack, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    keys, jwks = tmp_path / "keys", tmp_path / "jwks.json"
    keys.write_text(f"{KEY} tenant=acme\nslow-key tenant=slow rps=0.001\n")
    public = OKPAlgorithm.to_jwk(ED.public_key(), as_dict=True)
    jwks.write_text(json.dumps({"keys": [{**public, "kid": "ed"}]}))
    stack.config = {
        **router_json(),
        "auth": {"jwt": {"issuer": "https://i.example.com", "audience": "weft", "jwksFile": str(jwks)}},
        "qos": {"classes": {"gold": {}, "batch": {}}, "tenants": {"acme": {"classes": ["batch"]}}},
    }
    await stack.up(decode=1, prefill=1, keys=keys)

    async def verified() -> bool:
        return (await stack.chat(HELLO, headers=bearer(token()))).status == 200

    await until(verified)  # the provider's keys are read beside requests
    assert (await stack.chat(HELLO, headers=bearer(KEY))).status == 200
    shown: list[bytes] = []
    for headers, status, code in (
        ({}, 401, "invalid_api_key"),
        (bearer(KEY + "x"), 401, "invalid_api_key"),
        (bearer(token(aud="elsewhere")), 401, "invalid_api_key"),
        (bearer(token(exp=time.time() - 60)), 401, "invalid_api_key"),
        (bearer(KEY, **{"X-Weft-Class": "none"}), 400, None),
        (bearer(KEY, **{"X-Weft-Class": "gold"}), 403, "class_not_allowed"),
    ):
        answer = await stack.chat(HELLO, headers=headers)
        assert (answer.status, answer.json["error"]["code"]) == (status, code)
        shown.append(answer.raw)
    assert (await stack.chat(HELLO, headers=bearer(KEY, **{"X-Weft-Class": "batch"}))).status == 200
    assert (await stack.chat(HELLO, headers=bearer("slow-key"))).status == 200
    limited = await stack.chat(HELLO, headers=bearer("slow-key"))
    assert (limited.status, limited.json["error"]["code"]) == (429, "rate_limit_exceeded")
    assert 900 < int(limited.headers["Retry-After"]) <= 1000
    assert (await stack.chat(HELLO, headers=bearer(KEY))).status == 200, "one key's rate is not another's"
    pages = [await _page(stack, name) for name in stack.processes]
    for raw in (*shown, limited.raw):
        assert_no_secrets(raw)
    for text in (*pages, repr([record.__dict__ for record in caplog.records])):
        assert_no_secrets(text)


async def _page(stack: Stack, name: str) -> str:
    async with stack.http.get(stack.processes[name].url + "/metrics") as response:
        return await response.text()


async def test_streams_that_have_begun_wait_no_more(stack: Stack) -> None:
    stack.config = {**router_json(), "qos": {"classes": {"gold": {"queueLimit": 1}}}}
    await stack.up(decode=1, prefill=1)
    for engine in stack.engines.values():
        engine.script.gap_s = 0.1
    gold = {"X-Weft-Class": "gold"}
    body = {"model": router_json()["model"]["name"], "messages": HELLO, "stream": True, "max_tokens": 40}
    url = stack.front + "/v1/chat/completions"
    held = []
    for _ in range(4):
        async with asyncio.timeout(60):
            response = await stack.http.post(url, json=body, headers=gold)
            assert response.status == 200, "the streams before have begun, so nobody waits"
            await response.content.readany()
        held.append(response)
    for response in held:
        response.close()


async def test_what_waits_is_bounded_and_its_places_are_given_back(stack: Stack) -> None:
    stack.config = {**router_json(), "qos": {"classes": {"gold": {"queueLimit": 2}}}}
    await stack.up(decode=1, prefill=1)
    gold = {"X-Weft-Class": "gold"}
    answers = await asyncio.gather(*(stack.chat(HELLO, headers=gold, max_tokens=64) for _ in range(12)))
    statuses = sorted(answer.status for answer in answers)
    assert statuses[:2] == [200, 200]
    assert set(statuses) <= {200, 429}
    assert 429 in statuses
    for _ in range(3):
        assert (await stack.chat(HELLO, headers=gold)).status == 200


async def test_connections_that_were_closed_are_counted_by_reason(stack: Stack) -> None:
    stack.config = router_json(limits={"maxConnections": 8})
    await stack.up(decode=1, prefill=0)
    port = stack.processes["c0"].settings.port
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
    for _, writer in opened:
        writer.close()
    await asyncio.gather(*(writer.wait_closed() for _, writer in opened))

    async def counted() -> bool:
        return await stack.count("weft_router_connections_cut_total", reason="too many") >= 4

    await until(counted)
