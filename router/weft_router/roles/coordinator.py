"""The coordinator: a front whose decode workers are pods elsewhere."""

from functools import partial

from weft_router.config import Settings
from weft_router.context import Context
from weft_router.engines.adapter import Adapter
from weft_router.engines.catalogue import adapter_of
from weft_router.errors import WORKER_LOST
from weft_router.http.pool import ConnectionPool
from weft_router.roles.front import Front
from weft_router.roles.front_app import FrontApp
from weft_router.roles.link_hop import linked_pool
from weft_router.roles.relay import Relay
from weft_router.state.readiness_probe import probe
from weft_router.state.registry import Registry
from weft_router.state.store import Store
from weft_router.telemetry.metrics import Metrics


class Coordinator(FrontApp):
    """The application of role ``coordinator``."""

    def __init__(self, settings: Settings, store: Store, context: Context) -> None:
        config, metrics, pool = settings.config, context.metrics, linked_pool(settings)
        registry = Registry(store, partial(probe, pool), on_gone=lambda record: pool.terminate(WORKER_LOST, record.url))
        adapter = adapter_of(config)
        relay = self._relay(settings, adapter, pool, metrics)
        front = Front(settings, adapter=adapter, store=store, registry=registry, workers=relay, context=context)
        super().__init__(front, registry=registry, pool=pool, role=settings.role)
        self._metrics = metrics
        self._store_met = False
        self._holds = config.hold is not None

    def _relay(self, settings: Settings, adapter: Adapter, pool: ConnectionPool, metrics: Metrics) -> Relay:
        """Return the way to decode workers; called once, by the constructor."""
        return Relay(settings.config, adapter=adapter, pool=pool, metrics=metrics)

    def ready(self) -> str | None:
        """Return None once requests can be served: the store was reached, and a decode worker was ready.

        Workers that are lost later, while the store can be reached, are lost to all coordinators: unready, they would
        leave the Service without endpoints, and clients would get refused connections in place of a 503 that says why.
        One that lost the store as well may be alone with it. Where requests are held until a worker is ready, none
        needs to have been there: a request must get here to bring one back.
        """
        self._store_met = self._store_met or self._registry.store_up
        if not self._store_met:
            return "Redis was not reached yet"
        registry = self._registry
        if self._holds or registry.ready("decode") or (registry.store_up and "decode" in registry.seen_ready):
            return None
        return "no decode worker is ready"

    def observe(self) -> None:
        """Bring gauges up to date."""
        super().observe()
        self._metrics.links.set(self._pool.links)
