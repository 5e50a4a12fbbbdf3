"""The holder of one Lease: acquire, renew and release. Calls block."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from weft_operator.api.objects import Manifest, ObjectKey
from weft_operator.errors import ConflictError, NotFoundError
from weft_operator.kube.leader_election.lease_record import (
    LEASE_API,
    LeaseTiming,
    ObservedLease,
    acquired,
    may_acquire,
    observe_lease,
    released,
)
from weft_operator.kube.leader_election.lease_term import steady_clock


class Leases(Protocol):
    """The requests that a Lease needs; they block, each for a few seconds at most."""

    def get(self, key: ObjectKey) -> Manifest:
        """Return the Lease."""

    def create(self, manifest: Manifest) -> Manifest:
        """Create it; a ConflictError when it exists."""

    def replace(self, manifest: Manifest) -> Manifest:
        """Replace the version that the manifest names; a ConflictError when there is another one."""


class LeaseHolder:
    """The holder, or candidate, of one Lease (namespace, name), with the identity ``me``."""

    def __init__(
        self,
        leases: Leases,
        *,
        key: tuple[str, str],
        me: str,
        timing: LeaseTiming,
        clock: Callable[[], float] = steady_clock,
    ) -> None:
        self.key = ObjectKey(LEASE_API, "Lease", *key)
        self.me = me
        self._leases = leases
        self._timing = timing
        self._clock = clock
        self._seen: ObservedLease | None = None

    @property
    def holder(self) -> str:
        """Return the holder at the last read, empty when it is unknown or there was none."""
        return self._seen.holder if self._seen is not None else ""

    def acquire(self) -> bool:
        """Acquire or renew the Lease if that is allowed; return whether it was.

        Raises:
            ApiError: it could not be read or written.
        """
        if self.holder != self.me:
            self._read()
        for _ in range(2):
            before = self._seen
            if before is not None and not may_acquire(before, self.me, now=self._clock(), timing=self._timing):
                return False
            wanted = acquired(self.key, before, self.me, at=datetime.now(UTC), timing=self._timing)
            try:
                now = self._leases.create(wanted) if before is None else self._leases.replace(wanted)
            except (ConflictError, NotFoundError):
                self._read()  # a concurrent change, or a lost response to our renewal
                continue
            self._seen = observe_lease(now, before, now=self._clock())
            return True
        return False

    def release(self) -> bool:
        """Release the Lease, if it is still held; return whether it was.

        Raises:
            ApiError: it could not be read or written.
        """
        for _ in range(2):
            if self._seen is None or self._seen.holder != self.me:
                return False
            try:
                self._leases.replace(released(self.key, self._seen, at=datetime.now(UTC)))
            except (ConflictError, NotFoundError):
                self._read()  # a lost response to our renewal, or another holder
                continue
            return True
        return False

    def _read(self) -> None:
        try:
            found = self._leases.get(self.key)
        except NotFoundError:
            self._seen = None
            return
        self._seen = observe_lease(found, self._seen, now=self._clock())
