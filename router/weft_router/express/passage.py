"""Carry one usual round through on its decode worker: to a prefill engine, to the decode engine, back to who asked.

Each step runs in the callback of the one before. What a step does is what the general way does, by the same parts, in
the same order but for the books: those are kept once the bytes are on their way (``Afterwards``). Where something is
not usual any more, or fails, the round goes on there (``_leave``).
"""

import asyncio
from time import monotonic
from typing import Final

from weft_core.policies.snapshot import PrefillTask
from weft_router.api.fingerprint import unusual
from weft_router.api.transcript import NOTHING_SEEN, of_request
from weft_router.engines.vllm import PLUGIN_HEADER, Vllm
from weft_router.errors import EngineAnsweredError, LegFailedError, faults_request
from weft_router.express.afterwards import Afterwards
from weft_router.express.prefill_leg import PrefillLeg, Prefills
from weft_router.express.usual import Usual
from weft_router.rounds.accounts import used
from weft_router.rounds.batch import Member
from weft_router.rounds.decoding import Decoding
from weft_router.rounds.job import Job
from weft_router.rounds.passing import shown
from weft_router.rounds.round import Prefilled, Round
from weft_router.state.registry import Registry
from weft_router.wire.leg import Leg, Whole

_PLUGIN: Final = PLUGIN_HEADER.lower()


class Means:
    """What the passages of one process share."""

    __slots__ = ("adapter", "afterwards", "prefills", "registry")

    def __init__(self, *, adapter: Vllm, registry: Registry, prefills: Prefills, afterwards: Afterwards) -> None:
        self.adapter = adapter
        self.registry = registry
        self.prefills = prefills
        self.afterwards = afterwards


class Passage(Round):
    """A usual round on its way."""

    __slots__ = (
        "_decoding", "_job", "_leg", "_looked", "_means", "_member", "_prefill", "_record", "_reply", "_usual",
        "_whole",
    )  # fmt: skip

    def __init__(self, usual: Usual, job: Job, decoding: Decoding, means: Means) -> None:
        self._usual = usual
        self._job = job
        self._decoding = decoding
        self._means = means
        self._prefill: PrefillLeg | None = None
        self._leg: Leg | None = None
        self._member: Member | None = None
        self._looked = False
        """Whether it is known what it means for its session."""
        self.inference = job.inference
        self.class_ = job.class_
        self.session = job.session
        self.trace = job.trace
        self.id = job.id
        self.started = job.started
        self.facts = job.facts
        self.resumed = self.spans = self.decision = self.record = self.first_at = self.show = None
        self.prefilled = self.failed = self.failed_at = None
        self.retried = self.taken = False
        self.deaths, self.death = 0, None
        self.route, self.reason, self.prefill_worker = "local", "", ""

    def begin(self, now: float) -> None:
        """Decide, and send the prefill; ``now`` is the monotonic clock."""
        self._decoding.worker.live.count += 1
        try:
            self._begin(now)
        except Exception as error:  # noqa: BLE001 - raised again on the general way
            self._give_up(error)

    def _begin(self, now: float) -> None:
        decoding, inference = self._decoding, self.inference
        transcript = self._job.transcript
        if transcript is None:
            # Of a new session there is nothing to hold it against: it is made when the books are closed.
            transcript = of_request(inference) if decoding.sessions.knows(self.session) else NOTHING_SEEN
        self.transcript = transcript
        outlook = self.outlook = decoding.look(self.session, inference, transcript, now)
        decoding.describe(self, self._job.tenant, now)
        self._looked = True
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
        self._send_prefill(decision.remote)

    def _send_prefill(self, worker: str) -> None:
        means, remote = self._means, self._decoding.remote
        record = means.registry.get(worker)
        if record is None or record.revision != remote.revision:
            self._leave()
            return
        task, handle = self.outlook.task, self.outlook.handle
        known = task.history if handle is not None else 0
        todo = task if known == task.history else PrefillTask(known, task.history + task.increment - known)
        ask = self.ask
        ask.handle = handle
        wanted, ask.want_ids = ask.want_ids, ask.want_ids and handle is not None
        call = means.adapter.prefill(ask)
        ask.want_ids = wanted
        prefill = self._prefill = means.prefills.send(self, record, call, todo, self._prefill_over)
        if prefill is None:
            self._leave()
            return
        self._record = record
        remote.dispatched.add(worker, self.id, todo, prefill.sent)
        self._usual.exchange.on_gone = self._gone

    def _transcribe(self) -> None:
        """Note what the engines see, where that was left for later."""
        if self.transcript is NOTHING_SEEN:
            self.transcript = of_request(self.inference)

    def _prefill_over(self, error: Exception | None) -> None:
        """Hear that the prefill leg is over: go on with the decode leg."""
        prefill, self._prefill = self._prefill, None
        if prefill is None:
            return
        record, handle, remote = self._record, self.outlook.handle, self._decoding.remote
        now = monotonic()
        try:
            answer = prefill.answer(error, now)
            remote.took(self, prefill.sent, now)
            prefilled = remote.read(self, record, answer, handle)
        except Exception as failed:  # noqa: BLE001 - raised again on the general way
            remote.dispatched.remove(record.worker, self.id, now)
            self.failed_at = record
            self.death = prefill.death
            self._leave(failed)
            return
        remote.dispatched.remove(record.worker, self.id, now)
        if handle is not None:
            remote.used()
        self.prefilled = prefilled
        if prefilled.handed.finished is not None:
            self._leave()
            return
        try:
            self._decode(prefilled)
        except Exception as failed:  # noqa: BLE001 - raised again on the general way
            self._give_up(failed)

    def _decode(self, prefilled: Prefilled) -> None:
        answering = self._decoding.answering
        engine, task = answering.engine, self.outlook.task
        self.route, self.prefill_worker = "remote", prefilled.worker
        call = self._means.adapter.decode(self.ask, prefilled.handed)
        leg = self._leg = Leg(first_s=answering.total_s)
        leg.on_done = self._decode_over
        self._whole = Whole(leg, answering.most_bytes)
        self._member = answering.decoding.enter(self.pace, task.history + task.increment)
        lines = call.lines + engine.proof
        engine.deaths.enter(leg, tenant=self._job.tenant, fields=unusual(self.inference))
        engine.pool.send(leg, engine.origin, call.path, call.body, self, lines=lines, tail=call.tail)

    def head(self, status: int, headers: dict[str, str]) -> None:
        """Take the head of the decode engine's answer, which comes whole."""
        prefilled, leg = self.prefilled, self._leg
        if prefilled is None or leg is None:
            return
        self._decoding.accounts.answered(self, leg.began)
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
        """Hear that the decode leg is over: answer who asked, and have the books closed."""
        leg, self._leg = self._leg, None
        if leg is None:
            return
        decoding, whole, outlet = self._decoding, self._whole, self._usual.outlet
        answering = decoding.answering
        deaths = answering.engine.deaths
        answering.decoding.leave(self._member)
        try:
            if error is not None:
                raise error
            status, raw = whole.status, whole.body
            if status != 200:
                if faults_request(status):
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
            outlet.exchange.on_gone = None
            outlet.whole(200, data, shown(self, decoding.worker.name))
        except Exception as failed:  # noqa: BLE001 - raised again on the general way
            if isinstance(failed, LegFailedError):
                answering.blame(failed.reason, fresh=False, begun=False)
                self.death = deaths.failed(leg, failed.reason)
            deaths.leave(leg)
            self._leave(failed)
            return
        deaths.served(leg)
        deaths.leave(leg)
        self._reply = reply
        self._means.afterwards.add(self._close)

    def _close(self) -> None:
        """Close the books: who asked has the answer."""
        decoding, prefilled = self._decoding, self.prefilled
        answering = decoding.answering
        now = monotonic()
        try:
            self._transcribe()
            decoding.accounts.finish(self, prefilled, self._reply, tokens=0, clock=None, now=now)
            answering.engine.served(now)
            if prefilled is not None:
                answering.met.add(prefilled.worker)
            decoding.closed(self, self.facts)
        finally:
            decoding.worker.live.leave(now)
            self._usual.close(now)

    def _gone(self) -> None:
        """Hear that who asked went away: end what is under way."""
        self._give_up(asyncio.CancelledError())

    def _give_up(self, failed: BaseException) -> None:
        """End the leg under way, and have the general way hear why."""
        decoding = self._decoding
        leg, self._leg = self._leg, None
        prefill, self._prefill = self._prefill, None
        if leg is not None:
            leg.cancel()
            decoding.answering.engine.deaths.leave(leg)
        if prefill is not None:
            decoding.remote.dispatched.remove(self._record.worker, self.id)
            self.failed_at = self._record
            prefill.cancel()
        decoding.answering.decoding.leave(self._member)
        self._leave(failed)

    def _leave(self, failed: BaseException | None = None) -> None:
        """Go on the general way from here; ``failed`` is what ended the leg under way."""
        job = self._job
        self._decoding.worker.live.leave(monotonic())
        if self._looked:
            self._transcribe()
            self._decoding.not_usual(self)
            self.failed = failed
            self.facts = {}
            job.begun = self
        self._usual.go_on(job)
