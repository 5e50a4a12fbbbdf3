"""One connection over a link: a transport for its protocol, bounded by a window in each direction."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

WINDOW: Final = 256 * 2**10
"""Bytes of a stream that may be under way in one direction."""
DATA: Final = 0
GRANT: Final = 1
"""The length is what may be sent beyond what was granted before; no bytes follow."""
END: Final = 2
"""Everything was sent; nothing more is read."""
RESET: Final = 3


class LinkError(Exception):
    """Report frames that break a rule: nothing more can be read from this link."""


class StreamTransport(ABC):
    """The link as a stream sees it; a base class and no Protocol, as ``connection.ClientTransport`` is."""

    __slots__ = ("full",)

    full: bool
    """Whether the connection does not keep up."""

    @abstractmethod
    def put(self, number: int, data: bytes) -> None:
        """Send a stream's bytes when the turn ends."""

    @abstractmethod
    def send_control(self, number: int, kind: int, value: int) -> None:
        """Send a frame without bytes."""

    @abstractmethod
    def forget(self, number: int) -> None:
        """Know a stream no more."""


class Stream:
    """One connection over a link: an ``asyncio.Transport`` by its methods, not by its base, which is not compiled."""

    __slots__ = (
        "_credit", "_ended", "_high", "_kept", "_kept_at", "_kept_size", "_link", "_lost", "_paused", "_protocol",
        "_room", "_taken", "_told_full", "_unread", "closing", "id", "over",
    )  # fmt: skip

    def __init__(self, link: StreamTransport, number: int, protocol: asyncio.Protocol) -> None:
        self.id = number
        self._link = link
        self._protocol = protocol
        self._credit = WINDOW
        """What may be sent."""
        self._room = WINDOW
        """What the other end may send."""
        self._taken = 0
        """Bytes that were delivered and for which no new window was granted."""
        self._kept: list[bytes] = []
        """What waits to be sent, but for the first ``_kept_at`` bytes."""
        self._kept_at = 0
        self._kept_size = 0
        self._high = 64 * 2**10
        self._told_full = False
        self._unread: list[bytes] = []
        self._paused = False
        self._ended = False
        """Whether the other end sends no more."""
        self._lost: Exception | None = None
        """How the way to the other end was lost, to be told once what came before is handed on."""
        self.closing = False
        self.over = False
        """Whether the other end needs no further frame."""

    # The protocol's side.

    def write(self, data: bytes) -> None:
        """Send bytes, or keep them until they may be sent."""
        if self.is_closing():
            return
        size = len(data)
        link = self._link
        if size <= self._credit and not self._kept and not link.full:
            self._credit -= size
            link.put(self.id, data)
            return
        self._kept.append(data)
        self._kept_size += size
        self._push()
        if self._kept_size > self._high and not self._told_full:
            self._told_full = True
            self._protocol.pause_writing()

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        """Send several pieces."""
        for part in parts:
            self.write(part)

    def close(self) -> None:
        """End the stream once all is sent."""
        if not self.closing and not self.over:
            self.closing = True
            self._unread.clear()
            if not self._kept or self._ended:
                self._finish(END)

    def abort(self) -> None:
        """End the stream now."""
        if not self.over:
            self._finish(RESET)

    def is_closing(self) -> bool:
        """Return whether nothing more can be written."""
        return self.closing or self.over or self._ended or self._lost is not None

    def can_write_eof(self) -> bool:
        """Tell that no direction ends by itself."""
        return False

    def get_write_buffer_size(self) -> int:
        """Return the bytes that wait to be sent."""
        return self._kept_size

    def set_write_buffer_limits(self, high: int) -> None:
        """Have the protocol wait when so many bytes wait to be sent."""
        self._high = high

    def pause_reading(self) -> None:
        """Hand nothing on for now."""
        self._paused = True

    def resume_reading(self) -> None:
        """Hand on what came meanwhile, in a later iteration of the event loop, and what will come."""
        if self._paused:
            self._paused = False
            if self._unread or self._ended or self._lost is not None:
                asyncio.get_running_loop().call_soon(self._catch_up)

    # The link's side.

    @property
    def waits(self) -> bool:
        """Return whether it has something to send."""
        return bool(self._kept)

    def received(self, data: bytes) -> None:
        """Take bytes from the other end.

        Raises:
            LinkError: they are more than the window has room for.
        """
        self._room -= len(data)
        if self._room < 0 or self._ended:
            raise LinkError(f"stream {self.id} sends more than it may")
        if self.closing:
            self._took(len(data))  # nobody reads it, but the other end is to get to where it reads our end
        elif self._paused or self._unread:
            self._unread.append(data)
        else:
            self._hand_on(data)

    def granted(self, size: int) -> None:
        """Add credit: more may be sent.

        Raises:
            LinkError: it is more credit than was used.
        """
        self._credit += size
        if self._credit > WINDOW:
            raise LinkError(f"stream {self.id} is granted more than was sent")
        self._push()

    def ended(self) -> None:
        """Handle the end of the other side, which sends no more and reads nothing."""
        self._ended = True
        if not self._paused and not self._unread:
            self._end()

    def go_on(self) -> None:
        """Send what waited for the link."""
        self._push()

    def lose(self, error: Exception) -> None:
        """Handle a lost link; what came over it before is still handed on."""
        self._kept.clear()
        self._kept_size = 0
        if self._unread or self._ended:
            self._lost = error
        else:
            self.over = True
            self._tell(error)

    # Within.

    def _hand_on(self, data: bytes) -> None:
        try:
            self._protocol.data_received(data)
        except Exception:  # one connection's, and no reason to end all others
            log.exception("stream_failed")
            self.abort()
        self._took(len(data))

    def _have(self, step: Callable[[], object]) -> None:
        """Have the protocol take a step."""
        try:
            step()
        except Exception:  # as above
            log.exception("stream_failed")
            self.abort()

    def _took(self, size: int) -> None:
        """Grant the window of delivered bytes again, half a window at a time."""
        taken = self._taken = self._taken + size
        if taken >= WINDOW // 2 and not self.over:
            self._taken = 0
            self._room += taken
            self._link.send_control(self.id, GRANT, taken)

    def _catch_up(self) -> None:
        while self._unread and not self._paused and not self.over:
            self._hand_on(self._unread.pop(0))
        if self._unread or self._paused or self.over:
            return
        if self._ended:
            self._end()
        elif self._lost is not None:
            self.over = True
            self._tell(self._lost)

    def _push(self) -> None:
        """Send of what waits as much as may be sent."""
        kept, link = self._kept, self._link
        while kept and self._credit and not link.full:
            first, at = kept[0], self._kept_at
            end = min(len(first), at + self._credit)
            part = first if end - at == len(first) else first[at:end]
            if end == len(first):
                kept.pop(0)
                self._kept_at = 0
            else:
                self._kept_at = end
            self._credit -= len(part)
            self._kept_size -= len(part)
            link.put(self.id, part)
        if self.over:
            return
        if self._told_full and self._kept_size <= self._high // 4:
            self._told_full = False
            self._have(self._protocol.resume_writing)
        if self.closing and not kept and not self.over:
            self._finish(END)

    def _end(self) -> None:
        """End as a connection does whose other end is closed."""
        self._have(self._protocol.eof_received)
        if not self.over:
            self.over = True
            self._kept.clear()
            self._link.forget(self.id)
            self._tell(None)

    def _finish(self, kind: int) -> None:
        self.over = True
        self._kept.clear()
        self._unread.clear()
        self._link.send_control(self.id, kind, 0)
        self._link.forget(self.id)
        self._tell(None)

    def _tell(self, error: Exception | None) -> None:
        asyncio.get_running_loop().call_soon(self._protocol.connection_lost, error)
