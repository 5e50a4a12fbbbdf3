"""Claims of namespaces by Leases, so that no two operators reconcile the same services.

Two operators overlap when both are for services of one instance (label ``weft.dev/operator``) and both watch a
namespace, for example a cluster-wide one and one for some namespaces. The first one claims the namespace; the other
does not reconcile its services, and reports that. All replicas of an operator claim with the same identity, so that
another leader continues at once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from weft_operator.errors import ApiError, ForbiddenError
from weft_operator.kube.events import OVERLAP_FIX
from weft_operator.kube.leader_election.lease import LeaseHolder, Leases
from weft_operator.kube.leader_election.lease_record import LeaseTiming
from weft_operator.kube.leader_election.lease_term import steady_clock

CLAIM = LeaseTiming(duration=90.0, deadline=60.0, retry=30.0)
"""The namespaces of an operator that is gone are free after a minute and a half."""

FindOtherOperator = Callable[[str], Awaitable[str]]
"""Returns the other operator that owns a namespace, "" where there is none."""

log = logging.getLogger(__name__)


async def no_other_operator(_namespace: str) -> str:
    """Return no other operator, for operators without a Lease."""
    return ""


def claim_name(instance: str) -> str:
    """Return the name of the Lease by which operators of an instance claim a namespace."""
    return f"weft-services-{instance}" if instance else "weft-services"


@dataclass(slots=True)
class _Claim:
    lease: LeaseHolder
    other_operator: str = ""
    tried_at: float | None = None
    last_error: str = ""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class NamespaceClaims:
    """The namespaces that an operator claims, and those of others; ``me`` is the identity of all its replicas."""

    def __init__(
        self,
        leases: Leases,
        *,
        me: str,
        instance: str,
        timing: LeaseTiming = CLAIM,
        clock: Callable[[], float] = steady_clock,
    ) -> None:
        self._leases = leases
        self._me = me
        self._name = claim_name(instance)
        self._timing = timing
        self._clock = clock
        self._claims: dict[str, _Claim] = {}

    @property
    def contested(self) -> int:
        """Return the number of namespaces that other operators own."""
        return sum(bool(claim.other_operator) for claim in self._claims.values())

    async def other_operator(self, namespace: str) -> str:
        """Return the other operator that owns a namespace, "" where it is ours.

        Raises:
            ApiError: it is not known, because the API server refused or did not answer.
        """
        claim = self._claims.get(namespace)
        if claim is None:
            claim = self._claims[namespace] = _Claim(self._holder(namespace))
        async with claim.lock:
            # Own claims are renewed by ``renew_forever``; after long failures another operator may have acquired one.
            lasts = self._timing.retry if claim.other_operator else self._timing.deadline
            if claim.tried_at is None or self._clock() - claim.tried_at >= lasts:
                await self._attempt(namespace, claim)
        return claim.other_operator

    async def renew_forever(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Renew the claims until cancelled."""
        while True:
            await sleep(self._timing.retry)
            for namespace, claim in list(self._claims.items()):
                async with claim.lock:
                    try:
                        if not await self._attempt(namespace, claim):
                            self._claims.pop(namespace, None)
                    except ApiError as error:
                        log.warning("claim_not_renewed", extra={"namespace": namespace, "error": str(error)})

    def _holder(self, namespace: str) -> LeaseHolder:
        key = (namespace, self._name)
        return LeaseHolder(self._leases, key=key, me=self._me, timing=self._timing, clock=self._clock)

    async def _attempt(self, namespace: str, claim: _Claim) -> bool:
        """Acquire or renew the Lease of a namespace, or read its holder; return whether the namespace exists."""
        try:
            mine = await asyncio.to_thread(claim.lease.acquire)
        except ForbiddenError as error:
            # An older role, or a terminating namespace: services are reconciled without a claim.
            if not claim.last_error:
                log.warning("namespace_not_claimed", extra={"namespace": namespace, "error": str(error)})
            claim.last_error, claim.other_operator, claim.tried_at = str(error), "", self._clock()
            return True
        claim.tried_at = self._clock()
        holder = claim.lease.holder
        claim.last_error, claim.other_operator = (
            "",
            self._log_change(namespace, claim.other_operator, "" if holder == self._me else holder),
        )
        return mine or holder != ""

    def _log_change(self, namespace: str, before: str, other_operator: str) -> str:
        """Log a change of the operator that owns a namespace."""
        if other_operator and other_operator != before:
            log.error(
                "namespace_of_another_operator",
                extra={
                    "namespace": namespace,
                    "operator": other_operator,
                    "this_operator": self._me,
                    "fix": OVERLAP_FIX,
                },
            )
        elif before and not other_operator:
            log.info("namespace_claimed", extra={"namespace": namespace, "before": before})
        return other_operator
