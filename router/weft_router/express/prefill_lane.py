"""Run usual prefills of a prefill sidecar by callbacks: those whose turn it is as they come."""

import asyncio
from time import monotonic
from typing import TYPE_CHECKING

from weft_router.api.answers import answer
from weft_router.engines.adapter import Call
from weft_router.engines.deaths import Death
from weft_router.errors import ApiError
from weft_router.express.afterwards import Afterwards
from weft_router.express.prefill_leg import LegHere
from weft_router.roles.prefill_hop import PREFILL_PATH, Order, note, read_order, reply
from weft_router.rounds.prefill_queue import Slot
from weft_router.rounds.prefilling import Prefilling
from weft_router.wire.exchange import Exchange

if TYPE_CHECKING:
    from weft_router.roles.server import Server


class PrefillLane:
    """The straight way through a prefill sidecar."""

    def __init__(self, prefilling: Prefilling) -> None:
        self.prefilling = prefilling
        self.afterwards = Afterwards()
        self.books: Server
        """Who counts the requests; set by the server itself."""

    def takes(self, exchange: Exchange) -> bool:
        """Begin a prefill whose turn it is; False: it was not looked at."""
        if exchange.path != PREFILL_PATH or exchange.method != "POST":
            return False
        headers, worker = exchange.headers, self.prefilling.worker
        if worker.draining or not worker.engine.healthy or "content-encoding" in headers:
            return False
        if not exchange.peer.proven:
            return False
        try:
            order = read_order(headers)
        except ApiError:
            return False  # found again, and told, by the general way
        if not order.task.increment:  # KV that is given back, or a proof: those do not queue
            return False
        slot = worker.queue.acquire_now(order.request_id, order.task, order.standing.tenant)
        if slot is None:
            return False
        try:
            errand = Errand(self, exchange, order, slot)
        except BaseException:
            slot.release()
            raise
        self.books.enter()
        errand.begin()
        return True


class Errand:
    """One prefill on its way."""

    __slots__ = ("_exchange", "_lane", "_leg", "_order")

    def __init__(self, lane: PrefillLane, exchange: Exchange, order: Order, slot: Slot) -> None:
        self._lane = lane
        self._exchange = exchange
        self._order = order
        task, standing, id_ = order.task, order.standing, order.request_id
        self._leg: LegHere | None = LegHere(
            lane.prefilling, slot, id_, standing=standing, trace=id_.removeprefix("weft-"), fresh=task.history == 0
        )

    def begin(self) -> None:
        """Send it to the engine."""
        order, exchange, leg = self._order, self._exchange, self._leg
        note(exchange.facts, order)
        body = exchange.body
        exchange.let_go()
        exchange.on_gone = self._gone
        try:
            if leg is not None:
                leg.send(Call(order.path, body, order.lines), self._over)
        except Exception as error:  # noqa: BLE001 - told as on the general way
            self._tell(error)

    def _over(self, error: Exception | None) -> None:
        """Hear that the engine is done: answer, and have the books closed."""
        leg, self._leg = self._leg, None
        if leg is None:
            return
        exchange, lane = self._exchange, self._lane
        exchange.on_gone = None
        try:
            refused = leg.over(error, monotonic())
            if leg.death is not None:
                exchange.go_on(lane.books.through(exchange, _judged(exchange, leg, leg.death, refused)))
                return
            if refused is None:
                reply(exchange, leg.done)
            else:
                answer(exchange, refused)
        except Exception as failed:  # noqa: BLE001 - told as on the general way
            self._tell(failed)
            return
        lane.afterwards.add(self._close)

    def _close(self) -> None:
        self._lane.books.leave(self._exchange, monotonic())

    def _gone(self) -> None:
        """Hear that nobody waits any more."""
        leg, self._leg = self._leg, None
        if leg is not None:
            leg.cancel()
        self._tell(asyncio.CancelledError())

    def _tell(self, error: BaseException) -> None:
        """End the request by what ended it."""
        exchange = self._exchange
        exchange.go_on(self._lane.books.through(exchange, _raised(error)))


async def _judged(exchange: Exchange, leg: LegHere, death: Death, refused: ApiError | None) -> None:
    """Answer once it is known whether the engine ended."""
    await death.examine()
    if refused is not None:
        raise refused
    reply(exchange, leg.done)


async def _raised(error: BaseException) -> None:
    raise error
