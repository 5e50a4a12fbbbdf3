"""Share a bounded waiting room fairly: no tenant fills it, and tenants that want more share it by weight.

Below half of the room nobody is held back. Above, a tenant may add a request while what it has waiting is less than
``EAGERNESS x weight x free places`` (dynamic thresholds, Choudhury and Hahne 1998): as the room fills, everyone's
threshold falls, so a newcomer always finds a place, and tenants that ask for more than they get hold places in
proportion to their weights.
"""

from typing import Final

EAGERNESS: Final = 4.0
"""A single tenant of weight 1 takes 4/5 of the room; the rest stays free for others."""


class WaitingRoom:
    """Counts who waits; weights are relative to 1."""

    def __init__(self, places: int) -> None:
        self.places = places
        self._waiting: dict[str, int] = {}
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def of(self, tenant: str) -> int:
        """Return how many requests of a tenant wait."""
        return self._waiting.get(tenant, 0)

    @property
    def full(self) -> bool:
        """Return whether there is no place for anybody."""
        return self._total >= self.places

    def may_enter(self, tenant: str, weight: float) -> bool:
        """Return whether a tenant may add a request now."""
        total = self._total
        if 2 * total < self.places:
            return True
        return self._waiting.get(tenant, 0) < EAGERNESS * weight * (self.places - total)

    def enter(self, tenant: str) -> None:
        """Count a request that waits."""
        self._total += 1
        self._waiting[tenant] = self._waiting.get(tenant, 0) + 1

    def leave(self, tenant: str) -> None:
        """Count one less."""
        left = self._waiting[tenant] - 1
        self._total -= 1
        if left:
            self._waiting[tenant] = left
        else:
            del self._waiting[tenant]
