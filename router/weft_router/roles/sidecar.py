"""What prefill and decode sidecars share: the engine's watch, the worker's heartbeat, the picture of other workers."""

from collections.abc import Callable
from functools import partial

import aiohttp
from aiohttp import web

from weft_router.background import Background
from weft_router.config import Settings
from weft_router.engines.watch import Engine
from weft_router.rounds.prefill_queue import PrefillQueue, QueueRule
from weft_router.signals.metrics import Metrics
from weft_router.state.heartbeat import Heartbeat
from weft_router.state.registry import Registry
from weft_router.state.store import Store, WorkerRecord
from weft_router.wire.upstream import client, probe

ENGINE_KEEPALIVE_S = 3.0
"""vLLM's server drops idle connections after 5 s; ours end first."""
SIDECAR_KEEPALIVE_S = 30.0


class Sidecar:
    """The part of a worker that the other processes see."""

    def __init__(
        self, settings: Settings, store: Store, metrics: Metrics, *, describe: Callable[[WorkerRecord], WorkerRecord]
    ) -> None:
        self.settings = settings
        self.metrics = metrics
        self._store = store
        self._describe = describe
        self._background = Background()
        self._clients: list[aiohttp.ClientSession] = []
        self.draining = False
        self.heartbeat = Heartbeat(store, self.record)
        timeouts = settings.config.timeouts
        routing = settings.config.routing
        self.engine = Engine(
            self._client(timeouts.connect, ENGINE_KEEPALIVE_S), settings.engine_url, on_change=self.heartbeat.hurry,
            may_rest=self._replaceable,
        )  # fmt: skip
        self.peers = self._client(timeouts.connect, SIDECAR_KEEPALIVE_S)
        self.registry = Registry(store, partial(probe, self.peers))
        self.queue = PrefillQueue(
            profile=settings.profile,
            degree=settings.degree,
            concurrency=routing.prefill_concurrency,
            limit=routing.prefill_queue_limit,
            rule=QueueRule(routing.order, window=routing.window, cap=routing.ageing_cap),
            ttft_slo=settings.config.slo.ttft,
        )

    @property
    def kv_capacity(self) -> int:
        """Return the tokens of KV the engine holds: its own figure, else the profile's."""
        return self.engine.load.capacity_tokens or self.settings.kv_capacity_tokens

    @property
    def kv_used(self) -> int:
        """Return the tokens of KV in use, by the engine's own gauge."""
        return round(self.engine.load.kv_usage * self.kv_capacity)

    def record(self, seq: int) -> WorkerRecord:
        """Return this worker's heartbeat."""
        s = self.settings
        return self._describe(
            WorkerRecord(
                worker=s.worker,
                role=s.role,
                url=s.url,
                degree=s.degree,
                capacity=self.kv_capacity,
                pool=s.pool,
                revision=s.revision,
                node=s.node,
                incarnation=s.incarnation,
                seq=seq,
                ready=self.engine.healthy,
                draining=self.draining,
                queue=self.queue.entries(),
                kv_used=self.kv_used,
            )
        )

    def routes(self) -> list[web.RouteDef]:
        """Return the endpoints about the engine."""
        return [web.get("/engine/livez", self._livez), web.get("/engine/metrics", self._engine_metrics)]

    def ready(self) -> str | None:
        """Return None when the engine is healthy and others can know of it."""
        if not self.engine.healthy:
            return "the engine is not healthy"
        return None if self.heartbeat.written else "no heartbeat was written yet"

    async def start(self, *, watch_peers: bool) -> None:
        """Start polling the engine, the heartbeat and, if wanted, the watch of other workers."""
        await self.engine.poll()
        self._background.start(self.engine.run(), self.heartbeat.run())
        if watch_peers:
            await self.registry.refresh()
            self._background.start(self.registry.run())

    async def stop(self) -> None:
        """End background work, leave the list of workers, close connections."""
        await self._background.stop()
        for http in self._clients:
            await http.close()

    def drain(self) -> None:
        """Announce that this worker takes nothing new."""
        self.draining = True
        self.heartbeat.hurry()

    def _replaceable(self) -> bool:
        """Tell whether others can do this worker's work: prefills run on decode workers, too."""
        decode = self.registry.ready("decode")
        return self.settings.role == "prefill" or any(r.worker != self.settings.worker for r in decode)

    def _client(self, connect_s: float, keepalive_s: float) -> aiohttp.ClientSession:
        http = client(connect_s=connect_s, keepalive_s=keepalive_s)
        self._clients.append(http)
        return http

    async def _livez(self, _: web.Request) -> web.Response:
        alive = await self.engine.alive()
        return web.Response(status=200 if alive else 503, text="ok\n" if alive else "the engine does not answer\n")

    async def _engine_metrics(self, _: web.Request) -> web.Response:
        page = await self.engine.metrics()
        if page is None:
            return web.Response(status=503, text="the engine does not answer\n")
        return web.Response(body=page, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
