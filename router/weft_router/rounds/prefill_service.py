"""Run prefills on one worker's engine, in the order of its queue, and measure their TTFT."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from time import monotonic

from weft_core.heartbeat import WorkerRecord
from weft_core.policies.snapshot import PrefillTask
from weft_router.engines.catalogue import adapter_of
from weft_router.errors import SHUTTING_DOWN, ApiError, UnavailableError, UpstreamFailedError
from weft_router.http.upstream_request import BufferedResponse, UpstreamRequest
from weft_router.openai.inference import NOTHING
from weft_router.telemetry.instruments import BucketsByClass
from weft_router.telemetry.metrics import Metrics
from weft_router.telemetry.sliding_window import SlidingWindow
from weft_router.workers.scheduling_priority import DEFAULT_PRIORITY, SchedulingPriority
from weft_router.workers.worker import NO_REMOTE_PREFILLS, NOT_THE_ENGINE, Worker

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TimedPrefill:
    """An engine's answer to a prefill, and its times in seconds."""

    status: int
    body: bytes
    queued: float
    seconds: float


class PrefillService:
    """Runs prefills on one worker."""

    def __init__(self, worker: Worker, metrics: Metrics, *, lends: Callable[[str], bool] = lambda _: False) -> None:
        """Run them by a worker; ``lends``: whether a session that left it is still to be prefilled here."""
        self.worker = worker
        self._lends = lends
        self._waits = BucketsByClass(metrics.queue_seconds)
        self._seconds = metrics.prefill_seconds.labels()
        self._overlaps = metrics.read_overlap.labels()
        self._reads = {found: metrics.history_reads.labels("yes" if found else "no") for found in (True, False)}
        self._most_bytes = worker.settings.config.limits.max_reply_bytes
        self._first_byte_s = worker.settings.config.timeouts.first_byte
        self._meets = adapter_of(worker.settings.config).can.order == "concurrent"
        """Whether its engine pairs legs by a number that is valid once: such a leg is not retried."""
        self._ttft = SlidingWindow(worker.settings.config.routing.stats_window_seconds)
        self._ended = float("-inf")
        worker.describe(self._describe)

    @property
    def unread_until(self) -> float:
        """Return the monotonic time until which KV that was prefilled here may still be read."""
        return self._ended + self.worker.settings.config.engine.lease_seconds

    async def run(
        self, path: str, payload: bytes, lines: str, *, task: PrefillTask, request_id: str,
        scheduling: SchedulingPriority = DEFAULT_PRIORITY,
    ) -> TimedPrefill:  # fmt: skip
        """Queue one prefill and run it; ``payload`` is the body for the engine.

        Raises:
            ApiError: this worker refuses it, or its engine failed; ``retryable`` when another worker may serve it.
        """
        worker = self.worker
        own = scheduling.moved and self._lends(scheduling.moved)
        if not worker.takes_prefills and task.increment and not own:
            raise UnavailableError(_refusal(worker), retryable=True)
        if not worker.engine.healthy:
            raise UnavailableError("the engine of this prefill worker is not healthy", retryable=True)
        worker.adapters.acquire(scheduling.adapter)
        try:
            with worker.live:
                return await self._run(path, payload, lines, task=task, request_id=request_id, scheduling=scheduling)
        finally:
            worker.adapters.release(scheduling.adapter)

    async def _run(
        self, path: str, payload: bytes, lines: str, *, task: PrefillTask, request_id: str,
        scheduling: SchedulingPriority,
    ) -> TimedPrefill:  # fmt: skip
        worker = self.worker
        arrived = monotonic()
        if not task.increment:  # a KV release or a proof: not queued, and its latency is not judged
            answer = await self._call(path, payload, lines, request_id, fresh=False, expected_s=inf, scheduling=None)
            return TimedPrefill(answer.status, answer.body, 0.0, monotonic() - arrived)
        slot = await worker.queue.acquire(
            request_id, task, ttft_slo=scheduling.ttft_slo, priority=scheduling.priority, tenant=scheduling.tenant,
            lost=scheduling.lost, waited_s=scheduling.waited_s, remote=True,
        )  # fmt: skip
        try:
            if not worker.engine.healthy:  # it was ejected while this prefill waited in the queue
                raise UnavailableError("the engine of this prefill worker is not healthy", retryable=True)
            answer = await self._call(
                path, payload, lines, request_id, fresh=task.history == 0, expected_s=slot.until_first(),
                scheduling=scheduling,
            )  # fmt: skip
            if answer.status == 200 and task.history == 0:  # others may have read their history first
                slot.observe(monotonic())
        finally:
            trace = scheduling.spans.id if scheduling.spans is not None else request_id.removeprefix("weft-")
            began, ended = slot.began, monotonic()
            slot.release()
            self._ended = ended
            self._waits.of(scheduling.class_).mark(began - arrived, trace, ended)
            if task.read:
                ahead_s = slot.read_ahead_s
                self._reads[ahead_s > 0].inc()
                if ahead_s > 0:
                    self._overlaps.mark(ahead_s, trace, ended)
        if scheduling.spans is not None:
            scheduling.spans.record("prefill.queue", arrived, began, worker=worker.name)
            scheduling.spans.record("prefill.engine", began, ended, worker=worker.name, tokens=task.increment)
        if answer.status == 200:
            worker.count_intake(task.increment + task.read)
            self._ttft.add(ended, ended - arrived)
            self._seconds.mark(ended - began, trace, ended)
        return TimedPrefill(answer.status, answer.body, began - arrived, ended - began)

    async def _call(
        self,
        path: str,
        payload: bytes,
        lines: str,
        request_id: str,
        *,
        fresh: bool,
        expected_s: float,
        scheduling: SchedulingPriority | None,
    ) -> BufferedResponse:
        """Send a prefill to the engine; ``fresh``: it reads no history.

        Without ``scheduling`` it is a KV release or a proof, not a client's request.
        """
        engine = self.worker.engine
        leg = UpstreamRequest(first_s=self._first_byte_s)
        # A session that left this worker has its KV on one of the engine's ranks.
        moved = scheduling.moved if scheduling is not None else ""
        own = engine.lines_of(moved) if moved else engine.proof
        if scheduling is not None:  # it is not a stream, and has no token before its end
            engine.deaths.enter(leg, tenant=scheduling.tenant, fields=NOTHING, streams=True, deaths=scheduling.deaths)
        # The decode engine that has the history is unknown here.
        engine.sent(leg, expected_s, meets=not fresh)
        failed: UpstreamFailedError | None = None
        try:
            try:
                answer = await engine.pool.call(
                    leg, engine.origin, path, payload, lines=lines + own,
                    limit=self._most_bytes, resend=fresh and not self._meets,
                )  # fmt: skip
            except UpstreamFailedError as error:
                failed = error
            except asyncio.CancelledError:
                log.info("prefill_cancelled", extra={"request_id": request_id})
                raise
            if failed is not None:  # not in the except clause: code compiled by mypyc must not await there
                refused = self._refused(failed, fresh=fresh, request_id=request_id)
                death = engine.deaths.failed(leg, failed.reason)
                if death is not None:
                    await death.examine()
                raise refused from failed
            if answer.status < 500:
                engine.served()
            elif fresh:  # a history that cannot be read may be the decode worker's fault
                engine.failed()
            death = engine.deaths.failed(leg, "engine-error") if answer.status >= 500 else None
            if death is not None:
                await death.examine()
        finally:
            engine.over(leg, got_on=False)
            engine.deaths.leave(leg)
        return answer

    def _refused(self, error: UpstreamFailedError, *, fresh: bool, request_id: str) -> ApiError:
        """Report the failure to the circuit breaker, and return the error for the decode worker."""
        engine, reason = self.worker.engine, error.reason
        if reason == "connect":
            engine.lost()
        elif fresh and reason not in NOT_THE_ENGINE:
            engine.failed()
        log.warning("prefill_engine_failed", extra={"request_id": request_id, "reason": reason})
        if reason == "connect":
            return UnavailableError("the prefill engine cannot be reached", retryable=True)
        if reason == SHUTTING_DOWN:
            return UnavailableError("this prefill worker is shutting down", retryable=True)
        if reason == "timeout":
            return ApiError("the prefill engine did not answer in time", status=504, kind="server_error")
        return ApiError(f"the prefill engine failed ({reason})", status=502, kind="server_error", retryable=True)

    def _describe(self, record: WorkerRecord) -> WorkerRecord:
        return replace(record, windowed_ttft=self._ttft.mean(monotonic()))


def _refusal(worker: Worker) -> str:
    """Return why a worker takes no prefill."""
    return "this worker is draining" if worker.draining else NO_REMOTE_PREFILLS
