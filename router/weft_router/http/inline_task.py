"""Run a request's coroutine without a loop iteration per wake-up: it resumes inside the callback that wakes it.

asyncio.Task takes an iteration of the event loop to start and another for every future that wakes it. An inline task
runs at once and, when it awaits a Signal, goes on inside the callback that gives it; futures wake it as they wake any
task. For asyncio it is a task like others ("Extending asyncio" in Python's manual), so that time-outs work within.
"""

import asyncio
import logging
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Callable, Coroutine, Generator

log = logging.getLogger(__name__)

_running: "InlineTask | None" = None
"""The one that runs now; where several threads have loops, some thread's."""


class Signal:
    """An event that fires once, with or without an error.

    ``on_done`` is called, or one coroutine awaits it.
    """

    __slots__ = ("error", "on_done", "over")

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.over = False
        """Whether it happened; ``error`` is None when it was well."""
        self.on_done: Callable[[Exception | None], None] | None = None

    def cancel(self) -> None:
        """Drop the waiter, which was cancelled."""
        self.on_done = None

    def notify(self) -> None:
        """Tell whoever waits; what that leaves open is its own affair."""
        on_done, self.on_done = self.on_done, None
        if on_done is None:
            return
        try:
            on_done(self.error)
        except Exception:
            log.exception("end_failed")

    def __await__(self) -> Generator[object, None, None]:
        if not self.over:
            loop, task = asyncio.get_running_loop(), _running
            try:
                if task is not None and task.loop is loop:
                    yield self
                else:
                    future = loop.create_future()
                    self.on_done = lambda _: None if future.done() else future.set_result(None)
                    yield from future
            except asyncio.CancelledError:
                self.cancel()
                raise
        error, self.error = self.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # it knows this frame, which would know it


class InlineTask:
    """A running coroutine; ``ended`` is called with what it raised, None when it returned."""

    __slots__ = ("_cancels", "_doomed", "_ended", "_over", "_signal", "_waiter", "_work", "loop")

    def __init__(
        self, work: Coroutine[object, None, None], ended: Callable[[BaseException | None], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:  # fmt: skip
        self._work = work
        self._ended = ended
        self.loop = loop
        self._waiter: asyncio.Future[object] | None = None
        self._signal: Signal | None = None
        self._doomed = False
        """Whether the next step throws a cancel."""
        self._cancels = 0
        self._over = False

    def start(self) -> None:
        """Run up to the first wait; to be called from the loop, not from within another task."""
        self._step()

    def cancel(self, msg: object = None) -> bool:
        """End it by a CancelledError at its next step, as asyncio.Task does."""
        if self._over:
            return False
        self._cancels += 1
        if self._waiter is not None:
            if self._waiter.cancel(msg):
                return True
        elif self._signal is not None and not self._doomed:
            self.loop.call_soon(self._step)
        self._doomed = True
        return True

    def cancelling(self) -> int:
        """Return how many cancels were asked for and not taken back."""
        return self._cancels

    def uncancel(self) -> int:
        """Take a cancel back, as time-outs do with their own."""
        self._cancels = max(0, self._cancels - 1)
        return self._cancels

    def _step(self, error: BaseException | None = None) -> None:
        global _running
        self._waiter = self._signal = None
        if self._doomed:
            self._doomed = False
            error = asyncio.CancelledError()
        loop = self.loop
        _enter_task(loop, self)  # type: ignore[arg-type]  # what asyncio needs of a task it has
        _running = self
        try:
            waits = self._work.send(None) if error is None else self._work.throw(error)
        except StopIteration:
            self._over = True
            error = None
        except BaseException as raised:  # noqa: BLE001 - whoever started it hears of it
            self._over = True
            error = raised
        finally:
            _running = None
            _leave_task(loop, self)  # type: ignore[arg-type]
        if self._over:
            self._ended(error)
            if error is not None and not isinstance(error, Exception | asyncio.CancelledError):
                raise error  # as an interrupt from the keyboard
        elif isinstance(waits, Signal):
            self._signal = waits
            waits.on_done = self._told
            if self._doomed:
                loop.call_soon(self._step)
        else:
            self._wait(waits)

    def _told(self, error: Exception | None) -> None:
        del error  # the coroutine reads it where it awaits
        if not self._doomed:
            self._step()

    def _wait(self, waits: object) -> None:
        """Wait for what is no Signal: a future, or the loop's next turn."""
        if waits is None:
            self.loop.call_soon(self._step)
        elif isinstance(waits, asyncio.Future) and waits._asyncio_future_blocking:
            waits._asyncio_future_blocking = False
            waits.add_done_callback(self._woken)
            self._waiter = waits
            if self._doomed and waits.cancel():
                self._doomed = False
        else:
            self.loop.call_soon(self._step, RuntimeError(f"{waits!r} cannot be awaited in a request"))

    def _woken(self, future: "asyncio.Future[object]") -> None:
        del future  # the coroutine reads it where it awaits
        self._step()
