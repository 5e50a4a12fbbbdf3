"""The Lease's record: its holder, whether it may be acquired, and its next version. Pure.

The rules are client-go's: a replica trusts no other machine's clock. A Lease has expired when *this* replica has
observed no change of it for its leaseDurationSeconds.
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
    """The times of a Lease, in seconds; the same for all replicas."""

    duration: float = 15.0
    """A Lease that is unchanged for this time may be acquired."""
    deadline: float = 10.0
    """A leader stops writing this long after the start of its last renewal; the rest of ``duration`` is for writes
    in flight."""
    retry: float = 2.0
    """Interval of reads of the Lease, and of renewals."""

    @classmethod
    def of(cls, duration: float) -> "LeaseTiming":
        """Return the times for another duration, in the same proportions."""
        usual = cls()
        scale = duration / usual.duration
        return cls(duration, usual.deadline * scale, usual.retry * scale)


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """A Lease as one replica observed it; ``since`` is when it first read this version, by its own clock."""

    lease: Manifest
    since: float

    @property
    def version(self) -> str:
        """Return the resource version."""
        return str(self.lease["metadata"].get("resourceVersion", ""))

    @property
    def holder(self) -> str:
        """Return the holder; empty when it was released."""
        return holder_of(self.lease)


def holder_of(lease: Mapping[str, Any]) -> str:
    """Return the holder of a Lease; empty without one."""
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


def observe_lease(lease: Manifest, before: ObservedLease | None, *, now: float) -> ObservedLease:
    """Return a Lease as observed now; an unchanged one keeps the time of its first read."""
    seen = ObservedLease(lease, now)
    return seen if before is None or before.version != seen.version else ObservedLease(lease, before.since)


def may_acquire(seen: ObservedLease, me: str, *, now: float, timing: LeaseTiming) -> bool:
    """Return whether a Lease may be acquired: it is ours, released or expired."""
    if seen.holder in ("", me):
        return True
    promised = (seen.lease.get("spec") or {}).get("leaseDurationSeconds") or timing.duration
    return now - seen.since >= max(float(promised), timing.duration)


def acquired(key: ObjectKey, before: ObservedLease | None, me: str, *, at: datetime, timing: LeaseTiming) -> Manifest:
    """Return the Lease with which ``me`` acquires it; only the observed version is replaced."""
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
    """Return the Lease with which its holder releases it."""
    spec = held.lease.get("spec") or {}
    return _lease(key, held, {**spec, "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _micro(at)})


def _lease(key: ObjectKey, before: ObservedLease | None, spec: Mapping[str, Any]) -> Manifest:
    metadata: Manifest = {"name": key.name, "namespace": key.namespace}
    if before is not None:
        metadata["resourceVersion"] = before.version
    return {"apiVersion": LEASE_API, "kind": "Lease", "metadata": metadata, "spec": dict(spec)}


def _micro(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
