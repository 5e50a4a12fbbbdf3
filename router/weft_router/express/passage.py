"""Carry one usual round through: to a prefill engine, to a decode engine, back to its client.

Each step runs in the callback of the one before. What a step does is what the general way does, by the same parts, in
the same order but for the books: those are kept once the bytes are on their way (``Afterwards``). Where something is
not usual any more, or fails, the round goes on there (``_leave``).
"""

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING, Final

from weft_core.policies.snapshot import PrefillTask
from weft_router.api.identity import session_key
from weft_router.api.inference import Inference
from weft_router.api.transcript import NOTHING_SEEN, of_request
from weft_router.engines.vllm import PLUGIN_HEADER
from weft_router.errors import EngineAnsweredError, LegFailedError
from weft_router.guard.admission import Admitted, Load
from weft_router.roles.front import shown_session, took
from weft_router.rounds.accounts import used
from weft_router.rounds.decoding import Decoding
from weft_router.rounds.job import Job
from weft_router.rounds.outlet import Outlet, shown_to_all
from weft_router.rounds.passing import shown
from weft_router.rounds.prefill_queue import Slot
from weft_router.rounds.prefilling import Prefilling
from weft_router.rounds.remote import PrefillAnswer
from weft_router.rounds.round import Prefilled, Round
from weft_router.wire.exchange import Exchange
from weft_router.wire.leg import Leg, Whole

if TYPE_CHECKING:
    from weft_router.express.lane import Lane

log = logging.getLogger(__name__)

_PLUGIN: Final = PLUGIN_HEADER.lower()


class Passage(Round):
    """A usual round on its way."""

    __slots__ = (
        "_admitted", "_arrived", "_at", "_decoding", "_exchange", "_lane", "_leg", "_load", "_outlet", "_prefilling",
        "_record", "_reply", "_slot", "_tenant", "_todo", "_whole",
    )  # fmt: skip

    def __init__(
        self, lane: "Lane", exchange: Exchange, inference: Inference, admitted: Admitted, load: Load, tenant: str,
        class_: str, named: str,
    ) -> None:  # fmt: skip
        self._lane = lane
        self._exchange = exchange
        self._admitted = admitted
        self._load = load
        self._tenant = tenant
        self._decoding: Decoding | None = None
        self._prefilling: Prefilling | None = None
        self._slot: Slot | None = None
        self._leg: Leg | None = None
        self.inference = inference
        self.class_ = class_
        self.session = session = session_key(tenant, "id", named)
        self.trace = trace = lane.front.ids.next()
        self.id = id_ = "weft-" + trace
        self.started = exchange.started
        self.facts = exchange.facts = {"request_id": id_, "session": session, "tenant": tenant, "class": class_}
        self._outlet = Outlet(exchange, shown_to_all(id_, shown_session(session, named)), admitted)
        self.resumed = self.spans = self.decision = self.record = self.first_at = self.show = None
        self.prefilled = self.failed = None
        self.retried = self.taken = False
        self.route, self.reason, self.prefill_worker = "local", "", ""

    def begin(self) -> None:
        """Find the worker that decodes, decide, and send the prefill."""
        try:
            self._begin()
        except Exception as error:  # noqa: BLE001 - raised again on the general way
            self._give_up(error)

    def _begin(self) -> None:
        lane, exchange = self._lane, self._exchange
        exchange.let_go()
        admitted, front, inference = self._admitted, lane.front, self.inference
        if admitted.output_cap is not None or admitted.local_only:
            front.counts.degraded(self.class_, capped=admitted.output_cap is not None, local=admitted.local_only)
            self._leave()
            return
        name = front.placing.place_now(self.session, inference, tenant=self._tenant, class_=self.class_)
        at = lane.registry.get(name) if name is not None else None
        decoding = lane.decodings.get(at.worker) if at is not None else None
        if decoding is None or decoding.worker.draining or not decoding.worker.engine.healthy:
            self._leave()
            return
        self.facts["worker"] = name
        self.facts["attempts"] = 1
        # Of a new session there is nothing to hold it against: it is made once the prefill is on its way.
        self.transcript = of_request(inference) if decoding.sessions.knows(self.session) else NOTHING_SEEN
        outlook = self.outlook = decoding.look(self.session, inference, self.transcript)
        self._decoding, self._at = decoding, at
        decoding.worker.live.count += 1
        decoding.describe(self, self._tenant)
        if outlook.away:
            self._leave()
            return
        deciding = decoding.deciding
        decision = self.decision = deciding.decide(self)
        self.reason = decision.reason
        policy = deciding.policy_of(self.class_)
        if (
            decision.remote is None
            or policy.refuse(decision) is not None
            or (outlook.handle is None and policy.hedge(decision) is not None)
        ):
            self._leave()
            return
        self._prefill(decoding, decision.remote)

    def _prefill(self, decoding: Decoding, worker: str) -> None:
        lane = self._lane
        record, prefilling, remote = lane.registry.get(worker), lane.prefillings.get(worker), decoding.remote
        if record is None or record.revision != remote.revision or prefilling is None:
            self._leave()
            return
        task, handle, there = self.outlook.task, self.outlook.handle, prefilling.worker
        known = task.history if handle is not None else 0
        todo = self._todo = PrefillTask(known, task.history + task.increment - known)
        engine = there.engine
        ask = self.ask
        ask.handle = handle
        wanted, ask.want_ids = ask.want_ids, ask.want_ids and handle is not None
        call = lane.adapter.prefill(ask)
        ask.want_ids = wanted
        slot = None
        if engine.healthy and not there.draining:
            slot = there.queue.acquire_now(self.id, todo, self._tenant)
        if slot is None:
            self._leave()
            return
        self._exchange.on_gone = self._gone
        self._arrived = monotonic()
        self._record, self._prefilling, self._slot = record, prefilling, slot
        there.live.count += 1
        remote.dispatched.add(worker, self.id, todo)
        fresh = known == 0
        leg = self._leg = prefilling.leg(slot.until_first(), fresh=fresh)
        whole = self._whole = Whole(leg, prefilling.most_bytes)
        leg.on_done = self._prefill_over
        lines = call.lines + engine.proof
        engine.pool.send(leg, engine.origin, call.path, call.body, whole, lines=lines, resend=fresh, tail=call.tail)
        if self.transcript is NOTHING_SEEN:
            lane.afterwards.add(self._transcribe)

    def _transcribe(self) -> None:
        """Note what the engines see, where that was left for later."""
        if self.transcript is NOTHING_SEEN:
            self.transcript = of_request(self.inference)

    def _end_prefill(self, prefilling: Prefilling, slot: Slot, leg: Leg | None) -> tuple[float, float]:
        """Give back what the prefill leg held."""
        there = prefilling.worker
        if leg is not None:
            there.engine.over(leg, got_on=False)
        began, ended = prefilling.over(slot, self._arrived, class_=self.class_, trace=self.trace)
        there.live.__exit__()
        self._slot = self._leg = None
        return began, ended

    def _prefill_over(self, error: Exception | None) -> None:
        """Hear that the prefill leg is over: go on with the decode leg."""
        decoding, prefilling, slot, leg = self._decoding, self._prefilling, self._slot, self._leg
        if decoding is None or prefilling is None or slot is None or leg is None:
            return
        handle, remote, whole, record = self.outlook.handle, decoding.remote, self._whole, self._record
        try:
            fresh = self._todo.history == 0
            if error is None:
                status, answer = whole.status, PrefillAnswer(whole.status, whole.body, True)
                prefilling.answered(status, fresh=fresh)
                began, ended = self._end_prefill(prefilling, slot, leg)
                if status == 200:
                    prefilling.went_well(self._arrived, began, ended, self.trace)
            else:
                if not isinstance(error, LegFailedError):
                    raise error
                refused = prefilling.broke(error, fresh=fresh, request_id=self.id)
                answer = PrefillAnswer(refused.status, refused.body(), from_engine=False)
                self._end_prefill(prefilling, slot, leg)
            remote.took(self, self._arrived)
            remote.dispatched.remove(record.worker, self.id)
            prefilled = remote.read(self, record, answer, handle)
        except Exception as failed:  # noqa: BLE001 - raised again on the general way
            if self._slot is not None:
                self._end_prefill(prefilling, slot, leg)
            remote.dispatched.remove(record.worker, self.id)
            self._leave(failed)
            return
        if handle is not None:
            remote.used()
        self.prefilled = prefilled
        if prefilled.handed.finished is not None:
            self._leave()
            return
        try:
            self._decode(decoding, prefilled)
        except Exception as failed:  # noqa: BLE001 - raised again on the general way
            self._give_up(failed)

    def _decode(self, decoding: Decoding, prefilled: Prefilled) -> None:
        answering = decoding.answering
        engine, task = answering.engine, self.outlook.task
        self.route, self.prefill_worker = "remote", prefilled.worker
        call = self._lane.adapter.decode(self.ask, prefilled.handed)
        leg = self._leg = Leg(first_s=answering.total_s)
        leg.on_done = self._decode_over
        self._whole = Whole(leg, answering.most_bytes)
        answering.decoding.enter(id(self), self.pace, task.history + task.increment)
        lines = call.lines + engine.proof
        engine.pool.send(leg, engine.origin, call.path, call.body, self, lines=lines, tail=call.tail)

    def head(self, status: int, headers: dict[str, str]) -> None:
        """Take the head of the decode engine's answer, which comes whole."""
        decoding, prefilled, leg = self._decoding, self.prefilled, self._leg
        if decoding is None or prefilled is None or leg is None:
            return
        decoding.accounts.answered(self, leg.began)
        whole = self._whole
        whole.status = status
        whole.headers = headers
        if status == 200:
            self.taken = True
            prefilled.handed.let_go()

    def data(self, chunk: bytes) -> None:
        """Take a piece of it."""
        self._whole.data(chunk)

    def _decode_over(self, error: Exception | None) -> None:
        """Hear that the decode leg is over: answer the client, and have the books closed."""
        decoding, prefilled, leg = self._decoding, self.prefilled, self._leg
        if decoding is None or prefilled is None or leg is None:
            return
        self._leg = None
        answering, whole, outlet = decoding.answering, self._whole, self._outlet
        answering.decoding.leave(id(self))
        try:
            if error is not None:
                raise error
            status, raw = whole.status, whole.body
            if status != 200:
                if 400 <= status < 500 and status not in (408, 429):
                    raise EngineAnsweredError(status, raw)
                raise LegFailedError("engine-error", f"status {status}")
            if _PLUGIN in whole.headers:
                decoding.accounts.streams_export = True
            inference = self.inference
            try:
                reply, data = answering.answers.read(inference.kind, raw, keep_ids=inference.wants_ids)
            except ValueError as wrong:
                raise LegFailedError("engine-error", "the reply is not JSON") from wrong
            outlet.used = used(self, reply, 0)
            self._exchange.on_gone = None
            outlet.whole(200, data, shown(self, decoding.worker.name))
        except Exception as failed:  # noqa: BLE001 - raised again on the general way
            if isinstance(failed, LegFailedError):
                answering.blame(failed.reason, fresh=False, begun=False)
            self._leave(failed)
            return
        self._reply = reply
        self._lane.afterwards.add(self._close)

    def _close(self) -> None:
        """Close the books: the client has its answer."""
        decoding, prefilled, outlet = self._decoding, self.prefilled, self._outlet
        if decoding is None or prefilled is None:
            return
        answering = decoding.answering
        try:
            decoding.accounts.finish(self, prefilled, self._reply, tokens=0, clock=None)
            answering.engine.served()
            answering.met.add(prefilled.worker)
            decoding.closed(self, self.facts)
        finally:
            decoding.worker.live.__exit__()
            self._admitted.done(monotonic(), took(self._load, outlet, 200))
            self._lane.books.leave(self._exchange)

    def _gone(self) -> None:
        """Hear that the client went away: end what is under way."""
        if self._slot is not None:
            log.info("prefill_cancelled", extra={"request_id": self.id})
        self._give_up(asyncio.CancelledError())

    def _give_up(self, failed: BaseException) -> None:
        """End the leg under way, and have the general way hear why."""
        decoding, prefilling, slot, leg = self._decoding, self._prefilling, self._slot, self._leg
        if leg is not None:
            leg.cancel()
        if decoding is not None:
            decoding.answering.decoding.leave(id(self))
            if prefilling is not None and slot is not None:
                decoding.remote.dispatched.remove(self._record.worker, self.id)
                self._end_prefill(prefilling, slot, leg)
        self._leg = None
        self._leave(failed)

    def _leave(self, failed: BaseException | None = None) -> None:
        """Go on the general way from here; ``failed`` is what ended the leg under way."""
        exchange, admitted, lane, decoding = self._exchange, self._admitted, self._lane, self._decoding
        if decoding is not None:
            self._transcribe()
        job = Job(
            id=self.id, trace=self.trace, session=self.session, tenant=self._tenant, inference=self.inference,
            started=self.started, facts=self.facts, class_=self.class_, local_only=admitted.local_only,
            cap=admitted.output_cap,
        )  # fmt: skip
        if decoding is not None:
            decoding.worker.live.__exit__()
            job.at = self._at
            job.begun = self
            self.failed = failed
            self.facts = {}
        work = lane.front.go_on(job, self._outlet, admitted, self._load)
        exchange.go_on(lane.books.through(exchange, work))
