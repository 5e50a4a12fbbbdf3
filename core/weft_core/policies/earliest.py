"""Find the worker that would finish a prefill first, of many workers of a few kinds, without looking at each.

Workers of one degree and pool differ by what is queued at them alone, so the shortest queue of a kind is the first of
that kind to finish. It is kept until a worker's view changes; a decision then asks once per kind, and not per worker.
"""

import math
from collections.abc import Callable
from typing import Final

from weft_core.policies.features import LOCAL
from weft_core.policies.fleet import Kind
from weft_core.policies.snapshot import PrefillWorkerView

NEAR: Final = 1e-9
"""Share of a finish within which rounding may make two queues end at the same time."""


class Lane:
    """The workers of one pool and degree, which decode or not, by their places among all, and the seconds queued."""

    __slots__ = ("decodes", "degree", "least", "places", "pool", "queues")

    def __init__(self, pool: str, degree: int, decodes: bool) -> None:
        self.pool = pool
        self.degree = degree
        self.decodes = decodes
        self.places: list[int] = []
        self.queues: list[float] = []
        self.least = math.inf

    def holds(self, view: PrefillWorkerView) -> bool:
        """Tell whether a worker is of this kind."""
        return view.degree == self.degree and view.decodes == self.decodes and view.pool == self.pool

    def requeue(self, at: int, queue: float) -> None:
        """Take in what is queued at one of the workers now."""
        last = self.queues[at]
        self.queues[at] = queue
        if queue <= self.least:
            self.least = queue
        elif last == self.least:
            self.least = self._shortest()

    def _shortest(self) -> float:
        least = math.inf
        for queue in self.queues:
            if queue < least:
                least = queue
        return least

    def first(self, wait: float, read: float, own: float, back: float) -> int:
        """Return the first place that is done when the shortest queue is, as a look at each would."""
        finish = wait + own + back
        near = wait + NEAR * finish
        for at, queue in enumerate(self.queues):
            if queue <= near and (queue if queue > read else read) + own + back <= finish:
                return self.places[at]
        return LOCAL


class _Seat:
    """Where a worker is: in which lane, and where there."""

    __slots__ = ("at", "lane")

    def __init__(self, lane: Lane, at: int) -> None:
        self.lane = lane
        self.at = at


class Lanes:
    """The queues of all workers, kind by kind; every decode worker that sees the same views may share them."""

    __slots__ = ("_seats", "all", "arranged", "unknown", "views")

    def __init__(self) -> None:
        self.views: tuple[PrefillWorkerView, ...] = ()
        """What was taken in last."""
        self.all: list[Lane] = []
        self.arranged = 0
        """How often the lanes were made anew."""
        self.unknown = False
        """Whether a worker's queue is not known."""
        self._seats: list[_Seat] = []

    def take(self, views: tuple[PrefillWorkerView, ...]) -> None:
        """Look at those views that are not those of the last time."""
        before = self.views
        self.views = views
        if self.unknown or len(before) != len(views):
            self._arrange()
            return
        seats = self._seats
        for i in range(len(views)):
            view = views[i]
            if view is before[i]:
                continue
            lane, queue = seats[i].lane, view.queue_s
            if not lane.holds(view) or queue != queue:
                self._arrange()
                return
            lane.requeue(seats[i].at, queue)

    def _arrange(self) -> None:
        """Put all workers with their kinds anew."""
        lanes: dict[tuple[str, int, bool], Lane] = {}
        seats = []
        unknown = False
        for place, view in enumerate(self.views):
            key = view.pool, view.degree, view.decodes
            lane = lanes.get(key)
            if lane is None:
                lane = lanes[key] = Lane(view.pool, view.degree, view.decodes)
            seats.append(_Seat(lane, len(lane.places)))
            queue = view.queue_s
            lane.places.append(place)
            lane.queues.append(queue)
            if queue != queue:
                unknown = True
            elif queue < lane.least:
                lane.least = queue
        self.all, self._seats, self.unknown = list(lanes.values()), seats, unknown
        self.arranged += 1


class Earliest:
    """The workers that may prefill for one decode worker, by when they would be done (``finish.first_overlapped``)."""

    __slots__ = ("_arranged", "_kind_of", "_kinds", "_lanes", "decodes")

    def __init__(self, kind_of: Callable[[str, int], Kind], lanes: Lanes) -> None:
        """Ask ``kind_of`` a pool and a degree for what its workers take, as seen from the decode worker."""
        self._kind_of = kind_of
        self._lanes = lanes
        self._arranged = -1
        self._kinds: list[tuple[Lane, Kind]] = []
        self.decodes = False
        """Whether any of the workers asked about last decodes, too."""

    def of(self, history: int, increment: int, views: tuple[PrefillWorkerView, ...]) -> tuple[int, float] | None:
        """Return the place of the first to finish, LOCAL without workers, and its finish; None: a figure is missing."""
        lanes = self._lanes
        if not views:  # what is known of the workers is kept: this prefill just stays
            return LOCAL, math.inf
        if views is not lanes.views:
            lanes.take(views)
        if lanes.arranged != self._arranged:
            self._arranged = lanes.arranged
            self._kinds = [(lane, self._kind_of(lane.pool, lane.degree)) for lane in lanes.all]
            self.decodes = any(lane.decodes for lane in lanes.all)
        if lanes.unknown:
            return None
        best, first = LOCAL, math.inf
        for lane, kind in self._kinds:
            own, read, back = kind.figures(history, increment)
            wait = lane.least
            if not wait > read:
                wait = read
            finish = wait + own + back
            if finish < first:
                best, first = lane.first(wait, read, own, back), finish
            elif finish != finish:
                return None
            elif finish == first < math.inf:
                best = min(best, lane.first(wait, read, own, back))
        return best, first
