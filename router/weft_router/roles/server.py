"""What every role serves alike: health, readiness, metrics, errors in OpenAI's form, one log line a request."""

import asyncio
import logging
from time import monotonic

from weft_core.keys import derive
from weft_router.auth.hops import HANDSHAKE, HopAuthenticator, require_proven
from weft_router.background import Background
from weft_router.config.server import FRONT_ROLES, ServerSettings
from weft_router.context import Context
from weft_router.errors import ApiError, NotFoundError, TooLargeError, no_room
from weft_router.http.budget import COPIES, Budget
from weft_router.http.cors import Cors
from weft_router.http.encodings import IDENTITY, decoded, encoding_of
from weft_router.http.exchange import Exchange
from weft_router.http.handshake import HELLO_PATH, PROVE_PATH
from weft_router.http.head import CredentialCache, Peer
from weft_router.http.limits import HttpLimits
from weft_router.http.listener import Listener
from weft_router.http.request import Request
from weft_router.memory import bytes_in_flight, memory_limit
from weft_router.openai.answers import reply_error
from weft_router.openai.responses import not_kept
from weft_router.roles.app import DEEP, PLAIN, App, Handler, Routes
from weft_router.roles.drain import LAST_REPLY_GRACE_S, Drain
from weft_router.telemetry.access_log import open_access_log, rounded
from weft_router.telemetry.instruments import Value
from weft_router.telemetry.peer_processes import PeerProcesses
from weft_router.workers.prefill_client import QUEUE_PATH

log = logging.getLogger(__name__)

UNGATED_BYTES = 64 * 2**10

_OPEN = frozenset(
    {
        "/healthz",
        "/readyz",
        "/health",
        "/metrics",
        "/instance-id",
        "/engine/livez",
        "/engine/metrics",
        "/engine/prestop",
    }
)
_UNASKED = _OPEN | HANDSHAKE
"""Paths without authentication; none of them takes a body."""


class Server:
    """One role behind one port."""

    def __init__(self, settings: ServerSettings, context: Context, app: App) -> None:
        self._settings = settings
        self._role = app.role
        """The role under which requests are counted now."""
        metrics = self._metrics = context.metrics
        self._telemetry = context.telemetry
        self._background = Background()
        self._app = app
        self._keys_age = context.access.keys_age
        self.tls = context.access.tls
        """What the main port speaks TLS by; None where it does not."""
        self._gauge = metrics.inflight.labels(app.role)
        self._answered: dict[int, Value] = {}
        self._access = open_access_log(settings.config.access_log, role=app.role, metrics=metrics)
        self.live = settings.live()
        """The active configuration, where it may change."""
        self._siblings: PeerProcesses | None = None
        if settings.family is not None:
            self._siblings = PeerProcesses(settings.family, settings.place, metrics, refresh=self._refresh)
        front = self._front = settings.role in FRONT_ROLES
        grace_s = LAST_REPLY_GRACE_S if front else 0.0
        drain = Drain(app, seconds=settings.drain_s, grace_s=grace_s, on_begin=self._close_after_replies)
        self.drain = drain
        hops = HopAuthenticator(derive(settings.token, "hop"), settings.url)
        own: dict[str, dict[str, Handler]] = {
            "/healthz": {"GET": self._healthz},
            "/readyz": {"GET": self._readyz},
            "/metrics": {"GET": self._metrics_page},
            "/drain": {"POST": drain.serve},
            "/instance-id": {"GET": self._instance_id},
            HELLO_PATH: {"GET": hops.hello},
            PROVE_PATH: {"GET": hops.prove},
        }
        if front:  # vLLM's and SGLang's name for it, which clients of theirs ask for before they begin
            own["/health"] = {"GET": self._readyz}
        else:  # it waits, so it is only where an engine's hook asks for it
            own["/engine/prestop"] = {"GET": drain.serve_prestop}
        self._routes: Routes = {**own, **app.routes()}
        self._own = frozenset(own)
        self._deep = [path for path in self._routes if path.endswith(DEEP)]
        limits = settings.config.limits
        timeouts = settings.config.timeouts
        wire = self.wire = HttpLimits(
            max_line=limits.max_line_bytes,
            max_headers=limits.max_headers,
            max_head=limits.max_header_bytes,
            # Between the router's own hops a body may have grown by what the router adds to it.
            max_body=limits.max_body_bytes * (1 if front else 2),
            ungated=UNGATED_BYTES,
            max_connections=limits.max_connections,
            max_unread=limits.max_unread_bytes,
            header_s=timeouts.header,
            body_s=timeouts.body,
            min_body_rate=limits.min_body_rate,
            keep_alive_s=timeouts.keep_alive,
            stall_s=min(timeouts.slow_reader, timeouts.idle),
        )
        """The bounds on requests."""
        self.budget = Budget(
            bytes_in_flight(limits.max_bytes_in_flight, processes=settings.processes, limit=memory_limit())
        )
        """What clients may make this process hold."""
        self._max_body = wire.max_body
        cors = settings.config.cors
        self._cors = Cors(cors.allowed_origins) if front and cors is not None else None
        if wire.max_body > self.budget.largest:
            log.warning("bodies_bounded_by_memory", extra={"bytes": self.budget.largest, "limit": wire.max_body})
        self.health = Listener(
            self._serve_open, refused=self.refused, limits=wire, gate=self._gate_open, budget=self.budget
        )
        """Health and metrics without TLS, where that is wanted beside it."""
        self.listener = Listener(self.serve, refused=self.refused, limits=wire, gate=self.gate, budget=self.budget)

    @property
    def inflight(self) -> int:
        """Return how many inference requests are being served."""
        return self.drain.inflight

    async def start(self) -> None:
        """Begin to write access lines and to export spans."""
        self._access.start(asyncio.get_running_loop())
        if self._telemetry is not None:
            self._background.start(self._telemetry.exporter.run())
        if self._siblings is not None:
            await self._siblings.start()

    async def close(self) -> None:
        """Write what is left of the access lines and spans."""
        await self._background.stop()
        if self._siblings is not None:
            await self._siblings.stop()
        if self._telemetry is not None:
            await self._telemetry.exporter.close()
        self._access.close()

    def _close_after_replies(self) -> None:
        self.listener.connections.close_after_replies(idle=False)

    def gate(self, request: Request, peer: Peer) -> ApiError | None:
        """Refuse what would only be refused after a large body was read."""
        try:
            self._handler(request.path, request.method)
            if request.path in _UNASKED:
                _refuse_body(request.headers)
            principal = self._check(request.path, request.headers, request.credential_cache, peer)
            if principal is not None:
                self._app.before_body(principal)
            length = request.headers.get("content-length")
            if length is not None and not self.budget.fits(int(length)):
                return self._no_room(int(length))
        except ApiError as error:
            return error
        return None

    def gate_public(self, request: Request, peer: Peer, *, body: bool) -> ApiError | None:
        """Do as ``gate`` does, for requests that reach no port of this process: they get what clients may ask for.

        Of a request without a ``body`` nothing is saved by refusing it early, so that is left to ``serve``.
        """
        if request.path in self._own:
            return NotFoundError(f"unknown path {request.path[:128]!r}; this service has {', '.join(self._public())}")
        return self.gate(request, peer) if body else None

    def _gate_open(self, request: Request, peer: Peer) -> ApiError | None:
        """Do as ``gate`` does, for the port that has nothing but health and metrics."""
        return self.gate(request, peer) if request.path in _OPEN else _not_here(request.path)

    def _no_room(self, length: int) -> ApiError:
        largest = self.budget.largest
        return TooLargeError(largest, param="limits.maxBytesInFlight") if length > largest else no_room()

    def _handler(self, path: str, method: str) -> Handler:
        methods = self._routes.get(self._known(path))
        if methods is None:
            if path.startswith("/v1/responses/"):
                raise not_kept(path.removeprefix("/v1/responses/"))
            raise NotFoundError(f"unknown path {path[:128]!r}; this service has {', '.join(self._public())}")
        handler = methods.get("GET" if method == "HEAD" else method)
        if handler is None:
            raise ApiError(f"{method} is not allowed on {path[:128]!r}; use {' or '.join(methods)}", status=405)
        return handler

    def _known(self, path: str) -> str:
        """Return the route of a path: its own, or the one above that stands for it, too; else ""."""
        if path in self._routes:
            return path
        above = path[: path.rfind("/") + 1]
        if above in self._routes:
            return above
        return next((deep for deep in self._deep if path.startswith(deep[: -len(DEEP)])), "")

    def _public(self) -> list[str]:
        return [path for path in self._routes if path.startswith("/v1/") and path not in self._deep]

    def _check(
        self, path: str, headers: dict[str, str], credential_cache: CredentialCache | None, peer: Peer
    ) -> object:
        principal: object = None
        if path == "/drain" or path.startswith("/debug/"):
            require_proven(peer)
        elif path not in _UNASKED:
            principal = self._app.admits(path, headers, credential_cache, peer)
        if "content-encoding" in headers and encoding_of(headers) != IDENTITY and not self._front:
            raise ApiError("compressed request bodies are not accepted here; send plain JSON", status=415)
        return principal

    def _answer_browser(self, exchange: Exchange, cors: Cors) -> bool:
        """Let a browser show the answer to the page that asks; True: it asked for no more than whether it may."""
        if exchange.method != "OPTIONS":
            exchange.also = cors.lines(exchange.headers).encode("latin-1")
            return False
        lines = cors.preflight(exchange.headers, self._routes.get(self._known(exchange.path), ()))
        if lines is None:
            return False
        exchange.reply(204, content_type="", lines=lines)
        self._done(exchange, monotonic())
        return True

    async def _decode(self, exchange: Exchange) -> None:
        """Replace a compressed body by what it stands for."""
        encoding = encoding_of(exchange.headers)
        exchange.body = await decoded(
            exchange.body, encoding, most=self._max_body, hold=lambda size: exchange.hold(COPIES * size)
        )

    async def _serve_open(self, exchange: Exchange) -> None:
        """Serve the port that has nothing but health and metrics."""
        if exchange.path in _OPEN:
            await self.serve(exchange)
        else:
            reply_error(exchange, _not_here(exchange.path))

    async def serve(self, exchange: Exchange) -> None:
        """Serve a request, and account for it."""
        path = exchange.path
        if self._cors is not None and "origin" in exchange.headers and self._answer_browser(exchange, self._cors):
            return
        try:
            handler = self._handler(path, exchange.method)
            if path in _UNASKED:
                _refuse_body(exchange.headers)
                await handler(exchange)
                return
        except ApiError as error:
            reply_error(exchange, error)
            self._done(exchange, monotonic())
            return
        drain = self.drain
        drain.inflight += 1
        drain.idle.clear()
        try:
            exchange.admitted = self._check(path, exchange.headers, exchange.credential_cache, exchange.peer)
            if drain.draining:
                drain.last_begin = monotonic()
            if "content-encoding" in exchange.headers:
                await self._decode(exchange)
            await handler(exchange)
        except ApiError as error:
            if exchange.headers_sent:
                exchange.abort()
            else:
                reply_error(exchange, error)
        except asyncio.CancelledError:
            if exchange.stalled:
                log.warning("slow_client")
                self._metrics.broken_streams.labels("slow client").inc()
            else:
                self._metrics.cancelled.inc()
            if not exchange.gone:
                raise
        except Exception:
            log.exception("request_failed", extra={"path": path, **exchange.facts})
            if exchange.headers_sent:
                exchange.abort()
            else:
                reply_error(exchange, ApiError("internal error of the router", status=500, kind="server_error"))
        finally:
            drain.inflight -= 1
            now = drain.last_end = monotonic()
            if not drain.inflight:
                drain.idle.set()
            self._done(exchange, now)

    def refused(self, exchange: Exchange, error: ApiError) -> None:
        """Answer what never became a request."""
        error.retryable = error.status == 503 and not self._front  # another worker may have room
        reply_error(exchange, error)
        self._done(exchange, monotonic())

    def _done(self, exchange: Exchange, now: float) -> None:
        status = exchange.status or 499
        known = self._known(exchange.path)
        if known == QUEUE_PATH and status == 200:
            return
        self._follow_role()
        self._counts(status).value += 1
        facts = exchange.facts
        facts["path"] = known
        facts["status"] = status
        facts["seconds"] = rounded(now - exchange.started)
        self._access.write(facts)

    def _follow_role(self) -> None:
        """Count under the role in force."""
        role = self._app.role
        if role != self._role:
            self._role = role
            self._answered = {}
            self._gauge.set(0)
            self._gauge = self._metrics.inflight.labels(role)
            self._access.set_role(role)

    def _counts(self, status: int) -> Value:
        found = self._answered.get(status)
        if found is None:
            found = self._answered[status] = self._metrics.requests.labels(str(status), self._role)
        return found

    async def _healthz(self, exchange: Exchange) -> None:
        exchange.reply(200, b"ok\n", content_type=PLAIN)

    async def _instance_id(self, exchange: Exchange) -> None:
        """Tell one life of this process from the next."""
        exchange.reply(200, self._settings.instance_id.encode() + b"\n", content_type=PLAIN)

    async def _readyz(self, exchange: Exchange) -> None:
        why = "draining" if self.drain.draining else self._app.ready()
        if why is None:
            exchange.reply(200, b"ready\n", content_type=PLAIN)
        else:
            exchange.reply(503, why.encode() + b"\n", content_type=PLAIN)

    async def _metrics_page(self, exchange: Exchange) -> None:
        accept = exchange.headers.get("accept", "")
        if self._siblings is not None:
            page, content_type = await self._siblings.render(accept)
        else:
            self._refresh()
            page, content_type = self._metrics.render(accept)
        exchange.reply(200, page, content_type=content_type)

    def _refresh(self) -> None:
        self._app.observe()
        self._follow_role()
        drain = self.drain
        self._gauge.set(drain.inflight)
        self._metrics.draining.set(drain.draining)
        if drain.draining:
            self._metrics.drain_left.labels("rounds").set(drain.inflight)
            self._metrics.drain_left.labels("sessions").set(drain.backlog.sessions)
        self._metrics.configuration_age.set(0.0 if self.live is None else self.live.age())
        budget = self.budget
        self._metrics.client_bytes.set(budget.used)
        self._metrics.client_bytes_limit.set(budget.limit)
        self._metrics.no_room.labels("refused").value = float(budget.refused)
        self._metrics.no_room.labels("ended").value = float(budget.shed)
        self._metrics.jwks_age.set(self._keys_age())
        cut = self.listener.connections.cut + self.health.connections.cut
        for reason, count in cut.items():
            self._metrics.connections_cut.labels(reason).value = float(count)


def _refuse_body(headers: dict[str, str]) -> None:
    """Let nobody have a body kept who needs no key.

    Raises:
        ApiError: the request has one.
    """
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise ApiError("this path takes no body", status=400)


def _not_here(path: str) -> ApiError:
    return NotFoundError(f"unknown path {path[:128]!r}; this port has health and metrics")
