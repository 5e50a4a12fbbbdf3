"""Run a prefill on a prefill worker, by the session's KV handle when it has one; give up towards a local prefill."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Protocol, cast

import orjson

from weft_core.heartbeat import WorkerRecord
from weft_core.policies.snapshot import PrefillTask, PrefillWorkerView
from weft_router.api.body import Json
from weft_router.config import CanaryConfig, Settings
from weft_router.engines.adapter import Adapter, Call
from weft_router.engines.handles import KvHandle, Outcome, prefix_digest
from weft_router.errors import (
    SHUTTING_DOWN,
    WORKER_LOST,
    ApiError,
    EngineAnsweredError,
    EngineDiedError,
    LegFailedError,
    faults_request,
)
from weft_router.rounds.canary import Canary
from weft_router.rounds.dispatched import Dispatched, candidates
from weft_router.rounds.round import Prefilled, Round
from weft_router.rounds.standing import Standing
from weft_router.signals.instruments import ByClass
from weft_router.signals.metrics import Metrics
from weft_router.state.registry import Registry

log = logging.getLogger(__name__)

MAX_CALLS = 3
"""One worker, the same again without a handle it refused, one other worker: each call may cost a whole prefill."""
PREFILL_LOST = "prefill lost"
_NOBODY: list[WorkerRecord] = []
_NOT_BEGUN = frozenset({"connect", "refused"})
"""Nothing was done there: another worker takes its place whatever the service wants done about lost prefills."""
_SPENT = frozenset({"timeout", "reply-too-large"})
"""The time is gone, or it would be the same elsewhere."""
_GONE = frozenset({"connect", "disconnected", "cut-short", WORKER_LOST})
"""Failures of the way to a worker, not of its engine."""


@dataclass(frozen=True, slots=True)
class PrefillAnswer:
    """What came back from a prefill worker: the engine's own answer when ``from_engine``."""

    status: int
    body: bytes
    from_engine: bool
    died: str = ""
    """What becomes of the request where the engine ended with it."""


class PrefillPort(Protocol):
    """The way to prefill workers: over HTTP to their sidecars, or to a worker of this very process."""

    async def prefill(
        self, record: WorkerRecord, call: Call, task: PrefillTask, request_id: str, standing: Standing
    ) -> PrefillAnswer:
        """Run one prefill; raise LegFailedError when no answer came."""


class Releases(Protocol):
    """Who gives KV back that nobody will read."""

    def unread(self, params: Json | None) -> None:
        """Give back a prefill's KV that the decode engine here will not read."""

    def unused(self, handle: KvHandle, *, by: WorkerRecord | None = None) -> None:
        """Give back KV of the decode engine here that no prefill engine will read; any of them can, or ``by``."""


class RemotePrefill:
    """Calls from one decode sidecar to the prefill sidecars."""

    def __init__(
        self, settings: Settings, *, adapter: Adapter, port: PrefillPort, registry: Registry, metrics: Metrics,
        dispatched: Dispatched | None = None, closed: Callable[[], frozenset[str]] = frozenset,
    ) -> None:  # fmt: skip
        """Call them for one worker; ``closed`` names those whose KV its engine has no way to."""
        self._closed = closed
        self._revision = settings.revision
        self._name = settings.worker
        self._prefill: list[WorkerRecord] = _NOBODY
        self._decode: list[WorkerRecord] = _NOBODY
        self._peers: list[WorkerRecord] = []
        self._without: frozenset[str] = frozenset()
        self._symmetric = settings.config.routing.symmetric
        self._canary = Canary(settings.config.routing.canary)
        self._place = settings.degree, settings.pool, settings.revision
        self.on_failure = settings.config.routing.on_prefill_failure
        self.releasing: Releases | None = None
        self._profile_of = settings.profile_of
        self._adapter = adapter
        self._port = port
        self._registry = registry
        self._metrics = metrics
        self._legs = ByClass(metrics.leg_seconds, "prefill")
        self.dispatched = dispatched or Dispatched(settings.profile, pools=settings.pools)

    def use(self, canary: CanaryConfig | None) -> None:
        """Go on by another canary from the next round on."""
        self._canary = Canary(canary)
        self._prefill = self._decode = _NOBODY

    def peers(self) -> list[WorkerRecord]:
        """Return the ready workers that may prefill for this one: those of its revision, whose KV its engine can read.

        In a symmetric service these are the other decode workers, too. Beside a canary they are those of its own side.
        Those whose side channel is closed to this one are none of them.
        """
        prefill = self._registry.ready("prefill")
        decode = self._registry.ready("decode") if self._symmetric else _NOBODY
        closed = self._closed()
        # As long as nothing changed, the same objects.
        if prefill is not self._prefill or decode is not self._decode or closed is not self._without:
            self._prefill, self._decode, self._without = prefill, decode, closed
            found = prefill + [record for record in decode if record.worker != self._name]
            found = self._canary.prefill_for(found, mine=self._canary.names("decode", *self._place))
            mine = (r for r in found if r.revision == self._revision and r.worker not in closed)
            self._peers = [r for r in mine if self._known(r)]
        return self._peers

    def views(self, task: PrefillTask) -> tuple[PrefillWorkerView, ...]:
        """Return those that could hold a task's KV, as policies see them."""
        peers = self.peers()
        if self._symmetric:
            peers = candidates(peers, tokens=task.history + task.increment)
        return self.dispatched.views(peers)

    def _known(self, record: WorkerRecord) -> bool:
        """Tell whether the profile of the worker's pool knows its degree, without which nothing can be predicted."""
        return record.degree in self._profile_of(record.pool).degrees

    async def run(self, rnd: Round, worker: str) -> Prefilled | None:
        """Return the prefilled KV's whereabouts; None when the round shall prefill locally.

        Whatever goes otherwise than decided marks the round as ``retried``.

        A handle that is refused or lost is not tried again. Prefilling without it elsewhere pays only while the
        history is shorter than the increment: otherwise the decode worker, which still caches it, is the better place.
        A prefill that is lost is done as the service says: here, by another prefill worker and then here, or not.

        Raises:
            ApiError: a prefill was lost, and the service wants its round to fail then.
            EngineAnsweredError: the engine found the request itself wrong.
            LegFailedError: this process ends.
        """
        handle = rnd.outlook.handle
        tried: set[str] = set()
        target: str | None = worker
        failure: LegFailedError | None = None
        for _ in range(MAX_CALLS):
            record = self._registry.get(target) if target is not None else None
            if record is None or record.revision != self._revision:
                rnd.retried = True
                target = self.other(tried | ({target} if target is not None else set()))
                if target is None:
                    break
                continue
            try:
                found = await self._attempt(rnd, record, handle)
            except (EngineAnsweredError, EngineDiedError, asyncio.CancelledError):
                if handle is not None:
                    self._drop(handle, "called-off")
                raise
            except LegFailedError as error:
                rnd.retried = True
                self._metrics.prefill_failures.labels(error.reason).inc()
                log.warning(
                    "prefill_failed",
                    extra={"request_id": rnd.id, "worker": record.worker, "reason": error.reason},
                )
                if error.reason in _GONE:
                    self._registry.report_failure(record.worker)
                if error.reason == SHUTTING_DOWN:
                    if handle is not None:
                        self._metrics.kv_handles.labels("lost").inc()
                    raise
                begun = error.reason not in _NOT_BEGUN
                unread = error.reason in ("engine-error", "ids-differ")
                if handle is not None and begun:
                    self._drop(handle, error.reason)
                    handle = None
                    if rnd.outlook.task.history >= rnd.outlook.task.increment and (
                        unread or self.on_failure != "error"
                    ):
                        return None
                    if unread:
                        continue
                if begun and self._ends(error):
                    return None
                tried.add(record.worker)
                target = self.other(tried)
                failure = error
                continue
            if handle is not None:
                self._metrics.kv_handles.labels("used").inc()
            return found
        if handle is not None:
            self._metrics.kv_handles.labels("superseded").inc()
            self._give_back(handle)
        if self.on_failure == "error" and failure is not None:
            raise _lost(failure)
        return None

    def _ends(self, error: LegFailedError) -> bool:
        """Tell whether a lost prefill is done here, by what the service wants."""
        if self.on_failure == "error":
            raise _lost(error) from error
        return self.on_failure == "local" or error.reason in _SPENT

    def _drop(self, handle: KvHandle, reason: str) -> None:
        """Count a handle that was sent and not read, and give back what it points at."""
        outcome: Outcome = "lost"
        if reason in ("engine-error", "ids-differ"):
            outcome = "ids_differ" if reason == "ids-differ" else "refused"
        self._metrics.kv_handles.labels(outcome).inc()
        if reason != "ids-differ":
            self._give_back(handle)

    def _give_back(self, handle: KvHandle) -> None:
        if self.releasing is not None:
            self.releasing.unused(handle)

    async def once(self, rnd: Round, worker: str) -> Prefilled | None:
        """Return the prefilled KV's whereabouts after one try without a handle; None when it failed."""
        record = self._registry.get(worker)
        if record is None:
            return None
        try:
            return await self._attempt(rnd, record, None)
        except LegFailedError as error:
            self._metrics.prefill_failures.labels(error.reason).inc()
            if error.reason in _GONE:
                self._registry.report_failure(record.worker)
            if error.reason == SHUTTING_DOWN:
                raise
            return None

    async def beside(self, rnd: Round, record: WorkerRecord) -> None:
        """Run the prefill leg of a round whose decode leg is sent at the same time.

        Raises:
            LegFailedError: with reason PREFILL_LOST.
            EngineAnsweredError: the engine found the request itself wrong.
        """
        task = rnd.outlook.task
        whole = PrefillTask(0, task.history + task.increment)
        began = monotonic()
        self.dispatched.add(record.worker, rnd.id, whole, began)
        try:
            answer = await self._port.prefill(record, self._adapter.prefill(rnd.ask), whole, rnd.id, rnd.standing)
            self._took(rnd, began)
        except LegFailedError as error:
            if error.reason == SHUTTING_DOWN:
                raise
            if error.reason in _GONE:
                self._registry.report_failure(record.worker)
            raise LegFailedError(PREFILL_LOST, error.reason) from error
        finally:
            self.dispatched.remove(record.worker, rnd.id)
        if answer.status != 200:
            if answer.died:
                raise EngineDiedError(answer.died)
            if answer.from_engine and faults_request(answer.status):
                raise EngineAnsweredError(answer.status, answer.body)
            raise LegFailedError(PREFILL_LOST, "engine-error" if answer.from_engine else "refused")
        early = self._adapter.prefill_tap(rnd.ask)
        if early is not None and rnd.show is not None:
            events = early.feed(answer.body)
            if early.tokens and not early.error:
                rnd.show(events)

    def other(self, tried: set[str]) -> str | None:
        """Return the prefill worker with the shortest queue besides those that were tried."""
        views = [self.dispatched.view(r) for r in self.peers() if r.worker not in tried]
        best = min(views, key=lambda view: (view.queued, view.worker), default=None)
        return best.worker if best is not None else None

    async def _attempt(self, rnd: Round, record: WorkerRecord, handle: KvHandle | None) -> Prefilled:
        ask = rnd.ask
        ask.handle = handle
        wanted, ask.want_ids = ask.want_ids, ask.want_ids and handle is not None
        call = self._adapter.prefill(ask)
        ask.want_ids = wanted
        task = rnd.outlook.task
        known = task.history if handle is not None else 0
        todo = PrefillTask(known, task.history + task.increment - known)
        began = monotonic()
        self.dispatched.add(record.worker, rnd.id, todo, began)
        try:
            answer = await self._port.prefill(record, call, todo, rnd.id, rnd.standing)
            self._took(rnd, began)
        finally:
            self.dispatched.remove(record.worker, rnd.id)
        if answer.status != 200:
            if answer.died:
                raise EngineDiedError(answer.died)
            if answer.from_engine and faults_request(answer.status):
                raise EngineAnsweredError(answer.status, answer.body)
            raise LegFailedError(_why(answer), f"status {answer.status}")
        return self._read(rnd, record, answer.body, handle)

    def _took(self, rnd: Round, began: float) -> None:
        """Count how long a prefill leg took that ends now, the worker's queue included."""
        now = monotonic()
        self._legs.of(rnd.class_).mark(now - began, rnd.trace, now)

    def _read(self, rnd: Round, record: WorkerRecord, raw: bytes, handle: KvHandle | None) -> Prefilled:
        handed = self._adapter.read_prefill(rnd.ask, raw)
        reply = handed.reply
        if handle is not None and handle.digest is not None:
            ids = reply.prompt_ids
            if ids is None or prefix_digest(ids, handle.tokens) != handle.digest:
                self._metrics.kv_handles.labels("orphaned").inc()
                if self.releasing is not None:
                    self.releasing.unread(handed.params)
                raise LegFailedError("ids-differ")
        cached = handed.cached_tokens
        return Prefilled(
            worker=record.worker,
            handed=handed,
            prompt_tokens=reply.prompt_tokens,
            cached_tokens=cached if cached is not None else reply.cached_tokens,
            read_tokens=handle.tokens if handle is not None else 0,
        )


def _why(answer: PrefillAnswer) -> str:
    if answer.from_engine:
        return "engine-error"
    return {503: "refused", 504: "timeout"}.get(answer.status, "engine-lost")


def _lost(error: LegFailedError) -> ApiError:
    return ApiError(
        f"the prefill of this request was lost ({error.reason}); try again",
        status=504 if error.reason == "timeout" else 503 if error.reason in _NOT_BEGUN else 502,
        kind="server_error",
        code="prefill_failed",
        retry_after_s=1,
    )


def engine_error(answered: EngineAnsweredError) -> ApiError:
    """Return an engine's refusal in OpenAI's error form, keeping its message and field when it has them."""
    message, param, code = f"the engine refused the request with status {answered.status}", None, None
    try:
        body: object = orjson.loads(answered.body)
    except orjson.JSONDecodeError:
        body = None
    if isinstance(body, dict):
        inner = cast(Json, body["error"]) if isinstance(body.get("error"), dict) else cast(Json, body)
        message = str(inner.get("message") or message)
        param = str(inner["param"]) if isinstance(inner.get("param"), str) else None
        code = str(inner["code"]) if isinstance(inner.get("code"), str) else None
    kind = "invalid_request_error" if answered.status < 500 else "server_error"
    return ApiError(message, status=answered.status, kind=kind, param=param, code=code)
