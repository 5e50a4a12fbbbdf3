"""What every role serves alike: health, readiness, metrics, drain, errors in OpenAI's form, one log line a request."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Protocol

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from weft_router.api.answers import LAST_WORDS_S, answer, translate
from weft_router.config import Settings
from weft_router.errors import (
    ApiError,
)
from weft_router.signals.metrics import Metrics
from weft_router.wire.connections import Connections
from weft_router.wire.upstream import TOKEN_HEADER, token_matches

log = logging.getLogger(__name__)

REQUEST_ID = "X-Request-Id"
FACTS: web.RequestKey[dict[str, object]] = web.RequestKey("facts", dict[str, object])

PRESTOP_GRACE_S = 2.0
"""How long a stopping engine waits for the drain to begin: both hooks of a pod start together."""
AFTERGLOW_S = 1.0
"""A prefill's KV is fetched after its reply: the engine stays this long after the last one."""

_OPEN = frozenset({"/healthz", "/readyz", "/metrics", "/engine/livez", "/engine/metrics", "/engine/prestop"})


class Duty(Protocol):
    """What a role adds: its routes, its readiness and its background work."""

    def routes(self) -> list[web.RouteDef]:
        """Return the role's own endpoints."""

    def ready(self) -> str | None:
        """Return None when requests can be served, else why not."""

    async def start(self) -> None:
        """Start background work."""

    async def stop(self) -> None:
        """End background work and close connections."""

    def drain(self) -> None:
        """Tell the others that this process takes nothing new."""

    def cut(self) -> None:
        """End what is still under way: the drain time is over."""

    def observe(self) -> None:
        """Bring gauges up to date before they are read."""


class Server:
    """One role behind one port."""

    def __init__(self, settings: Settings, metrics: Metrics, duty: Duty) -> None:
        self._settings = settings
        self._metrics = metrics
        self._duty = duty
        self._inflight = metrics.inflight.labels(settings.role)
        self._requests: set[asyncio.Task[object]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._drains = asyncio.Event()
        self._drain_end = 0.0
        self._last_end = float("-inf")
        self.connections = Connections()
        # Between the router's own hops a body may have grown by what the router adds to it.
        size = settings.config.limits.max_body_bytes * (1 if settings.role == "coordinator" else 2)
        self.app = web.Application(client_max_size=size, middlewares=[_middleware(self._guard, self.connections)])
        self.app.on_response_prepare.append(self._before_headers)
        self.app.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics_page),
                web.post("/drain", self._drain),
                web.get("/engine/prestop", self._prestop),
                *duty.routes(),
            ]
        )

    @property
    def inflight(self) -> int:
        """Return how many inference requests are being served."""
        return len(self._requests)

    @property
    def draining(self) -> bool:
        """Tell whether this process is on its way out."""
        return self._drains.is_set()

    def begin_drain(self) -> None:
        """Be unready from now on; requests in flight go on, up to the drain time."""
        if not self.draining:
            self._drains.set()
            self._drain_end = monotonic() + self._settings.drain_s
            log.info("drain_started", extra={"inflight": self.inflight})
            self._duty.drain()

    async def drained(self) -> None:
        """Wait until the requests in flight are done, at most until the drain time is over."""
        while (now := monotonic()) < self._drain_end:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._drain_end - now):
                    await self._idle.wait()
            quiet = min(self._last_end + AFTERGLOW_S, self._drain_end)
            if self._idle.is_set() and monotonic() >= quiet:
                return
            await asyncio.sleep(max(0.0, quiet - monotonic()))

    async def last_words(self) -> None:
        """End what is still under way, and give the ends a moment to reach their clients."""
        self._duty.cut()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self._idle.wait()

    async def _before_headers(self, _: web.Request, response: web.StreamResponse) -> None:
        response.headers["Server"] = "weft"  # versions are nobody's business
        if self.draining:
            response.force_close()
            response.headers["Connection"] = "close"

    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        path = request.path
        if path in _OPEN:
            return await handler(request)
        started = monotonic()
        facts: dict[str, object] = {}
        request[FACTS] = facts
        role = self._settings.role
        task = asyncio.current_task()
        if task is not None:
            self._requests.add(task)
            self._idle.clear()
        self._inflight.set(len(self._requests))
        status = 499
        try:
            try:
                if role != "coordinator" or path == "/drain":
                    self._authenticate(request)
                if request.headers.get("Content-Encoding", "identity").lower() != "identity":
                    raise ApiError("compressed request bodies are not accepted; send plain JSON", status=415)
                response = await handler(request)
            except ApiError as error:
                response = answer(error)
            except web.HTTPException as error:
                response = answer(translate(error, request, self._settings))
            except ConnectionResetError:  # the client went away while it was written to
                self._metrics.cancelled.inc()
                return web.Response(status=status)
            except Exception:  # the stack stays up whatever a request does
                log.exception("request_failed", extra={"path": path, **facts})
                response = answer(ApiError("internal error of the router", status=500, kind="server_error"))
            status = response.status
            return response
        except asyncio.CancelledError:
            self._metrics.cancelled.inc()
            raise
        finally:
            if task is not None:
                self._requests.discard(task)
                self._last_end = monotonic()
                if not self._requests:
                    self._idle.set()
            self._inflight.set(len(self._requests))
            self._metrics.requests.labels(str(status), role).inc()
            seconds = round(monotonic() - started, 4)
            log.info("request", extra={"path": path, "status": status, "role": role, "seconds": seconds, **facts})

    def _authenticate(self, request: web.Request) -> None:
        if not token_matches(request.headers.get(TOKEN_HEADER), self._settings.token):
            raise ApiError(f"{TOKEN_HEADER}: this port serves the router's own hops only", status=401)

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        why = "draining" if self.draining else self._duty.ready()
        return web.Response(text="ready\n") if why is None else web.Response(status=503, text=why + "\n")

    async def _metrics_page(self, _: web.Request) -> web.Response:
        self._duty.observe()
        return web.Response(
            body=self._metrics.page(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def _drain(self, _: web.Request) -> web.Response:
        self.begin_drain()
        return web.json_response({"draining": True, "inflight": max(0, self.inflight - 1)})

    async def _prestop(self, _: web.Request) -> web.Response:
        """Hold a stopping engine until the drain is over; without a drain answer soon, so that nobody can abuse it."""
        try:
            async with asyncio.timeout(PRESTOP_GRACE_S):
                await self._drains.wait()
        except TimeoutError:
            return web.Response(text="not draining\n")
        await self.drained()
        return web.Response(text="drained\n")


def _middleware(
    guard: Callable[[web.Request, Handler], Awaitable[web.StreamResponse]], connections: Connections
) -> Middleware:
    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        with connections.serving(request.protocol):
            return await guard(request, handler)

    return middleware
