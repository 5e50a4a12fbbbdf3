"""What every role serves alike: health, readiness, metrics, drain, errors in OpenAI's form, one log line a request."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Protocol

import aiohttp
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from weft_router.config import Settings
from weft_router.errors import ApiError, InvalidRequestError, NotFoundError, TooLargeError, UnavailableError
from weft_router.metrics import Metrics
from weft_router.upstream import TOKEN_HEADER, token_matches

log = logging.getLogger(__name__)

RETRY_HEADER = "X-Weft-Retry"
REQUEST_ID = "X-Request-Id"
FACTS: web.RequestKey[dict[str, object]] = web.RequestKey("facts", dict[str, object])

PRESTOP_GRACE_S = 2.0
"""How long a stopping engine waits for the drain to begin: both hooks of a pod start together."""
AFTERGLOW_S = 1.0
"""A prefill's KV is fetched after its reply: the engine stays this long after the last one."""
LAST_WORDS_S = 0.5

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
        self._requests: set[asyncio.Task[object]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._drains = asyncio.Event()
        self._drain_end = 0.0
        self._last_end = float("-inf")
        # Between the router's own hops a body may have grown by what the router adds to it.
        size = settings.config.limits.max_body_bytes * (1 if settings.role == "coordinator" else 2)
        self.app = web.Application(client_max_size=size, middlewares=[_middleware(self._guard)])
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
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._drain_end - monotonic())):
                await self._idle.wait()
                await asyncio.sleep(max(0.0, self._last_end + AFTERGLOW_S - monotonic()))

    async def last_words(self) -> None:
        """End what is still under way, and give the ends a moment to reach their clients."""
        self._duty.cut()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self._idle.wait()

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
        self._metrics.inflight.labels(role).set(len(self._requests))
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
                response = answer(_translate(error, request, self._settings))
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
            self._metrics.inflight.labels(role).set(len(self._requests))
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


def answer(error: ApiError) -> web.Response:
    """Return an error as a response."""
    response = web.Response(status=error.status, body=error.body(), content_type="application/json")
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(error.retry_after_s)
    if error.retryable:
        response.headers[RETRY_HEADER] = "1"
    return response


async def read_body(request: web.Request, *, limit: int, seconds: float) -> bytes:
    """Return a request's body.

    Raises:
        TooLargeError: it exceeds ``limit``.
        ApiError: it did not arrive within ``seconds``.
    """
    if request.content_length is not None and request.content_length > limit:
        raise TooLargeError(limit)
    try:
        async with asyncio.timeout(seconds):
            return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise TooLargeError(limit) from error
    except TimeoutError as error:
        raise ApiError(f"the request body did not arrive within {seconds:g} s", status=408) from error
    except (aiohttp.ClientPayloadError, web.RequestPayloadError) as error:
        raise InvalidRequestError(f"the request body is broken: {error}") from error


async def run(server: Server, duty: Duty, settings: Settings, stop: asyncio.Event) -> None:
    """Serve until ``stop`` is set, then drain: unready, nothing new announced, live requests up to the drain time."""
    runner = web.AppRunner(
        server.app,
        logger=_quiet_logger(),
        access_log=None,
        handler_cancellation=True,
        keepalive_timeout=75.0,
        shutdown_timeout=1.0,
        auto_decompress=False,
        max_line_size=8190,
        max_field_size=8190,
    )
    await runner.setup()
    await duty.start()
    try:
        await web.TCPSite(runner, settings.host, settings.port, backlog=1024, reuse_address=True).start()
        log.info("listening", extra={"role": settings.role, "host": settings.host, "port": settings.port})
        await stop.wait()
        server.begin_drain()
        await server.drained()
    finally:
        log.info("stopping", extra={"unfinished": server.inflight})
        await server.last_words()
        await runner.cleanup()
        await duty.stop()


def _quiet_logger() -> logging.Logger:
    """Return a logger for aiohttp that names broken HTTP but does not quote it: headers hold keys."""
    quiet = logging.getLogger(__name__ + ".http")
    if not quiet.filters:
        quiet.addFilter(_without_quotes)
    return quiet


def _without_quotes(record: logging.LogRecord) -> bool:
    if record.exc_info and isinstance(record.exc_info[1], HttpProcessingError):
        record.msg, record.args, record.exc_info = "bad_http", (), None
        record.levelno, record.levelname = logging.INFO, "INFO"
    return True


def models(settings: Settings) -> web.Response:
    """Return the list of the one model this service runs."""
    model = settings.config.model
    entry = {
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": "weft",
        "max_model_len": model.max_model_len,
    }
    return web.json_response({"object": "list", "data": [entry]})


def not_ready(what: str) -> UnavailableError:
    """Return the quick refusal when nothing can serve."""
    return UnavailableError(f"no {what} is ready; try again shortly", retry_after_s=2)


def _translate(error: web.HTTPException, request: web.Request, settings: Settings) -> ApiError:
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return TooLargeError(settings.config.limits.max_body_bytes)
    if error.status == 404:
        return NotFoundError(
            f"unknown path {request.path[:128]!r}; this service has /v1/chat/completions, /v1/completions, /v1/models"
        )
    if error.status == 405:
        return ApiError(f"{request.method} is not allowed on {request.path[:128]!r}", status=405)
    return ApiError(error.reason, status=error.status)


def _middleware(guard: Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]) -> Middleware:
    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await guard(request, handler)

    return middleware
