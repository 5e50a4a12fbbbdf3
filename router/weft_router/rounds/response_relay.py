"""Relay an engine's response to the client; record the first token and the gaps, and end the response in any case."""

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

KEEP_ALIVE: Final = b": keep-alive\n\n"
_REMEMBERED: Final = 1024
_lines: Final[dict[tuple[str, str, str, str], str]] = {}


class ResponseRelay:
    """Relays one response; its methods are called from the callbacks of the engine's connection."""

    __slots__ = (
        "_accounting",
        "_alive",
        "_began",
        "_body",
        "_clock",
        "_ends_prefill",
        "_member",
        "_on_first",
        "_prefilled",
        "_public_id",
        "_recorded",
        "_rnd",
        "_silence_s",
        "_slot",
        "_spoke",
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
        public_id: str | None, silence_s: float, on_first: Callable[[], None],
    ) -> None:  # fmt: skip
        """Relay a stream through ``sse_filter``; without one the response is expected whole, in ``body``.

        While the worker drains, an error event means that the engine shuts down, and nothing about the request.
        ``on_first`` is called at the first token of a stream. A stream in which nothing was sent for ``silence_s`` gets
        a comment; 0: never.
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
        self._silence_s = silence_s
        self._alive: asyncio.TimerHandle | None = None
        self._spoke = True
        """Whether anything was sent since the last look."""
        self._clock: TokenClock | None = None
        self._recorded = False
        self._began = self._ends_prefill = monotonic()
        self.status = 0
        self.headers: dict[str, str] = {}

    def expect_first(self, seconds: float) -> None:
        """Assume that the prefill ends after ``seconds``: a whole response does not show its first token."""
        self._ends_prefill = self._began + seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, self.decode)

    def decode(self) -> None:
        """Count the round as decoding from now on."""
        if self._slot is not None:
            self._slot.release()
        if self._member is None:  # the first token may arrive after the assumed end of the prefill
            task = self._rnd.prefix_match.task
            prompt, inference = task.history + task.increment, self._rnd.inference
            most = None if inference.max_tokens is None else inference.max_tokens * inference.n
            self._member = self._worker.batch.enter(self._rnd.latency, prompt, most)

    def head(self, status: int, headers: dict[str, str]) -> None:
        """Receive the head: a stream is relayed as it arrives, anything else when it is complete."""
        self.status = status
        self.headers = headers
        self._accounting.answered(self._rnd, self._began)
        if status == 200:
            # A whole response has read its KV; a stream's head may arrive before the engine has read anything.
            if self._sse_filter is None:
                self._taken()
            elif headers.get("content-type", "").startswith("text/event-stream"):
                self._body = None

    def data(self, chunk: bytes) -> None:
        """Receive a part of the body."""
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
                now = monotonic()
                self._clock = self._accounting.first_token(self._rnd, now, fresh)
                if self._slot is not None and not self._rnd.prefix_match.below:  # a load says nothing of prefills
                    self._slot.observe(now)
            if not before:  # the prefill's token may have been sent already; this is the engine's own first one
                self._taken()
                self.decode()
                self._on_first()
        writer = self._writer
        if sse_filter.error and writer.headers_sent and self._worker.draining:
            sse_filter.reply.error = False
            writer.write(without_error(data))
            raise UpstreamFailedError("engine-ended", "an error event of an engine whose worker leaves")
        if data and not writer.headers_sent:
            if sse_filter.error:
                raise UpstreamFailedError("engine-error", "an error event before the first token")
            writer.begin(self._shown())
        if data:
            self._spoke = True
            if self._alive is None:
                self._keep_alive()
        if not sse_filter.done or self._recorded or sse_filter.error:
            writer.write(data)
            return
        self._recorded = True
        writer.used = used_tokens(self._rnd, sse_filter.reply, sse_filter.tokens)
        if sse_filter.complete and writer.headers_sent:
            writer.end(data)
        else:
            writer.write(data)
        self._accounting.finish(
            self._rnd, self._prefilled, sse_filter.reply, tokens=sse_filter.tokens, clock=self._clock
        )

    def show(self, events: bytes) -> None:
        """Send the first token, made by the prefill engine, before the decode engine responds."""
        self._clock = self._accounting.first_token(self._rnd, monotonic(), 1)
        self._writer.begin(self._shown())
        self._writer.write(events)
        self._keep_alive()

    def show_early(self, events: bytes) -> None:
        """Send the first token of the concurrent prefill leg, unless this leg was faster."""
        if not self._writer.headers_sent and self.status in (0, 200):
            self._rnd.engine_request.shown = True
            self.show(events)

    def finish(self) -> None:
        """End the response after the engine's response ended.

        Raises:
            UpstreamFailedError: the engine's response is invalid, and nothing was sent.
            StreamBrokenError: the engine's stream is incomplete, and a part of it was sent.
        """
        if self._body is not None:
            self._finish_whole(self._body.body)
            return
        sse_filter = self._sse_filter
        if sse_filter is None or not (sse_filter.complete or sse_filter.error):
            raise self.broken("cut-short")
        if not self._writer.headers_sent:
            raise UpstreamFailedError("engine-error", "an empty stream")
        if not self._recorded or not self._writer.exchange.ended:
            self._writer.end()

    def broken(self, reason: str) -> Exception:
        """Return the exception for a leg that ended early, by whether a part was sent to the client."""
        if not self._writer.headers_sent:
            return UpstreamFailedError(reason)
        return StreamBrokenError(reason, self._sse_filter.reply if self._sse_filter is not None else None)

    def refusal(self) -> bytes | None:
        """Return the body of a response with another status than 200, None otherwise."""
        return self._body.body if self.status != 200 and self._body is not None else None

    def close(self) -> None:
        """Release the queue slot and batch place; count the tokens of an incomplete stream."""
        sse_filter = self._sse_filter
        if sse_filter is not None and sse_filter.tokens and not self._recorded:
            prompt, before = self._writer.used
            self._writer.used = prompt or used_tokens(self._rnd, sse_filter.reply, 0)[0], before + sse_filter.tokens
        if self._timer is not None:
            self._timer.cancel()
        if self._alive is not None:
            self._alive.cancel()
        if self._slot is not None:
            self._slot.release()
        if self._clock is not None:
            self._clock.settle()
        self._worker.batch.leave(self._member)

    def _keep_alive(self) -> None:
        """Send a comment if nothing was sent since the last look, twice in each silence that clients are to bear."""
        if not self._silence_s or self._recorded or self._writer.exchange.ended:
            return
        if not self._spoke:
            self._writer.write(KEEP_ALIVE)
        self._spoke = False
        self._alive = asyncio.get_running_loop().call_later(self._silence_s / 2, self._keep_alive)

    def _finish_whole(self, raw: bytes) -> None:
        inference = self._rnd.inference
        try:
            reply, data = read_whole(inference.kind, raw, keep_ids=inference.wants_ids, public_id=self._public_id)
        except ValueError as error:
            raise UpstreamFailedError("engine-error", "the reply is not JSON") from error
        self._writer.used = used_tokens(self._rnd, reply, 0)
        decision = self._rnd.decision
        # Of a prefill in slices only the rest was predicted, and the engine counts the slices as cached.
        predicted = self._prefilled is None and (decision is None or not decision.chunked)
        self._clock = self._accounting.whole_answer(
            self._rnd, reply, first_at=self._first_at(), sent=self._began, predicted=predicted
        )
        self._accounting.finish(self._rnd, self._prefilled, reply, tokens=0, clock=self._clock)
        self._writer.whole(200, data, self._shown())

    def _first_at(self) -> float:
        """Return when a whole response's first token was made: at the end of its prefill leg, else as predicted."""
        beside = self._rnd.prefilled_at
        return beside if self._prefilled is not None and beside is not None else self._ends_prefill

    def _taken(self) -> None:
        """Record that the engine has read the prefilled KV."""
        self._rnd.taken = True
        if self._prefilled is not None:
            self._prefilled.result.let_go()

    def _shown(self) -> str:
        return route_header_lines(self._rnd, self._worker.name)


def route_header_lines(rnd: Round, worker: str) -> str:
    """Return the header lines with the route of a round, its reason and workers; cached, because few differ."""
    key = (rnd.route, rnd.reason, worker, rnd.prefill_worker)
    lines = _lines.get(key)
    if lines is None:
        prefill = f"X-Weft-Prefill-Worker: {checked(rnd.prefill_worker)}\r\n" if rnd.prefill_worker else ""
        lines = (
            f"X-Weft-Route: {rnd.route}\r\nX-Weft-Reason: {checked(rnd.reason)}\r\n"
            f"X-Weft-Worker: {checked(worker)}\r\n{prefill}"
        )
        if len(_lines) >= _REMEMBERED:
            _lines.clear()
        _lines[key] = lines
    return lines
