"""Strict engines under a router with hostile and leaving clients: no engine sees a wrong request or keeps a block."""

import asyncio
import random
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import orjson
import pytest

from weft_e2e_tests.test_router_on_engines import Front, fronted
from weft_mock.tokenizer import filler
from weft_mock_tests.engines import config
from weft_router_tests.stack import MODEL
from weft_router_tests.test_faults_hostile import MARK, ROOM, hostile

pytestmark = pytest.mark.component

CANCELS = 150
CLIENTS = 6


@pytest.mark.parametrize("sidecars", [False, True])
@pytest.mark.parametrize("protocol", ["vllm", "sglang", "tensorrt-llm", "neuron", "openai"])
async def test_300_hostile_bodies_break_no_rule_of_any_engine(tmp_path: Path, protocol: str, sidecars: bool) -> None:
    async with fronted(tmp_path, protocol, sidecars=sidecars) as front:
        statuses: dict[int, int] = {}
        async with httpx.AsyncClient(timeout=10.0) as http:
            for path, raw in hostile(300):
                headers = {"Content-Type": "application/json"}
                reply = await http.post(front.url + path, content=raw, headers=headers)
                statuses[reply.status_code] = statuses.get(reply.status_code, 0) + 1
        assert set(statuses) <= {200, 400, 501}, statuses
        assert statuses[200] > 100, statuses
        for worker in front.workers:
            for request in (await worker_requests(worker.url))["requests"]:
                assert MARK not in request["body"]
                assert str(ROOM) not in request["body"]


async def worker_requests(url: str) -> dict[str, list[dict[str, str]]]:
    async with httpx.AsyncClient(timeout=10.0) as http:
        found: dict[str, list[dict[str, str]]] = (await http.get(url + "/mock/requests")).json()
    return found


@pytest.mark.parametrize("sidecars", [False, True])
@pytest.mark.parametrize("protocol", ["vllm", "sglang", "tensorrt-llm", "neuron"])
async def test_clients_that_leave_at_random_points_leave_no_block_behind(
    tmp_path: Path, protocol: str, sidecars: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The harness looks at the engines' books at the end: what is pinned then, and what was asked wrongly.

    An engine's answer that crosses its client's leaving is known to nobody: a short lease ends what it pinned.
    """
    brief = partial(config, lease_seconds=1.5, meeting_seconds=1.5)
    monkeypatch.setattr("weft_e2e_tests.test_router_on_engines.config", brief)
    rng = random.Random(9)
    async with fronted(tmp_path, protocol, sidecars=sidecars) as front:

        async def client(number: int) -> None:
            for k in range(CANCELS // CLIENTS):
                await leave(front, filler(60, 100 * number + k), rng.random() * 0.06, stream=k % 3 > 0)

        await asyncio.gather(*(client(number) for number in range(CLIENTS)))
        reply = await front.post("/v1/completions", prompt=filler(40, 2), max_tokens=4)
        assert reply.status_code == 200


async def leave(front: Front, prompt: str, after_s: float, *, stream: bool) -> None:
    """Send a request and break off the connection after a time."""
    body = orjson.dumps({"model": MODEL, "prompt": prompt, "max_tokens": 12, "stream": stream})
    where = urlsplit(front.url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    try:
        async with asyncio.timeout(after_s):
            while await reader.read(65536):
                pass
    except TimeoutError:
        pass
    writer.transport.abort()
