"""Run a round's decode leg: send the request to the decode engine and relay its response to the client."""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic
from typing import Final

from weft_core.policies.snapshot import PrefillTask
from weft_router.engines.adapter import Adapter, NotPossibleError, PrefillResult
from weft_router.engines.vllm import PLUGIN_HEADER
from weft_router.errors import (
    SHUTTING_DOWN,
    ApiError,
    EngineAnsweredError,
    EngineDiedError,
    UnavailableError,
    UpstreamFailedError,
    faults_request,
)
from weft_router.http.upstream_request import BufferedResponse, UpstreamRequest
from weft_router.openai.event_filter import EventFilter
from weft_router.openai.fingerprint import unusual
from weft_router.rounds.accounting import Accounting, used_tokens
from weft_router.rounds.response_relay import ResponseRelay, route_header_lines
from weft_router.rounds.response_writer import ResponseWriter
from weft_router.sessions.round import PrefilledKv, Round
from weft_router.workers.prefill_queue import QueueSlot
from weft_router.workers.worker import NOT_THE_ENGINE, Worker

log = logging.getLogger(__name__)

Warm = Callable[[QueueSlot], Awaitable[None]]
"""Does a part of a prefill before the request that ends it."""


KV_PATH_CLOSED = "kv-path-closed"
_PLUGIN: Final = PLUGIN_HEADER.lower()


class DecodeExecutor:
    """The engine leg of a decode sidecar."""

    def __init__(self, worker: Worker, *, adapter: Adapter, accounting: Accounting) -> None:
        self._worker = worker
        self._config = worker.settings.config
        self._adapter = adapter
        self._engine = worker.engine
        self._queue = worker.queue
        self._accounting = accounting
        self._met: set[str] = set()
        """Prefill workers whose KV was read here once: their engines know this one."""
        self._reading: dict[UpstreamRequest, str] = {}
        """Streams that have no token yet, and the prefill worker whose KV they wait for."""

    async def run(
        self, writer: ResponseWriter, rnd: Round, prefilled: PrefilledKv | None, *, warm: Warm | None = None
    ) -> None:
        """Answer a round from KV that was prefilled elsewhere, or prefill it here.

        Raises:
            UpstreamFailedError: the engine failed before its first token; nothing was sent.
            StreamBrokenError: it failed after that.
            EngineAnsweredError: the engine found the request itself wrong.
            EngineDiedError: the engine ended, and nothing was sent.
        """
        inference = rnd.inference
        result = prefilled.result if prefilled is not None else None
        if result is not None and result.finished is not None:
            self._finished(writer, rnd, prefilled, result)
            return
        if rnd.resumed is not None:
            rnd.route, rnd.prefill_worker = "local", ""
            try:
                call = self._adapter.resume(rnd.engine_request, rnd.resumed)
            except NotPossibleError as impossible:
                raise UpstreamFailedError("not-resumable", impossible.reason) from impossible
        elif prefilled is not None:
            rnd.route, rnd.prefill_worker = "remote", prefilled.worker
            call = self._adapter.decode(rnd.engine_request, result)
        else:
            rnd.route, rnd.prefill_worker = "local", ""
            rnd.engine_request.export = rnd.export and not (inference.stream and not self._streams_export())
            call = self._adapter.local(rnd.engine_request)
        # Prefilled KV expires with its lease, so this leg does not queue behind local prefills.
        slot = await self._slot(rnd, warm) if prefilled is None else None
        began, deaths = monotonic(), self._engine.deaths
        if inference.stream:
            timeouts = self._config.timeouts
            leg = UpstreamRequest(first_s=timeouts.first_byte, idle_s=timeouts.idle, total_s=timeouts.total)
            sse_filter = self._adapter.sse_filter(
                rnd.engine_request, first=result.first if result else None, resumed=rnd.resumed
            )
            relay = self._relay(writer, rnd, prefilled, slot, leg, sse_filter)
            writer.set_source(leg)
            rnd.show = relay.show_early
            if prefilled is not None:
                self._reading[leg] = prefilled.worker
            meets = prefilled is not None and prefilled.worker not in self._met
            self._engine.sent(leg, slot.until_first() if slot is not None else 0.0, meets=meets)
        else:
            leg = UpstreamRequest(first_s=self._config.timeouts.total)
            relay = self._relay(writer, rnd, prefilled, slot, leg, None)
            if slot is not None:
                relay.expect_first(slot.until_first())
            else:
                relay.decode()  # its prefill ran elsewhere
        failed: UpstreamFailedError | None = None
        try:
            try:
                if result is not None and result.first is not None and inference.stream:
                    relay.show(self._adapter.first_event(rnd.engine_request, result.first))
                deaths.enter(
                    leg,
                    tenant=rnd.scheduling.tenant,
                    fields=unusual(inference),
                    streams=inference.stream,
                    deaths=rnd.deaths,
                )
                self._engine.pool.send(
                    leg, self._engine.origin, call.path, call.body, relay,
                    lines=call.lines + self._engine.lines_of(rnd.session), resend=prefilled is None, tail=call.tail,
                )  # fmt: skip
                del call  # a long stream need not keep its prompt
                await leg
                refusal = relay.refusal()
                if refusal is not None:
                    if faults_request(relay.status) and not writer.headers_sent:
                        raise EngineAnsweredError(relay.status, refusal)
                    raise UpstreamFailedError("engine-error", f"status {relay.status}")
                if _PLUGIN in relay.headers:
                    self._accounting.streams_export = True
                relay.finish()
                self._engine.served()
                deaths.served(leg)
                if prefilled is not None:
                    self._met.add(prefilled.worker)
            except UpstreamFailedError as error:
                failed = error
            if failed is not None:  # not in the clause above: compiled, nothing may be awaited there
                raise await self._failure(failed, leg, relay, writer, fresh=prefilled is None)
        finally:
            if rnd.spans is not None:
                rnd.spans.record(
                    "decode.engine", began, monotonic(), worker=self._worker.name, route=rnd.route,
                    tokens=int(str(rnd.facts.get("completion_tokens", 0))),
                )  # fmt: skip
            writer.set_source(None)
            rnd.show = None
            self._reading.pop(leg, None)
            self._engine.over(leg, got_on=False)
            deaths.leave(leg)
            relay.close()

    async def _failure(
        self, error: UpstreamFailedError, leg: UpstreamRequest, relay: ResponseRelay, writer: ResponseWriter, *,
        fresh: bool,
    ) -> Exception:  # fmt: skip
        """Return the exception for a failed leg, once it is known whether its engine died."""
        self._blame(error.reason, fresh=fresh, headers_sent=writer.headers_sent)
        death = self._engine.deaths.failed(leg, error.reason)
        verdict = await death.verdict() if death is not None else ""
        if writer.headers_sent:
            failure = relay.broken(verdict or error.reason)
        elif verdict:
            failure = EngineDiedError(verdict)
        else:
            return error
        failure.__cause__ = error
        return failure

    def give_up(self, closed: frozenset[str]) -> None:
        """Fail the legs that wait for KV over closed paths; their rounds are prefilled locally instead."""
        for leg, worker in list(self._reading.items()):
            if worker in closed:
                leg.fail(KV_PATH_CLOSED)

    def _got_on(self, leg: UpstreamRequest) -> None:
        """Record that a stream has its first token, so its engine has read the prefilled KV."""
        self._reading.pop(leg, None)
        self._engine.over(leg, got_on=True)
        self._engine.deaths.first_token(leg)

    def _streams_export(self) -> bool:
        """Return whether streams will carry handles: as observed, or until then by the engine's plug-in page."""
        seen = self._accounting.streams_export
        return seen if seen is not None else self._engine.plugin is not False

    async def prefill(self, rnd: Round, prefill: Warm) -> None:
        """Prefill a round here in its turn, without its decode leg.

        Raises:
            UnavailableError: the local prefill queue is full, or the engine is not healthy.
        """
        (await self._slot(rnd, prefill)).release()

    async def _slot(self, rnd: Round, warm: Warm | None) -> QueueSlot:
        """Wait in the local prefill queue; ``warm`` may prefill most of the prompt in slices before the request."""
        scheduling = rnd.scheduling
        task = rnd.prefix_match.task
        if rnd.cached_here:
            task = PrefillTask(task.history + task.increment - 1, 1)
        slot = await self._queue.acquire(
            rnd.id, task, ttft_slo=scheduling.ttft_slo, priority=scheduling.priority,
            tenant=scheduling.tenant, lost=scheduling.lost, waited_s=scheduling.waited_s,
            immediate=rnd.resumed is not None or rnd.retried or rnd.cached_here,
        )  # fmt: skip
        if slot.delayed_s:
            rnd.delayed_s = slot.delayed_s
            self._accounting.delayed(slot.delayed_s)
        try:
            if not self._engine.healthy:  # it was ejected while this round waited in the queue
                raise UnavailableError("the engine of this decode worker is not healthy", retryable=True)
            if warm is not None:
                await warm(slot)
                rnd.expected_cached = None  # what it put into the cache is found there
        except BaseException:
            slot.release()
            raise
        return slot

    def _finished(
        self, writer: ResponseWriter, rnd: Round, prefilled: PrefilledKv | None, result: PrefillResult
    ) -> None:
        """Send the client an answer that is complete with the prefill's token."""
        data = result.finished or b""
        rnd.route, rnd.prefill_worker = "remote", prefilled.worker if prefilled is not None else ""
        clock = self._accounting.first_token(rnd, monotonic(), 1)
        writer.used = used_tokens(rnd, result.reply, 1)
        self._accounting.finish(rnd, prefilled, result.reply, tokens=1, clock=clock)
        if rnd.inference.stream:
            writer.begin(route_header_lines(rnd, self._worker.name))
            writer.write(data)
            writer.end()
        else:
            writer.whole(200, data, route_header_lines(rnd, self._worker.name))

    def _blame(self, reason: str, *, fresh: bool, headers_sent: bool) -> None:
        """Report a failed leg to the circuit breaker, unless the prefill side may be at fault: unreadable KV."""
        if reason == "connect":
            self._engine.lost()
        elif not headers_sent and reason not in NOT_THE_ENGINE and (fresh or reason == "timeout"):
            self._engine.failed()

    def _relay(
        self,
        writer: ResponseWriter,
        rnd: Round,
        prefilled: PrefilledKv | None,
        slot: QueueSlot | None,
        leg: UpstreamRequest,
        sse_filter: EventFilter | None,
    ) -> ResponseRelay:
        return ResponseRelay(
            writer, rnd, prefilled, slot, BufferedResponse(leg, self._config.limits.max_reply_bytes), sse_filter,
            accounting=self._accounting, worker=self._worker, public_id=self._adapter.public_id(rnd.engine_request),
            silence_s=self._config.timeouts.silence, on_first=partial(self._got_on, leg),
        )  # fmt: skip


def decode_leg_error(error: UpstreamFailedError) -> ApiError:
    """Return the response to the front for a failed leg."""
    if error.reason == SHUTTING_DOWN:
        return UnavailableError("this decode worker is shutting down", retryable=True)
    if error.reason == "connect":
        return UnavailableError("the engine of this decode worker cannot be reached", retryable=True)
    status = 504 if error.reason == "timeout" else 502
    return ApiError(
        f"the decode engine failed ({error.reason})",
        status=status,
        kind="server_error",
        code="engine_failed",
        retryable=error.reason not in ("timeout", "reply-too-large", "event-too-large"),
    )
