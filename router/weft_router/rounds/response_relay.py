"""Pass an engine's answer on to the client: first token, gaps between tokens, and a clear end whatever happens."""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

from weft_router.errors import StreamBrokenError, UpstreamFailedError
from weft_router.http.header_lines import checked
from weft_router.http.upstream_request import BufferedResponse
from weft_router.openai.event_filter import EventFilter, without_error
from weft_router.openai.reply import read_whole
from weft_router.rounds.accounting import Accounting, used_tokens
from weft_router.rounds.response_writer import ResponseWriter
from weft_router.sessions.round import PrefilledKv, Round
from weft_router.telemetry.round_meter import TokenClock
from weft_router.workers.batch import BatchMember
from weft_router.workers.prefill_queue import QueueSlot
from weft_router.workers.worker import Worker

_REMEMBERED: Final = 1024
_lines: Final[dict[tuple[str, str, str, str], str]] = {}


class ResponseRelay:
    """One answer on its way; takes what the engine sends from the connection's own callback."""

    __slots__ = (
        "_accounting",
        "_began",
        "_body",
        "_clock",
        "_member",
        "_on_first",
        "_prefilled",
        "_public_id",
        "_recorded",
        "_rnd",
        "_slot",
        "_sse_filter",
        "_timer",
        "_worker",
        "_writer",
        "headers",
        "status",
    )  # fmt: skip

    def __init__(
        self, writer: ResponseWriter, rnd: Round, prefilled: PrefilledKv | None, slot: QueueSlot | None,
        body: BufferedResponse, sse_filter: EventFilter | None, *, accounting: Accounting, worker: Worker,
        public_id: str | None, on_first: Callable[[], None],
    ) -> None:  # fmt: skip
        """Pass a stream on through ``sse_filter``; without one the answer is expected in one piece, in ``body``.

        While the worker drains, an error event says that its engine ends, and nothing about the request. ``on_first``
        is called with the first token of a stream.
        """
        self._writer = writer
        self._rnd = rnd
        self._prefilled = prefilled
        self._slot = slot
        self._body: BufferedResponse | None = body
        self._sse_filter = sse_filter
        self._accounting = accounting
        self._member: BatchMember | None = None
        self._worker = worker
        self._public_id = public_id
        self._on_first = on_first
        self._timer: asyncio.TimerHandle | None = None
        self._clock: TokenClock | None = None
        self._recorded = False
        self._began = monotonic()
        self.status = 0
        self.headers: dict[str, str] = {}

    def expect_first(self, seconds: float) -> None:
        """Take the prefill for done after ``seconds``: an answer in one piece does not show its first token."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self.decode)

    def decode(self) -> None:
        """Count the round as decoding from now on."""
        if self._slot is not None:
            self._slot.release()
        if self._member is None:  # a first token may come after its prefill was taken for done
            task = self._rnd.prefix_match.task
            self._member = self._worker.batch.enter(self._rnd.latency, task.history + task.increment)

    def head(self, status: int, headers: dict[str, str]) -> None:
        """Take the head: a stream is passed on as it comes, anything else when it is whole."""
        self.status = status
        self.headers = headers
        self._accounting.answered(self._rnd, self._began)
        if status == 200:
            if (
                self._sse_filter is None
            ):  # it is whole at once; a stream's head may come before the engine has read anything
                self._taken()
            elif headers.get("content-type", "").startswith("text/event-stream"):
                self._body = None

    def data(self, chunk: bytes) -> None:
        """Take a piece of the answer."""
        if self._body is not None:
            self._body.data(chunk)
            return
        sse_filter = self._sse_filter
        if sse_filter is None:
            return
        before = sse_filter.tokens
        data = sse_filter.feed(chunk)
        fresh = sse_filter.tokens - before
        if fresh:
            if self._clock is not None:
                self._clock.event(monotonic(), fresh)
            elif not before:
                self._clock = self._accounting.first_token(self._rnd, monotonic(), fresh)
            if not before:  # the first token may have been shown already; the engine has begun only now
                self._taken()
                self.decode()
                self._on_first()
        writer = self._writer
        if sse_filter.error and writer.begun and self._worker.draining:
            sse_filter.reply.error = False
            writer.write(without_error(data))
            raise UpstreamFailedError("engine-ended", "an error event of an engine whose worker leaves")
        if data and not writer.begun:
            if sse_filter.error:
                raise UpstreamFailedError("engine-error", "an error event before the first token")
            writer.begin(self._shown())
        if not sse_filter.done or self._recorded or sse_filter.error:
            writer.write(data)
            return
        self._recorded = True
        writer.used = used_tokens(self._rnd, sse_filter.reply, sse_filter.tokens)
        if sse_filter.complete and writer.begun:
            writer.end(data)
        else:
            writer.write(data)
        self._accounting.finish(
            self._rnd, self._prefilled, sse_filter.reply, tokens=sse_filter.tokens, clock=self._clock
        )

    def show(self, events: bytes) -> None:
        """Send the first token, which the prefill engine gave, before the decode engine has begun."""
        self._clock = self._accounting.first_token(self._rnd, monotonic(), 1)
        self._writer.begin(self._shown())
        self._writer.write(events)

    def show_early(self, events: bytes) -> None:
        """Send the first token from a prefill leg beside this one, unless this leg was faster."""
        if not self._writer.begun and self.status in (0, 200):
            self._rnd.engine_request.shown = True
            self.show(events)

    def finish(self) -> None:
        """End the answer, which has come whole.

        Raises:
            UpstreamFailedError: it cannot be used, and nothing was sent.
            StreamBrokenError: a stream ended before its end, and the client has some of it.
        """
        if self._body is not None:
            self._finish_whole(self._body.body)
            return
        sse_filter = self._sse_filter
        if sse_filter is None or not (sse_filter.complete or sse_filter.error):
            raise self.broken("cut-short")
        if not self._writer.begun:
            raise UpstreamFailedError("engine-error", "an empty stream")
        if not self._recorded or not self._writer.exchange.ended:
            self._writer.end()

    def broken(self, reason: str) -> Exception:
        """Return what to raise when the leg ended early: what the client has of it decides."""
        if not self._writer.begun:
            return UpstreamFailedError(reason)
        return StreamBrokenError(reason, self._sse_filter.reply if self._sse_filter is not None else None)

    def refusal(self) -> bytes | None:
        """Return the body of an answer that is no success, None otherwise."""
        return self._body.body if self.status != 200 and self._body is not None else None

    def close(self) -> None:
        """Give back what the answer held; count what came of one that broke off, beside what came before it."""
        sse_filter = self._sse_filter
        if sse_filter is not None and sse_filter.tokens and not self._recorded:
            prompt, before = self._writer.used
            self._writer.used = prompt or used_tokens(self._rnd, sse_filter.reply, 0)[0], before + sse_filter.tokens
        if self._timer is not None:
            self._timer.cancel()
        if self._slot is not None:
            self._slot.release()
        if self._clock is not None:
            self._clock.settle()
        self._worker.batch.leave(self._member)

    def _finish_whole(self, raw: bytes) -> None:
        inference = self._rnd.inference
        try:
            reply, data = read_whole(inference.kind, raw, keep_ids=inference.wants_ids, public_id=self._public_id)
        except ValueError as error:
            raise UpstreamFailedError("engine-error", "the reply is not JSON") from error
        self._writer.used = used_tokens(self._rnd, reply, 0)
        self._accounting.finish(self._rnd, self._prefilled, reply, tokens=0, clock=None)
        self._writer.whole(200, data, self._shown())

    def _taken(self) -> None:
        """Note that the engine has the KV that was prefilled elsewhere."""
        self._rnd.taken = True
        if self._prefilled is not None:
            self._prefilled.result.let_go()

    def _shown(self) -> str:
        return route_header_lines(self._rnd, self._worker.name)


def route_header_lines(rnd: Round, worker: str) -> str:
    """Return the header lines that tell a client who served a round, and why: a few that come again and again."""
    told = (rnd.route, rnd.reason, worker, rnd.prefill_worker)
    lines = _lines.get(told)
    if lines is None:
        prefill = f"X-Weft-Prefill-Worker: {checked(rnd.prefill_worker)}\r\n" if rnd.prefill_worker else ""
        lines = (
            f"X-Weft-Route: {rnd.route}\r\nX-Weft-Reason: {checked(rnd.reason)}\r\n"
            f"X-Weft-Worker: {checked(worker)}\r\n{prefill}"
        )
        if len(_lines) >= _REMEMBERED:
            _lines.clear()
        _lines[told] = lines
    return lines
