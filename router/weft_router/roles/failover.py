"""Serve a round by the decode worker of its session, and by another one when that is lost."""

import asyncio
import logging
from time import monotonic
from typing import Protocol

from weft_core.heartbeat import WorkerRecord
from weft_router.engines.adapter import Adapter
from weft_router.engines.deaths import POISON, SUSPECT
from weft_router.errors import (
    DEATHS,
    SHUTTING_DOWN,
    ApiError,
    StreamBrokenError,
    UnavailableError,
    UpstreamFailedError,
    stream_error,
)
from weft_router.limits.quarantine import Quarantine
from weft_router.roles.crash_retries import CrashRetries, CrashRetry, engine_died_error
from weft_router.roles.relay import ENGINE_FAILED
from weft_router.rounds.regeneration_writer import DIVERGED, RegenerationWriter
from weft_router.rounds.response_writer import ResponseWriter
from weft_router.rounds.stream_resumer import StreamResumer
from weft_router.routing.session_placer import SessionPlacer
from weft_router.sessions.round_request import RoundRequest
from weft_router.state.registry import Registry
from weft_router.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
"""Three workers lost under one request is a sick cluster or a sick request; more replays would spread either."""
MAX_REFUSALS = 8
"""A worker that leaves the role decode refuses rounds until its heartbeat is read, and several may leave at once."""
FINAL = frozenset({"timeout", "reply-too-large", SHUTTING_DOWN})
"""Not the worker's fault, or the same on any other: sent again, a slow request would only double the load."""
RESUME_WAIT_S = 1.0
POLL_S = 0.05


class DecodeClient(Protocol):
    """The way to decode workers: over HTTP to their sidecars, or to workers of this very process."""

    def endpoints(self, writer: ResponseWriter) -> frozenset[str] | None:
        """Return the addresses of the only workers that may serve a request; None where all may."""

    async def serve(self, record: WorkerRecord, request: RoundRequest, writer: ResponseWriter) -> None:
        """Serve a round; raise UpstreamFailedError before its first byte, StreamBrokenError after it, or ApiError."""

    async def ask(self, record: WorkerRecord, path: str, payload: bytes) -> tuple[int, bytes]:
        """Return the status and body of a worker's answer to a short call; raise UpstreamFailedError without one."""

    async def forget(self, record: WorkerRecord, session: str) -> None:
        """Have a worker forget a session; raise UpstreamFailedError when it does not say that it did."""


class Failover:
    """The attempts that a front makes for each round."""

    def __init__(
        self, *, adapter: Adapter, registry: Registry, workers: DecodeClient, placer: SessionPlacer,
        quarantine: Quarantine, metrics: Metrics,
    ) -> None:  # fmt: skip
        """Serve by ``workers``, of which ``placer`` chooses; ``quarantine`` gets the requests that crash engines."""
        self._registry = registry
        self._workers = workers
        self._placer = placer
        self._quarantine = quarantine
        self._metrics = metrics
        self._resumer = StreamResumer(adapter, metrics)
        self._retries = CrashRetries()
        self._ending = False

    def terminate(self) -> None:
        """Start no further attempt: this process shuts down, and requests that it cancels are no worker's failure."""
        self._ending = True

    async def serve(self, request: RoundRequest, writer: ResponseWriter) -> None:
        """Serve by the bound worker; as long as nothing reached the client, a lost worker is replaced unseen."""
        tried: frozenset[str] = frozenset()
        endpoints = self._workers.endpoints(writer)
        failure: UpstreamFailedError | None = None
        failed_engines = 0
        broken = ""
        suspect = none_left = False
        attempt = writer
        """The writer of an attempt: the client's, or one for an answer that is generated again."""
        continues = False
        retry: CrashRetry | None = None
        try:  # around the loop: mypyc compiles no break out of a try with a finally
            attempts = refusals = 0
            while attempts < MAX_ATTEMPTS and refusals < MAX_REFUSALS:
                attempts += 1
                if retry is not None:
                    retry.over()
                retry = await self._retries.enter(request.tenant) if suspect and not writer.headers_sent else None
                avoid = tried if endpoints is None else tried | self._outside(endpoints)
                record = await self._take(
                    request, avoid, wait_s=RESUME_WAIT_S if writer.headers_sent else 0.0, retry=retry
                )
                if record is None:
                    none_left = True
                    break
                request.facts["worker"] = record.worker
                request.facts["attempts"] = len(tried) + 1
                try:
                    await self._workers.serve(record, request, attempt)
                except StreamBrokenError as lost:
                    if self._ending:
                        broken = SHUTTING_DOWN
                        break
                    if not lost.from_worker and lost.reason != DIVERGED:
                        self._registry.report_failure(record.worker)
                    log.warning(
                        "stream_broken",
                        extra={"request_id": request.id, "worker": record.worker, "reason": lost.reason},
                    )
                    broken = lost.reason
                    tried |= {record.worker}
                    if isinstance(attempt, RegenerationWriter) and attempt.failure:
                        break
                    if self._resumer.finish_if_complete(request, lost.reply, attempt):
                        return
                    if self._died(request, lost.reason, retry):
                        break
                    following = self._resumer.next_writer(request, lost.reply, writer, attempt)
                    if following is None:
                        break
                    attempt, continues = following, True
                except ApiError:
                    if not writer.headers_sent:
                        raise
                    broken = "engine-error"
                    tried |= {record.worker}
                    log.warning("not_resumed", extra={"request_id": request.id, "worker": record.worker})
                    if not continues:
                        break  # from its start it would be a second answer in the same stream
                except UpstreamFailedError as error:
                    if writer.headers_sent:
                        broken = error.reason
                        tried |= {record.worker}
                        if self._died(request, error.reason, retry) or not continues:
                            break
                        continue
                    if self._ending or error.reason in FINAL:
                        raise _final(SHUTTING_DOWN if self._ending else error.reason) from error
                    if self._died(request, error.reason, retry):
                        raise engine_died_error() from error
                    if error.reason == "refused":
                        attempts -= 1
                        refusals += 1
                    suspect = suspect or error.reason == SUSPECT
                    failure = error
                    request.retried = request.retried or error.reason != "connect"
                    tried |= {record.worker}
                    self._metrics.replays.labels(error.reason).inc()
                    log.warning(
                        "leg_failed", extra={"request_id": request.id, "worker": record.worker, "reason": error.reason}
                    )
                    if error.reason == ENGINE_FAILED:
                        failed_engines += 1
                        if failed_engines > 1:
                            break  # two engines failed on it: a third would more likely be hurt than serve it
                    elif error.reason != "refused" and error.reason not in DEATHS:
                        self._registry.report_failure(record.worker)
                else:
                    if not isinstance(attempt, RegenerationWriter) or not attempt.failure:
                        self._placer.served(request, attempt.used[0])
                        return
                    broken = attempt.failure
                    break
        finally:
            if retry is not None:
                retry.over()
            if attempt is not writer and attempt.used[1] > writer.used[1]:
                writer.used = attempt.used
        if writer.headers_sent:
            self._metrics.broken_streams.labels(broken).inc()
            writer.write(stream_error(broken).event())
            writer.end()
            return
        if failure is None or failure.reason in ("refused", "connect"):
            raise self._placer.not_ready(request)
        if none_left and not request.deaths and not failed_engines:  # another worker would have served it
            raise UnavailableError(
                f"the decode worker of this request is gone ({failure.reason}), and no other one is ready; try again",
                retry_after_s=2,
                overload=True,
            )
        raise ApiError(
            f"{len(tried)} decode worker(s) failed to serve this request ({failure.reason}); try again",
            status=502,
            kind="server_error",
            code="worker_failed",
        )

    def _outside(self, endpoints: frozenset[str]) -> frozenset[str]:
        """Return the workers that have none of these addresses."""
        known = self._registry.known("decode")
        return frozenset({record.worker for record in known if record.url.removeprefix("http://") not in endpoints})

    def _died(self, request: RoundRequest, reason: str, retry: CrashRetry | None) -> bool:
        """Return whether a request is not sent again, as its engine ended and it was the reason, or saw that before."""
        if reason not in DEATHS:
            return False
        request.deaths += 1
        if reason == POISON:
            self._quarantine.add(request.tenant, request.inference)
            if retry is not None:
                retry.over(poison=True)
        return reason == POISON or request.deaths > 1

    async def _take(
        self, request: RoundRequest, tried: frozenset[str], *, wait_s: float, retry: CrashRetry | None
    ) -> WorkerRecord | None:
        """Return the worker to serve by; a client with half a stream waits a moment for one that is coming back.

        A retry goes where no other one is, if there is such a worker.
        """
        if retry is None:
            return await self._find(request, tried, wait_s)
        record = None
        try:
            apart = self._retries.workers - tried
            if apart:
                record = await self._find(request, tried | apart, 0.0)
            record = record or await self._find(request, tried, wait_s)
        finally:
            if record is None:
                retry.over()
            else:
                retry.worker = record.worker
        return record

    async def _find(self, request: RoundRequest, tried: frozenset[str], wait_s: float) -> WorkerRecord | None:
        until = 0.0
        while True:
            worker = await self._placer.place(request, tried)
            record = self._registry.get(worker, "decode") if worker is not None else None
            if record is not None or not wait_s:
                return record
            until = until or monotonic() + wait_s
            others = any(known.worker not in tried for known in self._registry.known("decode"))
            if not others or monotonic() >= until:
                return None
            await asyncio.sleep(POLL_S)


def _final(reason: str) -> ApiError:
    if reason == SHUTTING_DOWN:
        return UnavailableError("this router is shutting down; try again")
    late = reason == "timeout"
    return ApiError(
        f"the decode worker did not answer this request ({reason})",
        status=504 if late else 502,
        kind="server_error",
        code="timeout" if late else "worker_failed",
    )
