"""Share a queue between tenants by their weights: start-time fair queueing (Goyal, Vin and Cheng 1996).

Each tenant's clock runs by the work it was given, divided by its weight; the tenant furthest behind goes first.
Virtual time is the clock of the tenant that was served last, and no clock stays behind it: an idle tenant saves nothing
up, and one that asks for more than its share waits until the others have had theirs. A tenant alone takes all there is.

Hand-worked example (test_policy_fair_share.py): weights 2 and 1, both always waiting, tasks of 1 s: a, b, a, a, b, a.
"""

from collections.abc import Iterable, Mapping, Sequence

from weft_core.policies.inputs import QueueInputs
from weft_core.policies.policy import Parameter, QosRule, QueueOrder
from weft_core.policies.qos.priority import next_among

WEIGHT = Parameter("weight", 1.0, 0.001, 1000.0, "share", "of a tenant, beside the others' weights")
MOST_TENANTS = 4096
"""Clocks kept; those at or behind virtual time say nothing and go first."""


class FairShares:
    """The clocks of all tenants of one queue; weights are relative to 1."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        """Begin with no tenant served."""
        self._weights = dict(weights)
        self._ahead: dict[str, float] = {}
        self._virtual = 0.0

    def clock(self, tenant: str) -> float:
        """Return a tenant's clock."""
        return max(self._virtual, self._ahead.get(tenant, 0.0))

    def first(self, tenants: Iterable[str]) -> str:
        """Return the waiting tenant whose clock is most behind, the first of equals."""
        return min(tenants, key=self.clock)

    def serve(self, tenant: str, seconds: float) -> None:
        """Count work that a tenant is given."""
        start = self.clock(tenant)
        self._virtual = max(self._virtual, start)
        self._ahead[tenant] = start + max(0.0, seconds) / self._weights.get(tenant, WEIGHT.default)
        if len(self._ahead) > MOST_TENANTS:
            self._ahead = {name: clock for name, clock in self._ahead.items() if clock > self._virtual}


def next_by_share(
    order: QueueOrder, queue: QueueInputs, priority: Sequence[float], tenants: Sequence[str], shares: FairShares
) -> int:
    """Return the place of the task to run next: the highest class that waits, in it the tenant whose turn it is.

    Within these the queue's own order decides.
    """
    highest = max(priority)
    places = [i for i, one in enumerate(priority) if one == highest]
    tenant = shares.first(dict.fromkeys(tenants[i] for i in places))
    return next_among(order, queue, [i for i in places if tenants[i] == tenant])


POLICY = QosRule(
    "fair-share", "tenants take turns by their weights in prefill queues",
    "start-time fair queueing (Goyal, Vin and Cheng 1996)", (WEIGHT,),
)  # fmt: skip
