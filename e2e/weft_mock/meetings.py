"""Bring the two legs of a round together by a key both were given: SGLang's room, TensorRT-LLM's request id.

The holder is the engine that prefills; the reader comes over its side channel and waits for the offer. A key serves
one pair, once. Whatever ends a meeting early fails the leg that is still there.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from weft_mock.kv_params import RemoteBlocks

_REMEMBERED = 4096


class MeetingError(Exception):
    """Refuse or end a meeting; ``reason`` is stable: key_reused, unknown_key, or how a meeting
    ended: peer_mismatch, timeout, holder_gone, reader_gone, finished, released or expired."""

    def __init__(self, reason: str, message: str) -> None:
        """Carry the reason for the ledger and a message."""
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Offer:
    """What a reader gets: where the KV waits, and the tokens the prefill has made already."""

    remote: RemoteBlocks
    first_tokens: tuple[int, ...]


class Meeting:
    """One key with its holder and its reader; ``over`` says how it ended, "read" if it ended well."""

    def __init__(self, key: str) -> None:
        """Wait for both."""
        loop = asyncio.get_running_loop()
        self.key = key
        self.held = False
        self.joined = asyncio.Event()
        self.reader_port: int | None = None
        """The API port the reader must have; None: any."""
        self.offered: asyncio.Future[Offer] = loop.create_future()
        self.over: asyncio.Future[str] = loop.create_future()

    async def offer_or_end(self) -> Offer:
        """Wait for the offer.

        Raises:
            MeetingError: the meeting ended before.
        """
        await _first(self.offered, self.over)
        if self.offered.done():
            return self.offered.result()
        raise MeetingError(self.over.result(), f"the other leg ended: {self.over.result()}")

    async def reader_or_end(self) -> None:
        """Wait for the reader.

        Raises:
            MeetingError: the meeting ended before.
        """
        coming = asyncio.ensure_future(self.joined.wait())
        try:
            await _first(coming, self.over)
        finally:
            coming.cancel()
        if self.over.done():
            raise MeetingError(self.over.result(), f"the other leg ended: {self.over.result()}")


async def _first(one: "asyncio.Future[Any]", other: "asyncio.Future[Any]") -> None:
    await asyncio.wait((one, other), return_when=asyncio.FIRST_COMPLETED)


class Meetings:
    """Every meeting of one engine as the holder."""

    def __init__(self) -> None:
        """Start with none."""
        self._open: dict[str, Meeting] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        """Return how many are open."""
        return len(self._open)

    def hold(self, key: str, *, reader_port: int | None = None) -> Meeting:
        """Take the holder's place.

        Raises:
            MeetingError: the key was used before.
        """
        meeting = self._at(key)
        if meeting.held:
            raise MeetingError("key_reused", f"{key} is held by another request")
        meeting.held = True
        meeting.reader_port = reader_port
        return meeting

    def join(self, key: str, *, waits: bool = True) -> Meeting:
        """Take the reader's place; without ``waits`` only where the offer is there already.

        Raises:
            MeetingError: the key was used before, or there is no offer to wait for.
        """
        known = self._open.get(key)
        if not waits and key not in self._ended and (known is None or not known.offered.done()):
            raise MeetingError("unknown_key", f"nothing is held for {key}")
        meeting = self._at(key)
        if meeting.joined.is_set():
            raise MeetingError("key_reused", f"{key} has another reader")
        meeting.joined.set()
        return meeting

    def _at(self, key: str) -> Meeting:
        if key in self._ended:
            raise MeetingError("key_reused", f"{key} was used before")
        return self._open.setdefault(key, Meeting(key))

    def end(self, meeting: Meeting, how: str) -> None:
        """End a meeting; a second call does nothing."""
        if meeting.over.done():
            return
        meeting.over.set_result(how)
        self._open.pop(meeting.key, None)
        self._ended[meeting.key] = None
        if len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)
