"""The engine's own pages, passed on by its sidecar: liveness for the kubelet, metrics for Prometheus."""

from weft_router.engines.watch import Engine
from weft_router.http.exchange import Exchange
from weft_router.roles.app import PAGE, PLAIN, Routes


class EnginePages:
    """Endpoints about one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def routes(self) -> Routes:
        """Return the endpoints."""
        return {"/engine/livez": {"GET": self._livez}, "/engine/metrics": {"GET": self._metrics}}

    async def _livez(self, exchange: Exchange) -> None:
        if await self._engine.alive():
            exchange.reply(200, b"ok\n", content_type=PLAIN)
        else:
            exchange.reply(503, b"the engine does not answer\n", content_type=PLAIN)

    async def _metrics(self, exchange: Exchange) -> None:
        page = await self._engine.metrics()
        if page is None:
            exchange.reply(503, b"the engine does not answer\n", content_type=PLAIN)
        else:
            exchange.reply(200, page, content_type=PAGE)
