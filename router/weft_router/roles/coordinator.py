"""The coordinator: a front whose decode workers are pods elsewhere."""

from collections.abc import Mapping
from typing import cast

from weft_core.heartbeat import WorkerRecord
from weft_router.config import RouterConfig, Settings
from weft_router.context import Context
from weft_router.engines.chosen import adapter_of
from weft_router.errors import SHUTTING_DOWN, WORKER_LOST
from weft_router.guard.caller import Caller
from weft_router.roles.duty import Routes
from weft_router.roles.front import Front
from weft_router.roles.link_hop import linked_pool
from weft_router.roles.relay import Relay
from weft_router.rounds.moving import NOTHING_LEFT, Left
from weft_router.state.probing import probe
from weft_router.state.registry import Registry
from weft_router.state.store import Store
from weft_router.wire.head import Notes, Peer


class Coordinator:
    """The duty of role ``coordinator``."""

    def __init__(self, settings: Settings, store: Store, context: Context) -> None:
        config = settings.config
        self._pool = linked_pool(settings)
        self._metrics = context.metrics
        self._registry = Registry(store, lambda url: probe(self._pool, url), on_gone=self._gone)
        adapter = adapter_of(config)
        relay = Relay(config, adapter=adapter, pool=self._pool, metrics=context.metrics)
        self._front = Front(
            settings, adapter=adapter, store=store, registry=self._registry, workers=relay, context=context
        )
        self._store_met = False
        self._holds = config.hold is not None

    def routes(self) -> Routes:
        """Return the public endpoints."""
        return self._front.routes()

    def admits(self, headers: dict[str, str], notes: Notes | None, _: Peer, /) -> object:
        """Let known callers in."""
        return self._front.admits(headers, notes)

    def before_body(self, caller: object, /) -> None:
        """Refuse callers that may send nothing now."""
        self._front.before_body(cast(Caller, caller))

    def ready(self) -> str | None:
        """Return None when a request can be served: the store was reached once and a decode worker is ready.

        Where requests are held until one is, none needs to be there: a request must get here to bring one back.
        """
        self._store_met = self._store_met or self._registry.store_up
        if not self._store_met:
            return "Redis was not reached yet"
        return None if self._holds or self._registry.ready("decode") else "no decode worker is ready"

    async def start(self) -> None:
        """Watch the workers."""
        await self._registry.start()
        self._front.start()

    async def stop(self) -> None:
        """End background work and close connections."""
        await self._front.stop()
        await self._registry.stop()
        await self._pool.close()

    def reload(self, config: RouterConfig) -> None:
        """Go on by another configuration; requests under way keep theirs."""
        self._front.reload(config)

    def drain(self) -> None:
        """Nothing to announce: readiness takes this process out of its Service."""

    async def left(self) -> Left:
        """Return nothing: what clients have here are live requests."""
        return NOTHING_LEFT

    @property
    def moved(self) -> Mapping[str, int]:
        """Return nothing: sessions live on decode workers."""
        return {}

    def cut(self) -> None:
        """End what is still under way."""
        self._front.cut()
        self._pool.cut(SHUTTING_DOWN)

    def observe(self) -> None:
        """Bring gauges up to date."""
        self._front.observe()
        self._metrics.links.set(self._pool.links)

    def _gone(self, record: WorkerRecord) -> None:
        self._pool.cut(WORKER_LOST, record.url)
