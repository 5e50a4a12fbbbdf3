"""Multiplex the connections between two router processes: one write and one read per loop iteration and peer.

HTTP/1.1 serves a request at a time, so two processes with many requests under way have as many connections, and each
request's bytes are written and read by themselves. Over a link each of those connections is a stream: its bytes are
the same, in frames. A frame is a stream's id (4 bytes), a kind (1 byte) and a length (3 bytes), and so many bytes of
the stream. A stream begins with its first bytes; its two directions end together. What a stream may send before the
other end has taken it is bounded by a window, so that one whose reader is slow holds up no other.
"""

import asyncio
import logging
import struct
from collections.abc import Callable
from time import monotonic
from typing import Final, cast

from weft_router.http.stream import DATA, END, GRANT, LinkError, Stream, StreamTransport
from weft_router.http.write_batch import write_batch_of

log = logging.getLogger(__name__)

PROTOCOL: Final = "weft-link/1"
PING: Final = 4
PONG: Final = 5
"""The answer to a ping; both are of stream 0."""
SILENT_S: Final = 1.0
"""How long nothing may come while streams are open before the other end is asked, and then before it is doubted."""

_FRAME: Final = struct.Struct("!II")
_HEAD: Final = 8
_LONGEST: Final = 2**24 - 1
_MOST: Final = 256 * 2**10
"""Bytes that are kept until the turn ends."""
_JOINED: Final = 64 * 2**10
"""Up to here frames are joined for one write; beyond it copying costs more than a vectored write."""
_LAST: Final = 2**31
"""The id from which on a link takes no new streams: another one is opened when it is quiet."""
_UNSENT: Final = 2**20
"""Bytes that the link's own connection holds before its streams have to wait."""


class Link(StreamTransport):
    """One connection that carries streams: an ``asyncio.Protocol`` by its methods.

    ``accept`` makes the protocol of a stream that the other end began; without one only this end begins any.
    ``on_lost`` is called when it ends.
    """

    __slots__ = (
        "_accept", "_asked_at", "_heard_at", "_kept", "_kept_size", "_latest", "_left", "_on_lost", "_rest", "_stream",
        "_streams", "_transport", "_write_batch", "doubted", "heard", "quiet_since",
    )  # fmt: skip

    def __init__(self, *, accept: Callable[[], asyncio.Protocol] | None, on_lost: Callable[["Link"], None]) -> None:
        self._accept = accept
        self._on_lost = on_lost
        self._write_batch = write_batch_of(asyncio.get_running_loop())
        self._transport: asyncio.Transport | None = None
        self._streams: dict[int, Stream] = {}
        self._latest = 0
        self._kept: list[bytes] = []
        """Frames of this turn."""
        self._kept_size = 0
        self._rest = b""
        """A frame's head as far as it came."""
        self._left = 0
        """The bytes of a frame that are still to come."""
        self._stream: Stream | None = None
        """Whose they are; None: of one that is over."""
        self.full = False
        self.doubted = False
        """Whether the other end does not answer: those who wait go on waiting, but others go another way."""
        self._asked_at = 0.0
        """When it was asked whether it is there; 0: it was heard since."""
        self.heard = False
        """Whether anything ever came."""
        self._heard_at = monotonic()
        self.quiet_since = self._heard_at
        """Since when there has been no stream, if there is none."""

    @property
    def streams(self) -> int:
        """Return how many streams are open."""
        return len(self._streams)

    @property
    def usable(self) -> bool:
        """Return whether another stream gets on."""
        transport = self._transport
        alive = transport is not None and not transport.is_closing()
        return alive and not self.full and not self.doubted and self._latest < _LAST

    def open(self, protocol: asyncio.Protocol) -> None:
        """Open a stream.

        The other end learns of it from its first bytes: these must be written in the order in which streams opened.
        """
        self._latest += 1
        self._begin(self._latest, protocol)

    def close(self) -> None:
        """End it once what was written is sent."""
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        """End it now."""
        if self._transport is not None:
            self._transport.abort()

    def look(self, now: float) -> None:
        """Ping a peer that has been silent for a while; suspect one that does not answer."""
        if not self._streams or now - self._heard_at <= SILENT_S:
            return
        if not self._asked_at:
            self._asked_at = now
            self.send_control(0, PING, 0)
        elif now - self._asked_at > SILENT_S:
            self.doubted = True

    # The streams' side.

    def put(self, number: int, data: bytes) -> None:
        """Send a stream's bytes when the turn ends."""
        size = len(data)
        if not self._kept:
            self._write_batch.at_end(self._flush)
        self._kept.append(_FRAME.pack(number, size))  # DATA is 0
        self._kept.append(data)
        self._kept_size += size + _HEAD
        if self._kept_size > _MOST:
            self._flush()

    def send_control(self, number: int, kind: int, value: int) -> None:
        """Send a frame without bytes."""
        if not self._kept:
            self._write_batch.at_end(self._flush)
        self._kept.append(_FRAME.pack(number, kind << 24 | value))
        self._kept_size += _HEAD

    def forget(self, number: int) -> None:
        """Know a stream no more."""
        self._streams.pop(number, None)
        if not self._streams:
            self.quiet_since = monotonic()

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_UNSENT)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._kept.clear()
        lost = ConnectionResetError(str(exc or "the link was closed"))
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.lose(lost)
        self._on_lost(self)

    def eof_received(self) -> None: ...

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        """Resume waiting streams in turn (round robin)."""
        self.full = False
        streams = self._streams
        for stream in list(streams.values()):
            if self.full:
                return
            if stream.waits:
                del streams[stream.id]
                streams[stream.id] = stream
                stream.go_on()

    def data_received(self, data: bytes) -> None:
        self.heard = True
        self._heard_at = monotonic()
        self._asked_at = 0.0
        self.doubted = False
        try:
            self._read(data)
        except LinkError as error:
            log.error("link_failed", extra={"reason": str(error)})
            self.abort()

    # Within.

    def _read(self, data: bytes) -> None:
        if self._rest:
            data, self._rest = self._rest + data, b""
        at, size = 0, len(data)
        while at < size and self._transport is not None:
            if self._left:
                end = min(size, at + self._left)
                self._left -= end - at
                stream = self._stream
                if stream is not None and not stream.over:
                    stream.received(data[at:end])
                at = end
            elif size - at < _HEAD:
                self._rest = data[at:]
                return
            else:
                number, word = cast(tuple[int, int], _FRAME.unpack_from(data, at))
                at += _HEAD
                self._frame(number, word >> 24, word & _LONGEST)

    def _frame(self, number: int, kind: int, value: int) -> None:
        stream = self._streams.get(number)
        if kind == DATA:
            if stream is None:
                stream = self._accepted(number)
            self._left = value
            self._stream = stream
        elif kind == PING:
            if not self.full:  # or who asks and does not read would fill this end's memory
                self.send_control(0, PONG, 0)
        elif kind > PONG:
            raise LinkError(f"a frame of kind {kind} is not known here")
        elif stream is None:
            return  # it ended here before
        elif kind == GRANT:
            stream.granted(value)
        elif kind == END:
            stream.ended()
        else:
            self.forget(number)
            stream.lose(ConnectionResetError("the stream was reset"))

    def _accepted(self, number: int) -> Stream | None:
        """Begin a stream of the other end's, if it is a new one."""
        if self._accept is None or number <= self._latest:
            return None
        self._latest = number
        return self._begin(number, self._accept())

    def _begin(self, number: int, protocol: asyncio.Protocol) -> Stream:
        stream = self._streams[number] = Stream(self, number, protocol)
        protocol.connection_made(cast(asyncio.Transport, stream))
        return stream

    def _flush(self) -> None:
        """Write what the turn had for the other end."""
        kept, size = self._kept, self._kept_size
        if not kept:
            return
        self._kept, self._kept_size = [], 0
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if size > _JOINED:
            transport.writelines(kept)
        else:
            transport.write(b"".join(kept))
