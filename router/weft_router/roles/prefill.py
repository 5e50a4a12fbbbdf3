"""The sidecar of a prefill worker: owns the queue in front of the engine."""

from collections.abc import Mapping

from weft_router.api.answers import models
from weft_router.config import RouterConfig, Settings
from weft_router.context import Context
from weft_router.errors import SHUTTING_DOWN
from weft_router.guard.hops import require_proven
from weft_router.roles.duty import Routes
from weft_router.roles.engine_pages import EnginePages
from weft_router.roles.link_hop import LINK_PATH, linked_pool, switch
from weft_router.roles.prefill_hop import PREFILL_PATH, serve
from weft_router.rounds.moving import Left
from weft_router.rounds.prefilling import Prefilling
from weft_router.rounds.worker import ENGINE_KEEPALIVE_S, Worker, count_plugins
from weft_router.state.probing import probe
from weft_router.state.registry import Registry
from weft_router.state.store import Store
from weft_router.wire.exchange import Exchange
from weft_router.wire.head import Notes, Peer
from weft_router.wire.pool import Pool


class PrefillSidecar:
    """The duty of role ``prefill``."""

    def __init__(self, settings: Settings, store: Store, context: Context) -> None:
        self._settings = settings
        metrics = self._metrics = context.metrics
        self._tracer = context.tracer
        self._engines = Pool(connect_s=settings.config.timeouts.connect, keepalive_s=ENGINE_KEEPALIVE_S)
        self._peers = linked_pool(settings)
        self._registry = Registry(store, lambda url: probe(self._peers, url))
        self._worker = Worker(
            settings, store=store, registry=self._registry, engines=self._engines, metrics=self._metrics
        )
        self._prefilling = Prefilling(self._worker, metrics)
        self._pages = EnginePages(self._worker.engine)

    def routes(self) -> Routes:
        """Return the endpoints of a prefill worker."""
        return {
            PREFILL_PATH: {"POST": self._prefill},
            LINK_PATH: {"GET": switch},
            "/v1/models": {"GET": self._models},
            **self._pages.routes(),
        }

    def admits(self, _: dict[str, str], __: Notes | None, peer: Peer, /) -> None:
        """Let the router's own hops in."""
        require_proven(peer)

    def before_body(self, caller: object, /) -> None:
        """Refuse none of the router's own hops: their clients were let in."""

    def ready(self) -> str | None:
        """Return None when prefills can be served."""
        return self._worker.ready()

    async def start(self) -> None:
        """Start the worker's background work."""
        await self._worker.start()
        await self._registry.start()

    async def stop(self) -> None:
        """Stop it."""
        await self._worker.stop()
        await self._registry.stop()
        await self._engines.close()
        await self._peers.close()

    def reload(self, config: RouterConfig) -> None:
        """Go on by another configuration; prefills under way keep theirs."""
        self._worker.reload(config)

    def drain(self) -> None:
        """Take nothing new, and send away what waits: another worker serves it sooner."""
        self._worker.drain()
        self._worker.queue.hand_back()

    async def left(self) -> Left:
        """Return whether KV that was prefilled here is still to be read."""
        return Left(kv=await self._worker.keeps_kv(self._prefilling.unread_until))

    @property
    def moved(self) -> Mapping[str, int]:
        """Return nothing: sessions live on decode workers."""
        return {}

    def cut(self) -> None:
        """End what is still under way."""
        self._engines.cut(SHUTTING_DOWN)

    def observe(self) -> None:
        """Bring gauges up to date."""
        self._metrics.queue_length.set(len(self._worker.queue))
        count_plugins(self._metrics, (self._worker,))
        self._metrics.count_refused(self._registry.refused)

    async def _models(self, exchange: Exchange) -> None:
        models(exchange, self._settings)

    async def _prefill(self, exchange: Exchange) -> None:
        await serve(exchange, self._prefilling, self._tracer)
