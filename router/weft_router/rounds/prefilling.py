"""Run prefills on one worker's engine, in the order of its queue, and measure the TTFT it gives."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from time import monotonic

from weft_core.heartbeat import WorkerRecord
from weft_core.policies.snapshot import PrefillTask
from weft_router.engines.chosen import adapter_of
from weft_router.errors import SHUTTING_DOWN, ApiError, LegFailedError, UnavailableError
from weft_router.rounds.standing import ANYBODY, Standing
from weft_router.rounds.worker import NOT_THE_ENGINE, Worker
from weft_router.signals.metrics import Metrics
from weft_router.signals.window import Window
from weft_router.wire.leg import Leg, Whole

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prefill:
    """An engine's answer to a prefill, and its times in seconds."""

    status: int
    body: bytes
    queued: float
    seconds: float


class Prefilling:
    """The prefill duty of one worker."""

    def __init__(self, worker: Worker, metrics: Metrics) -> None:
        self._worker = worker
        self._metrics = metrics
        self._limits = worker.settings.config.limits
        self._timeouts = worker.settings.config.timeouts
        self._meets = adapter_of(worker.settings.config).can.order == "together"
        """Whether its engine meets the other leg's by a number that is good once: such a leg is not sent again."""
        self._ttft = Window(worker.settings.config.routing.stats_window_seconds)
        self._ended = float("-inf")
        worker.describe(self._windowed)

    @property
    def unread_until(self) -> float:
        """Return until when, on the monotonic clock, KV that was prefilled here may wait for its reader."""
        return self._ended + self._worker.settings.config.engine.lease_seconds

    async def run(
        self, path: str, payload: bytes, headers: Mapping[str, str], *, task: PrefillTask, request_id: str,
        standing: Standing = ANYBODY,
    ) -> Prefill:  # fmt: skip
        """Queue one prefill and run it; the body comes ready for the engine.

        Raises:
            ApiError: this worker takes none, or its engine failed; ``retryable`` when another one may serve it.
        """
        worker = self._worker
        if worker.draining:
            raise UnavailableError("this prefill worker is draining", retryable=True)
        if not worker.engine.healthy:
            raise UnavailableError("the engine of this prefill worker is not healthy", retryable=True)
        with worker.live:
            return await self._run(path, payload, headers, task=task, request_id=request_id, standing=standing)

    async def _run(
        self, path: str, payload: bytes, headers: Mapping[str, str], *, task: PrefillTask, request_id: str,
        standing: Standing,
    ) -> Prefill:  # fmt: skip
        worker = self._worker
        arrived = monotonic()
        if not task.increment:  # KV that is given back, or a proof's few tokens; late ones tell nothing of the engine
            answer = await self._call(path, payload, headers, request_id, fresh=False, expected_s=inf)
            return Prefill(answer.status, answer.body, 0.0, monotonic() - arrived)
        slot = await worker.queue.acquire(
            request_id, task, ttft_slo=standing.ttft_slo, priority=standing.priority, tenant=standing.tenant,
            lost=standing.lost, waited_s=standing.waited_s,
        )  # fmt: skip
        try:
            if not worker.engine.healthy:  # it was left while this prefill waited for its turn
                raise UnavailableError("the engine of this prefill worker is not healthy", retryable=True)
            answer = await self._call(
                path, payload, headers, request_id, fresh=task.history == 0, expected_s=slot.until_first()
            )
        finally:
            began = slot.began
            slot.release()
            ended = self._ended = monotonic()
            trace = standing.spans.id if standing.spans is not None else request_id.removeprefix("weft-")
            self._metrics.queue_seconds.labels(standing.class_).mark(began - arrived, trace, ended)
        if standing.spans is not None:
            standing.spans.record("prefill.queue", arrived, began, worker=worker.name)
            standing.spans.record("prefill.engine", began, ended, worker=worker.name, tokens=task.increment)
        if answer.status == 200:
            self._ttft.add(ended, ended - arrived)
            self._metrics.prefill_seconds.mark(ended - began, trace, ended)
        return Prefill(answer.status, answer.body, began - arrived, ended - began)

    async def _call(
        self,
        path: str,
        payload: bytes,
        headers: Mapping[str, str],
        request_id: str,
        *,
        fresh: bool,
        expected_s: float,
    ) -> Whole:
        engine = self._worker.engine
        leg = Leg(first_s=self._timeouts.first_byte)
        engine.sent(leg, expected_s, meets=not fresh)  # of which decode engine the history is, nobody says here
        try:
            answer = await engine.pool.call(
                leg, engine.origin, path, payload, headers=engine.proven(headers),
                limit=self._limits.max_reply_bytes, resend=fresh and not self._meets,
            )  # fmt: skip
        except LegFailedError as error:
            late = error.reason == "timeout"
            if error.reason == "connect":
                engine.lost()
            elif fresh and error.reason not in NOT_THE_ENGINE:
                engine.failed()
            log.warning("prefill_engine_failed", extra={"request_id": request_id, "reason": error.reason})
            if error.reason == "connect":
                raise UnavailableError("the prefill engine cannot be reached", retryable=True) from error
            if error.reason == SHUTTING_DOWN:
                raise UnavailableError("this prefill worker is shutting down", retryable=True) from error
            if late:
                raise ApiError("the prefill engine did not answer in time", status=504, kind="server_error") from error
            raise ApiError(
                f"the prefill engine failed ({error.reason})", status=502, kind="server_error", retryable=True
            ) from error
        except asyncio.CancelledError:
            log.info("prefill_cancelled", extra={"request_id": request_id})
            raise
        finally:
            engine.over(leg, got_on=False)
        if answer.status < 500:
            engine.served()
        elif fresh:  # a history that cannot be read may be the decode worker's fault
            engine.failed()
        return answer

    def _windowed(self, record: WorkerRecord) -> WorkerRecord:
        return replace(record, windowed_ttft=self._ttft.mean(monotonic()))
