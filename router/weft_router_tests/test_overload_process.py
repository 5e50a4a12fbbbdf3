"""C6: many times the capacity, with real bodies, over real processes: memory, queue, refusals and goodput hold."""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from weft_router_tests.fake_engine import Body, FakeEngine
from weft_router_tests.redis_server import RedisServer
from weft_router_tests.stack import MODEL, TOKEN, free_port, router_json, until

pytestmark = [pytest.mark.component, pytest.mark.alone]

REQUESTS = 5000
WORK_S = 0.1
"""The engine's time for a request, one after the other: a busy machine's few milliseconds between two count little."""
TIMES_CAPACITY = 30
"""Ten would do, and take three times as long."""
WAITING = 24
"""Requests that wait or are served, at most."""
BODY_BYTES = (4_000, 100_000)
MOST_RSS = 512 * 2**20
REFUSED_S = 0.05
WAKES = 6


class _Busy(FakeEngine):
    """An engine that does one request after the other; its answers are one word."""

    def limit(self) -> "_Busy":
        self.turn = asyncio.Lock()
        self.most = 0
        self.took: list[float] = []
        """Seconds that each request really took."""
        return self

    async def _answer(self, _request: web.Request, _body: Body) -> web.StreamResponse:
        self.seen.clear()
        self.headers.clear()
        self.most = max(self.most, self.running)
        async with self.turn:
            begin = time.monotonic()
            await asyncio.sleep(WORK_S)
            self.took.append(time.monotonic() - begin)
        message = {"role": "assistant", "content": "yes"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
        return web.json_response({"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage})


def _body(rng: random.Random) -> bytes:
    """Return a request as agents send them: a few KB to 100 KB of messages."""
    left = rng.randint(*BODY_BYTES)
    messages: list[dict[str, str]] = []
    while left > 0:
        part = min(left, rng.randint(200, 20_000))
        messages.append({"role": ("user", "assistant")[len(messages) % 2], "content": "word " * (part // 5)})
        left -= part
    return orjson.dumps({"model": MODEL, "messages": [*messages, {"role": "user", "content": f"{rng.random()}"}]})


@contextmanager
def _processes(folder: Path, engine: str, redis: str) -> Iterator[tuple[str, int]]:
    """Run a coordinator and the engine's sidecar; give the coordinator's URL and process number."""
    config, token = folder / "router.json", folder / "token"
    body = {**router_json(), "qos": {"maxWaiting": WAITING}, "accessLog": {"to": "stdout"}}
    body["model"]["maxModelLen"] = 200_000
    body["timeouts"]["body"] = 30.0
    config.write_text(json.dumps(body))
    token.write_text(TOKEN)
    running: list[subprocess.Popen[bytes]] = []

    def start(role: str, port: int, *more: str, env: dict[str, str]) -> None:
        words = [sys.executable, "-m", "weft_router", "--role", role, "--config", str(config)]
        words += ["--listen", f"127.0.0.1:{port}", *more]
        given = {"WEFT_TOKEN_FILE": str(token), "WEFT_REDIS_URL": redis, "POD_IP": "127.0.0.1", **env}
        with (folder / f"{role}.log").open("wb") as log:
            running.append(subprocess.Popen(words, env={**os.environ, **given}, stdout=log, stderr=log))

    side, front = free_port(), free_port()
    try:
        url = f"http://127.0.0.1:{side}"
        worker = {"WEFT_WORKER": "d0", "WEFT_DEGREE": "1"}
        start("decode", side, "--engine-url", engine, "--advertise", url, env=worker)
        start("coordinator", front, env={})
        yield f"http://127.0.0.1:{front}", running[1].pid
    finally:
        for process in running:
            process.kill()
            process.wait(10)


def _peak_rss(pid: int) -> int:
    """Return the most memory that a process ever held, in bytes."""
    words = Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()
    return int(words[0]) * 1024


async def _send(port: int, body: bytes) -> tuple[int, bytes]:
    """Send a request over a connection of its own; return status and answer, 0 when there is none."""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + body)
        answer = await asyncio.wait_for(reader.read(), 60)
        writer.close()
    except (OSError, TimeoutError) as error:
        return 0, repr(error).encode()
    return int(answer.split(b" ", 2)[1]) if answer else 0, answer


async def _ready(http: aiohttp.ClientSession, front: str) -> bool:
    try:
        async with http.get(front + "/readyz") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


async def test_five_thousand_requests_at_many_times_the_capacity(
    tmp_path: Path, redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = _Busy("d0").limit()
    await engine.start(free_port())
    rng = random.Random(30)
    bodies = [_body(rng) for _ in range(100)]
    with _processes(tmp_path, engine.url, redis_server.url) as (front, pid):
        async with aiohttp.ClientSession() as http:
            await until(lambda: _ready(http, front), seconds=60)
        port = int(front.rpartition(":")[2])
        assert (await _send(port, bodies[0]))[0] == 200
        engine.took.clear()
        begin = time.monotonic()
        every = WORK_S / TIMES_CAPACITY
        offered: list[asyncio.Future[tuple[int, bytes]]] = []
        while len(offered) < REQUESTS:
            # By the clock: a loop that was late catches up, and the load stays what it is.
            while len(offered) < min(REQUESTS, (time.monotonic() - begin) / every):
                offered.append(asyncio.ensure_future(_send(port, bodies[len(offered) % len(bodies)])))
            await asyncio.sleep(0.002)
        seconds, took = time.monotonic() - begin, list(engine.took)
        answers = await asyncio.gather(*offered)
        rss = _peak_rss(pid)
    await engine.stop()
    statuses = Counter(status for status, _ in answers)
    assert set(statuses) <= {200, 429, 503}, f"{statuses}: {[a for s, a in answers if s not in (200, 429, 503)][:2]}"
    assert all(b"\r\nretry-after: " in answer[:2000].lower() for status, answer in answers if status != 200)
    assert engine.most <= WAITING
    assert rss < MOST_RSS, f"{rss / 2**20:.0f} MiB"
    # A busy machine wakes whoever waits too late: that is not the router's, which takes six wakes from one to the next.
    late = sorted(one - WORK_S for one in took)
    goodput = sum(took) / seconds
    assert goodput + WAKES * sum(late) / seconds >= 0.9, f"the engine had work for {goodput:.1%} of {seconds:.1f} s"
    refused = sorted(_refusals(tmp_path / "coordinator.log"))
    assert len(refused) == REQUESTS - statuses[200]
    worst = refused[len(refused) * 99 // 100]
    with capsys.disabled() if os.environ.get("WEFT_FIGURES") else nullcontext():
        sys.stdout.write(
            f"{statuses[200]} of {REQUESTS} served, {goodput:.1%} of the capacity; refused in "
            f"{worst * 1000:.1f} ms (P99); {rss / 2**20:.0f} MiB at most\n"
        )
    assert worst < REFUSED_S + late[len(late) * 99 // 100], f"P99 {worst * 1000:.0f} ms"


def _refusals(log: Path) -> Iterator[float]:
    """Yield the seconds from head to answer of every refusal, as the process itself counted them."""
    for line in log.read_text(errors="replace").splitlines():
        fact: dict[str, Any] = json.loads(line)
        if fact.get("event") == "request" and fact.get("status") in (429, 503):
            yield float(fact["seconds"])
