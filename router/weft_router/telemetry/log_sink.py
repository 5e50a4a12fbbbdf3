"""Write log lines in batches without blocking on a slow reader.

A full pipe must not stop a router: lines wait up to ``MOST`` bytes, further ones are dropped and counted, and as soon
as the reader goes on a line says how many. Whole lines are written in pieces that a pipe takes at once or not at all,
so processes that share one do not cut into each other's lines.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from weft_router.telemetry.instruments import Value

EVERY_S = 0.05
BATCH = 64 * 1024
MOST = 1024 * 1024
LAST_S = 0.5
"""How long the lines of a process that ends wait for their reader."""


class LogTarget(Protocol):
    """Where lines go."""

    piece: int
    """Bytes that are written at once."""

    def put(self, data: bytes) -> int:
        """Write as much as can be written without waiting, and return how many bytes that were.

        Raises:
            OSError: nothing can be written, now or ever.
        """

    def wait(self, seconds: float) -> None:
        """Wait until more can be written."""

    def close(self) -> None:
        """Close what is open."""


class LogSink:
    """Lines on their way to a target; safe to use from several threads."""

    def __init__(self, target: LogTarget, *, note: Callable[[int], bytes | None]) -> None:
        """Write to ``target``; ``note`` makes the line about the lines dropped so far, or says it elsewhere."""
        self._target = target
        self._note = note
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._rest = b""
        self._dropped = Value()
        self._said = 0.0
        self.error: OSError | None = None
        """Why a line was last lost, but for readers that stand still."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def dropped(self) -> int:
        """Return how many lines were lost so far."""
        return int(self._dropped.value)

    def count_in(self, counter: Value) -> None:
        """Count lost lines in a metric, those of the past included."""
        counter.inc(self._dropped.value)
        self._dropped = counter

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the loop write what waits, every 50 ms."""
        self._loop = loop
        self._arm()

    def write(self, line: bytes) -> None:
        """Take a line, its newline included; called from the loop's thread, it goes out within 50 ms."""
        if self._size >= MOST:
            self._dropped.value += 1
            return
        self._lines.append(line)
        self._size += len(line)
        if self._timer is None and self._loop is not None:
            self._timer = self._loop.call_later(EVERY_S, self._due)
        if self._size >= BATCH and not self._rest:
            self.flush()

    def say(self, line: bytes) -> None:
        """Take a line from any thread and write it now, if the reader lets us."""
        if self._size < MOST:
            self._lines.append(line)
            self._size += len(line)
        else:
            self._dropped.value += 1
        self.flush()

    def flush(self) -> None:
        """Write what waits, as far as that does not block."""
        with self._lock:
            empty = self._pass_on()
            if empty and self._dropped.value != self._said:
                self._said = self._dropped.value
                line = self._note(int(self._said))
                if line is not None:
                    self._lines.append(line)
                    empty = self._pass_on()
            if empty:
                self._size = 0
                return
        if self._loop is not None and self._timer is None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._arm)

    def drain(self) -> None:
        """Detach from the loop and write what is left, for at most half a second."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop = self._timer = None
        end = monotonic() + LAST_S
        self.flush()
        while (self._lines or self._rest) and monotonic() < end:
            self._target.wait(EVERY_S)
            self.flush()

    def close(self) -> None:
        """Write what is left and close the target."""
        self.drain()
        self._target.close()

    def _pass_on(self) -> bool:
        """Write all lines in pieces; tell whether none is left."""
        lines = self._lines
        while True:
            piece = self._rest
            if not piece:
                if not lines:
                    return True
                batch = [lines.popleft()]
                room = self._target.piece - len(batch[0])
                while lines and len(lines[0]) <= room:
                    line = lines.popleft()
                    room -= len(line)
                    batch.append(line)
                piece = b"".join(batch)
            written = self._put(piece)
            self._size -= written
            self._rest = piece[written:]
            if self._rest:
                return False

    def _put(self, data: bytes) -> int:
        """Write what can be written; lines for a reader that is gone are dropped."""
        try:
            return self._target.put(data)
        except OSError as error:
            self.error = error
            self._dropped.value += data.count(b"\n")
            return len(data)

    def _due(self) -> None:
        self._timer = None
        self.flush()
        if self._lines or self._rest:
            self._arm()

    def _arm(self) -> None:
        if self._timer is None and self._loop is not None:
            self._timer = self._loop.call_later(EVERY_S, self._due)
