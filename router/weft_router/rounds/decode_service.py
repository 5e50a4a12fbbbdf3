"""Serve rounds on one decode worker: decide where each prefill runs, then let the engine answer."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from time import monotonic

from weft_core.heartbeat import WorkerRecord
from weft_core.policies.snapshot import Decision
from weft_router.auth.cache_salts import CacheSalts
from weft_router.config import PLAIN_CLASS, RouterConfig
from weft_router.engines.adapter import Adapter
from weft_router.engines.deaths import AGAIN, BYSTANDER, POISON
from weft_router.engines.handles import KvHandle
from weft_router.engines.load import EngineLoad
from weft_router.errors import (
    DEATHS,
    SHUTTING_DOWN,
    ApiError,
    EngineAnsweredError,
    EngineDiedError,
    StreamBrokenError,
    UnavailableError,
    UpstreamFailedError,
    engine_error,
)
from weft_router.openai.answers import not_ready
from weft_router.openai.tokens import AnswerTokens, CharsPerToken
from weft_router.rounds.accounting import Accounting, slos_of
from weft_router.rounds.decode_executor import DecodeExecutor, decode_leg_error
from weft_router.rounds.dual_dispatch import DualDispatch
from weft_router.rounds.hedged_prefill import HedgedPrefill
from weft_router.rounds.kv_proof import KvProof
from weft_router.rounds.prefill_slicer import PrefillSlicer
from weft_router.rounds.remote_prefill import RemotePrefill
from weft_router.rounds.request_log import RequestLog
from weft_router.rounds.response_writer import ResponseWriter
from weft_router.rounds.round_builder import RoundBuilder
from weft_router.routing.fresh_queues import FreshQueues
from weft_router.routing.in_flight_prefills import InFlightPrefills
from weft_router.routing.prefill_workers import PrefillWorkers
from weft_router.routing.route_selector import RouteSelector
from weft_router.sessions.engine_kv import held_tokens, tier_copy
from weft_router.sessions.kv_releaser import KvReleaser
from weft_router.sessions.return_times import handle_value
from weft_router.sessions.round import PrefilledKv, Round
from weft_router.sessions.round_request import RoundRequest
from weft_router.sessions.session import Session
from weft_router.sessions.session_export import SessionExport, SessionSource
from weft_router.sessions.session_import import SessionImport
from weft_router.sessions.session_table import SessionTable
from weft_router.state.registry import Registry
from weft_router.telemetry.decision_log import DecisionLog
from weft_router.telemetry.metrics import Metrics
from weft_router.telemetry.round_meter import RoundMeter
from weft_router.telemetry.session_latency import SessionLatencies
from weft_router.telemetry.sliding_window import SlidingWindow
from weft_router.workers.prefill_client import PrefillClient, QueueSource
from weft_router.workers.worker import LiveRounds, Worker

log = logging.getLogger(__name__)

_NOT_LOCALLY = frozenset({"connect", "disconnected", "timeout", "reply-too-large", "event-too-large", SHUTTING_DOWN})
"""Failures of a leg with prefilled KV that a local prefill on the same engine would only repeat."""
FULL = 0.9
"""KV cache use above which waiting requests may be waiting for KV memory: a long one needs a tenth and more."""


class DecodeService:
    """Serves rounds on one decode worker."""

    def __init__(
        self, worker: Worker, *, adapter: Adapter, prefill_client: PrefillClient, registry: Registry, metrics: Metrics,
        meter: RoundMeter, salts: CacheSalts, request_log: RequestLog, ring: DecisionLog,
        in_flight: InFlightPrefills | None = None, session_source: SessionSource | None = None,
        queue_source: QueueSource | None = None,
    ) -> None:  # fmt: skip
        """Serve rounds by one worker; ``session_source`` fetches sessions from draining workers, if any can.

        ``queue_source`` asks prefill workers of other processes for their queues.
        """
        settings = worker.settings
        config = settings.config
        self.worker = worker
        self.live = LiveRounds()
        """Counts the rounds that are served here."""
        self._metrics = metrics
        self._decisions = metrics.decisions
        self._registry = registry
        self._adapter = adapter
        self._latencies = SessionLatencies()
        self._itl = SlidingWindow(config.routing.stats_window_seconds)
        self._ratio, answers = CharsPerToken(), AnswerTokens()
        self.prefill_workers = PrefillWorkers(
            settings, registry=registry,
            in_flight=in_flight or InFlightPrefills(settings.profile, pools=settings.pools),
            closed=lambda: worker.paths.closed, role=lambda: worker.role,
        )  # fmt: skip
        self._fresh_queues = None
        if queue_source is not None:
            self._fresh_queues = FreshQueues(queue_source, prefill_workers=self.prefill_workers, registry=registry)
        self._releaser = KvReleaser(
            worker,
            adapter=adapter,
            prefill_client=prefill_client,
            prefill_workers=self.prefill_workers.ready,
            metrics=metrics,
        )
        self.prove = KvProof(worker, prefill_client=prefill_client, releaser=self._releaser, outcomes=metrics.kv_proofs)
        """Runs a KV path proof; used when the worker starts."""
        self.sessions = SessionTable(
            ttl_s=config.routing.session_ttl_seconds, on_end=self._ended, on_spare=self._superseded
        )
        self.remote = RemotePrefill(
            config, adapter=adapter, prefill_client=prefill_client, prefill_workers=self.prefill_workers,
            releaser=self._releaser, registry=registry, metrics=metrics,
        )  # fmt: skip
        self._session_import = SessionImport(
            session_source, registry=registry, sessions=self.sessions, moved=metrics.sessions_moved
        )
        self.session_export = SessionExport(
            settings, sessions=self.sessions, prefill_workers=self.prefill_workers.ready,
            elsewhere=lambda: any(record.worker != settings.worker for record in registry.ready("decode")),
            give_back=self._releaser.release_handle, held=self._held, healthy=lambda: worker.engine.healthy,
        )  # fmt: skip
        self._request_log = request_log
        self.route_selector = RouteSelector(
            worker, adapter=adapter, prefill_workers=self.prefill_workers, registry=registry, answers=answers,
            itl=self._itl, ring=ring, seconds=metrics.decision_seconds.labels(),
        )  # fmt: skip
        worker.queue.delays = self.route_selector.delays if self.route_selector.never_remote else None
        accounting = Accounting(
            settings, sessions=self.sessions, itl=self._itl, metrics=metrics, meter=meter, ratio=self._ratio,
            answers=answers, observed=self.route_selector.observed, learned=self.route_selector.learned,
            unusable=self._releaser.release_handle, count_intake=worker.count_intake, kv_cache=worker.kv_cache,
        )  # fmt: skip
        self.executor = DecodeExecutor(worker, adapter=adapter, accounting=accounting)
        self._dual_dispatch = DualDispatch(
            worker, adapter=adapter, registry=registry, prefill_workers=self.prefill_workers, remote=self.remote,
            executor=self.executor, metrics=metrics,
        )  # fmt: skip
        self._slicer = PrefillSlicer(
            config, adapter=adapter, engine=worker.engine, view=self.route_selector.view,
            tokens=metrics.slice_tokens.labels(),
        )  # fmt: skip
        self._hedged_prefill = HedgedPrefill(
            adapter=adapter, route_selector=self.route_selector, remote=self.remote, executor=self.executor,
            slicer=self._slicer, metrics=metrics, orphaned=self._orphaned,
        )  # fmt: skip
        self._meter = meter
        self._round_builder = RoundBuilder(
            worker, adapter=adapter, sessions=self.sessions, prefill_workers=self.prefill_workers,
            route_selector=self.route_selector, session_export=self.session_export, releaser=self._releaser,
            salts=salts, latencies=self._latencies, ratio=self._ratio, metrics=metrics,
        )  # fmt: skip
        worker.describe(self._describe)
        worker.paths.on_closed(self.executor.give_up)
        worker.engine.on_load(self._make_room)

    def reload(self, config: RouterConfig) -> None:
        """Apply another configuration's policies, thresholds and classes; rounds in progress keep theirs."""
        self.route_selector.reload(config)
        self.worker.queue.delays = self.route_selector.delays if self.route_selector.never_remote else None
        self._round_builder.reload(config)
        self._meter.reload(slos_of(config))
        self.remote.reload(config)
        self.prefill_workers.reload(config.routing.canary)

    async def serve(self, request: RoundRequest, writer: ResponseWriter) -> None:
        """Serve one round.

        Raises:
            ApiError: it cannot be served here; ``retryable`` when another worker may serve it.
            StreamBrokenError: the engine was lost after the client got a part of the answer.
        """
        worker = self.worker
        if not worker.takes_rounds:
            raise UnavailableError(
                "this worker is draining" if worker.role != "prefill" else "this worker does not decode",
                retryable=True,
            )
        if not worker.engine.healthy:
            raise UnavailableError("the engine of this decode worker is not healthy", retryable=True)
        version = request.inference.version
        worker.adapters.acquire(version)
        try:
            with worker.live, self.live:
                await self._serve(request, writer)
        finally:
            worker.adapters.release(version)

    async def _serve(self, request: RoundRequest, writer: ResponseWriter) -> None:
        if request.previous_worker and request.resumed is None:
            await self._session_import.take_over(request)
        stays = request.resumed is not None or (request.local_only and self._adapter.can.local)
        stays = stays or self.route_selector.policy_of(request.class_).never_remote
        if self._fresh_queues is not None and not stays:
            await self._fresh_queues.update()
        rnd = self._round_builder.build(request)
        prefilled: PrefilledKv | None = None
        if request.resumed is not None:
            decision = Decision(remote=None, reason="resumed")
        elif request.local_only and self._adapter.can.local:
            decision = Decision(remote=None, reason="degraded")
        else:
            decision = rnd.decision = self.route_selector.decide(rnd)
            self._refuse_late(rnd, decision)
        rnd.reason = decision.reason
        if request.resumed is None and not request.retried:
            self._meter.arrived(rnd.phase, rnd.class_)
        try:
            if decision.remote is not None and self._adapter.can.order == "concurrent":
                await self._dual_dispatch.run(writer, rnd, decision.remote)
                return
            if decision.remote is None and not self._adapter.can.local:
                raise not_ready("prefill worker")
            if decision.remote is not None:
                try:
                    prefilled = await self._hedged_prefill.run(rnd, decision.remote)
                finally:
                    if rnd.prefix_match.away or rnd.prefix_match.origin is not None:
                        self._session_import.report_read(request)
                if prefilled is None:
                    rnd.reason = "hedge" if rnd.cached_here else "prefill-failed"
                rnd.retried = rnd.retried or prefilled is None or prefilled.worker != decision.remote
            elif rnd.prefix_match.handle is not None:
                self._superseded(rnd.prefix_match.handle)
            elif rnd.prefix_match.origin is not None:
                self._session_import.report_read(request)
            await self._answer(writer, rnd, prefilled, chunked=decision.chunked and not rnd.cached_here)
        except EngineAnsweredError as answered:
            raise engine_error(answered.status, answered.body) from answered
        except UpstreamFailedError as error:
            raise decode_leg_error(error) from error
        except EngineDiedError as death:
            self._died(request, death.verdict)
            raise
        except StreamBrokenError as broken:
            self._died(request, broken.reason)
            raise
        finally:
            self._closed(rnd, request.facts)

    def _died(self, request: RoundRequest, verdict: str) -> None:
        """Count a request whose engine died; a query of death is quarantined, and heartbeats report it."""
        if verdict not in DEATHS:
            return
        self._metrics.engine_deaths.labels(verdict).inc()
        if verdict == POISON:
            log.error("query_of_death", extra={"request_id": request.id, "tenant": request.tenant})
            self.worker.hold_back(request.tenant, request.inference)
        elif verdict in (AGAIN, BYSTANDER) and (unsolved := self.worker.engine.deaths.unsolved):
            self.worker.doubt(request.tenant, request.inference, unsolved)

    def _closed(self, rnd: Round, facts: dict[str, object]) -> None:
        """Count a finished round and write its request log line and facts."""
        self._request_log.write(rnd, worker=self.worker.name)
        facts.update(rnd.facts)
        facts["route"] = rnd.route
        facts["reason"] = rnd.reason
        facts["prefill_worker"] = rnd.prefill_worker
        self._decisions.labels(self.route_selector.policy_of(rnd.class_).name, rnd.route, rnd.reason).inc()

    def _refuse_late(self, rnd: Round, decision: Decision) -> None:
        """Reject a round early that would miss its TTFT or ITL, if its class has early rejection."""
        refusal = self.route_selector.policy_of(rnd.class_).refuse(decision)
        if refusal is not None:
            self._metrics.rejected.labels(refusal.reason, rnd.class_).inc()
            if rnd.prefix_match.handle is not None:
                self.sessions.put_back(rnd.session, rnd.prefix_match.handle)
            what = (
                "first token would come too late" if refusal.reason == "predicted-ttft" else "tokens would be too slow"
            )
            raise ApiError(
                f"the {what} for class {rnd.class_!r}; try again in {refusal.retry_s:.0f} s",
                status=429, kind="rate_limit_error", code=refusal.reason.replace("-", "_"),
                retry_after_s=max(1, round(refusal.retry_s)), overload=True,
            )  # fmt: skip

    def forget(self, session: str) -> None:
        """Remove a session that its client closed, and release its KV."""
        ended = self.sessions.close(session)
        if ended is not None and ended.handle is not None:
            self._releaser.discard_handle(ended.handle, "closed")

    async def stop(self) -> None:
        """Cancel background tasks."""
        await self._session_import.stop()
        await self._releaser.stop()

    def observe(self) -> None:
        """Expire sessions and in-flight estimates before metrics are read."""
        self.sessions.expire()
        self.prefill_workers.in_flight.forget([record.worker for record in self._registry.workers()])

    def _held(self, session: str) -> tuple[int, Mapping[str, int]]:
        """Return what the engine has of a session without a handle, where other engines can read what it prefills."""
        if self._adapter.can.order != "prefill-then-decode" or self.route_selector.never_remote:
            return 0, {}
        return held_tokens(self.worker, session)

    @property
    def handed_over(self) -> bool:
        """Return whether nothing is left for which this worker has to decode: no round, and no session that comes back.

        Sessions that pause longer stay here, and are exported when their next round asks for them.
        """
        return not self.live.count and (not self.worker.engine.healthy or not self.session_export.waiting())

    @property
    def trusted(self) -> bool:
        """Return whether recent predictions of TTFT were right."""
        return self.route_selector.trusted

    def _ended(self, key: str, session: Session) -> None:
        self._meter.session_ended(session.class_ or PLAIN_CLASS, session.rounds, self._latencies.end(key))

    def _describe(self, record: WorkerRecord) -> WorkerRecord:
        return replace(
            record,
            windowed_itl=self._itl.mean(monotonic()),
            batch=len(self.worker.batch),
            sessions=len(self.sessions),
            kv_tokens=self.sessions.tokens if record.has_duty("decode") else record.kv_tokens,
            chars_per_token=self._ratio.ratio,
        )

    def _make_room(self, load: EngineLoad) -> None:
        """Release KV that is kept for later rounds when the engine is full and requests wait for KV memory.

        Otherwise they would wait until its time to live ends. What is worth least is released first. Released KV stays
        in the engine's prefix cache until its memory is needed.
        """
        if load.waiting and load.kv_usage >= FULL:
            value = partial(
                handle_value, settings=self.worker.settings, readers=self.prefill_workers.ready,
                in_tier=partial(tier_copy, self.worker),
            )  # fmt: skip
            for handle in self.sessions.yield_handles(load.waiting, value):
                self._releaser.discard_handle(handle, "yielded")

    def _superseded(self, handle: KvHandle) -> None:
        """Count a handle that no round will use any more, and release its KV."""
        self._releaser.discard_handle(handle, "superseded")

    def _orphaned(self, prefilled: PrefilledKv) -> None:
        """Count a prefill whose KV this engine may not have read, and release it."""
        if prefilled.result.finished is not None:  # its one token was the whole answer
            return
        self._metrics.kv_handles.labels("orphaned").inc()
        self._releaser.release_prefill(prefilled.result.params)

    async def _answer(
        self, writer: ResponseWriter, rnd: Round, prefilled: PrefilledKv | None, *, chunked: bool
    ) -> None:
        """Run the decode leg; if it cannot read the KV, prefill locally, once. The front handles a dead engine."""
        if prefilled is not None:
            try:
                await self.executor.run(writer, rnd, prefilled)
            except (UpstreamFailedError, StreamBrokenError, EngineAnsweredError, asyncio.CancelledError) as error:
                if not rnd.taken:
                    self._orphaned(prefilled)
                if not isinstance(error, UpstreamFailedError):
                    raise
                log.warning("decode_leg_failed", extra={"request_id": rnd.id, "reason": error.reason})
                if error.reason in _NOT_LOCALLY:
                    raise
                rnd.reason = "kv-load-failed"
                rnd.retried = True
            else:
                return
        warm = partial(self._slicer.warm, rnd, policy=self.route_selector.policy_of(rnd.class_)) if chunked else None
        try:
            await self.executor.run(writer, rnd, None, warm=warm)
        except UpstreamFailedError as failed:
            log.warning("local_leg_failed", extra={"request_id": rnd.id, "reason": failed.reason})
            raise
