"""Hold back what has ended an engine: the same request of the same tenant, for a while.

A process knows what it saw itself, and what the heartbeats of workers say: coordinators learn from each other's
incidents within a second. Where two different requests of a tenant with the same unusual fields have ended engines,
everything of that tenant with these fields is held back; what has no unusual fields is known by its digest alone.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Final

from weft_core.keys import derive
from weft_router.api.fingerprint import fingerprint, owner
from weft_router.api.inference import Inference
from weft_router.errors import ApiError

MOST: Final = 256
"""Requests that are held back by what this process saw."""
MOST_EACH: Final = 16
"""Those of one tenant, and those that a heartbeat names."""
ENOUGH: Final = 2
"""So many different requests with the same fields are no chance."""


class HeldBack:
    """The requests that are held back."""

    def __init__(self, token: bytes, seconds: float, *, clock: Callable[[], float] = monotonic) -> None:
        """Hold them back for so many seconds, 0: not at all."""
        self._key = derive(token, "held back")
        self._seconds = seconds
        self._clock = clock
        self._own: dict[str, float] = {}
        """Until when, by entry, oldest first."""
        self._heard: frozenset[str] = frozenset()
        self._owners: set[str] = set()
        self._exact: set[str] = set()
        self._shapes: Counter[str] = Counter()

    def __len__(self) -> int:
        """Return how many requests are held back."""
        return len(self._exact)

    def add(self, tenant: str, inference: Inference) -> None:
        """Hold a request back from now on."""
        if not self._seconds:
            return
        exact, shape = fingerprint(self._key, tenant, inference)
        whose = owner(self._key, tenant)
        entry = f"{whose}:{exact}:{shape}"
        self._own.pop(entry, None)
        of_tenant = [one for one in self._own if one.startswith(whose)]
        if len(of_tenant) >= MOST_EACH:
            del self._own[of_tenant[0]]
        elif len(self._own) >= MOST:
            del self._own[next(iter(self._own))]
        self._own[entry] = self._clock() + self._seconds
        self._count()

    def entries(self) -> tuple[str, ...]:
        """Return what others should know, the newest few; forget what its time is over for."""
        if self._own:
            now = self._clock()
            if next(iter(self._own.values())) <= now:
                self._own = {entry: until for entry, until in self._own.items() if until > now}
                self._count()
        return tuple(self._own)[-MOST_EACH:]

    def hear(self, entries: Iterable[str]) -> None:
        """Take what others know, in place of what they knew before."""
        heard = frozenset(entries)
        if heard != self._heard:
            self._heard = heard
            self._count()

    def concerns(self, tenant: str) -> bool:
        """Tell whether anything of a tenant is held back."""
        return bool(self._owners) and owner(self._key, tenant) in self._owners

    def check(self, tenant: str, inference: Inference) -> None:
        """Refuse a request that is held back.

        Raises:
            ApiError: it is; 422, for it is the request that would have to change.
        """
        if not self.concerns(tenant):
            return
        self.entries()
        exact, shape = fingerprint(self._key, tenant, inference)
        if exact in self._exact:
            raise _refusal("an engine ended while it served this very request")
        if shape and self._shapes[shape] >= ENOUGH:
            raise _refusal("engines ended while they served requests with the same fields")

    def _count(self) -> None:
        found = [entry.split(":") for entry in {*self._own, *self._heard}]
        parts = [(one[0], one[1], one[2]) for one in found if len(one) == 3]
        self._owners = {whose for whose, _, _ in parts}
        self._exact = {exact for _, exact, _ in parts}
        self._shapes = Counter(shape for _, _, shape in parts if shape)


def _refusal(why: str) -> ApiError:
    return ApiError(
        f"{why}, so it is held back for some minutes and was sent to none; send it with other fields or another prompt",
        status=422,
        code="request_held_back",
    )
