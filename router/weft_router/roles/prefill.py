"""The sidecar of a prefill worker: owns the queue in front of the engine."""

from weft_router.config import Settings
from weft_router.context import Context
from weft_router.http.exchange import Exchange
from weft_router.roles.app import Routes
from weft_router.roles.prefill_hop import PREFILL_PATH, serve_prefill
from weft_router.roles.sidecar import Sidecar
from weft_router.rounds.prefill_service import PrefillService
from weft_router.sessions.session_export import DrainBacklog
from weft_router.state.store import Store


class PrefillSidecar(Sidecar):
    """The application of role ``prefill``."""

    def __init__(self, settings: Settings, store: Store, context: Context) -> None:
        super().__init__(settings, store, context)
        self._prefilling = PrefillService(self._worker, context.metrics)

    def routes(self) -> Routes:
        """Return the endpoints of a prefill worker."""
        return {**super().routes(), PREFILL_PATH: {"POST": self._prefill}}

    def drain(self) -> None:
        """Take nothing new, and send away what waits: another worker serves it sooner."""
        super().drain()
        self._worker.queue.reject_waiting()

    async def drain_backlog(self) -> DrainBacklog:
        """Return whether KV that was prefilled here is still to be read."""
        return DrainBacklog(kv=await self._worker.keeps_kv(self._prefilling.unread_until))

    async def _prefill(self, exchange: Exchange) -> None:
        await serve_prefill(exchange, self._prefilling, self._tracer)
