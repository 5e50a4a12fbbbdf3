"""Refuse requests that have killed an engine: the same request of the same tenant, for a while.

A process knows what it saw itself, and what the heartbeats of workers say: coordinators learn from each other's
incidents within a second. Where two different requests of a tenant with the same unusual fields have ended engines,
everything of that tenant with these fields is held back, and after more of them, with whatever unusual fields,
everything of that tenant that has any; what has no unusual fields is known by its digest alone.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Final

from weft_core.keys import derive
from weft_router.errors import ApiError
from weft_router.openai.fingerprint import fingerprint, owner
from weft_router.openai.inference import Inference

MOST: Final = 256
"""Requests that are held back by what this process saw."""
MOST_EACH: Final = 16
"""Those of one tenant, and those that a heartbeat names."""
ENOUGH: Final = 2
"""So many different requests with the same fields are no chance."""
MOST_DOUBTS: Final = 48
"""Requests of one tenant that were well on their way when an engine ended, and those that a heartbeat names."""
TOO_OFTEN: Final = 4
"""So many engines that end under the very same request are no chance either."""


class Quarantine:
    """The requests that are held back."""

    def __init__(self, token: bytes, seconds: float, *, clock: Callable[[], float] = monotonic) -> None:
        """Hold them back for so many seconds, 0: not at all."""
        self._key = derive(token, "quarantine")
        self._seconds = seconds
        self._clock = clock
        self._own: dict[str, float] = {}
        """Until when, by entry, oldest first."""
        self._doubts: dict[str, float] = {}
        """The same for requests under which an engine ended, and nobody can tell why; each with what names that end."""
        self._heard: frozenset[str] = frozenset()
        self._owners: set[str] = set()
        self._exact: set[str] = set()
        self._shapes: Counter[str] = Counter()
        self._unusual: Counter[str] = Counter()
        """How many of a tenant's have unusual fields, whichever they are."""

    def __len__(self) -> int:
        """Return how many requests are held back."""
        return len(self._exact)

    def add(self, tenant: str, inference: Inference) -> None:
        """Hold a request back from now on."""
        if not self._seconds:
            return
        self._note(self._own, self._entry(tenant, inference), MOST_EACH)

    def doubt(self, tenant: str, inference: Inference, death: str) -> None:
        """Record that an engine died during a request, for an unknown reason; ``death`` identifies the incident.

        The request is quarantined after too many incidents.
        """
        if not self._seconds:
            return
        self._note(self._doubts, f"{self._entry(tenant, inference)}:{death}", MOST_DOUBTS)

    def _entry(self, tenant: str, inference: Inference) -> str:
        exact, shape = fingerprint(self._key, tenant, inference)
        return f"{owner(self._key, tenant)}:{exact}:{shape}"

    def _note(self, table: dict[str, float], entry: str, most: int) -> None:
        whose = entry.partition(":")[0]
        table.pop(entry, None)
        of_tenant = [one for one in table if one.startswith(whose)]
        if len(of_tenant) >= most:
            del table[of_tenant[0]]
        elif len(table) >= MOST:
            del table[next(iter(table))]
        table[entry] = self._clock() + self._seconds
        self._count()

    def entries(self) -> tuple[str, ...]:
        """Return what others should know, the newest few; forget what its time is over for."""
        now = self._clock()
        over = False
        for table in (self._own, self._doubts):
            while table and table[first := next(iter(table))] <= now:
                del table[first]
                over = True
        if over:
            self._count()
        return (*tuple(self._own)[-MOST_EACH:], *tuple(self._doubts)[-MOST_DOUBTS:])

    def merge(self, entries: Iterable[str]) -> None:
        """Take what others know, in place of what they knew before."""
        heard = frozenset(entries)
        if heard != self._heard:
            self._heard = heard
            self._count()

    def concerns(self, tenant: str) -> bool:
        """Return whether anything of a tenant is held back."""
        return bool(self._owners) and owner(self._key, tenant) in self._owners

    def check(self, tenant: str, inference: Inference) -> None:
        """Refuse a quarantined request.

        Raises:
            ApiError: 422: the request itself would have to change.
        """
        if not self.concerns(tenant):
            return
        self.entries()
        exact, shape = fingerprint(self._key, tenant, inference)
        if exact in self._exact:
            raise _refusal("an engine ended while it served this very request")
        if shape and self._shapes[shape] >= ENOUGH:
            raise _refusal("engines ended while they served requests with the same fields")
        if shape and self._unusual[owner(self._key, tenant)] > ENOUGH:
            raise _refusal("engines ended while they served several requests with unusual fields")

    def _count(self) -> None:
        found = [entry.split(":") for entry in {*self._own, *self._doubts, *self._heard}]
        doubts = Counter((one[0], one[1], one[2]) for one in found if len(one) == 4)
        parts = {(one[0], one[1], one[2]) for one in found if len(one) == 3}
        parts.update(entry for entry, times in doubts.items() if times >= TOO_OFTEN)
        self._owners = {whose for whose, _, _ in parts}
        self._exact = {exact for _, exact, _ in parts}
        self._shapes = Counter(shape for _, _, shape in parts if shape)
        self._unusual = Counter(whose for whose, _, shape in parts if shape)


def _refusal(why: str) -> ApiError:
    return ApiError(
        f"{why}, so it is quarantined for some minutes; send it with other fields or another prompt",
        status=422,
        code="request_quarantined",
    )
