"""The condition KVCacheTiers: whether workers run with the tiers of spec.kvCache, or what keeps them from it. Pure.

With spec.engine.kvEvents it says, too, what is wrong with the events by which routers know what is cached.

What pods wait for at a start is a fault only when they have waited for START_S: claims are bound when the first pod is
scheduled, and an autoscaler adds larger nodes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from weft_core.heartbeat import WorkerRecord
from weft_core.kv_tiers import (
    DISK_FAULTS,
    DISK_FULL,
    DISK_SLOW,
    EVENT_FAULTS,
    EVENTS_BLOCK_SIZE,
    EVENTS_DIFFER,
    EVENTS_LOST,
    EVENTS_MISSING,
)
from weft_core.quantities import bytes_of
from weft_operator.api.conditions import ConditionValue
from weft_operator.api.kv_cache import KvCache
from weft_operator.api.objects import POOL_LABEL, WORKER_LABEL, Manifest, is_terminating, labels_of
from weft_operator.workers.node_capacity import pod_memory

START_S = 120.0
RECHECK_S = 30.0
"""Interval of reading the heartbeats of workers with a disk or with KV events."""
MAX_NAMED = 3
MANY, ONE_NODE, ONE_POD = "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"


@dataclass(frozen=True, slots=True)
class TierPod:
    """One pod of a worker: where it runs ("" before it is scheduled), how long ago it was made, and its memory."""

    worker: str
    pool: str
    node: str
    age_s: float
    memory: int
    """Bytes that the scheduler reserves."""


@dataclass(frozen=True, slots=True)
class TierFacts:
    """What is known of a service's workers and of the places of their tiers."""

    ready: frozenset[str]
    """The planned workers that are ready at the newest template."""
    planned: frozenset[str]
    pods: Sequence[TierPod] = ()
    heartbeats: Mapping[str, WorkerRecord] = field(default_factory=dict)
    claim: Manifest | None = None
    claim_known: bool = False
    """Whether the claim could be looked up; ``claim`` None then says that it does not exist."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """Allocatable memory of the largest node of each pool, in bytes, as far as it is known."""

    @property
    def waiting(self) -> list[TierPod]:
        """Return the pods of planned workers that are not ready."""
        return [pod for pod in self.pods if pod.worker in self.planned - self.ready]


def tier_pods(pods: Iterable[Manifest], *, now: datetime) -> tuple[TierPod, ...]:
    """Return the pods of workers that are not being deleted."""
    return tuple(
        TierPod(
            worker=labels_of(pod)[WORKER_LABEL],
            pool=labels_of(pod).get(POOL_LABEL, ""),
            node=str((pod.get("spec") or {}).get("nodeName") or ""),
            age_s=_age_s(pod, now),
            memory=pod_memory(pod.get("spec") or {}),
        )
        for pod in pods
        if WORKER_LABEL in labels_of(pod) and not is_terminating(pod)
    )


def check_tiers(cache: KvCache | None, facts: TierFacts) -> ConditionValue:
    """Return the condition KVCacheTiers; without tiers that of the KV events alone."""
    found = None if cache is None else _disk_fault(cache, facts)
    waiting = facts.waiting
    if found is None and cache is not None and waiting and max(pod.age_s for pod in waiting) >= START_S:
        found = _claim_fault(cache, facts) or _too_large(cache, facts)
    found = found or _event_fault(facts)
    if found is not None:
        return found
    if not facts.ready:
        return ConditionValue("Unknown", "NotYetReady", "no worker is ready yet, so no tier is in use")
    if cache is None:
        return ConditionValue("True", "EventsFollowed", "routers follow the KV events of workers that publish any")
    return ConditionValue("True", "TiersInUse", f"workers keep KV in {_listed(cache)}")


def reports_faults(cache: KvCache | None, *, events: bool) -> bool:
    """Return whether heartbeats may name faults: of disks, or of KV events."""
    return events or (cache is not None and cache.disk is not None)


def next_check_s(cache: KvCache | None, facts: TierFacts, *, events: bool = False) -> float | None:
    """Return in how many seconds to look again; None where no event is missed until the next resync."""
    waits = [START_S - pod.age_s for pod in facts.waiting if pod.age_s < START_S and cache is not None]
    if reports_faults(cache, events=events) and facts.ready:
        waits.append(RECHECK_S)
    return max(1.0, min(waits)) if waits else None


def _claim_fault(cache: KvCache, facts: TierFacts) -> ConditionValue | None:
    """Return what is wrong with the claim that a tier of files is on."""
    name = None if cache.disk is None else cache.disk.claim
    if name is None or not facts.claim_known:
        return None
    if facts.claim is None:
        return ConditionValue(
            "False",
            "ClaimMissing",
            f"PersistentVolumeClaim {name} of spec.kvCache.disk.claim does not exist, so no worker starts; create it, "
            "or remove claim, so that each worker gets a volume",
        )
    phase = str((facts.claim.get("status") or {}).get("phase") or "Pending")
    if phase != "Bound":
        return ConditionValue(
            "False",
            "ClaimNotBound",
            f"PersistentVolumeClaim {name} of spec.kvCache.disk.claim is {phase}, so no worker starts; its events say "
            f"what it waits for (kubectl describe pvc {name})",
        )
    modes = list((facts.claim.get("spec") or {}).get("accessModes") or ())
    if MANY in modes:
        return None
    nodes = {pod.node for pod in facts.pods if pod.node}
    fits = (ONE_NODE in modes and len(nodes) <= 1) or (ONE_POD in modes and len(facts.planned) == 1)
    if fits:
        return None
    return ConditionValue(
        "False",
        "ClaimAccessMode",
        f"PersistentVolumeClaim {name} of spec.kvCache.disk.claim is {' and '.join(modes) or 'without access mode'}, "
        f"and {len(facts.planned)} workers on {max(1, len(nodes))} nodes write to it; name a claim with {MANY}, or "
        "remove claim, so that each worker gets a volume",
    )


def _too_large(cache: KvCache, facts: TierFacts) -> ConditionValue | None:
    """Return which pool has no node for a pod with its tier, though one without the tier would fit."""
    tier = 0 if cache.cpu is None else bytes_of(cache.cpu.size)
    for pod in sorted(facts.waiting, key=lambda one: (one.pool, one.worker)):
        largest = facts.memory.get(pod.pool)
        part = -(-tier // max(1, sum(other.worker == pod.worker for other in facts.pods)))
        if largest is not None and not pod.node and pod.memory - part <= largest < pod.memory:
            return ConditionValue(
                "False",
                "TierTooLarge",
                f"a pod of pool {pod.pool} asks for {_gib(pod.memory)} GiB of memory, {_gib(part)} of them for "
                f"spec.kvCache.cpu, and the pool's largest node has {_gib(largest)}; make spec.kvCache.cpu.size "
                "smaller, or add nodes with more memory",
            )
    return None


def _disk_fault(cache: KvCache, facts: TierFacts) -> ConditionValue | None:
    """Return the worst fault that sidecars of planned workers report of their disks."""
    if cache.disk is None:
        return None
    for kind, words, workers in _faults(facts, DISK_FAULTS):
        where = f"the disk of {workers}"
        if kind == DISK_FULL:
            return ConditionValue(
                "False",
                "DiskFull",
                f"{where} has room for less than half of spec.kvCache.disk.size, so KV is deleted early or not "
                "written; free space there, make the volume larger, or make the tier smaller",
            )
        if kind == DISK_SLOW:
            return ConditionValue(
                "False",
                "DiskSlow",
                f"{where} takes longer than half a second to write 1 MiB, so loads from it cost more than they save; "
                "use a faster disk, or remove spec.kvCache.disk",
            )
        return ConditionValue("False", "DiskUnavailable", f"{where} is not written to: {words}")
    return None


_EVENT_FAULTS: Mapping[str, tuple[str, str]] = {
    EVENTS_MISSING: (
        "EventsMissing",
        "publishes no KV events of the prompts that it serves; its log and that of the container router say why",
    ),
    EVENTS_BLOCK_SIZE: (
        "BlockSizeDiffers",
        "publishes KV events of blocks of several sizes, and only those of {words} count; use one block size",
    ),
    EVENTS_DIFFER: (
        "EventsDisagree",
        "publishes KV events without the prompts that it serves; use an engine version that Weft supports",
    ),
    EVENTS_LOST: (
        "EventsLost",
        "lost KV events three times in five minutes, or they came out of order; give the container router more CPU",
    ),
}
"""The reason and the message of each fault of events."""


def _event_fault(facts: TierFacts) -> ConditionValue | None:
    """Return the worst fault that sidecars of planned workers report of their engines' KV events."""
    for kind, words, workers in _faults(facts, EVENT_FAULTS):
        reason, message = _EVENT_FAULTS[kind]
        text = f"{workers} {message.format(words=words)}. Routers go by their estimate meanwhile"
        return ConditionValue("False", reason, text)
    return None


def _faults(facts: TierFacts, kinds: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the faults of planned workers in the order of ``kinds``: the words of the first, and who has it."""
    records = [facts.heartbeats[name] for name in sorted(facts.planned) if name in facts.heartbeats]
    for kind in kinds:
        words = {record.worker: said for record in records for name, said in record.kv_tier_faults if name == kind}
        if words:
            workers = _named([record for record in records if record.worker in words])
            yield kind, next(iter(words.values())), workers


def _listed(cache: KvCache) -> str:
    parts = []
    if cache.cpu is not None:
        parts.append(f"CPU memory ({cache.cpu.size} each)")
    if cache.disk is not None:
        parts.append(f"files ({cache.disk.size} each)")
    if cache.remote is not None:
        parts.append("a Mooncake Store" if cache.remote.mooncake is not None else "a store of LMCache")
    return " and ".join(parts)


def _named(records: Sequence[WorkerRecord]) -> str:
    names = [f"{one.worker} on node {one.node}" if one.node else one.worker for one in records[:MAX_NAMED]]
    more = f" and {len(records) - MAX_NAMED} more" if len(records) > MAX_NAMED else ""
    return f"{', '.join(names)}{more}"


def _gib(size: int) -> str:
    return f"{size / 2**30:.3g}"


def _age_s(pod: Mapping[str, Any], now: datetime) -> float:
    made = (pod.get("metadata") or {}).get("creationTimestamp")
    return 0.0 if not made else max(0.0, (now - datetime.fromisoformat(str(made))).total_seconds())
