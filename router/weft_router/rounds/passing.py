"""Pass an engine's answer on to the client: first token, gaps between tokens, and a clear end whatever happens."""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

from weft_router.api.events import without_error
from weft_router.api.reply import read_whole
from weft_router.engines.adapter import Tap
from weft_router.errors import LegFailedError, StreamBrokenError
from weft_router.rounds.accounts import Accounts, used
from weft_router.rounds.batch import Member
from weft_router.rounds.outlet import Outlet
from weft_router.rounds.prefill_queue import Slot
from weft_router.rounds.round import Prefilled, Round
from weft_router.rounds.worker import Worker
from weft_router.signals.rounds import TokenClock
from weft_router.wire.leg import Whole
from weft_router.wire.lines import checked

_REMEMBERED: Final = 1024
_lines: Final[dict[tuple[str, str, str, str], str]] = {}


class Passing:
    """One answer on its way; takes what the engine sends from the connection's own callback."""

    __slots__ = (
        "_accounts", "_began", "_body", "_clock", "_member", "_on_first", "_outlet", "_prefilled",
        "_public_id", "_recorded", "_rnd", "_slot", "_tap", "_timer", "_worker", "headers", "status",
    )  # fmt: skip

    def __init__(
        self, outlet: Outlet, rnd: Round, prefilled: Prefilled | None, slot: Slot | None, body: Whole,
        tap: Tap | None, *, accounts: Accounts, worker: Worker, public_id: str | None, on_first: Callable[[], None],
    ) -> None:  # fmt: skip
        """Pass a stream on through ``tap``; without one the answer is expected in one piece, in ``body``.

        While the worker drains, an error event says that its engine ends, and nothing about the request. ``on_first``
        is called with the first token of a stream.
        """
        self._outlet = outlet
        self._rnd = rnd
        self._prefilled = prefilled
        self._slot = slot
        self._body: Whole | None = body
        self._tap = tap
        self._accounts = accounts
        self._member: Member | None = None
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
            task = self._rnd.outlook.task
            self._member = self._worker.batch.enter(self._rnd.pace, task.history + task.increment)

    def head(self, status: int, headers: dict[str, str]) -> None:
        """Take the head: a stream is passed on as it comes, anything else when it is whole."""
        self.status = status
        self.headers = headers
        self._accounts.answered(self._rnd, self._began)
        if status == 200:
            if self._tap is None:  # it is whole at once; a stream's head may come before the engine has read anything
                self._taken()
            elif headers.get("content-type", "").startswith("text/event-stream"):
                self._body = None

    def data(self, chunk: bytes) -> None:
        """Take a piece of the answer."""
        if self._body is not None:
            self._body.data(chunk)
            return
        tap = self._tap
        if tap is None:
            return
        before = tap.tokens
        data = tap.feed(chunk)
        fresh = tap.tokens - before
        if fresh:
            if self._clock is not None:
                self._clock.event(monotonic(), fresh)
            elif not before:
                self._clock = self._accounts.first_token(self._rnd, monotonic(), fresh)
            if not before:  # the first token may have been shown already; the engine has begun only now
                self._taken()
                self.decode()
                self._on_first()
        outlet = self._outlet
        if tap.error and outlet.begun and self._worker.draining:
            tap.reply.error = False
            outlet.write(without_error(data))
            raise LegFailedError("engine-ended", "an error event of an engine whose worker leaves")
        if data and not outlet.begun:
            if tap.error:
                raise LegFailedError("engine-error", "an error event before the first token")
            outlet.begin(self._shown())
        if not tap.done or self._recorded or tap.error:
            outlet.write(data)
            return
        self._recorded = True
        outlet.used = used(self._rnd, tap.reply, tap.tokens)
        if tap.complete and outlet.begun:
            outlet.end(data)
        else:
            outlet.write(data)
        self._accounts.finish(self._rnd, self._prefilled, tap.reply, tokens=tap.tokens, clock=self._clock)

    def show(self, events: bytes) -> None:
        """Send the first token, which the prefill engine gave, before the decode engine has begun."""
        self._clock = self._accounts.first_token(self._rnd, monotonic(), 1)
        self._outlet.begin(self._shown())
        self._outlet.write(events)

    def show_early(self, events: bytes) -> None:
        """Send the first token from a prefill leg beside this one, unless this leg was faster."""
        if not self._outlet.begun and self.status in (0, 200):
            self._rnd.ask.shown = True
            self.show(events)

    def finish(self) -> None:
        """End the answer, which has come whole.

        Raises:
            LegFailedError: it cannot be used, and nothing was sent.
            StreamBrokenError: a stream ended before its end, and the client has some of it.
        """
        if self._body is not None:
            self._finish_whole(self._body.body)
            return
        tap = self._tap
        if tap is None or not (tap.complete or tap.error):
            raise self.broken("cut-short")
        if not self._outlet.begun:
            raise LegFailedError("engine-error", "an empty stream")
        if not self._recorded or not self._outlet.exchange.ended:
            self._outlet.end()

    def broken(self, reason: str) -> Exception:
        """Return what to raise when the leg ended early: what the client has of it decides."""
        if not self._outlet.begun:
            return LegFailedError(reason)
        return StreamBrokenError(reason, self._tap.reply if self._tap is not None else None)

    def refusal(self) -> bytes | None:
        """Return the body of an answer that is no success, None otherwise."""
        return self._body.body if self.status != 200 and self._body is not None else None

    def close(self) -> None:
        """Give back what the answer held; count what came of one that broke off, beside what came before it."""
        tap = self._tap
        if tap is not None and tap.tokens and not self._recorded:
            prompt, before = self._outlet.used
            self._outlet.used = prompt or used(self._rnd, tap.reply, 0)[0], before + tap.tokens
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
            raise LegFailedError("engine-error", "the reply is not JSON") from error
        self._outlet.used = used(self._rnd, reply, 0)
        self._accounts.finish(self._rnd, self._prefilled, reply, tokens=0, clock=None)
        self._outlet.whole(200, data, self._shown())

    def _taken(self) -> None:
        """Note that the engine has the KV that was prefilled elsewhere."""
        self._rnd.taken = True
        if self._prefilled is not None:
            self._prefilled.handed.let_go()

    def _shown(self) -> str:
        return shown(self._rnd, self._worker.name)


def shown(rnd: Round, worker: str) -> str:
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
