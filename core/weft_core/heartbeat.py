"""What a worker says of itself every second, where that is kept, and which worker may go first because of it.

Router processes write and read these in Redis, the operator reads them; both take keys and fields from here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

HEARTBEAT_S = 1.0
HEARTBEAT_EXPIRY_S = 5
DEMAND_EXPIRY_S = 30
"""How long a coordinator's word that requests wait for workers is there to be read."""


def key_prefix(namespace: str, service: str) -> str:
    """Return what every key of a service begins with; the braces keep them on one node of a Redis cluster."""
    return f"weft:{{{namespace}/{service}}}:"


def workers_key(namespace: str, service: str) -> str:
    """Return the key of the set of worker names."""
    return key_prefix(namespace, service) + "workers"


def worker_key(namespace: str, service: str, worker: str) -> str:
    """Return the key of a worker's heartbeat: JSON that expires after HEARTBEAT_EXPIRY_S."""
    return f"{key_prefix(namespace, service)}worker:{worker}"


def demand_key(namespace: str, service: str) -> str:
    """Return the key that is there while requests wait for a worker; it expires after DEMAND_EXPIRY_S."""
    return key_prefix(namespace, service) + "demand"


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
    role: Literal["prefill", "decode"]
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
    """Sessions bound to this worker whose last round it served."""
    live_rounds: int = 0
    """Rounds (of a prefill worker: prefills) that it serves now."""
    kv_tokens: int = 0
    """Tokens of history that its sessions would have to move, or to compute again, if it went now."""
    idle_seconds: float = 0.0
    """How long ago its last round ended; 0 while one is live, since its start where there was none."""
    chars_per_token: float = 4.0
    engine_port: int = 0
    """Where the worker's engine itself listens, on the host of ``url``."""
    engine_plugin: str = ""
    """Whether Weft's plug-in is in the engine: active, absent, off (it does not know this engine), "" not told yet."""
    engine_version: str = ""
    """The engine's version, as its plug-in tells it."""
    kv_open: int = -1
    """Workers of the other role whose side channel is reached from this pod; -1 where nobody tries."""
    kv_proven: int = -1
    """Those whose KV was read by this worker's engine, as a proof; -1 where nobody proves."""
    kv_faults: tuple[tuple[str, str], ...] = ()
    """Some of those with which nothing is handed over, by name, and why: side-channel, transfer or transport."""
    kv_transports: tuple[str, ...] = ()
    """What carried the KV of proofs: tcp, rdma, or direct where the pod's devices saw none of it."""
    kv_bytes_per_s: float | None = None
    """The slowest proof."""
    kv_latency: float | None = None
    """The longest time that one block of KV took, in seconds."""

    @property
    def tokens_at_stake(self) -> int:
        """Return the tokens of KV that are lost at worst: those of rounds that are live count before they are over."""
        return max(self.kv_tokens, self.kv_used)

    def fields(self) -> dict[str, object]:
        """Return the record as it is stored, for any JSON encoder."""
        return {
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
            "liveRounds": self.live_rounds,
            "kvTokens": self.kv_tokens,
            "idleSeconds": round(self.idle_seconds, 1),
            "charsPerToken": self.chars_per_token,
            "enginePort": self.engine_port,
            "enginePlugin": self.engine_plugin,
            "engineVersion": self.engine_version,
            "kvOpen": self.kv_open,
            "kvProven": self.kv_proven,
            "kvFaults": [list(fault) for fault in self.kv_faults],
            "kvTransports": list(self.kv_transports),
            "kvBytesPerSecond": self.kv_bytes_per_s,
            "kvLatency": self.kv_latency,
        }


def read_fields(stored: object) -> WorkerRecord | None:
    """Return a stored heartbeat, decoded; None when another version wrote something this one cannot read."""
    try:
        body = cast(Mapping[str, object], stored)
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
            live_rounds=_int(body.get("liveRounds", 0)),
            kv_tokens=_int(body.get("kvTokens", 0)),
            idle_seconds=_seconds(body.get("idleSeconds")) or 0.0,
            chars_per_token=_seconds(body.get("charsPerToken")) or 4.0,
            engine_port=_int(body.get("enginePort", 0)),
            engine_plugin=str(body.get("enginePlugin", "")),
            engine_version=str(body.get("engineVersion", "")),
            kv_open=_int(body.get("kvOpen", -1)),
            kv_proven=_int(body.get("kvProven", -1)),
            kv_faults=tuple((str(name), str(why)) for name, why in _pairs(body.get("kvFaults", ()))),
            kv_transports=tuple(str(name) for name in cast(Sequence[str], body.get("kvTransports", ()))),
            kv_bytes_per_s=_seconds(body.get("kvBytesPerSecond")),
            kv_latency=_seconds(body.get("kvLatency")),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def by_value(records: Iterable[WorkerRecord]) -> list[WorkerRecord]:
    """Return workers in the order in which they may go: whoever loses the least first.

    Those that drain already, then fewest tokens that might have to be computed again, then fewest live rounds, then
    longest idle; the name decides what is left, so that every reader names the same victim. Live rounds do not come
    first: a new worker has many brief ones, and one with few long sessions would go before it.
    """
    return sorted(records, key=lambda r: (not r.draining, r.tokens_at_stake, r.live_rounds, -r.idle_seconds, r.worker))


def _int(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _pairs(value: object) -> Sequence[tuple[str, str]]:
    return cast(Sequence[tuple[str, str]], value)


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
