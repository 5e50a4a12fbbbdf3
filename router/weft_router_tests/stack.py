"""Router processes of one small service inside one event loop, over real sockets, with scripted engines.

The same service comes in two compositions: a coordinator with a sidecar per engine, or one standalone process.
"""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import aiohttp

from weft_core.authority import authority, http_url
from weft_core.keys import derive
from weft_core.layouts import WorkerRole
from weft_router.config import FlagRole, Flags, Settings, load
from weft_router.http.handshake import (
    AUTHORITY_HEADER,
    HELLO_PATH,
    NONCE_HEADER,
    PROOF_HEADER,
    PROVE_PATH,
    fresh_nonce,
    proof_of,
)
from weft_router.process import build
from weft_router.roles.app import App
from weft_router.roles.lifecycle import run_server
from weft_router.roles.server import Server
from weft_router.rounds.decode_service import DecodeService
from weft_router.state.redis_store import RedisStore
from weft_router.state.registry import Registry
from weft_router.state.store import MemoryStore, Store
from weft_router.workers.worker import Worker
from weft_router_tests.fake_engine import FakeEngine

Composition = Literal["sidecars", "standalone"]
MODEL = "test/model"
TOKEN = "internal-token-of-the-tests"
STATE_KEY = derive(TOKEN.encode(), "state")
PROOF = "engine-proof-of-the-tests"
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


FRONTS = ("coordinator", "epp", "standalone")
ROLES: dict[str, WorkerRole] = {"p": "prefill", "d": "decode", "b": "both"}
"""Role by the first letter of a worker's name."""


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
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
    folder: Path, role: FlagRole, *, port: int, worker: str = "", engine_url: str = "http://127.0.0.1:9",
    config: dict[str, Any] | None = None, redis_url: str = "memory://", keys: Path | None = None, drain_s: float = 5.0,
    workers: Path | None = None, host: str = "127.0.0.1", role_file: Path | None = None,
) -> Settings:  # fmt: skip
    """Return the settings of one router process, read from real files."""
    path = folder / f"{role}-{worker}-{port}.json"
    path.write_text(json.dumps(config or router_json()))
    token = folder / "token"
    token.write_text(TOKEN)
    proof = folder / "proof"
    proof.write_text(f"{PROOF}\n")
    env = {"WEFT_TOKEN_FILE": str(token), "WEFT_REDIS_URL": redis_url, "POD_IP": host}
    env["WEFT_ENGINE_PROOF_FILE"] = str(proof)
    if worker:
        env.update(WEFT_WORKER=worker, WEFT_DEGREE="1")
    if role_file is not None:
        env["WEFT_ROLE_FILE"] = str(role_file)
    if keys is not None:
        env["WEFT_API_KEYS_FILE"] = str(keys)
    flags = Flags(
        role=role,
        config=path,
        listen=authority(host, port),
        engine_url=engine_url,
        advertise=None,
        drain_seconds=drain_s,
        workers=workers,
        health_listen=authority(host, free_port(host)) if role == "epp" else None,
    )
    return load(flags, env)


@dataclass
class Running:
    """One router process of the stack."""

    settings: Settings
    server: Server
    app: App
    stop: asyncio.Event
    task: asyncio.Task[None]

    @property
    def url(self) -> str:
        """Return where it serves HTTP: of an endpoint picker, health and metrics alone."""
        found = self.settings
        return http_url(found.host, found.health_port if found.role == "epp" else found.port)


@dataclass
class Stack:
    """A coordinator and sidecars, or a standalone process, and engines; ``close`` ends them all.

    The roles of ``movable`` workers are in files and may change. A worker's name begins with the letter of its first
    role: p, d, or b for both.
    """

    folder: Path
    composition: Composition = "sidecars"
    config: dict[str, Any] = field(default_factory=router_json)
    redis_url: str = "memory://"
    address: str = "127.0.0.1"
    movable: bool = False
    store: Store = field(default_factory=MemoryStore)
    processes: dict[str, Running] = field(default_factory=dict)
    engines: dict[str, FakeEngine] = field(default_factory=dict)
    stores: list[Store] = field(default_factory=list)
    http: aiohttp.ClientSession = field(default_factory=lambda: aiohttp.ClientSession(timeout=_CLIENT_TIMEOUT))

    async def up(
        self, *, decode: int = 1, prefill: int = 1, both: int = 0, coordinators: int = 1, keys: Path | None = None
    ) -> "Stack":
        names = [f"{letter}{i}" for letter, count in (("p", prefill), ("d", decode), ("b", both)) for i in range(count)]
        if self.movable:
            for name in names:
                self.assign(name, ROLES[name[0]])
        if self.composition == "standalone":
            assert coordinators == 1, "one process is its own and only front"
            for name in names:
                await self.engine(name)
            await self.router("standalone", "c0", keys=keys)
            await self.settle(decode=decode + both, prefill=prefill + both)
            return self
        for name in names:
            await self.worker("worker" if self.movable else ROLES[name[0]], name)
        for i in range(coordinators):
            await self.router("coordinator", f"c{i}", keys=keys)
        await self.settle(decode=decode + both, prefill=prefill + both)
        return self

    def role_file(self, name: str) -> Path:
        """Return the file with a movable worker's role."""
        return self.folder / f"role-{name}"

    def assign(self, name: str, role: str) -> None:
        """Write a worker's role into its file."""
        self.role_file(name).write_text(role)

    async def settle(self, *, decode: int, prefill: int) -> None:
        """Wait until every coordinator and decode sidecar sees this many ready workers."""

        async def seen() -> bool:
            for name, running in self.processes.items():
                if running.app.role == "prefill" or running.task.done():
                    continue
                page = await self.metrics(name)
                if running.settings.role in FRONTS and page.get(_ready("decode")) != decode:
                    return False
                if page.get(_ready("prefill")) != prefill:
                    return False
            return True

        await until(seen)

    async def engine(self, name: str) -> FakeEngine:
        """Start an engine, or the same one again at its address."""
        engine = self.engines.get(name) or FakeEngine(name, host=self.address)
        await engine.start(engine.port or free_port(self.address))
        self.engines[name] = engine
        engine.peers = self.engines
        return engine

    async def worker(self, role: FlagRole, name: str) -> None:
        assert self.composition == "sidecars", "a standalone process knows its workers from the start"
        engine = await self.engine(name)
        await self.router(role, name, engine_url=engine.url)

    async def router(
        self, role: FlagRole, name: str, *, engine_url: str = "http://127.0.0.1:9", keys: Path | None = None
    ) -> None:
        found = settings(
            self.folder, role, port=free_port(self.address), host=self.address, worker="" if role in FRONTS else name,
            engine_url=engine_url, config=self.config, redis_url=self.redis_url, keys=keys,
            workers=self._workers_file() if role == "standalone" else None,
            role_file=self.role_file(name) if role == "worker" else None,
        )  # fmt: skip
        store = self.store
        if self.redis_url != "memory://":
            store = RedisStore(self.redis_url, namespace="ns", service="svc", key=STATE_KEY)
            self.stores.append(store)
        server, app = build(found, store)
        stop = asyncio.Event()
        if role == "epp":
            from weft_router.picker.lifecycle import run_picker  # gRPC, which few tests need

            serving = run_picker(server, app, found, stop)
        else:
            serving = run_server(server, app, found, stop)
        task = asyncio.get_running_loop().create_task(serving)
        self.processes[name] = Running(found, server, app, stop, task)
        await until(lambda: self._answers(self.processes[name].url + "/healthz"))

    def _workers_file(self) -> Path:
        path = self.folder / "workers.json"
        entries = [
            {"name": n, "role": ROLES[n[0]], "url": e.url, "degree": 1}
            | ({"roleFile": str(self.role_file(n))} if self.movable else {})
            for n, e in self.engines.items()
        ]
        path.write_text(json.dumps({"workers": entries}))
        return path

    def host(self, name: str) -> Running:
        """Return the process that does a worker's duty: its sidecar, or the standalone process."""
        return self.processes["c0" if self.composition == "standalone" else name]

    def worker_of(self, name: str) -> Worker:
        """Return what the router holds of one worker."""
        app: Any = self.host(name).app
        worker: Worker = app._workers[name] if self.composition == "standalone" else app._worker
        return worker

    def decoding(self, name: str) -> DecodeService:
        """Return the decode duty of one worker."""
        app: Any = self.host(name).app
        decoding: DecodeService = app._decodings[name] if self.composition == "standalone" else app._decoding
        return decoding

    def registry(self, name: str) -> Registry:
        """Return the picture that a process has of all workers."""
        app: Any = self.host(name).app
        registry: Registry = app._registry
        return registry

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

    async def count(self, name: str, process: str = "c0", **labels: str) -> float:
        """Return the sum of a process's samples of one name that have these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        page = await self.metrics(process)
        return sum(
            value for key, value in page.items() if key.split("{")[0] == name and all(part in key for part in wanted)
        )

    @property
    def front(self) -> str:
        return self.processes["c0"].url

    async def metrics(self, name: str) -> dict[str, float]:
        """Return the samples of the process of that name, or that does this worker's duty, by name and labels."""
        async with self.http.get(self.host(name).url + "/metrics") as response:
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

    async def complete(self, prompt: str, *, session: str | None = None, **fields: Any) -> "Answer":
        """Send one text completion request; a streamed reply is put together."""
        body = {"model": MODEL, "prompt": prompt, **fields}
        sent = {"X-Session-Id": session} if session else {}
        async with self.http.post(self.front + "/v1/completions", json=body, headers=sent) as response:
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
            return "".join(
                (choice["delta"].get("content") if "delta" in choice else choice["text"]) or "" for choice in choices
            )
        choice = self.json["choices"][0]
        content: str = choice["message"]["content"] if "message" in choice else choice["text"]
        return content

    @property
    def error(self) -> dict[str, Any] | None:
        """Return the error that ended a stream, None when it came whole."""
        last = self.chunks[-1] if self.chunks else {}
        found: dict[str, Any] | None = last.get("error")
        return found

    @property
    def whole(self) -> bool:
        """Return whether a stream came with its end, once, and no error."""
        return (
            self.status == 200
            and self.raw.endswith(b"data: [DONE]\n\n")
            and self.raw.count(b"[DONE]") == 1
            and not self.error
        )


def _ready(role: str) -> str:
    return f'weft_router_workers{{role="{role}",state="ready"}}'


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 30.0) -> None:
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


@asynccontextmanager
async def proven(url: str, token: bytes = TOKEN.encode()) -> AsyncIterator[aiohttp.ClientSession]:
    """Give a client whose one connection to a router process has proved that it is another one of the service.

    Raises:
        AssertionError: the process did not prove itself, or was not satisfied.
    """
    key, asked, dialled = derive(token, "hop"), fresh_nonce(), url.removeprefix("http://").partition("/")[0]
    connector = aiohttp.TCPConnector(limit=1, keepalive_timeout=60)
    async with aiohttp.ClientSession(connector=connector, timeout=_CLIENT_TIMEOUT) as session:
        async with session.get(
            f"http://{dialled}{HELLO_PATH}", headers={AUTHORITY_HEADER: dialled, NONCE_HEADER: asked}
        ) as hello:
            assert hello.status == 204
            answered = hello.headers[NONCE_HEADER]
            assert hello.headers[PROOF_HEADER] == proof_of(key, "server", dialled, asked, answered)
        mine = proof_of(key, "client", dialled, asked, answered)
        async with session.get(f"http://{dialled}{PROVE_PATH}", headers={PROOF_HEADER: mine}) as proved:
            assert proved.status == 204
        yield session


async def prove_self(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes = TOKEN.encode()) -> None:
    """Answer the handshake on a connection as a router process with this token would, and look at no proof."""
    hello = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    asked = dict(line.split(": ", 1) for line in hello.split("\r\n")[1:] if line)
    nonce, answered = asked[NONCE_HEADER], fresh_nonce()
    proof = proof_of(derive(token, "hop"), "server", asked[AUTHORITY_HEADER], nonce, answered)
    head = f"HTTP/1.1 204 No Content\r\n{NONCE_HEADER}: {answered}\r\n{PROOF_HEADER}: {proof}\r\n\r\n"
    writer.write(head.encode())
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")


async def is_so(value: bool) -> bool:
    """Return a value that needs no waiting, for ``until``."""
    return value


async def get(stack: Stack, url: str) -> tuple[int, str]:
    """Return the status and text of a page."""
    async with stack.http.get(url, timeout=aiohttp.ClientTimeout(total=10)) as response:
        return response.status, await response.text()


async def crowd(count: int, clients: int, send: Callable[[int], Awaitable[str | None]]) -> list[str]:
    """Let clients send requests 0 to ``count`` - 1; return what was wrong with those that failed."""
    numbers = iter(range(count))
    failed: list[str] = []

    async def client() -> None:
        for k in numbers:
            wrong = await send(k)
            if wrong is not None:
                failed.append(f"request {k}: {wrong}")

    await asyncio.gather(*(client() for _ in range(clients)))
    return failed


def failures(failed: list[str], count: int) -> str:
    """Say how many failed, and the first of them."""
    return f"{len(failed)}/{count} failed: {failed[:3]}"
