"""What a worker says of itself every second, where that is kept, and which worker may go first because of it.

Router processes write and read these in Redis, the operator reads them; both take keys and fields from here.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, cast

from weft_core.authority import is_http_url
from weft_core.kv_tiers import TIER_NAMES
from weft_core.layouts import WORKER_ROLES, Role, WorkerRole
from weft_core.parallelism import Degree, degree_from_json, degree_to_json
from weft_core.policies.slowdown import LARGEST
from weft_core.prefix_sketch import is_sketch
from weft_core.worker_roles import has_duty

HEARTBEAT_S = 1.0
HEARTBEAT_EXPIRY_S = 5
DEMAND_EXPIRY_S = 30
"""How long a coordinator's word that requests wait for workers is there to be read."""
MAX_NAME: Final = 253
"""Characters of a worker's name, and of other names in a heartbeat: what Kubernetes allows a pod."""
MAX_QUEUE: Final = 2048
"""Prefills of a queue that a heartbeat lists; those behind them are left out."""
MAX_ID: Final = 64
"""Characters of a prefill's id in a heartbeat."""
MAX_QUARANTINED: Final = 64
"""Digests of requests that a heartbeat names."""
MAX_REPORTED: Final = 64
"""Workers with a fault, transports, or adapters, that a heartbeat names."""
_MOST: Final = 2**53
"""What any JSON reader reads exactly."""
_MOST_SECONDS: Final = 1e9
_MOST_RATE: Final = 1e15
_NAME = re.compile(r"[0-9A-Za-z]([0-9A-Za-z._-]*[0-9A-Za-z])?")


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
    role: WorkerRole
    """The role in force: the worker's acknowledgement of its assignment."""
    url: str
    degree: Degree
    capacity: int
    pool: str = ""
    revision: str = ""
    node: str = ""
    instance_id: str = ""
    seq: int = 0
    ready: bool = False
    draining: bool = False
    queue: tuple[QueueEntry, ...] = ()
    windowed_ttft: float | None = None
    windowed_itl: float | None = None
    slowdown: float = 1.0
    """How many times slower the engine prefills than its cost profile says (weft_core.policies.slowdown)."""
    kv_used: int = 0
    kv_intake: int = 0
    """Tokens whose KV came into its cache since its start, computed or read."""
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
    """Whether Weft's plug-in is in the engine: active, absent, off (it does not know this engine), "" unknown."""
    engine_version: str = ""
    """The engine's version, as its plug-in reports it."""
    kv_open: int = -1
    """Workers of the other role whose side channel is reached from this pod; -1 where this is not tried."""
    kv_proven: int = -1
    """Those whose KV was read by this worker's engine, as a proof; -1 where there is no proof."""
    kv_faults: tuple[tuple[str, str], ...] = ()
    """Some of those with which no KV is transferred, by name, and why: side-channel, transfer or transport."""
    kv_transports: tuple[str, ...] = ()
    """What carried the KV of proofs: tcp, rdma, or direct where the pod's devices saw none of it."""
    kv_bytes_per_s: float | None = None
    """The slowest proof."""
    kv_latency: float | None = None
    """The longest time that one block of KV took, in seconds."""
    quarantined: tuple[str, ...] = ()
    """Digests of requests that ended this worker's engine or one that prefilled for it; they are not sent again."""
    adapters: tuple[str, ...] = ()
    """The adapters that its sidecar loaded into its engine, by name and source (AdapterConfig.version)."""
    adapter_faults: tuple[tuple[str, str], ...] = ()
    """Those that the engine did not load, by the same names, and what the engine said."""
    kv_tier_faults: tuple[tuple[str, str], ...] = ()
    """What is wrong with its KV cache tiers and KV events (DISK_FAULTS and EVENT_FAULTS of weft_core.kv_tiers), and in
    words what is known of it."""
    kv_prefixes: str | None = None
    """A sketch of the beginnings of prompts in its cache (weft_core.prefix_sketch); None: its engine does not say."""
    kv_tier_prefixes: tuple[tuple[str, str], ...] = ()
    """Sketches of those of them that have to be loaded from a tier, by its name; each is in one of them."""

    def has_duty(self, duty: Role) -> bool:
        """Return whether the worker has a duty; one with the role ``both`` has both."""
        return has_duty(self.role, duty)

    def has_adapter(self, version: str) -> bool:
        """Return whether the engine has an adapter; nothing stands for none, which every engine has."""
        return not version or version in self.adapters

    @property
    def tokens_at_stake(self) -> int:
        """Return the tokens of KV that are lost at worst: those of rounds that are live count before they are over."""
        return max(self.kv_tokens, self.kv_used)

    def fields(self) -> dict[str, object]:
        """Return the record as it is stored, for any JSON encoder.

        What an engine said of itself is bounded here, so that no engine can make its worker's record unreadable.
        """
        return {
            "worker": self.worker,
            "role": self.role,
            "url": self.url,
            "degree": degree_to_json(self.degree),
            "capacity": self.capacity,
            "pool": self.pool,
            "revision": self.revision,
            "node": self.node,
            "instanceId": self.instance_id,
            "seq": self.seq,
            "ready": self.ready,
            "draining": self.draining,
            "queue": queue_fields(self.queue),
            "windowedTtft": _finite_or_none(self.windowed_ttft),
            "windowedItl": _finite_or_none(self.windowed_itl),
            "slowdown": round(self.slowdown, 3),
            "kvUsed": _count(self.kv_used),
            "kvIntake": _count(self.kv_intake),
            "batch": _count(self.batch),
            "sessions": self.sessions,
            "liveRounds": self.live_rounds,
            "kvTokens": _count(self.kv_tokens),
            "idleSeconds": round(self.idle_seconds, 1),
            "charsPerToken": _finite_or_none(self.chars_per_token),
            "enginePort": self.engine_port,
            "enginePlugin": _printable(self.engine_plugin),
            "engineVersion": _printable(self.engine_version),
            "kvOpen": self.kv_open,
            "kvProven": self.kv_proven,
            "kvFaults": [list(fault) for fault in self.kv_faults[:MAX_REPORTED]],
            "kvTransports": list(self.kv_transports[:MAX_REPORTED]),
            "kvBytesPerSecond": _finite_or_none(self.kv_bytes_per_s, _MOST_RATE),
            "kvLatency": _finite_or_none(self.kv_latency),
            "quarantined": list(self.quarantined[:MAX_QUARANTINED]),
            "adapters": list(self.adapters[:MAX_REPORTED]),
            "adapterFaults": [[name, _printable(words)] for name, words in self.adapter_faults[:MAX_REPORTED]],
            "kvTierFaults": [[kind, _printable(words)] for kind, words in self.kv_tier_faults[:MAX_REPORTED]],
            "kvPrefixes": self.kv_prefixes,
            "kvTierPrefixes": [list(sketch) for sketch in self.kv_tier_prefixes],
        }


@lru_cache(maxsize=4096)
def is_worker_name(text: str) -> bool:
    """Return whether a text can be a worker's name: letters, digits, dots, dashes and underscores."""
    return len(text) <= MAX_NAME and _NAME.fullmatch(text) is not None


def read_fields(stored: object) -> WorkerRecord | None:
    """Return a stored heartbeat, decoded; None where one field of it cannot be what a worker writes.

    Lengths are bounded, numbers finite, and the address is a URL of HTTP without user, query or fragment.
    """
    try:
        body = cast(Mapping[str, object], stored)
        role = body["role"]
        if role not in WORKER_ROLES:
            return None
        return WorkerRecord(
            worker=_name(body["worker"]),
            role=role,
            url=_url(body["url"]),
            degree=_degree(body["degree"]),
            capacity=_int(body["capacity"]),
            pool=_text(body.get("pool", "")),
            revision=_text(body.get("revision", "")),
            node=_text(body.get("node", "")),
            instance_id=_text(body.get("instanceId", "")),
            seq=_int(body["seq"]),
            ready=body["ready"] is True,
            draining=body["draining"] is True,
            queue=read_queue(body["queue"]),
            windowed_ttft=_seconds(body.get("windowedTtft")),
            windowed_itl=_seconds(body.get("windowedItl")),
            slowdown=_slowdown(body.get("slowdown")),
            kv_used=_int(body.get("kvUsed", 0)),
            kv_intake=_int(body.get("kvIntake", 0)),
            batch=_int(body.get("batch", 0)),
            sessions=_int(body.get("sessions", 0)),
            live_rounds=_int(body.get("liveRounds", 0)),
            kv_tokens=_int(body.get("kvTokens", 0)),
            idle_seconds=_seconds(body.get("idleSeconds")) or 0.0,
            chars_per_token=_seconds(body.get("charsPerToken")) or 4.0,
            engine_port=_int(body.get("enginePort", 0), most=65535),
            engine_plugin=_text(body.get("enginePlugin", "")),
            engine_version=_text(body.get("engineVersion", "")),
            kv_open=_int(body.get("kvOpen", -1), least=-1),
            kv_proven=_int(body.get("kvProven", -1), least=-1),
            kv_faults=tuple(_fault(pair) for pair in _list(body.get("kvFaults", []), MAX_REPORTED)),
            kv_transports=tuple(_text(name) for name in _list(body.get("kvTransports", []), MAX_REPORTED)),
            kv_bytes_per_s=_number(body.get("kvBytesPerSecond"), _MOST_RATE),
            kv_latency=_seconds(body.get("kvLatency")),
            quarantined=tuple(_text(entry) for entry in _list(body.get("quarantined", []), MAX_QUARANTINED)),
            adapters=tuple(_text(name) for name in _list(body.get("adapters", []), MAX_REPORTED)),
            adapter_faults=tuple(_fault(pair) for pair in _list(body.get("adapterFaults", []), MAX_REPORTED)),
            kv_tier_faults=tuple(_fault(pair) for pair in _list(body.get("kvTierFaults", []), MAX_REPORTED)),
            kv_prefixes=_sketch(body.get("kvPrefixes")),
            kv_tier_prefixes=tuple(
                _tier_sketch(pair) for pair in _list(body.get("kvTierPrefixes", []), len(TIER_NAMES))
            ),
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return None


def scale_down_order(records: Iterable[WorkerRecord]) -> list[WorkerRecord]:
    """Return workers in the order of scale-down: the one whose loss costs least first.

    Those that drain already, then fewest tokens that might have to be computed again, then fewest live rounds, then
    longest idle; the name decides among equals, so that every reader names the same victim. Live rounds do not come
    first: a new worker has many brief ones, and one with few long sessions would be removed before it.
    """
    return sorted(records, key=lambda r: (not r.draining, r.tokens_at_stake, r.live_rounds, -r.idle_seconds, r.worker))


def _finite_or_none(value: float | None, most: float = _MOST_SECONDS) -> float | None:
    """Return a figure that readers accept; None for any other."""
    return value if value is not None and math.isfinite(value) and 0 <= value <= most else None


def queue_fields(queue: Sequence[QueueEntry]) -> list[object]:
    """Return a queue as it is sent, for any JSON encoder; of more than MAX_QUEUE prefills the first."""
    return [_entry_fields(entry) for entry in queue[:MAX_QUEUE]]


def read_queue(sent: object) -> tuple[QueueEntry, ...]:
    """Return a decoded queue.

    Raises:
        TypeError, ValueError: it is none.
    """
    return tuple(_entry(entry) for entry in _list(sent, MAX_QUEUE))


def _entry_fields(entry: QueueEntry) -> list[object]:
    id_ = entry.id[:MAX_ID]
    return [entry.history, entry.increment, id_ if id_.isascii() else id_.encode("ascii", "replace").decode()]


def _count(value: int) -> int:
    return min(max(0, value), _MOST)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:MAX_NAME])


def _int(value: object, *, least: int = 0, most: int = _MOST) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{type(value).__name__}: not a whole number")
    if not least <= value <= most:
        raise ValueError(f"not a number from {least} to {most}")
    return value


def _number(value: object, most: float) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{type(value).__name__}: not a number")
    if not (math.isfinite(value) if isinstance(value, float) else True) or not 0 <= value <= most:
        raise ValueError(f"not a number from 0 to {most:g}")
    return float(value)


def _seconds(value: object) -> float | None:
    return _number(value, _MOST_SECONDS)


def _slowdown(value: object) -> float:
    factor = _number(value, LARGEST)
    if factor is None:
        return 1.0
    if factor < 1.0 / LARGEST:
        raise ValueError(f"not a number from {1.0 / LARGEST:g} to {LARGEST:g}")
    return factor


def _degree(value: object) -> Degree:
    return degree_from_json(_text(value)) if isinstance(value, str) else _int(value, least=1)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__}: not a text")
    if len(value) > MAX_NAME or (value and not value.isprintable()):
        raise ValueError(f"not a text of at most {MAX_NAME} printable characters")
    return value


def _sketch(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not is_sketch(value):
        raise ValueError("not a sketch of prefixes")
    return value


def _tier_sketch(value: object) -> tuple[str, str]:
    name, sketch = _list(value, 2)
    if name not in TIER_NAMES:
        raise ValueError("not the name of a tier")
    return str(name), _sketch(sketch) or ""


def _name(value: object) -> str:
    name = _text(value)
    if not is_worker_name(name):
        raise ValueError("not a worker's name")
    return name


def _url(value: object) -> str:
    url = _text(value)
    if not _is_origin(url):
        raise ValueError("not a URL such as http://HOST:PORT")
    return url


@lru_cache(maxsize=4096)
def _is_origin(url: str) -> bool:
    # A standalone router's engines may be behind https, or a path; sidecars are not, and no hop goes there.
    return url.isascii() and is_http_url(url) and not set(url) & set("?#@\\")


def _list(value: object, most: int) -> list[object]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{type(value).__name__}: not a list")
    if len(value) > most:
        raise ValueError(f"more than {most} entries")
    return list(value)


def _entry(value: object) -> QueueEntry:
    history, increment, id_ = _list(value, 3)
    return QueueEntry(_int(history), _int(increment), _text(id_))


def _fault(value: object) -> tuple[str, str]:
    name, why = _list(value, 2)
    return _text(name), _text(why)
