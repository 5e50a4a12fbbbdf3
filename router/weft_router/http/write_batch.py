"""Batch the writes of one loop iteration: each reader is woken once.

A write to a socket of this machine wakes its reader, which costs the writer as much as the rest of the write. While
one turn's requests are served one after the other, each of the readers would fall asleep in between.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

log = logging.getLogger(__name__)

_MOST: Final = 256 * 2**10
"""Largest number of buffered bytes; back-pressure is applied when they are written."""
_SINGLE: Final = 16
"""Writes that go out at once after a loop turn with a single write: a callback at a turn's end costs a tenth of an
event."""


class _Unsent:
    __slots__ = ("first", "second", "transport")

    def __init__(self, transport: asyncio.Transport, first: bytes, second: bytes) -> None:
        self.transport = transport
        self.first = first
        self.second = second


def _write(transport: asyncio.Transport, first: bytes, second: bytes) -> None:
    """Write bytes, unless their connection ended meanwhile."""
    if transport.is_closing():
        return
    if second:
        transport.writelines((first, second))
    else:
        transport.write(first)


class WriteBatch:
    """The writes of one loop's turn."""

    __slots__ = ("_begun", "_last", "_single", "_size", "_unsent")

    def __init__(self) -> None:
        self._begun = False
        self._single = 0
        """How many more writes go at once and begin no batch."""
        self._unsent: list[_Unsent] = []
        self._last: list[Callable[[], None]] = []
        self._size = 0

    def put(self, transport: asyncio.Transport, first: bytes, second: bytes = b"") -> None:
        """Write bytes, in one or two parts: the first write of a loop iteration at once, since it may be the only one.

        Behind a turn that had no other, the next few are taken for turns of their own, for that is how it usually goes
        on; where several come in one turn after all, they are kept again before long.
        """
        if not self._begun:
            if self._single:
                self._single -= 1
            else:
                self._begin()
            _write(transport, first, second)
            return
        self._unsent.append(_Unsent(transport, first, second))
        self._size += len(first) + len(second)
        if self._size > _MOST:
            self.flush()

    def at_end(self, flush: Callable[[], None]) -> None:
        """Have a link write what it keeps once all others were written: some of them go over it."""
        self._last.append(flush)
        self._begin()

    def flush(self) -> None:
        """Write what is kept, such as before a connection is closed."""
        if self._unsent:
            unsent, self._unsent, self._size = self._unsent, [], 0
            for one in unsent:
                try:
                    _write(one.transport, one.first, one.second)
                except Exception:  # one connection's, and no reason for the others to get nothing
                    log.exception("write_failed")
                    one.transport.abort()

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            asyncio.get_running_loop().call_soon(self._end)  # which runs once all that came has been read

    def _end(self) -> None:
        if not self._unsent and not self._last:
            self._single = _SINGLE
        self.flush()
        self._begun = False
        if self._last:
            last, self._last = self._last, []
            for flush in last:
                flush()


_turns: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, WriteBatch]] = WeakKeyDictionary()


def write_batch_of(loop: asyncio.AbstractEventLoop) -> WriteBatch:
    """Return the turn of a loop; to be asked once for each connection."""
    turn = _turns.get(loop)
    if turn is None:
        turn = _turns[loop] = WriteBatch()
    return turn
