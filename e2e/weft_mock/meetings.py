"""Bring the two legs of a round together by a key both were given: SGLang's room, TensorRT-LLM's request id.

The holder is the engine that prefills; the reader comes over its side channel and waits for the offer. A key serves
one pair, once. Whatever ends a meeting early fails the leg that is still there, and the one that is still on its way:
when a client leaves, one leg may be gone before the other one's request is read, and that is no second use of the key.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from weft_mock.kv_params import RemoteBlocks
from weft_mock.ledger import Ledger

_REMEMBERED = 4096
WRONG = frozenset({"key_reused", "unknown_key"})
"""Reasons that are the sender's fault; all others tell how the other leg ended."""


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
        self.wanted_port: int | None = None
        self.reader_port: int | None = None
        self.offered: asyncio.Future[Offer] = loop.create_future()
        self.over: asyncio.Future[str] = loop.create_future()

    @property
    def mismatched(self) -> bool:
        """Return whether the reader that came is not the one the holder was told of, by its API's port."""
        return self.joined.is_set() and self.wanted_port not in (None, self.reader_port)

    async def offer_or_end(self) -> Offer:
        """Wait for the offer.

        Raises:
            MeetingError: the meeting ended before.
        """
        await _first(self.offered, self.over)
        if self.over.done():
            raise MeetingError(self.over.result(), f"the other leg ended: {self.over.result()}")
        return self.offered.result()

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

    def __init__(self, *, ledger: Ledger, release: Callable[[str], None], changed: Callable[[], None]) -> None:
        """Start with none; ``release`` frees the blocks kept under a request's id, ``changed`` hears of every end."""
        self._ledger = ledger
        self._release = release
        self._changed = changed
        self._open: dict[str, Meeting] = {}
        self._ended: OrderedDict[str, Meeting] = OrderedDict()

    def __len__(self) -> int:
        """Return how many are open."""
        return len(self._open)

    def hold(self, key: str, *, wanted_port: int | None = None) -> Meeting:
        """Take the holder's place; ``wanted_port``: that of the reader's API, None for any.

        Raises:
            MeetingError: the key was used before, or the reader is gone already.
        """
        late = self._ended.get(key)
        if late is not None and not late.held:
            late.held = True
            raise MeetingError(late.over.result(), f"{key}: the other leg ended before: {late.over.result()}")
        meeting = self._at(key)
        if meeting.held:
            raise MeetingError("key_reused", f"{key} is held by another request")
        meeting.held = True
        meeting.wanted_port = wanted_port
        return meeting

    def join(self, key: str, *, reader_port: int | None = None, waits: bool = True) -> Meeting:
        """Take the reader's place; without ``waits`` only where the offer is there already.

        Raises:
            MeetingError: the key was used before, there is no offer to wait for, or the holder is gone already.
        """
        late = self._ended.get(key)
        if late is not None and not late.joined.is_set():
            late.joined.set()
            raise MeetingError(late.over.result(), f"{key}: the other leg ended before: {late.over.result()}")
        known = self._open.get(key)
        if not waits and key not in self._ended and (known is None or not known.offered.done()):
            raise MeetingError("unknown_key", f"nothing is held for {key}")
        meeting = self._at(key)
        if meeting.joined.is_set():
            raise MeetingError("key_reused", f"{key} has another reader")
        meeting.reader_port = reader_port
        meeting.joined.set()
        return meeting

    def find(self, key: str) -> Meeting | None:
        """Return the open meeting of a key, None when there is none."""
        return self._open.get(key)

    def _at(self, key: str) -> Meeting:
        if key in self._ended:
            raise MeetingError("key_reused", f"{key} was used before")
        return self._open.setdefault(key, Meeting(key))

    def end(self, meeting: Meeting, how: str) -> None:
        """End a meeting, and tell both legs how; a second call does nothing."""
        if meeting.over.done():
            return
        meeting.over.set_result(how)
        self._open.pop(meeting.key, None)
        self._ended[meeting.key] = meeting
        if len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)
        self._changed()

    def abandon(self, meeting: Meeting, how: str) -> None:
        """End a meeting and free what was offered, if it is not being read."""
        if meeting.offered.done():
            self._release(meeting.offered.result().remote.request_id)
        self.end(meeting, how)

    def check(self, meeting: Meeting) -> None:
        """End a meeting whose legs do not name each other."""
        if meeting.mismatched:
            self._ledger.violations["peer_mismatch"] += 1
            self.abandon(meeting, "peer_mismatch")
