"""A usual round's prefill: on a worker of this process, or by a prefill worker's sidecar."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from time import monotonic

from weft_core.heartbeat import WorkerRecord
from weft_core.policies.snapshot import PrefillTask
from weft_router.engines.adapter import Call
from weft_router.engines.deaths import Death
from weft_router.errors import ApiError, LegFailedError
from weft_router.roles.prefill_hop import DIED_HEADER, FROM_ENGINE, PrefillHop
from weft_router.rounds.prefill_queue import Slot
from weft_router.rounds.prefilling import Prefill, Prefilling
from weft_router.rounds.remote import PrefillAnswer
from weft_router.rounds.round import Round
from weft_router.rounds.standing import Standing
from weft_router.wire.leg import Leg, Whole

log = logging.getLogger(__name__)

OnDone = Callable[[Exception | None], None]


class PrefillLeg(ABC):
    """One that is under way."""

    __slots__ = ("death", "sent")

    sent: float
    """When, on the monotonic clock."""
    death: Death | None
    """What is being found out of its engine, where it failed and that is one of this process."""

    @abstractmethod
    def answer(self, error: Exception | None, now: float) -> PrefillAnswer:
        """Return what came of it by now, and give back what it held; raise LegFailedError where no answer came."""

    @abstractmethod
    def cancel(self) -> None:
        """End it, for nobody waits any more, and give back what it held."""


class Prefills(ABC):
    """Who sends them."""

    @abstractmethod
    def send(
        self, rnd: Round, record: WorkerRecord, call: Call, todo: PrefillTask, on_done: OnDone
    ) -> PrefillLeg | None:
        """Send one that can run now; None for any other, of which nothing is kept."""


class LegHere(PrefillLeg):
    """One on a worker of this process: it has a place in its queue."""

    __slots__ = (
        "_class",
        "_fresh",
        "_leg",
        "_prefilling",
        "_request_id",
        "_slot",
        "_trace",
        "_whole",
        "began",
        "ended",
    )

    def __init__(
        self, prefilling: Prefilling, slot: Slot, request_id: str, *, standing: Standing, trace: str, fresh: bool
    ) -> None:
        now = self.sent = slot.granted
        self.death = None
        self.began = self.ended = 0.0
        """When its turn in the engine began and ended, once it is over."""
        self._prefilling = prefilling
        self._slot = slot
        self._request_id = request_id
        self._class = standing.class_
        self._trace = trace
        self._fresh = fresh
        leg = self._leg = prefilling.leg(slot.until_first(now), fresh=fresh, now=now, standing=standing)
        self._whole = Whole(leg, prefilling.most_bytes)
        prefilling.worker.live.count += 1

    def send(self, call: Call, on_done: OnDone) -> None:
        """Send it."""
        leg, prefilling = self._leg, self._prefilling
        engine = prefilling.worker.engine
        leg.on_done = on_done
        try:
            engine.pool.send(
                leg, engine.origin, call.path, call.body, self._whole, lines=call.lines + engine.proof,
                resend=self._fresh and not prefilling.meets, tail=call.tail,
            )  # fmt: skip
        except BaseException:
            leg.cancel()
            self._end(monotonic())
            raise

    def over(self, error: Exception | None, now: float) -> ApiError | None:
        """Give back what it held until now; return what is to be told where the engine gave no answer."""
        prefilling, status = self._prefilling, self._whole.status
        deaths = prefilling.worker.engine.deaths
        if error is None:
            if status >= 500:
                self.death = deaths.failed(self._leg, "engine-error")
            prefilling.answered(status, now, fresh=self._fresh)
            self._end(now)
            if status == 200:
                prefilling.went_well(self.sent, self.began, self.ended, self._trace)
            return None
        if isinstance(error, LegFailedError):
            self.death = deaths.failed(self._leg, error.reason)
        self._end(now)
        if not isinstance(error, LegFailedError):
            raise error
        return prefilling.broke(error, fresh=self._fresh, request_id=self._request_id)

    def answer(self, error: Exception | None, now: float) -> PrefillAnswer:
        """Return what came of it, and give back what it held."""
        refused = self.over(error, now)
        if refused is None:
            return PrefillAnswer(self._whole.status, self._whole.body, True)
        return PrefillAnswer(refused.status, refused.body(), from_engine=False)

    @property
    def done(self) -> Prefill:
        """Return the engine's answer, and its times."""
        return Prefill(self._whole.status, self._whole.body, self.began - self.sent, self.ended - self.began)

    def cancel(self) -> None:
        """End it, and give back what it held."""
        log.info("prefill_cancelled", extra={"request_id": self._request_id})
        self._leg.cancel()
        self._end(monotonic())

    def _end(self, now: float) -> None:
        prefilling = self._prefilling
        worker = prefilling.worker
        worker.engine.over(self._leg, got_on=False)
        worker.engine.deaths.leave(self._leg)
        self.began = prefilling.over(self._slot, self.sent, now, class_=self._class, trace=self._trace)
        self.ended = now
        worker.live.leave(now)


class Here(Prefills):
    """The prefill duties of this process."""

    def __init__(self, prefillings: dict[str, Prefilling]) -> None:
        self._prefillings = prefillings

    def send(
        self, rnd: Round, record: WorkerRecord, call: Call, todo: PrefillTask, on_done: OnDone
    ) -> PrefillLeg | None:
        """Send one whose turn it is."""
        prefilling = self._prefillings.get(record.worker)
        if prefilling is None:
            return None
        worker = prefilling.worker
        if worker.draining or not worker.engine.healthy:
            return None
        slot = worker.queue.acquire_now(rnd.id, todo, rnd.standing.tenant)
        if slot is None:
            return None
        leg = LegHere(prefilling, slot, rnd.id, standing=rnd.standing, trace=rnd.trace, fresh=todo.history == 0)
        leg.send(call, on_done)
        return leg


class LegThere(PrefillLeg):
    """One by another pod's sidecar, which has the queue."""

    __slots__ = ("_leg", "_whole")

    def __init__(self, leg: Leg, whole: Whole) -> None:
        self.sent = leg.began
        self.death = None
        self._leg = leg
        self._whole = whole

    def answer(self, error: Exception | None, now: float) -> PrefillAnswer:
        """Return what came of it."""
        del now
        if error is not None:
            raise error
        whole = self._whole
        return PrefillAnswer(whole.status, whole.body, FROM_ENGINE in whole.headers, whole.headers.get(DIED_HEADER, ""))

    def cancel(self) -> None:
        """End it."""
        self._leg.cancel()


class There(Prefills):
    """The way to prefill workers' sidecars."""

    def __init__(self, hop: PrefillHop) -> None:
        self._hop = hop

    def send(
        self, rnd: Round, record: WorkerRecord, call: Call, todo: PrefillTask, on_done: OnDone
    ) -> PrefillLeg | None:
        """Send one."""
        leg, whole = self._hop.send(record, call, todo, rnd.id, rnd.standing)
        leg.on_done = on_done
        return LegThere(leg, whole)
