"""The sidecar of a worker: serves rounds that coordinators send, and prefills for other workers, as its role says."""

from collections.abc import Mapping
from functools import partial
from time import monotonic, time
from typing import Final

import orjson

from weft_core.keys import derive
from weft_core.layouts import WORKER_ROLES
from weft_router.auth.cache_salts import CacheSalts
from weft_router.auth.hops import require_proven
from weft_router.auth.passes import KEY_PURPOSE, PassVerifier
from weft_router.background import Background
from weft_router.config import RouterConfig, Settings
from weft_router.context import Context
from weft_router.engines.catalogue import adapter_of
from weft_router.errors import SHUTTING_DOWN, WORKER_LOST, NotFoundError
from weft_router.http.exchange import Exchange
from weft_router.http.head import CredentialCache, Peer
from weft_router.http.link_dialer import LINK_PATH
from weft_router.http.pool import ConnectionPool
from weft_router.openai.answers import MESSAGES, reply_models
from weft_router.openai.body import sanitise
from weft_router.openai.inference import PATHS
from weft_router.roles import session_hop
from weft_router.roles.app import App, Routes
from weft_router.roles.detour import Detour
from weft_router.roles.engine_pages import EnginePages
from weft_router.roles.link_hop import linked_pool, serve_link
from weft_router.roles.prefill_hop import PREFILL_PATH, PrefillHop, serve_prefill, serve_queue
from weft_router.roles.relay import FORGET_PATH, SESSION_HEADER
from weft_router.roles.role_switch import RoleSwitch
from weft_router.roles.round_endpoint import RoundEndpoint
from weft_router.roles.session_hop import READ_PATH, TAKE_PATH, SessionHop
from weft_router.rounds.accounting import meter_of
from weft_router.rounds.decode_service import DecodeService
from weft_router.rounds.prefill_service import PrefillService
from weft_router.rounds.request_log import RequestLog
from weft_router.sessions.engine_kv import KvPlaces, kv_places
from weft_router.sessions.session_export import DrainBacklog
from weft_router.sessions.session_view import Entry, sessions_page
from weft_router.state.readiness_probe import probe
from weft_router.state.registry import Registry
from weft_router.state.store import Store
from weft_router.workers.prefill_client import QUEUE_PATH
from weft_router.workers.worker import ENGINE_KEEPALIVE_S, Worker, count_adapters, count_plugins

MESSAGE_PATHS: Final = (MESSAGES, f"{MESSAGES}/count_tokens")
DETOURED: Final = frozenset({*PATHS, *MESSAGE_PATHS})
"""Paths of clients' requests that are passed on to the coordinators."""
DETOUR: Final = object()
"""Stands for the sender of such a request: the coordinator finds out who it is."""


class Sidecar(App):
    """A worker in one pod with its engine: it has both duties, and its role says which it carries out."""

    def __init__(self, settings: Settings, store: Store, context: Context) -> None:
        config, metrics = settings.config, context.metrics
        self._settings = settings
        self._metrics = metrics
        self._tracer = context.tracer
        self._ring = context.ring
        self._engines = ConnectionPool(connect_s=config.timeouts.connect, keepalive_s=ENGINE_KEEPALIVE_S)
        peers = self._peers = linked_pool(settings)
        self._registry = Registry(
            store, partial(probe, peers), on_gone=lambda record: peers.terminate(WORKER_LOST, record.url)
        )
        self._worker = Worker(settings, store=store, registry=self._registry, engines=self._engines, metrics=metrics)
        self._request_log = RequestLog(config.request_log, worker=settings.worker)
        prefill_hop = PrefillHop(config, pool=peers)
        self._decoding = DecodeService(
            self._worker,
            adapter=adapter_of(config),
            prefill_client=prefill_hop,
            registry=self._registry,
            metrics=metrics,
            meter=meter_of(config, metrics),
            salts=CacheSalts(derive(settings.token, "salt")),
            request_log=self._request_log,
            ring=self._ring,
            session_source=SessionHop(pool=peers),
            queue_source=prefill_hop,
        )
        self._detour = Detour(config)
        self._prefilling = PrefillService(self._worker, metrics, lends=self._decoding.session_export.lends)
        self._passes = PassVerifier(derive(settings.token, KEY_PURPOSE), settings.url.removeprefix("http://"))
        self._rounds = RoundEndpoint(settings, self._decoding, self._passes, context)
        self._background = Background()

    @property
    def role(self) -> str:
        """Return the role in force."""
        return self._worker.role

    def routes(self) -> Routes:
        """Return the endpoints of a worker."""
        return {
            LINK_PATH: {"GET": serve_link},
            QUEUE_PATH: {"GET": self._queue},
            PREFILL_PATH: {"POST": self._prefill},
            "/v1/models": {"GET": self._models},
            **{path: {"POST": self._round} for path in PATHS},
            **{path: {"POST": self._pass_on} for path in MESSAGE_PATHS},
            "/tokenize": {"POST": self._tokenize},
            FORGET_PATH: {"POST": self._forget},
            TAKE_PATH: {"POST": self._take},
            READ_PATH: {"POST": self._read},
            "/debug/decisions": {"GET": self._debug},
            "/debug/sessions": {"GET": self._debug_sessions},
            **EnginePages(self._worker.engine).routes(),
        }

    def admits(self, path: str, headers: dict[str, str], _: CredentialCache | None, peer: Peer, /) -> object:
        """Let the router's own hops in, whose clients were let in by a front, and rounds with a picker's pass.

        Where the detour is open, clients' requests come in, too, to be passed on.
        """
        if not peer.proven and path in PATHS:
            valid = self._passes.verify(path, headers, time())
            if valid is not None:
                return valid
        if not peer.proven and path in DETOURED and self._detour.is_open:
            return DETOUR
        require_proven(peer)
        return None

    def ready(self) -> str | None:
        """Return None when the engine can serve and others can know of it, whatever the role."""
        return self._worker.ready()

    async def start(self) -> None:
        """Start the worker's background work, watch the others, and follow the role file if there is one."""
        await self._worker.start(self._decoding.prove)
        await self._registry.start()
        settings = self._settings
        if settings.role_file is not None:
            switch = RoleSwitch(
                self._worker, self._decoding, path=settings.role_file, drain_s=settings.drain_s, metrics=self._metrics
            )
            self._background.start(switch.run())

    async def stop(self) -> None:
        """End background work and close connections."""
        await self._background.stop()
        await self._decoding.stop()
        await self._worker.stop()
        await self._registry.stop()
        await self._detour.close()
        await self._engines.close()
        await self._peers.close()
        self._request_log.close()

    def reload(self, config: RouterConfig) -> None:
        """Apply another configuration; work in progress keeps its own."""
        self._rounds.reload(config)
        self._worker.reload(config)
        self._decoding.reload(config)
        self._detour.reload(config)

    def drain(self) -> None:
        """Take nothing new, and send away the prefills of others that wait: another worker serves them sooner."""
        self._worker.drain()

    async def drain_backlog(self) -> DrainBacklog:
        """Return the sessions whose next round is waited for, and whether KV is still to be read."""
        worker, session_export = self._worker, self._decoding.session_export
        healthy = worker.engine.healthy
        unread = healthy and session_export.unread
        if not unread:
            unread = await worker.keeps_kv(self._prefilling.unread_until)
        return DrainBacklog(session_export.waiting() if healthy else 0, unread)

    @property
    def moved(self) -> Mapping[str, int]:
        """Return how many sessions were handed over, by how their history goes on."""
        return self._decoding.session_export.moved

    def terminate(self) -> None:
        """End what is still under way."""
        self._engines.terminate(SHUTTING_DOWN)
        self._detour.terminate()
        self._peers.terminate(SHUTTING_DOWN)

    def observe(self) -> None:
        """Bring gauges up to date."""
        worker, decoding, metrics, registry = self._worker, self._decoding, self._metrics, self._registry
        decoding.observe()
        for role in WORKER_ROLES:
            metrics.role.labels(role).set(role == worker.role)
        if not worker.draining:  # else the drain tells
            metrics.drain_left.labels("rounds").set(decoding.live.count if worker.leaving else 0)
            metrics.drain_left.labels("sessions").set(decoding.session_export.waiting() if worker.leaving else 0)
        metrics.queue_length.set(len(worker.queue))
        metrics.engine_slowdown.set(worker.queue.slowdown)
        count_plugins(metrics, (worker,))
        count_adapters(metrics, (worker,))
        if worker.kv_cache is not None:
            worker.kv_cache.observe()
        metrics.count_refused(registry.refused)
        metrics.links.set(self._peers.links)
        metrics.sessions.set(len(decoding.sessions))
        metrics.predictions_trusted.set(decoding.trusted)
        metrics.state_up.set(registry.store_up)
        ready = len(registry.ready("prefill"))
        metrics.workers.labels("prefill", "ready").set(ready)
        metrics.workers.labels("prefill", "not-ready").set(len(registry.known("prefill")) - ready)

    async def _round(self, exchange: Exchange) -> None:
        if exchange.admitted is DETOUR:
            await self._detour.serve(exchange)
        else:
            await self._rounds.serve(exchange)

    async def _pass_on(self, exchange: Exchange) -> None:
        if exchange.admitted is not DETOUR:
            raise NotFoundError(f"unknown path {exchange.path!r} between the router's own hops")
        await self._detour.serve(exchange)

    async def _models(self, exchange: Exchange) -> None:
        reply_models(exchange, self._settings.config.model, self._rounds.allowed.adapters)

    async def _queue(self, exchange: Exchange) -> None:
        serve_queue(exchange, self._worker.queue)

    async def _debug(self, exchange: Exchange) -> None:
        exchange.reply(200, self._ring.answer(exchange.query.encode()))

    async def _debug_sessions(self, exchange: Exchange) -> None:
        tables = {self._worker.name: self._decoding.sessions}
        query = exchange.query.encode()
        exchange.reply(200, await sessions_page(tables, query, now=monotonic(), places_of=self._kv_places))

    async def _kv_places(self, entry: Entry) -> KvPlaces | None:
        return await kv_places(self._worker, *entry[1:])

    async def _tokenize(self, exchange: Exchange) -> None:
        body = await self._rounds.read(exchange)
        sanitise(body)
        status, reply = await self._worker.engine.ask("/tokenize", orjson.dumps(body))
        exchange.reply(status, reply)

    async def _prefill(self, exchange: Exchange) -> None:
        await serve_prefill(exchange, self._prefilling, self._tracer)

    async def _forget(self, exchange: Exchange) -> None:
        self._decoding.forget(exchange.headers.get(SESSION_HEADER, ""))
        exchange.reply(204, content_type="")

    async def _take(self, exchange: Exchange) -> None:
        session_hop.serve_session(exchange, self._decoding.session_export, leaves=self._worker.sends_sessions)

    async def _read(self, exchange: Exchange) -> None:
        self._decoding.session_export.mark_read(exchange.headers.get(SESSION_HEADER, ""))
        exchange.reply(204, content_type="")
