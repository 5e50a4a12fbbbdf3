"""Everything in one process, in front of bare engines: a front, and what every worker's sidecar does."""

import asyncio
import socket
from dataclasses import replace
from pathlib import Path
from time import monotonic

from weft_core.authority import http_url, split_authority
from weft_core.heartbeat import WorkerRecord
from weft_core.keys import derive
from weft_core.layouts import WORKER_ROLES
from weft_core.policies.snapshot import PrefillTask
from weft_router.auth.cache_salts import CacheSalts
from weft_router.background import Background
from weft_router.config import ConfigError, RouterConfig, Settings
from weft_router.config.role_file import read_role
from weft_router.config.workers import WorkerEntry
from weft_router.context import Context
from weft_router.engines.adapter import Adapter, Call
from weft_router.engines.catalogue import adapter_of
from weft_router.errors import WORKER_LOST, ApiError, EngineDiedError, UpstreamFailedError
from weft_router.http.exchange import Exchange
from weft_router.http.pool import ConnectionPool
from weft_router.openai.body import Json
from weft_router.roles.app import Routes
from weft_router.roles.front import Front
from weft_router.roles.front_app import FrontApp
from weft_router.roles.relay import ENGINE_FAILED
from weft_router.roles.role_switch import RoleSwitch
from weft_router.rounds.accounting import meter_of
from weft_router.rounds.decode_service import DecodeService
from weft_router.rounds.prefill_service import PrefillService
from weft_router.rounds.request_log import RequestLog
from weft_router.rounds.response_writer import ResponseWriter
from weft_router.routing.in_flight_prefills import InFlightPrefills
from weft_router.sessions.engine_kv import KvPlaces, kv_places
from weft_router.sessions.round_request import RoundRequest
from weft_router.sessions.session_view import Entry, sessions_page
from weft_router.state.registry import Health, Registry
from weft_router.state.store import Store
from weft_router.workers.prefill_client import PrefillResponse
from weft_router.workers.scheduling_priority import SchedulingPriority
from weft_router.workers.worker import ENGINE_KEEPALIVE_S, Worker, count_adapters, count_plugins


class Standalone(FrontApp):
    """The application of role ``standalone``."""

    def __init__(self, settings: Settings, store: Store, context: Context) -> None:
        config = settings.config
        metrics = self._metrics = context.metrics
        self._store = store
        self._settings = settings
        engines = self._engines = ConnectionPool(connect_s=config.timeouts.connect, keepalive_s=ENGINE_KEEPALIVE_S)
        registry = Registry(store, self._probe, on_gone=lambda record: engines.terminate(WORKER_LOST, record.url))
        self._adapter: Adapter = adapter_of(config)
        front = Front(settings, adapter=self._adapter, store=store, registry=registry, workers=self, context=context)
        super().__init__(front, registry=registry, pool=engines, role=settings.role)
        self._request_log = RequestLog(config.request_log, worker="standalone")
        self._workers: dict[str, Worker] = {}
        self._decodings: dict[str, DecodeService] = {}
        self._prefillings: dict[str, PrefillService] = {}
        self._meter = meter_of(config, metrics)
        self._ring = context.ring
        self._in_flight = InFlightPrefills(settings.profile, pools=settings.pools)
        self._role_files: dict[str, Path] = {}
        self._background = Background()
        self._salts = CacheSalts(derive(settings.token, "salt"))
        for entry in settings.workers:
            if entry.url:
                self._know(entry, entry.name, entry.url)

    def routes(self) -> Routes:
        """Return the public endpoints."""
        debug: Routes = {"/debug/decisions": {"GET": self._debug}, "/debug/sessions": {"GET": self._debug_sessions}}
        return {**super().routes(), **debug}

    def ready(self) -> str | None:
        """Return None when a request can be served."""
        return None if self._registry.ready("decode") else "no decode worker is ready"

    async def start(self) -> None:
        """Find the engines that are given by name, and watch all."""
        for entry in self._settings.workers:
            if entry.dns:
                await self._resolve(entry)
        proofs = {name: decoding.prove for name, decoding in self._decodings.items()}
        await asyncio.gather(*(worker.start(proofs.get(name)) for name, worker in self._workers.items()))
        for worker in self._workers.values():
            await worker.heartbeat.beat()
        await super().start()
        for name, path in self._role_files.items():
            switch = RoleSwitch(
                self._workers[name], self._decodings[name], path=path, drain_s=self._settings.drain_s,
                metrics=self._metrics, field="roleFile",
            )  # fmt: skip
            self._background.start(switch.run())

    async def stop(self) -> None:
        """End background work and close connections."""
        await self._background.stop()
        await asyncio.gather(*(decoding.stop() for decoding in self._decodings.values()))
        await asyncio.gather(*(worker.stop() for worker in self._workers.values()))
        await super().stop()
        self._request_log.close()

    def reload(self, config: RouterConfig) -> None:
        """Apply another configuration; rounds in progress keep theirs."""
        super().reload(config)
        for worker in self._workers.values():
            worker.reload(config)
        for decoding in self._decodings.values():
            decoding.reload(config)

    def observe(self) -> None:
        """Bring gauges up to date."""
        super().observe()
        for decoding in self._decodings.values():
            decoding.observe()
        self._metrics.predictions_trusted.set(all(decoding.trusted for decoding in self._decodings.values()))
        queues = [worker.queue for worker in self._workers.values()]
        self._metrics.queue_length.set(sum(len(queue) for queue in queues))
        self._metrics.engine_slowdown.set(max((queue.slowdown for queue in queues), default=1.0))
        count_plugins(self._metrics, self._workers.values())
        count_adapters(self._metrics, self._workers.values())
        roles = [worker.role for worker in self._workers.values()]
        for role in WORKER_ROLES:
            self._metrics.role.labels(role).set(roles.count(role))

    def endpoints(self, writer: ResponseWriter) -> frozenset[str] | None:
        """Return the addresses of the only workers that may serve a request; None where all may."""
        del writer
        return None

    async def serve(self, record: WorkerRecord, request: RoundRequest, writer: ResponseWriter) -> None:
        """Serve a round by a decode worker of this process."""
        try:
            await self._decodings[record.worker].serve(request, writer)
        except EngineDiedError as death:
            raise UpstreamFailedError(death.verdict, death.message) from death
        except ApiError as error:
            if error.retryable:
                raise UpstreamFailedError("refused" if error.status == 503 else ENGINE_FAILED, error.message) from error
            raise

    async def ask(self, record: WorkerRecord, path: str, payload: bytes) -> tuple[int, bytes]:
        """Return the status and body of an engine's answer to a short call; raise UpstreamFailedError without one."""
        return await self._workers[record.worker].engine.ask(path, payload)

    async def forget(self, record: WorkerRecord, session: str) -> None:
        """Have a worker of this process forget a session."""
        self._decodings[record.worker].forget(session)

    async def prefill(
        self, record: WorkerRecord, call: Call, task: PrefillTask, request_id: str, scheduling: SchedulingPriority
    ) -> PrefillResponse:
        """Run a prefill on a worker of this process."""
        try:
            done = await self._prefillings[record.worker].run(
                call.path, call.whole, call.lines, task=task, request_id=request_id, scheduling=scheduling
            )
        except ApiError as error:
            died = error.verdict if isinstance(error, EngineDiedError) else ""
            return PrefillResponse(error.status, error.body(), from_engine=False, died=died)
        return PrefillResponse(done.status, done.body, from_engine=True)

    async def fetch(self, record: WorkerRecord, session: str) -> Json | None:
        """Return a session that leaves a worker of this process."""
        if not self._workers[record.worker].sends_sessions:
            return None
        return self._decodings[record.worker].session_export.export(session)

    async def report_read(self, record: WorkerRecord, session: str) -> None:
        """Tell a worker of this process that a session's KV was read, or will not be read."""
        self._decodings[record.worker].session_export.mark_read(session)

    async def _debug(self, exchange: Exchange) -> None:
        exchange.reply(200, self._ring.answer(exchange.query.encode()))

    async def _debug_sessions(self, exchange: Exchange) -> None:
        tables = {name: decoding.sessions for name, decoding in self._decodings.items()}
        query = exchange.query.encode()
        exchange.reply(200, await sessions_page(tables, query, now=monotonic(), places_of=self._kv_places))

    async def _kv_places(self, entry: Entry) -> KvPlaces | None:
        worker = self._workers.get(entry[0])
        return await kv_places(worker, *entry[1:]) if worker is not None else None

    async def _resolve(self, entry: WorkerEntry) -> None:
        """Take every address of a name for a worker; looked up once, at the start.

        Of a name with addresses of both families only those of the family that comes first are taken, for in a cluster
        with both every pod has one of each.

        Raises:
            ConfigError: the name has none.
        """
        host, port = split_authority(entry.dns)
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ConfigError(
                f"workers: {entry.name}: dns {entry.dns} has no address ({error.strerror}); check the name"
            ) from error
        for address in sorted({str(one[4][0]) for one in found if one[0] == found[0][0]}):
            self._know(entry, f"{entry.name}-{address}", http_url(address, port))

    def _know(self, entry: WorkerEntry, name: str, url: str) -> None:
        settings, role = self._settings, entry.role
        if entry.role_file is not None:
            role = read_role(entry.role_file, field="roleFile")
            self._role_files[name] = entry.role_file
        self._add(replace(
            settings, role=role, worker=name, url=url, engine_url=url, degree=entry.degree, pool=entry.pool,
            profile=settings.profile_of(entry.pool),
        ))  # fmt: skip

    def _add(self, settings: Settings) -> None:
        worker = Worker(
            settings, store=self._store, registry=self._registry, engines=self._engines, metrics=self._metrics,
            siblings=self._workers,
        )  # fmt: skip
        self._workers[settings.worker] = worker
        decoding = self._decodings[settings.worker] = DecodeService(
            worker, adapter=self._adapter, prefill_client=self, registry=self._registry, metrics=self._metrics,
            meter=self._meter, salts=self._salts, request_log=self._request_log, ring=self._ring,
            in_flight=self._in_flight, session_source=self,
        )  # fmt: skip
        lends = decoding.session_export.lends
        self._prefillings[settings.worker] = PrefillService(worker, self._metrics, lends=lends)

    async def _probe(self, url: str) -> Health:
        worker = next((w for w in self._workers.values() if w.settings.url == url), None)
        if worker is None:
            return "dead"
        return "ready" if await worker.engine.alive() else "dead"
