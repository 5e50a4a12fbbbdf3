"""The worst that clients can do at once, to a coordinator and a sidecar that have no more memory than their pods."""

import asyncio
import socket
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson
import pytest

from weft_router_tests.fake_engine import FakeEngine
from weft_router_tests.stack import MODEL, free_port, until
from weft_router_tests.test_process import Processes, ready
from weft_router_tests.test_process import processes as processes

pytestmark = [pytest.mark.component, pytest.mark.alone]

POD_MEMORY = 512 * 2**20
"""What the operator gives a coordinator and a sidecar: ``spec.coordinator.resources``, ``spec.routing.resources``."""
SLOW = 1000
TRICKLES = 100
UNREAD = 30
HELD = 12
GOOD = 10
"""Requests of a good client in each half of the attack."""
PATIENCE_S = 10.0
CHAT = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n"
MESSAGES = [{"role": "user", "content": "hello"}]
LIMITED = ("sh", "-c", f'ulimit -d {POD_MEMORY // 1024}; exec "$@"', "sh")
"""No page beyond the pod's memory: what would end the pod is a MemoryError here, and a test that fails."""


def request(body: bytes, *, length: int | None = None) -> bytes:
    return CHAT.format(len(body) if length is None else length).encode() + body


def peak(pid: int) -> int:
    """Return the most memory that a process had; bytes."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


class Attackers:
    """Connections that are never read from, but for the answer to a hostile body."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.address = (str(parts.hostname), int(parts.port or 0))
        self.open: list[socket.socket] = []
        self.answers: Counter[str] = Counter()
        self.over = asyncio.Event()

    async def connect(self) -> socket.socket:
        made = socket.socket()
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.open.append(made)
        await asyncio.get_running_loop().sock_connect(made, self.address)
        return made

    async def say(self, data: bytes) -> socket.socket:
        made = await self.connect()
        with suppress(ConnectionError):
            await asyncio.get_running_loop().sock_sendall(made, data)
        return made

    async def ask(self, data: bytes) -> None:
        """Send a body again and again, and count what it is answered with."""
        loop = asyncio.get_running_loop()
        while not self.over.is_set():
            made = await self.connect()
            with suppress(ConnectionError):
                sending = asyncio.ensure_future(loop.sock_sendall(made, data))
                try:
                    async with asyncio.timeout(PATIENCE_S):
                        head = await loop.sock_recv(made, 4096)
                    self.answers[head[9:12].decode()] += 1
                except TimeoutError:
                    self.answers["none"] += 1
                finally:
                    sending.cancel()
                    await asyncio.wait({sending})
            made.close()
            await asyncio.sleep(0.1)

    async def trickle(self) -> None:
        loop = asyncio.get_running_loop()
        made = await self.say(request(b"{", length=32 * 2**20))
        with suppress(ConnectionError):
            while not self.over.is_set():
                await loop.sock_sendall(made, b" " * 1024)
                await asyncio.sleep(1.0)

    def close(self) -> None:
        for made in self.open:
            made.close()


def most_nodes() -> bytes:
    """Return a valid request that makes nearly as much as any may: it is served, and its engine takes its time."""
    documents = b",".join([b"{}"] * 38_000)
    messages = orjson.dumps({"model": MODEL, "messages": MESSAGES, "max_tokens": 3})
    return messages[:-1] + b',"documents":[' + documents + b"]}"


async def good(http: aiohttp.ClientSession, url: str) -> Counter[int]:
    """Ask as a usual client does, again where it is told to; return how often which status came."""
    seen: Counter[int] = Counter()
    body: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 1}
    while seen[200] < GOOD:
        async with http.post(url + "/v1/chat/completions", json=body) as response:
            await response.read()
            seen[response.status] += 1
            assert response.status in (200, 503)
        await asyncio.sleep(0.1)
    return seen


async def test_the_worst_mix_stays_below_the_pods_memory_and_good_clients_are_served(processes: Processes) -> None:
    config = orjson.loads((processes.folder / "router.json").read_bytes())
    config["limits"] = {"maxBodyBytes": 32 * 2**20, "maxOutputTokens": 1024}
    config["timeouts"] |= {"body": 30.0}
    (processes.folder / "router.json").write_bytes(orjson.dumps(config))
    engine = FakeEngine("d0")
    await engine.start(free_port())
    engine.forgets = True
    sidecar, inner = processes.start("decode", engine=engine.url, name="d0", under=LIMITED)
    coordinator, front = processes.start("coordinator", under=LIMITED)
    outside, inside = Attackers(front), Attackers(inner)
    hostile = request(b'{"messages":[],"documents":[' + b",".join([b"{}"] * 8_000_000) + b"]}")
    half = request(b"x" * (64 * 1024 - 1), length=64 * 1024)
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
            await until(lambda: ready(http, front), seconds=60)
            engine.script.padding = 100_000
            engine.script.delay_s = 0.05
            unread = orjson.dumps({"model": MODEL, "messages": MESSAGES, "max_tokens": 1000, "stream": True})
            work = [asyncio.ensure_future(outside.ask(hostile)) for _ in range(4)]
            work += [asyncio.ensure_future(outside.trickle()) for _ in range(TRICKLES)]
            asking = asyncio.ensure_future(good(http, front))
            for n in range(SLOW):
                await outside.say(half)
                if n % 3 == 0:
                    await inside.say(half)
                if n < UNREAD:
                    await outside.say(request(unread))
                if n % 10 == 0:
                    await asyncio.sleep(0.01)
            statuses = await asking
            held = request(most_nodes())
            work += [asyncio.ensure_future(outside.ask(held)) for _ in range(HELD)]
            statuses += await good(http, front)
            outside.over.set()
            await asyncio.wait(work)
            for process, url in ((coordinator, front), (sidecar, inner)):
                assert process.poll() is None
                async with http.get(url + "/healthz") as response:
                    assert response.status == 200
            assert peak(coordinator.pid) < POD_MEMORY
            assert peak(sidecar.pid) < POD_MEMORY
            assert outside.answers["413"] > 0
            assert statuses[200] > 3 * statuses[503], "small requests find room beside large ones"
            logs = "".join(path.read_text(errors="replace") for path in processes.folder.glob("*.log"))
            assert "MemoryError" not in logs
    finally:
        outside.close()
        inside.close()
        await engine.stop()
