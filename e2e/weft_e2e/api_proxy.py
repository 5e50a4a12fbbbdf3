"""A proxy on loopback in front of a real API server that does to a client what networks and servers do at times.

It sees every request: it may answer in the server's place, stay silent, cut the connection, hand out an old answer,
swallow events of a watch, or tell somebody just before and just after a write, and it keeps a record of all of them.
"""

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

# Compressed, the lines of a watch could not be told apart.
_HOP = {"accept-encoding", "connection", "content-length", "host", "keep-alive", "transfer-encoding"}
WATCH = "WATCH"


@dataclass(slots=True)
class ProxiedRequest:
    """One request; ``status`` is what the client was told (0: nothing), times are of the monotonic clock."""

    method: str
    """GET, POST, PUT, PATCH, DELETE, or WATCH."""
    path: str
    query: Mapping[str, str]
    token: str
    body: bytes
    at: float
    status: int = 0
    """What the client was answered."""
    served: int = 0
    """What the API server answered; 0 when it was not asked."""

    @property
    def writes(self) -> bool:
        """Return whether the request changes something."""
        return self.method not in ("GET", WATCH)

    @property
    def resource(self) -> str:
        """Return the plural of the kind, with the subresource after a slash."""
        parts = self.path.strip("/").split("/")
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            rest = rest[2:]
        return "/".join([rest[0], *rest[2:]]) if rest else ""

    @property
    def content(self) -> Any:
        """Return the body as JSON, None when there is none."""
        return json.loads(self.body) if self.body else None


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer in the API server's place."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @classmethod
    def refusal(cls, status: int, reason: str, **headers: str) -> "Answer":
        """Return an answer as the API server words one."""
        body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": status}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return cls(status, {"Content-Type": "application/json", **named}, json.dumps(body).encode())


@dataclass(frozen=True, slots=True)
class Silence:
    """The connection stays open and nothing comes."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection ends without an answer."""


@dataclass(frozen=True, slots=True)
class Stale:
    """The first answer that this same read ever got."""


Fault = Answer | Silence | Cut | Stale


class ApiProxy:
    """Passes everything on but what ``fault``, ``event`` and ``before`` say; change them at any time."""

    def __init__(self, target: str, authority: Path) -> None:
        self._target = target
        self._ssl = ssl.create_default_context(cafile=str(authority))
        self.fault: Callable[[ProxiedRequest], Fault | None] = lambda _asked: None
        """Says what happens to a request instead of passing it on."""
        self.event: Callable[[ProxiedRequest, dict[str, Any]], list[bytes] | None] = lambda _asked, _event: None
        """Says what lines of a watch come in an event's place; None: the event itself."""
        self.before: Callable[[ProxiedRequest], bool] = lambda _asked: True
        """Called before a request is passed on; False cuts the connection."""
        self.after: Callable[[ProxiedRequest], bool] = lambda _asked: True
        """Called when the API server has answered and the client does not know; False cuts the connection."""
        self.record: list[ProxiedRequest] = []
        self.bodies: dict[str, bytes] = {}
        """What the API server last answered to a read of a path."""
        self.url = ""
        self._first: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self._watches: set[web.StreamResponse] = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="api-proxy", daemon=True)

    def writes(self, *, since: float = 0.0) -> list[ProxiedRequest]:
        """Return the requests that change something, from a time of the monotonic clock on."""
        return [asked for asked in tuple(self.record) if asked.writes and asked.at >= since]

    @property
    def watches(self) -> int:
        """Return how many watches are open."""
        return len(self._watches)

    def send_to_watches(self, line: bytes) -> None:
        """Send a line into every watch there is."""

        def send() -> None:
            for response in tuple(self._watches):
                task = self._loop.create_task(response.write(line + b"\n"))
                task.add_done_callback(lambda done: done.cancelled() or done.exception())

        self._loop.call_soon_threadsafe(send)

    def start(self) -> None:
        """Listen on a free port of loopback."""
        self._thread.start()
        if not self._ready.wait(20):
            raise RuntimeError("the proxy did not start within 20 s")

    def close(self) -> None:
        """Cut all connections."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)

    def _run(self) -> None:
        # What is still open when serving ends is cancelled and closes: a transport that its loop leaves behind warns.
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        connector = aiohttp.TCPConnector(ssl=self._ssl, limit=0)
        timeout = aiohttp.ClientTimeout(total=None, connect=10)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False, timeout=timeout) as self._client:
            app = web.Application(client_max_size=64 * 2**20)
            app.router.add_route("*", "/{path:.*}", self._handle)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            self.url = f"http://{host}:{port}"
            self._ready.set()
            await self._stop.wait()
            # First, and without TLS's farewell: what a handler closes itself would wait for the server's.
            await connector.close(abort_ssl=True)
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        watch = request.query.get("watch") in ("true", "1")
        asked = ProxiedRequest(
            method=WATCH if watch else request.method,
            path=request.path,
            query=dict(request.query),
            token=request.headers.get("Authorization", "").removeprefix("Bearer "),
            body=await request.read(),
            at=time.monotonic(),
        )
        self.record.append(asked)
        fault = self.fault(asked)
        if isinstance(fault, Silence):
            await self._stop.wait()
        if isinstance(fault, Answer):
            asked.status = fault.status
            return web.Response(status=fault.status, headers=fault.headers, body=fault.body)
        old = self._first.get(request.path_qs)
        if isinstance(fault, Stale) and old is not None and asked.method == "GET":
            status, headers, body = old
            asked.status = status
            return web.Response(status=status, headers=headers, body=body)
        if isinstance(fault, Cut | Silence) or not self.before(asked):
            return self._cut(request)
        return await self._pass_on(request, asked)

    async def _pass_on(self, request: web.Request, asked: ProxiedRequest) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        try:
            async with self._client.request(
                request.method, self._target + request.path_qs, headers=headers, data=asked.body or None
            ) as upstream:
                asked.served = upstream.status
                kept = {name: value for name, value in upstream.headers.items() if name.lower() not in _HOP}
                if asked.method == WATCH and upstream.status == 200:
                    return await self._stream(request, asked, upstream, kept)
                body = await upstream.read()
        except aiohttp.ClientError:
            return self._cut(request)
        if asked.method == "GET":
            self.bodies[asked.path] = body
        if not self.after(asked):
            return self._cut(request)
        asked.status = upstream.status
        if asked.method == "GET":
            self._first.setdefault(request.path_qs, (upstream.status, kept, body))
        return web.Response(status=upstream.status, headers=kept, body=body)

    async def _stream(
        self, request: web.Request, asked: ProxiedRequest, upstream: aiohttp.ClientResponse, headers: dict[str, str]
    ) -> web.StreamResponse:
        asked.status = upstream.status
        response = web.StreamResponse(status=upstream.status, headers=headers)
        await response.prepare(request)
        self._watches.add(response)
        rest = b""
        try:
            async for chunk in upstream.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    for out in self._events(asked, line):
                        await response.write(out + b"\n")
        except (aiohttp.ClientError, ConnectionError):
            pass
        finally:
            self._watches.discard(response)
        return response

    def _events(self, asked: ProxiedRequest, line: bytes) -> list[bytes]:
        changed = self.event(asked, json.loads(line)) if line.strip() else None
        return [line] if changed is None else changed

    @staticmethod
    def _cut(request: web.Request) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=502)


@contextmanager
def api_proxy(target: str, authority: Path) -> Iterator[ApiProxy]:
    """Run a proxy until the end of the block."""
    proxy = ApiProxy(target, authority)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.close()
