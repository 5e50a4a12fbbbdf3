"""The endpoint picker: a coordinator whose rounds are carried to the workers by a gateway's proxy."""

from weft_router.config import Settings
from weft_router.context import Context
from weft_router.engines.adapter import Adapter
from weft_router.http.pool import ConnectionPool
from weft_router.picker.proxy_request import ProxyRequests
from weft_router.picker.relay import ProxiedRelay
from weft_router.roles.coordinator import Coordinator
from weft_router.roles.relay import Relay
from weft_router.state.store import Store
from weft_router.telemetry.metrics import Metrics


class EndpointPicker(Coordinator):
    """The application of role ``epp``."""

    def __init__(self, settings: Settings, store: Store, context: Context) -> None:
        self.requests: ProxyRequests = {}
        """Requests whose round may be sent through the proxy."""
        super().__init__(settings, store, context)

    def _relay(self, settings: Settings, adapter: Adapter, pool: ConnectionPool, metrics: Metrics) -> Relay:
        return ProxiedRelay(settings, adapter=adapter, pool=pool, metrics=metrics, requests=self.requests)
