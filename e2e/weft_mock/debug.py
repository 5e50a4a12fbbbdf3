"""Answer the mock engine's own endpoints under ``/mock``: ledger, faults and recorded requests, for loopback only."""

from aiohttp import web

from weft_mock.engine import Engine
from weft_mock.errors import ApiError
from weft_mock.faults import FaultError, faults_from_json
from weft_mock.http_bodies import json_reply, read_object

_LOOPBACK = frozenset({"127.0.0.1", "::1", None})


def add_debug(app: web.Application, engine: Engine) -> None:
    """Serve the endpoints for this engine."""
    debug = _Debug(engine)
    app.router.add_get("/mock/ledger", debug.ledger)
    app.router.add_get("/mock/faults", debug.read_faults)
    app.router.add_post("/mock/faults", debug.set_faults)
    app.router.add_get("/mock/requests", debug.requests)
    app.router.add_delete("/mock/requests", debug.forget_requests)


class _Debug:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def ledger(self, request: web.Request) -> web.Response:
        _loopback_only(request)
        engine = self._engine
        scheduler = engine.scheduler
        pool = scheduler.pool
        blocks = {
            "total": pool.total,
            "free": pool.free,
            "used": pool.used,
            "cached": pool.cached,
            "pinned": engine.pins.blocks,
            "block_size": pool.block_size,
        }
        queues = {
            "running": len(scheduler.running),
            "waiting": scheduler.queued,
            "reading": len(scheduler.fetching),
        }
        holds = {
            **queues,
            "meetings": len(engine.meetings),
            "pinned_blocks": engine.pins.blocks,
            "leaked_blocks": len(scheduler.leaked),
        }
        state = {
            "engine_id": engine.config.engine_id,
            "role": engine.config.role,
            "protocol": engine.config.protocol,
            "blocks": blocks,
            "pins": len(engine.pins),
            **queues,
            "holds": {**holds, "total": sum(holds.values())},
        }
        return json_reply({**state, **engine.ledger.to_json()})

    async def read_faults(self, request: web.Request) -> web.Response:
        _loopback_only(request)
        faults = self._engine.faults
        return json_reply({name: getattr(faults, name) for name in type(faults).__dataclass_fields__})

    async def set_faults(self, request: web.Request) -> web.Response:
        _loopback_only(request)
        try:
            self._engine.set_faults(faults_from_json(await read_object(request)))
        except FaultError as error:
            raise ApiError(400, str(error)) from error
        return await self.read_faults(request)

    async def requests(self, request: web.Request) -> web.Response:
        _loopback_only(request)
        return json_reply(self._engine.recording.to_json())

    async def forget_requests(self, request: web.Request) -> web.Response:
        _loopback_only(request)
        self._engine.recording.clear()
        return json_reply({})


def _loopback_only(request: web.Request) -> None:
    if request.remote not in _LOOPBACK:
        raise ApiError(403, "only reachable on loopback", kind="ForbiddenError")
