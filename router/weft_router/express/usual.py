"""A usual request on the straight way: who waits for its answer, who counts it, and how it leaves that way."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from weft_router.api.inference import FIXED, ODD, Inference
from weft_router.guard.admission import Admitted, Load
from weft_router.roles.front import Front, took
from weft_router.rounds.job import Job
from weft_router.rounds.outlet import Outlet
from weft_router.wire.exchange import Exchange

if TYPE_CHECKING:
    from weft_router.roles.server import Server


def is_usual(inference: Inference) -> bool:
    """Tell whether a request can go straight: one answer in one piece, no field that needs a second look."""
    return not inference.stream and inference.n == 1 and not inference.marks & (ODD | FIXED)


class Usual(ABC):
    """A request that was let in."""

    __slots__ = ("exchange", "outlet")

    exchange: Exchange
    outlet: Outlet

    @abstractmethod
    def go_on(self, job: Job) -> None:
        """Have it served on the general way, from where it is."""

    @abstractmethod
    def close(self, now: float) -> None:
        """Close its books: it was answered; ``now`` is the monotonic clock."""


class AtFront(Usual):
    """A client's request."""

    __slots__ = ("_books", "_front", "_load", "admitted")

    def __init__(
        self, front: Front, books: "Server", exchange: Exchange, outlet: Outlet, admitted: Admitted, load: Load
    ) -> None:
        self._front = front
        self._books = books
        self._load = load
        self.exchange = exchange
        self.outlet = outlet
        self.admitted = admitted

    def go_on(self, job: Job) -> None:
        """Have it served on the general way, from where it is."""
        admitted = self.admitted
        job.local_only, job.cap = admitted.local_only, admitted.output_cap
        work = self._front.go_on(job, self.outlet, admitted, self._load)
        self.exchange.go_on(self._books.through(self.exchange, work))

    def close(self, now: float) -> None:
        """Close its books: it was answered."""
        exchange = self.exchange
        self.admitted.done(now, took(self._load, self.outlet, exchange.status))
        self._books.leave(exchange, now)
