"""Pass an engine's answer on to the client: first token, gaps between tokens, and a clear end whatever happens."""

import asyncio
import logging
from time import monotonic
from typing import Protocol

import aiohttp
from aiohttp import web

from weft_router.api.answers import say_last
from weft_router.api.reply import Reply, StreamTap, read_whole
from weft_router.config import RouterConfig, Settings
from weft_router.errors import LegFailedError, StreamBrokenError
from weft_router.rounds.prefill_queue import Slot
from weft_router.rounds.round import Prefilled, Round
from weft_router.signals.metrics import Metrics
from weft_router.signals.pace import Pace
from weft_router.wire.sse import EventTooLargeError
from weft_router.wire.upstream import Deadline, read_bounded

log = logging.getLogger(__name__)


class Answers(Protocol):
    """What an answer on its way reports to."""

    settings: Settings
    config: RouterConfig
    metrics: Metrics
    decoding: dict[int, Pace]

    def gap(self, rnd: Round, seconds: float, tokens: int) -> None:
        """Tokens came after a pause."""

    def first_token(self, rnd: Round, now: float) -> None:
        """The first token came."""

    def finish(self, rnd: Round, prefilled: Prefilled | None, reply: Reply, *, tokens: int) -> None:
        """The answer is whole."""


class Passing:
    """One answer on its way to the client."""

    def __init__(
        self, owner: Answers, request: web.Request, rnd: Round, prefilled: Prefilled | None,
        slot: Slot | None, deadline: Deadline,
    ) -> None:  # fmt: skip
        self._owner = owner
        self._request = request
        self._rnd = rnd
        self._prefilled = prefilled
        self._slot = slot
        self._deadline = deadline
        self._out: web.StreamResponse | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def begun(self) -> bool:
        """Tell whether the client got anything yet."""
        return self._out is not None

    def expect_first(self, seconds: float) -> None:
        """Take the prefill for done after ``seconds``: an answer in one piece does not show its first token."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self._decode)

    async def stream(self, response: aiohttp.ClientResponse) -> web.StreamResponse:
        """Pass a stream of events on."""
        inference = self._rnd.inference
        tap = StreamTap(inference.kind, keep_usage=inference.wants_usage, keep_ids=inference.wants_ids)
        last = 0.0
        recorded = False
        while True:
            try:
                chunk = await response.content.readany()
            except (aiohttp.ClientError, OSError) as error:
                raise self._failure("disconnected") from error
            if not chunk:
                break
            now = monotonic()
            before = tap.tokens
            try:
                data = tap.feed(chunk)
            except EventTooLargeError as error:
                raise self._failure("event-too-large") from error
            fresh = tap.tokens - before
            if fresh:
                if before:
                    self._owner.gap(self._rnd, now - last, fresh)
                else:
                    self._first(now)
                    if fresh > 1:
                        self._owner.gap(self._rnd, 0.0, fresh - 1)
                last = now
            if tap.reply.error and self._out is None:
                raise LegFailedError("engine-error", "an error event before the first token")
            if tap.done and not recorded and not tap.reply.error:
                recorded = True
                self._owner.finish(self._rnd, self._prefilled, tap.reply, tokens=tap.tokens)
            self._deadline.extend(self._owner.config.timeouts.idle)
            if data:
                await self._write(data)
        if not tap.complete and not tap.reply.error:
            raise self._failure("cut-short")
        if self._out is None:
            raise LegFailedError("engine-error", "an empty stream")
        await self._out.write_eof()
        return self._out

    async def whole(self, response: aiohttp.ClientResponse) -> web.StreamResponse:
        """Pass an answer on that comes in one piece."""
        inference = self._rnd.inference
        limit = self._owner.config.limits.max_reply_bytes
        raw = await read_bounded(response, limit)
        try:
            reply, data = read_whole(inference.kind, raw, keep_ids=inference.wants_ids)
        except ValueError as error:
            raise LegFailedError("engine-error", "the reply is not JSON") from error
        self._owner.finish(self._rnd, self._prefilled, reply, tokens=0)
        return web.Response(body=data, content_type="application/json", headers=self._headers())

    async def broken(self, reason: str) -> web.StreamResponse:
        """End a stream that lost its engine with an error event; before its first byte the leg simply failed."""
        if self._out is None:
            raise LegFailedError(reason)
        self._owner.metrics.broken_streams.labels(reason).inc()
        log.warning("stream_broken", extra={"request_id": self._rnd.id, "reason": reason})
        await say_last(self._request, self._out, reason)
        return self._out

    def close(self) -> None:
        """Give back what the answer held."""
        if self._timer is not None:
            self._timer.cancel()
        if self._slot is not None:
            self._slot.release()
        self._owner.decoding.pop(id(self), None)

    def _first(self, now: float) -> None:
        self._owner.first_token(self._rnd, now)
        self._decode()

    def _decode(self) -> None:
        if self._slot is not None:
            self._slot.release()
        self._owner.decoding[id(self)] = self._rnd.pace

    def _failure(self, reason: str) -> Exception:
        return LegFailedError(reason) if self._out is None else StreamBrokenError(reason)

    async def _write(self, data: bytes) -> None:
        if self._out is None:
            headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **self._headers()}
            out = web.StreamResponse(headers=headers)
            out.content_type = "text/event-stream"
            out.charset = "utf-8"
            await out.prepare(self._request)
            self._out = out
        await self._out.write(data)

    def _headers(self) -> dict[str, str]:
        rnd = self._rnd
        headers = {
            "X-Weft-Route": rnd.route,
            "X-Weft-Reason": rnd.reason,
            "X-Weft-Worker": self._owner.settings.worker,
        }
        return {**headers, "X-Weft-Prefill-Worker": rnd.prefill_worker} if rnd.prefill_worker else headers
