"""What router processes tell each other: workers by heartbeat, bindings of sessions, prefixes of nameless ones.

Every reader works from memory; a Store is asked in the background, and on a request's path only at the
first sight of a session. One process by itself uses the memory form.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol

from weft_core.heartbeat import HEARTBEAT_EXPIRY_S, WorkerRecord

MOST_KEPT = 200_000
"""Sessions, and prefixes of nameless ones, that a process by itself keeps."""


class StoreDownError(Exception):
    """Report that the shared store did not answer in time."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All heartbeats at one moment, and the store's epoch: another one means that the store lost its data."""

    workers: tuple[WorkerRecord, ...]
    epoch: str


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

    async def sessions_of(self, heads: Sequence[str]) -> list[str | None]:
        """Return the session of each prefix hash."""

    async def put_head(self, head: str, session: str, *, ttl_s: int) -> None:
        """Remember the session of a prefix hash."""

    async def close(self) -> None:
        """Let go of connections."""


@dataclass
class MemoryStore:
    """The Store of one process: the same rules on dictionaries."""

    _workers: dict[str, tuple[float, WorkerRecord]] = field(default_factory=dict)
    _bindings: dict[str, tuple[float, str]] = field(default_factory=dict)
    _heads: dict[str, tuple[float, str]] = field(default_factory=dict)

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
        owner = self.owner(session)
        if owner is not None and owner != replaces:
            return owner
        self.bind_now(session, worker, ttl_s=ttl_s)
        return worker

    def owner(self, session: str) -> str | None:
        """Return who owns a session, at once."""
        until, owner = self._bindings.get(session, (0.0, ""))
        return owner if until > monotonic() else None

    def bind_now(self, session: str, worker: str, *, ttl_s: int) -> None:
        """Bind a session, at once, whoever owned it."""
        _put(self._bindings, session, (monotonic() + ttl_s, worker))

    async def bind_all(self, bindings: Sequence[tuple[str, str]], *, ttl_s: int) -> None:
        """Publish bindings that are missing."""
        for session, worker in bindings:
            await self.bind(session, worker, replaces="", ttl_s=ttl_s)

    async def unbind(self, session: str) -> str | None:
        """Forget the binding of a session."""
        until, owner = self._bindings.pop(session, (0.0, ""))
        return owner if until > monotonic() else None

    async def sessions_of(self, heads: Sequence[str]) -> list[str | None]:
        """Return the session of each prefix hash."""
        now = monotonic()
        found = [self._heads.get(head, (0.0, "")) for head in heads]
        return [session if until > now else None for until, session in found]

    async def put_head(self, head: str, session: str, *, ttl_s: int) -> None:
        """Remember the session of a prefix hash."""
        _put(self._heads, head, (monotonic() + ttl_s, session))

    async def close(self) -> None:
        """Nothing is held open."""


def _put(kept: dict[str, tuple[float, str]], key: str, value: tuple[float, str]) -> None:
    """Keep a value as the latest; forget those at the front that are expired, or one too many."""
    kept.pop(key, None)
    kept[key] = value
    now = monotonic()
    while kept:
        oldest = next(iter(kept))
        if kept[oldest][0] > now and len(kept) <= MOST_KEPT:
            return
        del kept[oldest]
