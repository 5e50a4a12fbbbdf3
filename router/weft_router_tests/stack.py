"""Router processes of one small service inside one event loop, over real sockets, with scripted engines."""

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from weft_router.config import Flags, Role, Settings, load
from weft_router.process import build
from weft_router.roles.server import Duty, Server
from weft_router.roles.serving import run
from weft_router.state.redis_store import RedisStore
from weft_router.state.store import MemoryStore, Store
from weft_router_tests.fake_engine import FakeEngine

MODEL = "test/model"
TOKEN = "internal-token-of-the-tests"
PROFILE: dict[str, Any] = {
    "model": MODEL,
    "gpu": "none",
    "engine": "test",
    "kvBytesPerToken": 1000,
    "degrees": [
        {
            "degree": 1,
            "weightBytesPerGpu": 1,
            "kvCapacityTokens": 16000,
            "prefill": [{"alpha": 0.01, "perToken": 1e-4, "perPair": 0.0, "perContextToken": 0.0}],
            "decode": [{"alpha": 0.01, "perSequence": 1e-4, "perContextToken": 0.0}],
        }
    ],
    "transfers": [{"source": 1, "destination": 1, "link": "inter-node", "alpha": 0.001, "perToken": 1e-6}],
    "provenance": {},
}


_CLIENT_TIMEOUT = aiohttp.ClientTimeout(total=15)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def router_json(**sections: dict[str, Any]) -> dict[str, Any]:
    """Return a valid router.json; keyword arguments change single fields of its sections."""
    config: dict[str, Any] = {
        "service": "svc",
        "namespace": "ns",
        "model": {"name": MODEL, "maxModelLen": 4096},
        "engine": {"type": "mock", "bidirectional": True, "leaseSeconds": 60, "handleTtlSeconds": 120},
        "slo": {"ttft": 5.0, "itl": 0.05},
        "routing": {"policy": "remote-jsq", "sessionTtlSeconds": 600},
        "limits": {"maxBodyBytes": 1_000_000, "maxN": 4, "maxOutputTokens": 1024},
        "timeouts": {"connect": 1.0, "firstByte": 10.0, "idle": 5.0, "total": 60.0, "body": 2.0},
        "profile": PROFILE,
        "planRevision": "r1",
    }
    for name, fields in sections.items():
        config[name] = {**config[name], **fields}
    return config


def settings(
    folder: Path, role: Role, *, port: int, worker: str = "", engine_url: str = "http://127.0.0.1:9",
    config: dict[str, Any] | None = None, redis_url: str = "memory://", keys: Path | None = None, drain_s: float = 5.0,
) -> Settings:  # fmt: skip
    """Return the settings of one router process, read from real files."""
    path = folder / f"{role}-{worker}-{port}.json"
    path.write_text(json.dumps(config or router_json()))
    token = folder / "token"
    token.write_text(TOKEN)
    env = {"WEFT_TOKEN_FILE": str(token), "WEFT_REDIS_URL": redis_url, "POD_IP": "127.0.0.1"}
    if worker:
        env.update(WEFT_WORKER=worker, WEFT_DEGREE="1")
    if keys is not None:
        env["WEFT_API_KEYS_FILE"] = str(keys)
    flags = Flags(
        role=role,
        config=path,
        listen=f"127.0.0.1:{port}",
        engine_url=engine_url,
        advertise=None,
        drain_seconds=drain_s,
    )
    return load(flags, env)


@dataclass
class Running:
    """One router process of the stack."""

    settings: Settings
    server: Server
    duty: Duty
    stop: asyncio.Event
    task: asyncio.Task[None]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.settings.port}"


@dataclass
class Stack:
    """A coordinator, sidecars and engines; ``close`` ends them all."""

    folder: Path
    config: dict[str, Any] = field(default_factory=router_json)
    redis_url: str = "memory://"
    store: Store = field(default_factory=MemoryStore)
    processes: dict[str, Running] = field(default_factory=dict)
    engines: dict[str, FakeEngine] = field(default_factory=dict)
    stores: list[Store] = field(default_factory=list)
    http: aiohttp.ClientSession = field(default_factory=lambda: aiohttp.ClientSession(timeout=_CLIENT_TIMEOUT))

    async def up(
        self, *, decode: int = 1, prefill: int = 1, coordinators: int = 1, keys: Path | None = None
    ) -> "Stack":
        for i in range(prefill):
            await self.worker("prefill", f"p{i}")
        for i in range(decode):
            await self.worker("decode", f"d{i}")
        for i in range(coordinators):
            await self.router("coordinator", f"c{i}", keys=keys)
        await self.settle(decode=decode, prefill=prefill)
        return self

    async def settle(self, *, decode: int, prefill: int) -> None:
        """Wait until every coordinator and decode sidecar sees this many ready workers."""

        async def seen() -> bool:
            for name, running in self.processes.items():
                if running.settings.role == "prefill" or running.task.done():
                    continue
                page = await self.metrics(name)
                if running.settings.role == "coordinator" and page.get(_ready("decode")) != decode:
                    return False
                if page.get(_ready("prefill")) != prefill:
                    return False
            return True

        await until(seen)

    async def worker(self, role: Role, name: str) -> None:
        engine = FakeEngine(name)
        await engine.start(free_port())
        self.engines[name] = engine
        await self.router(role, name, engine_url=engine.url)

    async def router(
        self, role: Role, name: str, *, engine_url: str = "http://127.0.0.1:9", keys: Path | None = None
    ) -> None:
        found = settings(
            self.folder, role, port=free_port(), worker="" if role == "coordinator" else name,
            engine_url=engine_url, config=self.config, redis_url=self.redis_url, keys=keys,
        )  # fmt: skip
        store = self.store
        if self.redis_url != "memory://":
            store = RedisStore(self.redis_url, namespace="ns", service="svc")
            self.stores.append(store)
        server, duty = build(found, store)
        stop = asyncio.Event()
        task = asyncio.get_running_loop().create_task(run(server, duty, found, stop))
        self.processes[name] = Running(found, server, duty, stop, task)
        await until(lambda: self._answers(f"http://127.0.0.1:{found.port}/healthz"))

    async def kill(self, name: str) -> None:
        """End a process at once, its heartbeat with it."""
        running = self.processes[name]
        running.task.cancel()
        await asyncio.wait([running.task])

    async def close(self) -> None:
        for running in self.processes.values():
            running.task.cancel()
        if self.processes:
            await asyncio.wait([running.task for running in self.processes.values()], timeout=10)
        for engine in self.engines.values():
            await engine.stop()
        for store in self.stores:
            await store.close()
        await self.http.close()

    @property
    def front(self) -> str:
        return self.processes["c0"].url

    async def metrics(self, name: str) -> dict[str, float]:
        """Return a process's samples by name and labels as printed."""
        async with self.http.get(self.processes[name].url + "/metrics") as response:
            text = await response.text()
        lines = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
        return {key: float(value) for key, value in lines}

    async def chat(
        self, messages: list[dict[str, Any]], *, session: str | None = None, front: str | None = None,
        headers: dict[str, str] | None = None, **fields: Any,
    ) -> "Answer":  # fmt: skip
        """Send one chat request; a streamed reply is put together."""
        body = {"model": MODEL, "messages": messages, **fields}
        sent = {**({"X-Session-Id": session} if session else {}), **(headers or {})}
        async with self.http.post((front or self.front) + "/v1/chat/completions", json=body, headers=sent) as response:
            return Answer(response.status, dict(response.headers), await response.read())

    async def _answers(self, url: str) -> bool:
        try:
            async with self.http.get(url) as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False


@dataclass
class Answer:
    """A client's view of one reply."""

    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def json(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.raw)
        return body

    @property
    def chunks(self) -> list[dict[str, Any]]:
        events = [event[6:] for event in self.raw.decode().split("\n\n") if event.startswith("data: {")]
        return [json.loads(event) for event in events]

    @property
    def text(self) -> str:
        if self.headers.get("Content-Type", "").startswith("text/event-stream"):
            choices = [choice for chunk in self.chunks for choice in chunk.get("choices", ())]
            return "".join(choice["delta"].get("content") or "" for choice in choices)
        content: str = self.json["choices"][0]["message"]["content"]
        return content


def _ready(role: str) -> str:
    return f'weft_router_workers{{role="{role}",state="ready"}}'


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 10.0) -> None:
    """Poll until a condition holds.

    Raises:
        AssertionError: it did not hold in time.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if await condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the condition did not hold in time")


async def is_so(value: bool) -> bool:
    """Return a value that needs no waiting, for ``until``."""
    return value


async def get(stack: Stack, url: str) -> tuple[int, str]:
    """Return the status and text of a page."""
    async with stack.http.get(url, timeout=aiohttp.ClientTimeout(total=10)) as response:
        return response.status, await response.text()
