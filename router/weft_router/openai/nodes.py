"""Bound what parsing a JSON body costs, before it is parsed: a few bytes of JSON make an object of a hundred.

Each comma and each colon outside of texts counts as one **node**, for a value and a name of an object, and each opening
bracket as four, for an array or an object. Built, looked through and freed by Python, a node takes up to 0.15 us and 80
bytes.
"""

import asyncio
from typing import Final

from weft_router.errors import TooLargeError

MAX_NODES: Final = 200_000
"""The default: 30 ms and 16 MB at worst. A prompt given as token ids has a node for each of them."""
CONTAINER: Final = 4
"""What an array or an object counts for: it is tracked by the collector, and looked into."""
AT_ONCE: Final = 256 * 2**10
"""Bodies up to here are parsed first and counted afterwards, which costs nothing more: 25 ms and 13 MB at worst."""
NODE_BYTES: Final = 80
SLICE: Final = 256 * 2**10
"""Bytes that are counted in one step: a third of a millisecond."""
_REST: Final = bytes(byte for byte in range(256) if byte not in b'",:[{')


class JsonCounter:
    """Counts the nodes of a JSON text that comes in pieces; what is no JSON gets some number."""

    __slots__ = ("_escape", "_text", "nodes")

    def __init__(self) -> None:
        self._text = 0
        """1 within a text, else 0."""
        self._escape = False
        """Whether the last piece ended with a backslash that escapes what comes."""
        self.nodes = 0

    def feed(self, piece: bytes) -> None:
        """Count a piece's nodes."""
        if self._escape:
            piece = b"\\" + piece
            self._escape = False
        if piece.find(b"\\") >= 0:
            piece = piece.replace(b"\\\\", b"")
            if piece.endswith(b"\\"):
                self._escape = True
            piece = piece.replace(b'\\"', b"")
        parts = piece.translate(None, _REST).split(b'"')
        outside = b"".join(parts[self._text :: 2])
        brackets = outside.count(b"[") + outside.count(b"{")
        self.nodes += len(outside) + (CONTAINER - 1) * brackets
        self._text ^= ~len(parts) & 1


def bound(raw: bytes, most: int) -> None:
    """Refuse a body of too many nodes, before anything is made of it.

    Raises:
        TooLargeError: it has more than ``most``.
    """
    counter = JsonCounter()
    for at in range(0, len(raw), SLICE):
        counter.feed(raw[at : at + SLICE])
        if counter.nodes > most:
            raise too_many(most)


async def bound_in_turns(raw: bytes, most: int) -> None:
    """Do as ``bound`` does, and let others run in between.

    Raises:
        TooLargeError: it has more than ``most``.
    """
    counter = JsonCounter()
    for at in range(0, len(raw), SLICE):
        counter.feed(raw[at : at + SLICE])
        if counter.nodes > most:
            raise too_many(most)
        await asyncio.sleep(0)


def too_many(most: int) -> TooLargeError:
    """Return the refusal of a body of more nodes than that."""
    return TooLargeError(most, "values (an array or object counts as four, a name as one)", param="limits.maxBodyNodes")
