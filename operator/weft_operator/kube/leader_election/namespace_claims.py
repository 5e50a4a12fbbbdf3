"""Which operator looks after the services of a namespace: a Lease in it, so that no two write to the same objects.

Two operators overlap when both are for services of one instance (label ``weft.dev/operator``) and both watch a
namespace: a cluster-wide one and one for some namespaces, say. The first one claims the namespace; the other leaves its
services alone and says so. All replicas of an operator claim in one name, so that another leader goes on at once.
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
"""An operator that is gone leaves its namespaces to another one a minute and a half later."""

Rival = Callable[[str], Awaitable[str]]
"""Names the other operator that looks after a namespace, "" where there is none."""

log = logging.getLogger(__name__)


async def no_rival(_namespace: str) -> str:
    """Know of no other operator, as one that runs without a Lease of its own."""
    return ""


def claim_name(instance: str) -> str:
    """Return the name of the Lease by which operators of an instance claim a namespace."""
    return f"weft-services-{instance}" if instance else "weft-services"


@dataclass(slots=True)
class _Claim:
    lease: LeaseHolder
    rival: str = ""
    tried_at: float | None = None
    trouble: str = ""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class NamespaceClaims:
    """The namespaces that one operator claims, and those that others have; ``me`` names the operator, not a replica."""

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
        """Return how many namespaces another operator looks after."""
        return sum(bool(claim.rival) for claim in self._claims.values())

    async def rival(self, namespace: str) -> str:
        """Return the operator that looks after a namespace in our place, "" where it is ours.

        Raises:
            ApiError: it is not known, because the API server does not tell.
        """
        claim = self._claims.get(namespace)
        if claim is None:
            claim = self._claims[namespace] = _Claim(self._holder(namespace))
        async with claim.turn:
            # What is ours is renewed meanwhile; where that failed for long, another one may have taken it.
            lasts = self._timing.retry if claim.rival else self._timing.deadline
            if claim.tried_at is None or self._clock() - claim.tried_at >= lasts:
                await self._try(namespace, claim)
        return claim.rival

    async def keep(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Renew what is claimed until cancelled."""
        while True:
            await sleep(self._timing.retry)
            for namespace, claim in list(self._claims.items()):
                async with claim.turn:
                    try:
                        if not await self._try(namespace, claim):
                            self._claims.pop(namespace, None)
                    except ApiError as error:
                        log.warning("claim_not_renewed", extra={"namespace": namespace, "error": str(error)})

    def _holder(self, namespace: str) -> LeaseHolder:
        key = (namespace, self._name)
        return LeaseHolder(self._leases, key=key, me=self._me, timing=self._timing, clock=self._clock)

    async def _try(self, namespace: str, claim: _Claim) -> bool:
        """Take or renew the Lease of a namespace, or see who has it; return whether the namespace is there."""
        try:
            mine = await asyncio.to_thread(claim.lease.take)
        except ForbiddenError as error:
            # An older role, or a namespace that is being deleted: it is worked on as before there were claims.
            if not claim.trouble:
                log.warning("namespace_not_claimed", extra={"namespace": namespace, "error": str(error)})
            claim.trouble, claim.rival, claim.tried_at = str(error), "", self._clock()
            return True
        claim.tried_at = self._clock()
        holder = claim.lease.holder
        claim.trouble, claim.rival = "", self._tell(namespace, claim.rival, "" if holder == self._me else holder)
        return mine or holder != ""

    def _tell(self, namespace: str, before: str, rival: str) -> str:
        """Log who looks after a namespace where that has changed."""
        if rival and rival != before:
            log.error(
                "namespace_of_another_operator",
                extra={"namespace": namespace, "operator": rival, "this_operator": self._me, "fix": OVERLAP_FIX},
            )
        elif before and not rival:
            log.info("namespace_claimed", extra={"namespace": namespace, "before": before})
        return rival
