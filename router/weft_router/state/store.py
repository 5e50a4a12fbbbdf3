"""What router processes tell each other: workers by heartbeat, bindings of sessions, prefixes of nameless ones.

Every reader works from memory; a Store is asked in the background, and on a request's path only at the
first sight of a session. One process by itself uses the memory form.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol, cast

import orjson

from weft_router.config import Role

HEARTBEAT_S = 1.0
HEARTBEAT_EXPIRY_S = 5
MOST_KEPT = 200_000
"""Sessions, and prefixes of nameless ones, that a process by itself keeps."""


class StoreDownError(Exception):
    """Report that the shared store did not answer in time."""


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A prefill waiting or running on a worker; the id tells a reader which of them it sent itself."""

    history: int
    increment: int
    id: str


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """One worker's heartbeat; lengths and KV are tokens, windowed figures seconds (None: no sample)."""

    worker: str
    role: Role
    url: str
    degree: int
    capacity: int
    pool: str = ""
    revision: str = ""
    node: str = ""
    incarnation: str = ""
    seq: int = 0
    ready: bool = False
    draining: bool = False
    queue: tuple[QueueEntry, ...] = ()
    windowed_ttft: float | None = None
    windowed_itl: float | None = None
    kv_used: int = 0
    batch: int = 0
    sessions: int = 0
    chars_per_token: float = 4.0
    engine_port: int = 0
    """Where the worker's engine itself listens, on the host of ``url``."""

    def to_json(self) -> bytes:
        """Return the record as it is stored."""
        return orjson.dumps(
            {
                "worker": self.worker,
                "role": self.role,
                "url": self.url,
                "degree": self.degree,
                "capacity": self.capacity,
                "pool": self.pool,
                "revision": self.revision,
                "node": self.node,
                "incarnation": self.incarnation,
                "seq": self.seq,
                "ready": self.ready,
                "draining": self.draining,
                "queue": [[entry.history, entry.increment, entry.id] for entry in self.queue],
                "windowedTtft": self.windowed_ttft,
                "windowedItl": self.windowed_itl,
                "kvUsed": self.kv_used,
                "batch": self.batch,
                "sessions": self.sessions,
                "charsPerToken": self.chars_per_token,
                "enginePort": self.engine_port,
            }
        )


def read_record(raw: bytes) -> WorkerRecord | None:
    """Return a stored heartbeat; None when another version wrote something this one cannot read."""
    try:
        body = cast(Mapping[str, object], orjson.loads(raw))
        role = body["role"]
        if role not in ("prefill", "decode"):
            return None
        queue = cast(Sequence[tuple[int, int, str]], body["queue"])
        return WorkerRecord(
            worker=str(body["worker"]),
            role=role,
            url=str(body["url"]),
            degree=_int(body["degree"]),
            capacity=_int(body["capacity"]),
            pool=str(body.get("pool", "")),
            revision=str(body.get("revision", "")),
            node=str(body.get("node", "")),
            incarnation=str(body.get("incarnation", "")),
            seq=_int(body["seq"]),
            ready=body["ready"] is True,
            draining=body["draining"] is True,
            queue=tuple(QueueEntry(int(h), int(i), str(k)) for h, i, k in queue),
            windowed_ttft=_seconds(body.get("windowedTtft")),
            windowed_itl=_seconds(body.get("windowedItl")),
            kv_used=_int(body.get("kvUsed", 0)),
            batch=_int(body.get("batch", 0)),
            sessions=_int(body.get("sessions", 0)),
            chars_per_token=_seconds(body.get("charsPerToken")) or 4.0,
            engine_port=_int(body.get("enginePort", 0)),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _int(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


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

    async def bind(self, session: str, worker: str, *, replaces: str, ttl_s: int) -> str:
        """Bind a session unless it is bound to another worker than ``replaces``; return who owns it now."""

    async def bind_all(self, bindings: Sequence[tuple[str, str]], *, ttl_s: int) -> None:
        """Publish bindings that the store has lost; those it has stay as they are."""

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

    async def bind(self, session: str, worker: str, *, replaces: str, ttl_s: int) -> str:
        """Bind or tell who owns the session."""
        until, owner = self._bindings.get(session, (0.0, ""))
        if until > monotonic() and owner != replaces:
            return owner
        _put(self._bindings, session, (monotonic() + ttl_s, worker))
        return worker

    async def bind_all(self, bindings: Sequence[tuple[str, str]], *, ttl_s: int) -> None:
        """Publish bindings that are missing."""
        for session, worker in bindings:
            await self.bind(session, worker, replaces="", ttl_s=ttl_s)

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
