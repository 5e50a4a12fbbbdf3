"""Run a prefill on a prefill worker, with the session's KV handle if it has one; fall back to a local prefill."""

import asyncio
import logging
import math
from dataclasses import replace
from time import monotonic

from weft_core.heartbeat import WorkerRecord
from weft_core.policies.finish import remote_work
from weft_core.policies.snapshot import PrefillTask
from weft_router.config import RouterConfig
from weft_router.engines.adapter import Adapter
from weft_router.engines.handles import KvHandle, Outcome, prefix_digest
from weft_router.errors import (
    SHUTTING_DOWN,
    WORKER_LOST,
    ApiError,
    EngineAnsweredError,
    EngineDiedError,
    UpstreamFailedError,
    faults_request,
)
from weft_router.routing.prefill_workers import PrefillWorkers
from weft_router.sessions.kv_releaser import KvReleaser
from weft_router.sessions.round import PrefilledKv, Round
from weft_router.state.registry import Registry
from weft_router.telemetry.instruments import BucketsByClass
from weft_router.telemetry.metrics import Metrics
from weft_router.workers.prefill_client import PrefillClient, PrefillResponse

log = logging.getLogger(__name__)

MAX_CALLS = 3
"""A worker, a retry there without a refused handle, and one other worker: each attempt may cost a whole prefill."""
PREFILL_LOST = "prefill lost"
_NOT_BEGUN = frozenset({"connect", "refused"})
"""Failures before the prefill started: another worker is tried, whatever ``onPrefillFailure`` is."""
_SPENT = frozenset({"timeout", "reply-too-large"})
"""Failures after which another worker would be too late, or fail in the same way."""
_GONE = frozenset({"connect", "disconnected", "cut-short", WORKER_LOST})
"""Failures of the connection to a worker, not of its engine."""


class RemotePrefill:
    """Calls from one decode sidecar to the prefill sidecars."""

    def __init__(
        self, config: RouterConfig, *, adapter: Adapter, prefill_client: PrefillClient, prefill_workers: PrefillWorkers,
        releaser: KvReleaser, registry: Registry, metrics: Metrics,
    ) -> None:  # fmt: skip
        self._on_failure = config.routing.on_prefill_failure
        self._adapter = adapter
        self._prefill_client = prefill_client
        self._prefill_workers = prefill_workers
        self._in_flight = prefill_workers.in_flight
        self._releaser = releaser
        self._registry = registry
        self._metrics = metrics
        self._legs = BucketsByClass(metrics.leg_seconds, "prefill")

    def reload(self, config: RouterConfig) -> None:
        """Apply another configuration's ``onPrefillFailure``."""
        self._on_failure = config.routing.on_prefill_failure

    async def run(self, rnd: Round, worker: str) -> PrefilledKv | None:
        """Return the prefilled KV; None when the round must be prefilled locally.

        Any deviation from the decision marks the round as ``retried``.

        A handle that was refused or lost is not tried again. Prefilling without it on a prefill worker pays only while
        the history is shorter than the increment: otherwise the decode worker, which still caches it, is better. After
        a lost prefill ``onPrefillFailure`` decides: prefill locally, try another worker first, or fail.

        Raises:
            ApiError: a prefill was lost, and the service has ``onPrefillFailure: error``.
            EngineAnsweredError: the engine refused the request as invalid.
            UpstreamFailedError: this process shuts down.
        """
        handle = rnd.prefix_match.handle
        tried: set[str] = set()
        target: str | None = worker
        failure: UpstreamFailedError | None = None
        for _ in range(MAX_CALLS):
            record = self._record_of(rnd, target)
            if record is None or record.revision != self._prefill_workers.revision:
                rnd.retried = True
                gone = {target} if target is not None else set()
                target = self._prefill_workers.least_queued(
                    tried | gone, rnd.prefix_match.task, handle, adapter=rnd.inference.version
                )
                if target is None:
                    break
                continue
            try:
                found = await self._attempt(rnd, record, handle)
            except (EngineAnsweredError, EngineDiedError, asyncio.CancelledError):
                if handle is not None:
                    self._drop(handle, "called-off")
                raise
            except UpstreamFailedError as error:
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
                    if rnd.prefix_match.task.history >= rnd.prefix_match.task.increment and (
                        unread or self._on_failure != "error"
                    ):
                        return None
                    if unread:
                        continue
                if begun and self._ends(error):
                    return None
                tried.add(record.worker)
                target = self._prefill_workers.least_queued(
                    tried, rnd.prefix_match.task, handle, adapter=rnd.inference.version
                )
                failure = error
                continue
            if handle is not None:
                self._metrics.kv_handles.labels("used").inc()
            return found
        if handle is not None:
            self._metrics.kv_handles.labels("superseded").inc()
            self._releaser.release_handle(handle)
        if self._on_failure == "error" and failure is not None:
            raise _lost(failure)
        return None

    def _record_of(self, rnd: Round, target: str | None) -> WorkerRecord | None:
        """Return a worker that may prefill a round: a prefill worker, or the one that the session left."""
        if target is None:
            return None
        origin = rnd.prefix_match.origin
        if origin is not None and target == origin.worker:
            return self._prefill_workers.origin(target, adapter=rnd.inference.version)
        return self._registry.get(target, "prefill")

    def _ends(self, error: UpstreamFailedError) -> bool:
        """Return whether a lost prefill is done locally, by ``onPrefillFailure``."""
        if self._on_failure == "error":
            raise _lost(error) from error
        return self._on_failure == "local" or error.reason in _SPENT

    def _drop(self, handle: KvHandle, reason: str) -> None:
        """Count a handle that was sent and not read, and release its KV."""
        outcome: Outcome = "lost"
        if reason in ("engine-error", "ids-differ"):
            outcome = "ids_differ" if reason == "ids-differ" else "refused"
        self._metrics.kv_handles.labels(outcome).inc()
        if reason != "ids-differ":
            self._releaser.release_handle(handle)

    async def once(self, rnd: Round, worker: str) -> PrefilledKv | None:
        """Return the prefilled KV of a single attempt without a handle; None when it failed."""
        record = self._registry.get(worker, "prefill")
        if record is None:
            return None
        try:
            return await self._attempt(rnd, record, None)
        except UpstreamFailedError as error:
            self._metrics.prefill_failures.labels(error.reason).inc()
            if error.reason in _GONE:
                self._registry.report_failure(record.worker)
            if error.reason == SHUTTING_DOWN:
                raise
            return None

    async def beside(self, rnd: Round, record: WorkerRecord) -> None:
        """Run the prefill leg of a round whose decode leg is sent at the same time.

        Raises:
            UpstreamFailedError: with reason PREFILL_LOST.
            EngineAnsweredError: the engine found the request itself wrong.
        """
        task = rnd.prefix_match.task
        whole = PrefillTask(0, task.history + task.increment)
        began = monotonic()
        rnd.prefilled_at = math.inf
        self._in_flight.add(record.worker, rnd.id, whole, began)
        try:
            answer = await self._prefill_client.prefill(
                record, self._adapter.prefill(rnd.engine_request), whole, rnd.id, rnd.scheduling
            )
            self._took(rnd, began)
            rnd.prefilled_at = monotonic()
        except UpstreamFailedError as error:
            if error.reason == SHUTTING_DOWN:
                raise
            if error.reason in _GONE:
                self._registry.report_failure(record.worker)
            raise UpstreamFailedError(PREFILL_LOST, error.reason) from error
        finally:
            self._in_flight.remove(record.worker, rnd.id)
        if answer.status != 200:
            if answer.died:
                raise EngineDiedError(answer.died)
            if answer.from_engine and faults_request(answer.status):
                raise EngineAnsweredError(answer.status, answer.body)
            raise UpstreamFailedError(PREFILL_LOST, "engine-error" if answer.from_engine else "refused")
        early = self._adapter.prefill_sse_filter(rnd.engine_request)
        if early is not None and rnd.show is not None:
            events = early.feed(answer.body)
            if early.tokens and not early.error:
                rnd.show(events)

    async def _attempt(self, rnd: Round, record: WorkerRecord, handle: KvHandle | None) -> PrefilledKv:
        engine_request = rnd.engine_request
        engine_request.handle = handle
        wanted, engine_request.want_ids = engine_request.want_ids, engine_request.want_ids and handle is not None
        call = self._adapter.prefill(engine_request)
        engine_request.want_ids = wanted
        task = rnd.prefix_match.task
        total, readable = task.history + task.increment, task.history if handle is not None else 0
        cached = self._prefill_workers.cached(rnd.prefix_match.prefilled).get(record.worker, 0)
        scheduling, origin = rnd.scheduling, rnd.prefix_match.origin
        if origin is not None and record.worker == origin.worker:
            cached = max(cached, origin.tokens)
            scheduling = replace(scheduling, moved=rnd.session)
        known, rest, read = remote_work(readable, total, cached)
        todo = PrefillTask(int(known), int(rest), int(read))
        began = monotonic()
        self._in_flight.add(record.worker, rnd.id, todo, began)
        try:
            answer = await self._prefill_client.prefill(record, call, todo, rnd.id, scheduling)
            self._took(rnd, began)
        finally:
            self._in_flight.remove(record.worker, rnd.id)
        if answer.status != 200:
            if answer.died:
                raise EngineDiedError(answer.died)
            if answer.from_engine and faults_request(answer.status):
                raise EngineAnsweredError(answer.status, answer.body)
            raise UpstreamFailedError(_why(answer), f"status {answer.status}")
        return self._read(rnd, record, answer.body, handle)

    def _took(self, rnd: Round, began: float) -> None:
        """Record the duration of a prefill leg that ends now, the worker's queue included."""
        now = monotonic()
        self._legs.of(rnd.class_).mark(now - began, rnd.trace, now)

    def _read(self, rnd: Round, record: WorkerRecord, raw: bytes, handle: KvHandle | None) -> PrefilledKv:
        result = self._adapter.read_prefill(rnd.engine_request, raw)
        reply = result.reply
        if handle is not None and handle.digest is not None:
            ids = reply.prompt_ids
            if ids is None or prefix_digest(ids, handle.tokens) != handle.digest:
                self._metrics.kv_handles.labels("orphaned").inc()
                self._releaser.release_prefill(result.params)
                raise UpstreamFailedError("ids-differ")
        cached = result.cached_tokens
        return PrefilledKv(
            worker=record.worker,
            result=result,
            prompt_tokens=reply.prompt_tokens,
            cached_tokens=cached if cached is not None else reply.cached_tokens,
            read_tokens=handle.tokens if handle is not None else 0,
        )


def _why(answer: PrefillResponse) -> str:
    if answer.from_engine:
        return "engine-error"
    return {503: "refused", 504: "timeout"}.get(answer.status, "engine-lost")


def _lost(error: UpstreamFailedError) -> ApiError:
    return ApiError(
        f"the prefill of this request was lost ({error.reason}); try again",
        status=504 if error.reason == "timeout" else 503 if error.reason in _NOT_BEGUN else 502,
        kind="server_error",
        code="prefill_failed",
        retry_after_s=1,
    )
