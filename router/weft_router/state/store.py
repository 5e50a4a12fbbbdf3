"""What router processes tell each other: workers by heartbeat, bindings of sessions, prefixes of nameless ones.

Every reader works from memory; a Store is asked in the background, and on a request's path only at the
first sight of a session. One process by itself uses the memory form.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, Protocol

from weft_core.heartbeat import HEARTBEAT_EXPIRY_S, WorkerRecord
from weft_core.records import Refusal
from weft_router.mypyc_compat import mypyc_attr

MOST_KEPT = 200_000
"""Sessions, and prefixes of nameless ones, that a process by itself keeps."""
LESS: Final = 1_000
"""How many fewer than that are left where there are more."""
LOOK_EVERY_S: Final = 1.0
"""How often it looks for those that are expired; like the above since a dictionary finds its front by passing all that
was deleted there."""


class StoreDownError(Exception):
    """Report that the shared store did not answer in time."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All heartbeats at one moment, and the store's epoch: another one means that the store lost its data."""

    workers: tuple[WorkerRecord, ...]
    epoch: str
    refused: tuple[tuple[str, Refusal], ...] = ()
    """Names whose records are not to be believed, and why."""


class Store(Protocol):
    """Where router processes meet; every method may raise StoreDownError."""

    async def heartbeat(self, record: WorkerRecord) -> None:
        """Publish a worker for HEARTBEAT_EXPIRY_S."""

    async def withdraw(self, worker: str) -> None:
        """Remove a worker at once."""

    async def snapshot(self) -> Snapshot:
        """Return all live heartbeats."""

    async def demand(self) -> None:
        """Say for DEMAND_EXPIRY_S that requests wait for a worker; the operator reads it."""

    async def bind(self, session: str, worker: str, *, replaces: str, ttl_s: int) -> str:
        """Bind a session unless it is bound to another worker than ``replaces``; return who owns it now."""

    async def bind_all(self, bindings: Sequence[tuple[str, str]], *, ttl_s: int) -> None:
        """Publish bindings that the store has lost; those it has stay as they are."""

    async def unbind(self, session: str) -> str | None:
        """Forget the binding of a session; return who owned it."""

    async def unbind_all(self, sessions: Sequence[str], heads: Sequence[str]) -> None:
        """Forget bindings of sessions and sessions of prefix hashes."""

    async def sessions_of(self, heads: Sequence[str]) -> list[str | None]:
        """Return the session of each prefix hash."""

    async def put_head(self, head: str, session: str, *, ttl_s: int) -> None:
        """Remember the session of a prefix hash."""

    async def close(self) -> None:
        """Close the connections."""


@mypyc_attr(acyclic=True)
class _Entry:
    """A value, and when it expires."""

    __slots__ = ("until", "value")

    def __init__(self, value: str, until: float) -> None:
        self.value = value
        self.until = until


class ExpiringMap:
    """Strings by their keys, the latest at the end; each expires."""

    __slots__ = ("_look_at", "_words")

    def __init__(self) -> None:
        self._words: dict[str, _Entry] = {}
        self._look_at = -math.inf

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._words)

    def __iter__(self) -> Iterator[str]:
        """Return their keys."""
        return iter(self._words)

    def get(self, key: str) -> str | None:
        """Return the value of a key, None where there is none or it expired."""
        word = self._words.get(key)
        return word.value if word is not None and word.until > monotonic() else None

    def put(self, key: str, value: str, ttl_s: float) -> None:
        """Keep a value as the latest for so many seconds; now and then forget what is expired."""
        words, now = self._words, monotonic()
        if key in words:
            del words[key]
        words[key] = _Entry(value, now + ttl_s)
        if now >= self._look_at or len(words) > MOST_KEPT:
            self._forget(now)

    def drop(self, key: str) -> None:
        """Forget a value, if it is kept."""
        self._words.pop(key, None)

    def _forget(self, now: float) -> None:
        """Forget those at the front that are expired, or too many."""
        self._look_at = now + LOOK_EVERY_S
        words, gone = self._words, []
        left = len(words)
        most = MOST_KEPT if left <= MOST_KEPT else MOST_KEPT - LESS
        for key, word in words.items():
            if word.until > now and left <= most:
                break
            gone.append(key)
            left -= 1
        for key in gone:
            del words[key]


@dataclass
class MemoryStore:
    """The Store of one process: the same rules on dictionaries."""

    alone: bool = False
    """Whether one front alone uses it: whom a session is bound to is known there, and needs no second record here."""
    _workers: dict[str, tuple[float, WorkerRecord]] = field(default_factory=dict)
    _bindings: ExpiringMap = field(default_factory=ExpiringMap)
    _heads: ExpiringMap = field(default_factory=ExpiringMap)

    async def heartbeat(self, record: WorkerRecord) -> None:
        """Publish a worker."""
        self._workers[record.worker] = (monotonic() + HEARTBEAT_EXPIRY_S, record)

    async def withdraw(self, worker: str) -> None:
        """Remove a worker."""
        self._workers.pop(worker, None)

    async def snapshot(self) -> Snapshot:
        """Return all live heartbeats."""
        now = monotonic()
        return Snapshot(tuple(record for until, record in self._workers.values() if until > now), epoch="memory")

    async def demand(self) -> None:
        """Say nothing: no operator looks after a process by itself."""

    async def bind(self, session: str, worker: str, *, replaces: str, ttl_s: int) -> str:
        """Bind or tell who owns the session."""
        owner = self._bindings.get(session)
        if owner is not None and owner != replaces:
            return owner
        self._bindings.put(session, worker, ttl_s)
        return worker

    async def bind_all(self, bindings: Sequence[tuple[str, str]], *, ttl_s: int) -> None:
        """Publish bindings that are missing."""
        for session, worker in bindings:
            await self.bind(session, worker, replaces="", ttl_s=ttl_s)

    async def unbind(self, session: str) -> str | None:
        """Forget the binding of a session."""
        owner = self._bindings.get(session)
        self._bindings.drop(session)
        return owner

    async def unbind_all(self, sessions: Sequence[str], heads: Sequence[str]) -> None:
        """Forget bindings of sessions and sessions of prefix hashes."""
        for session in sessions:
            self._bindings.drop(session)
        for head in heads:
            self._heads.drop(head)

    async def sessions_of(self, heads: Sequence[str]) -> list[str | None]:
        """Return the session of each prefix hash."""
        return [self._heads.get(head) for head in heads]

    async def put_head(self, head: str, session: str, *, ttl_s: int) -> None:
        """Remember the session of a prefix hash."""
        self.put_head_now(head, session, ttl_s=ttl_s)

    def put_head_now(self, head: str, session: str, *, ttl_s: int) -> None:
        """Remember the session of a prefix hash, at once."""
        self._heads.put(head, session, ttl_s)

    async def close(self) -> None:
        """Nothing is held open."""
