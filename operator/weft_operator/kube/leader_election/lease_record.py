"""The Lease as a record: what it says, whether it may be taken, and what it says next. Pure.

The rules are client-go's: a replica trusts no other machine's clock. A Lease has run out when *this* replica has seen
it unchanged for as long as the holder promised to renew it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from weft_operator.api.objects import Manifest, ObjectKey

LEASE_API = "coordination.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """How long a Lease holds, in seconds; the same for all replicas."""

    duration: float = 15.0
    """A Lease unchanged for so long may be taken."""
    deadline: float = 10.0
    """A leader whose last renewal began so long ago writes no more; what is left up to ``duration`` is for what
    is on its way."""
    retry: float = 2.0
    """Between two reads of the Lease, and between two renewals."""

    @classmethod
    def of(cls, duration: float) -> "LeaseTiming":
        """Return the times for another duration, in the same proportions."""
        usual = cls()
        scale = duration / usual.duration
        return cls(duration, usual.deadline * scale, usual.retry * scale)


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """A Lease as one replica saw it; ``since`` is its own clock's time of the first read of this version."""

    lease: Manifest
    since: float

    @property
    def version(self) -> str:
        """Return the resource version."""
        return str(self.lease["metadata"].get("resourceVersion", ""))

    @property
    def holder(self) -> str:
        """Return who holds it; empty when it was given back."""
        return holder_of(self.lease)


def holder_of(lease: Mapping[str, Any]) -> str:
    """Return who holds a Lease; empty when nobody does."""
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


def observe_lease(lease: Manifest, before: ObservedLease | None, *, now: float) -> ObservedLease:
    """Return a Lease as seen now; one that has not changed since the look before keeps its time."""
    seen = ObservedLease(lease, now)
    return seen if before is None or before.version != seen.version else ObservedLease(lease, before.since)


def may_acquire(seen: ObservedLease, me: str, *, now: float, timing: LeaseTiming) -> bool:
    """Tell whether a Lease is free: ours, given back, or not renewed for as long as its holder promised."""
    if seen.holder in ("", me):
        return True
    promised = (seen.lease.get("spec") or {}).get("leaseDurationSeconds") or timing.duration
    return now - seen.since >= max(float(promised), timing.duration)


def acquired(key: ObjectKey, before: ObservedLease | None, me: str, *, at: datetime, timing: LeaseTiming) -> Manifest:
    """Return the Lease by which ``me`` takes it; over a version that was seen, only that version is replaced."""
    spec = (before.lease.get("spec") or {}) if before is not None else {}
    mine = before is not None and before.holder == me
    return _lease(
        key,
        before,
        {
            "holderIdentity": me,
            "leaseDurationSeconds": math.ceil(timing.duration),
            "acquireTime": spec.get("acquireTime") if mine else _micro(at),
            "renewTime": _micro(at),
            "leaseTransitions": int(spec.get("leaseTransitions") or 0) + int(before is not None and not mine),
        },
    )


def released(key: ObjectKey, held: ObservedLease, *, at: datetime) -> Manifest:
    """Return the Lease by which its holder gives it back: free for whoever looks next."""
    spec = held.lease.get("spec") or {}
    return _lease(key, held, {**spec, "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _micro(at)})


def _lease(key: ObjectKey, before: ObservedLease | None, spec: Mapping[str, Any]) -> Manifest:
    metadata: Manifest = {"name": key.name, "namespace": key.namespace}
    if before is not None:
        metadata["resourceVersion"] = before.version
    return {"apiVersion": LEASE_API, "kind": "Lease", "metadata": metadata, "spec": dict(spec)}


def _micro(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
