"""What the sidecars of prefill and decode workers have in common: an engine beside them, and processes to meet."""

from functools import partial

from weft_router.auth.hops import require_proven
from weft_router.config import RouterConfig, Settings
from weft_router.context import Context
from weft_router.errors import SHUTTING_DOWN, WORKER_LOST
from weft_router.http.exchange import Exchange
from weft_router.http.head import CredentialCache, Peer
from weft_router.http.link_dialer import LINK_PATH
from weft_router.http.pool import ConnectionPool
from weft_router.openai.answers import reply_models
from weft_router.roles.app import App, Routes
from weft_router.roles.engine_pages import EnginePages
from weft_router.roles.link_hop import linked_pool, serve_link
from weft_router.roles.prefill_hop import serve_queue
from weft_router.state.readiness_probe import probe
from weft_router.state.registry import Registry
from weft_router.state.store import Store
from weft_router.workers.prefill_client import QUEUE_PATH
from weft_router.workers.worker import ENGINE_KEEPALIVE_S, Worker, count_plugins


class Sidecar(App):
    """A worker in one pod with its engine."""

    def __init__(self, settings: Settings, store: Store, context: Context) -> None:
        self._settings = settings
        self._metrics = context.metrics
        self._tracer = context.tracer
        self._engines = ConnectionPool(connect_s=settings.config.timeouts.connect, keepalive_s=ENGINE_KEEPALIVE_S)
        peers = self._peers = linked_pool(settings)
        self._registry = Registry(
            store, partial(probe, peers), on_gone=lambda record: peers.terminate(WORKER_LOST, record.url)
        )
        self._worker = Worker(
            settings, store=store, registry=self._registry, engines=self._engines, metrics=context.metrics
        )

    def routes(self) -> Routes:
        """Return the endpoints that every sidecar has."""
        return {
            LINK_PATH: {"GET": serve_link},
            QUEUE_PATH: {"GET": self._queue},
            "/v1/models": {"GET": self._models},
            **EnginePages(self._worker.engine).routes(),
        }

    def admits(self, _: dict[str, str], __: CredentialCache | None, peer: Peer, /) -> None:
        """Let the router's own hops in: their clients were let in by a front."""
        require_proven(peer)

    def ready(self) -> str | None:
        """Return None when rounds, or prefills, can be served."""
        return self._worker.ready()

    async def start(self) -> None:
        """Start the worker's background work, and watch the others."""
        await self._worker.start()
        await self._registry.start()

    async def stop(self) -> None:
        """End background work and close connections."""
        await self._worker.stop()
        await self._registry.stop()
        await self._engines.close()
        await self._peers.close()

    def reload(self, config: RouterConfig) -> None:
        """Apply another configuration; work in progress keeps its own."""
        self._worker.reload(config)

    def drain(self) -> None:
        """Take nothing new."""
        self._worker.drain()

    def terminate(self) -> None:
        """End what is still under way."""
        self._engines.terminate(SHUTTING_DOWN)
        self._peers.terminate(SHUTTING_DOWN)

    def observe(self) -> None:
        """Bring gauges up to date."""
        self._metrics.queue_length.set(len(self._worker.queue))
        self._metrics.engine_slowdown.set(self._worker.queue.slowdown)
        count_plugins(self._metrics, (self._worker,))
        self._metrics.count_refused(self._registry.refused)

    async def _models(self, exchange: Exchange) -> None:
        reply_models(exchange, self._settings)

    async def _queue(self, exchange: Exchange) -> None:
        serve_queue(exchange, self._worker.queue)
