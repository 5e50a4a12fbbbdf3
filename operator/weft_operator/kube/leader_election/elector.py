"""Leader election: acquire the Lease, renew it, lose it or release it."""

import asyncio
import logging
import random
import threading
from collections.abc import Callable
from contextlib import suppress

from weft_operator.errors import ApiError, ForbiddenError, NotLeaderError
from weft_operator.kube.leader_election.lease import LeaseHolder, Leases
from weft_operator.kube.leader_election.lease_record import LeaseTiming
from weft_operator.kube.leader_election.lease_term import LeaseTerm, steady_clock

JITTER = 0.2
"""Jitter of attempts, as a share, so that replicas that started together do not collide forever."""

log = logging.getLogger(__name__)


class LeaderElector:
    """Leader election for one replica."""

    def __init__(
        self,
        leases: Leases,
        *,
        key: tuple[str, str],
        me: str,
        timing: LeaseTiming | None = None,
        clock: Callable[[], float] = steady_clock,
    ) -> None:
        """Create it for the Lease (namespace, name) and a replica with the identity ``me``."""
        self.me = me
        self._timing = timing or LeaseTiming()
        self._clock = clock
        self._lease = LeaseHolder(leases, key=key, me=me, timing=self._timing, clock=clock)
        # A renewal in flight when its task is cancelled must not run concurrently with a release.
        self._lock = threading.Lock()
        self._campaigning = False
        self._last_error = ""
        self.terms = 0
        """Number of terms of this process."""

    @property
    def leader(self) -> str:
        """Return the holder at the last read, empty when it is unknown."""
        return self._lease.holder

    @property
    def last_error(self) -> str:
        """Return the error of the last attempt to read or write the Lease, empty without one."""
        return self._last_error

    async def campaign(self) -> LeaseTerm:
        """Return the lease term once the Lease is acquired."""
        self._campaigning = True
        while True:
            started = self._clock()
            try:
                won = await asyncio.to_thread(self._attempt)
            except ApiError as error:
                won = False
                self._log_once(error)
            else:
                self._last_error = ""
            if won:
                self.terms += 1
                log.info("leading", extra={"lease": str(self._lease.key), "holder": self.me})
                return LeaseTerm(started + self._timing.deadline, clock=self._clock)
            await asyncio.sleep(self._timing.retry * random.uniform(1, 1 + JITTER))  # noqa: S311 - no secret

    async def renew_until_lost(self, term: LeaseTerm) -> None:
        """Renew the Lease until the term is over: another replica has it, or it could not be renewed."""
        while term.holds:
            await asyncio.sleep(self._timing.retry)
            started = self._clock()
            try:
                mine = await asyncio.to_thread(self._attempt)
            except ApiError as error:
                self._log_once(error)
                continue
            self._last_error = ""
            if mine:
                with suppress(NotLeaderError):
                    term.extend(started + self._timing.deadline)
            elif self.leader != self.me:
                break
        term.end()
        log.warning(
            "lease_lost", extra={"lease": str(self._lease.key), "holder": self.leader, "error": self._last_error}
        )

    async def release(self) -> None:
        """Release the Lease, if it is still held; no write may be in flight."""
        self._campaigning = False
        try:
            released = await asyncio.to_thread(self._release)
        except ApiError as error:
            self._log_once(error)
        else:
            if released:
                log.info("lease_released", extra={"lease": str(self._lease.key)})

    def _release(self) -> bool:
        with self._lock:
            return self._lease.release()

    def _attempt(self) -> bool:
        """Acquire or renew the Lease if that is allowed; return whether it is held."""
        with self._lock:
            return self._campaigning and self._lease.acquire()

    def _log_once(self, error: ApiError) -> None:
        """Log an error once, not at every attempt."""
        text = str(error)
        if text != self._last_error:
            fix = "give the operator get, update and create on leases in its own namespace"
            log.warning("lease_error", extra={"error": text, "fix": fix if isinstance(error, ForbiddenError) else ""})
        self._last_error = text
