"""Serve the blocks pinned here to other engines: the holder's end of the side channel."""

import asyncio
from collections.abc import Mapping
from time import monotonic

import orjson
from aiohttp import web

from weft_core.parallelism import degree_to_json
from weft_core.profile_json import profile_to_json
from weft_mock.engine import Engine, compatibility
from weft_mock.meetings import WRONG, MeetingError
from weft_mock.pins import ReadRefusedError
from weft_mock.transfer import offer_json


def side_channel_app(engine: Engine) -> web.Application:
    """Return the application other engines talk to; it is as open as NIXL's side channel."""
    app = web.Application(client_max_size=16 * 2**20)
    holder = _Holder(engine)
    app.router.add_get("/kv/handshake", holder.handshake)
    app.router.add_post("/kv/read", holder.read)
    app.router.add_post("/kv/done", holder.done)
    app.router.add_post("/kv/heartbeat", holder.heartbeat)
    add_meetings(app, engine)
    return app


def add_meetings(app: web.Application, engine: Engine) -> None:
    """Let readers join meetings on this port."""
    holder = _Holder(engine)
    app.router.add_post("/kv/join", holder.join)
    app.router.add_post("/kv/leave", holder.leave)


class _Holder:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._compatibility = compatibility(engine.config)

    async def handshake(self, _request: web.Request) -> web.Response:
        config = self._engine.config
        return _json(
            {
                "engine_id": config.engine_id,
                "degree": degree_to_json(config.degree),
                "profile": profile_to_json(config.profile),
                "node": config.node,
                "compatibility": self._compatibility,
                "clock": monotonic(),
            }
        )

    async def read(self, request: web.Request) -> web.Response:
        engine = self._engine
        ask = await _body(request)
        if ask is None:
            return _refusal("malformed", "the body is no JSON object", status=400)
        block_ids, skip, tokens = ask.get("block_ids"), ask.get("skip_blocks"), ask.get("tokens")
        if not isinstance(block_ids, list) or not isinstance(skip, int) or not isinstance(tokens, int):
            return _refusal("malformed", "block_ids, skip_blocks and tokens are needed", status=400)
        try:
            if engine.faults.fail_transfers:
                raise ReadRefusedError("fault", "transfers fail because a fault says so")
            if ask.get("engine_id") != engine.config.engine_id:
                raise ReadRefusedError("wrong_engine", f"this is engine {engine.config.engine_id}")
            now = monotonic()
            pin = engine.pins.read(str(ask.get("request_id")), block_ids=block_ids, now=now)
        except ReadRefusedError as error:
            engine.ledger.refused_handles[error.reason] += 1
            engine.wake()
            return _refusal(error.reason, str(error), status=409)
        size = engine.config.block_size
        tokens = max(0, min(tokens, len(pin.ids)))
        full = tokens // size
        back = pin.holder == "decode" or engine.config.role == "decode"
        moved = max(0, tokens - skip * size) * engine.config.profile.kv_bytes_per_token
        engine.ledger.kv_bytes["decode_to_prefill" if back else "prefill_to_decode", "sent"] += moved
        return _json({"states": pin.states()[max(0, skip) : full], "tail_ids": list(pin.ids[full * size : tokens])})

    async def done(self, request: web.Request) -> web.Response:
        engine = self._engine
        ask = await _body(request)
        pin = None
        if ask is not None and ask.get("engine_id") == engine.config.engine_id:
            pin = engine.pins.release(str(ask.get("request_id")))
        if pin is None:
            engine.ledger.handles["released_too_late"] += 1
            return _refusal("unknown_request", "nothing is pinned for this request", status=404)
        engine.ledger.handles["read" if pin.reading else "released_unread"] += 1
        engine.wake()
        return _json({"freed": len(pin.blocks)})

    async def heartbeat(self, request: web.Request) -> web.Response:
        engine = self._engine
        ask = await _body(request)
        now = monotonic()
        if ask is None or not engine.pins.renew(str(ask.get("request_id")), now=now):
            return _refusal("unknown_request", "nothing is pinned for this request", status=404)
        return _json({})

    async def join(self, request: web.Request) -> web.Response:
        """Answer the reader once there is something to read; it goes away by closing the connection."""
        engine = self._engine
        ask = await _body(request)
        key, patience, port = ((ask or {}).get(name) for name in ("key", "patience", "reader_port"))
        if not isinstance(key, str) or not isinstance(patience, int | float) or not isinstance(port, int):
            return _refusal("malformed", "key, patience and reader_port are needed", status=400)
        try:
            meeting = engine.meetings.join(key, reader_port=port, waits=patience > 0)
        except MeetingError as error:
            if error.reason in WRONG:
                engine.ledger.violations[error.reason] += 1
            return _refusal(error.reason, str(error), status=409)
        engine.meetings.check(meeting)
        try:
            async with asyncio.timeout(max(patience, 1.0)):
                return _json(offer_json(await meeting.offer_or_end()))
        except MeetingError as error:
            return _refusal(error.reason, str(error), status=409)
        except TimeoutError:
            engine.meetings.end(meeting, "timeout")
            return _refusal("timeout", f"nothing was offered within {patience:g} s", status=409)
        except asyncio.CancelledError:
            engine.meetings.end(meeting, "reader_gone")
            raise

    async def leave(self, request: web.Request) -> web.Response:
        """End the meeting of a reader that went away just when the offer was sent to it."""
        engine = self._engine
        ask = await _body(request)
        meeting = engine.meetings.find(str((ask or {}).get("key")))
        if meeting is not None:
            engine.meetings.abandon(meeting, "reader_gone")
        return _json({})


async def _body(request: web.Request) -> Mapping[str, object] | None:
    try:
        body = orjson.loads(await request.read())
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _json(body: Mapping[str, object]) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json")


def _refusal(reason: str, message: str, *, status: int) -> web.Response:
    body = orjson.dumps({"reason": reason, "message": message})
    return web.Response(status=status, body=body, content_type="application/json")
