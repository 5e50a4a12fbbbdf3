"""The sidecar of a decode worker: decides where each prefill runs, then lets its engine answer."""

import asyncio
import hashlib
import hmac
import logging
from dataclasses import replace
from functools import partial
from time import monotonic

from aiohttp import web

from weft_core.policies.snapshot import Circumstances, Decision, DecodeWorkerView, PrefillTask
from weft_core.slo import Slo
from weft_router.api.answers import models, read_body
from weft_router.api.body import parse, sanitise
from weft_router.api.inference import PATHS, check
from weft_router.api.transcript import of_request
from weft_router.config import Settings
from weft_router.errors import ApiError, InvalidRequestError, LegFailedError, UnavailableError
from weft_router.guard.auth import NO_KEYS_TENANT
from weft_router.roles.relay import SHUTTING_DOWN
from weft_router.roles.server import FACTS, REQUEST_ID
from weft_router.roles.sidecar import Sidecar
from weft_router.rounds.answering import Answering
from weft_router.rounds.remote import EngineAnsweredError, RemotePrefill, engine_error
from weft_router.rounds.round import Prefilled, Round
from weft_router.rounds.routing import Policy
from weft_router.rounds.sessions import Sessions
from weft_router.signals.metrics import Metrics
from weft_router.signals.pace import Paces
from weft_router.signals.request_log import RequestLog
from weft_router.signals.window import Window
from weft_router.state.store import Store, WorkerRecord

log = logging.getLogger(__name__)

_NOT_LOCALLY = frozenset({"connect", "disconnected", "timeout", "reply-too-large", "event-too-large", SHUTTING_DOWN})
"""Failures of a leg with prefilled KV that the same engine, asked to prefill by itself, would only repeat."""

SESSION_HEADER = "X-Weft-Session"
TENANT_HEADER = "X-Weft-Tenant"


class DecodeSidecar:
    """The duty of role ``decode``."""

    def __init__(self, settings: Settings, store: Store, metrics: Metrics) -> None:
        config = settings.config
        self._settings = settings
        self._config = config
        self._metrics = metrics
        self._sidecar = Sidecar(settings, store, metrics, describe=self._describe)
        self._sessions = Sessions(ttl_s=config.routing.session_ttl_seconds)
        self._paces = Paces()
        self._counts_gaps = config.routing.params.get("itl_statistic", 0) > 0
        self._itl = Window(config.routing.stats_window_seconds)
        self._rounds = Window(config.routing.stats_window_seconds)
        slo = Slo(ttft_s=config.slo.ttft, itl_s=config.slo.itl)
        self._policy = Policy(
            config.routing, profile=settings.profile, pools=settings.pools, slo=slo, salt=settings.worker
        )
        self._remote = RemotePrefill(
            settings, http=self._sidecar.peers, registry=self._sidecar.registry, metrics=metrics
        )
        self._request_log = RequestLog(config.request_log, worker=settings.worker)
        self._answering = Answering(
            settings, engine=self._sidecar.engine, queue=self._sidecar.queue, sessions=self._sessions,
            itl=self._itl, metrics=metrics,
        )  # fmt: skip

    def routes(self) -> list[web.RouteDef]:
        """Return the endpoints of a decode worker."""
        inference = [web.post(path, partial(self._infer, path)) for path in PATHS]
        return [*inference, web.get("/v1/models", self._models), *self._sidecar.routes()]

    def ready(self) -> str | None:
        """Return None when rounds can be served."""
        return self._sidecar.ready()

    async def start(self) -> None:
        """Start the sidecar's background work."""
        await self._sidecar.start(watch_peers=True)

    async def stop(self) -> None:
        """Stop it."""
        await self._sidecar.stop()
        self._request_log.close()

    def drain(self) -> None:
        """Take nothing new."""
        self._sidecar.drain()

    def cut(self) -> None:
        """End what is still under way."""
        self._answering.legs.cut(SHUTTING_DOWN)
        self._remote.legs.cut(SHUTTING_DOWN)

    def observe(self) -> None:
        """Bring gauges up to date."""
        self._sessions.expire()
        registry = self._sidecar.registry
        self._metrics.sessions.set(len(self._sessions))
        self._metrics.queue_length.set(len(self._sidecar.queue))
        self._remote.dispatched.forget([record.worker for record in registry.known("prefill")])
        self._metrics.state_up.set(registry.store_up)
        ready = len(registry.ready("prefill"))
        self._metrics.workers.labels("prefill", "ready").set(ready)
        self._metrics.workers.labels("prefill", "not-ready").set(len(registry.known("prefill")) - ready)

    def _describe(self, record: WorkerRecord) -> WorkerRecord:
        return replace(
            record,
            windowed_itl=self._itl.mean(monotonic()),
            batch=self._answering.batch,
            sessions=len(self._sessions),
            chars_per_token=self._answering.ratio.ratio,
        )

    async def _models(self, _: web.Request) -> web.Response:
        return models(self._settings)

    async def _infer(self, path: str, request: web.Request) -> web.StreamResponse:
        sidecar = self._sidecar
        if sidecar.draining:
            raise UnavailableError("this decode worker is draining", retryable=True)
        if not sidecar.engine.healthy:
            raise UnavailableError("the engine of this decode worker is not healthy", retryable=True)
        rnd = await self._open(path, request)
        prefilled: Prefilled | None = None
        decision = self._decide(rnd)
        rnd.reason = decision.reason
        try:
            if decision.remote is not None:
                prefilled = await self._remote.run(rnd, decision.remote)
                if prefilled is None:
                    rnd.reason = "prefill-failed"
            elif rnd.outlook.handle is not None:
                self._metrics.kv_handles.labels("superseded").inc()
            return await self._answer(request, rnd, prefilled)
        except EngineAnsweredError as answered:
            raise engine_error(answered) from answered
        except LegFailedError as error:
            raise _lost(error) from error
        finally:
            self._request_log.write(rnd)
            request[FACTS].update(rnd.facts, route=rnd.route, reason=rnd.reason, prefill_worker=rnd.prefill_worker)
            self._metrics.decisions.labels(self._policy.name, rnd.route, rnd.reason).inc()

    async def _open(self, path: str, request: web.Request) -> Round:
        """Read and check the request once more: what goes to the engine is what was checked here."""
        limits = self._config.limits
        started = monotonic()
        raw = await read_body(request, limit=2 * limits.max_body_bytes, seconds=self._config.timeouts.body)
        body = parse(raw)
        if sanitise(body):
            self._metrics.dropped_fields.inc()
        inference = check(path, body, model=self._config.model, limits=limits)
        session = request.headers.get(SESSION_HEADER, "")
        if not session:
            raise InvalidRequestError(f"{SESSION_HEADER}: the coordinator names the session", param=SESSION_HEADER)
        request_id = request.headers.get(REQUEST_ID, "")
        tenant = request.headers.get(TENANT_HEADER, NO_KEYS_TENANT)
        transcript = of_request(inference)
        outlook = self._sessions.begin(session, inference, transcript, self._answering.ratio)
        if outlook.lost is not None:
            self._metrics.kv_handles.labels(outlook.lost).inc()
        if outlook.gap_s is not None:
            self._metrics.round_gap.observe(outlook.gap_s)
        request[FACTS].update(request_id=request_id, session=session)
        # Without prefill workers nobody would read what the engine keeps.
        export = self._config.engine.bidirectional and inference.transferable and not self._policy.never_remote
        return Round(
            id=request_id,
            session=session,
            inference=inference,
            transcript=transcript,
            outlook=outlook,
            started=started,
            salt=self._salt(tenant),
            want_ids=export,
            export=export,
            pace=self._paces.of(session),
        )

    def _decide(self, rnd: Round) -> Decision:
        """Choose the route; only a history that can be read elsewhere, or is short, may be prefilled elsewhere."""
        self._rounds.add(monotonic(), 1.0)
        task = rnd.outlook.task
        if self._policy.never_remote:
            return self._policy.route(task, decode=self._view(), prefill=(), known=Circumstances())
        if not rnd.inference.transferable:
            return Decision(remote=None, reason="not-transferable")
        if rnd.outlook.handle is None and task.history > 0:
            if task.history >= task.increment:
                return Decision(remote=None, reason="history-unreadable")
            task = PrefillTask(0, task.history + task.increment)
        view = self._remote.dispatched.view
        profile_of = self._settings.profile_of
        prefill = [view(r) for r in self._remote.peers() if r.degree in profile_of(r.pool).degrees]
        known = Circumstances(
            waited_s=monotonic() - rnd.started,
            later=rnd.outlook.later,
            answer=self._answer_tokens(rnd),
            rate=self._rounds.rate(monotonic()) * max(1, len(self._sidecar.registry.ready("decode"))),
            cached=rnd.outlook.prefilled,
        )
        return self._policy.route(task, decode=self._view(), prefill=prefill, known=known)

    def _answer_tokens(self, rnd: Round) -> float:
        """Return how long the answer may be: the mean answer so far, at most what the client allows."""
        mean, most = self._answering.answer_tokens, rnd.inference.max_tokens
        return mean if most is None or mean <= most else float(most)

    def _view(self) -> DecodeWorkerView:
        """Return this worker; the KV in use stands for the tokens of the sequences that decode."""
        sidecar = self._sidecar
        paces = list(self._answering.decoding.values())
        return DecodeWorkerView(
            worker=self._settings.worker,
            degree=self._settings.degree,
            queue_s=sidecar.queue.seconds,
            queued=len(sidecar.queue),
            windowed_itl=self._itl.mean(monotonic()),
            kv_used=sidecar.kv_used,
            kv_capacity=sidecar.kv_capacity,
            batch=self._answering.batch,
            context=sidecar.kv_used,
            gap_sums=[pace.over if self._counts_gaps else pace.seconds for pace in paces],
            gap_counts=[pace.gaps for pace in paces],
        )

    async def _answer(self, request: web.Request, rnd: Round, prefilled: Prefilled | None) -> web.StreamResponse:
        """Let the engine answer; KV it cannot fetch is computed here, once. A dead engine is the coordinator's case."""
        if prefilled is not None:
            try:
                return await self._answering.run(request, rnd, prefilled)
            except LegFailedError as error:
                self._metrics.kv_handles.labels("orphaned").inc()
                log.warning("decode_leg_failed", extra={"request_id": rnd.id, "reason": error.reason})
                if error.reason in _NOT_LOCALLY:
                    raise
                rnd.reason = "kv-load-failed"
            except (EngineAnsweredError, asyncio.CancelledError):
                if rnd.first_at is None:
                    self._metrics.kv_handles.labels("orphaned").inc()
                raise
        try:
            return await self._answering.run(request, rnd, None)
        except LegFailedError as error:
            log.warning("local_leg_failed", extra={"request_id": rnd.id, "reason": error.reason})
            raise

    def _salt(self, tenant: str) -> str | None:
        if tenant == NO_KEYS_TENANT:
            return None
        return hmac.new(self._settings.token, tenant.encode(), hashlib.sha256).hexdigest()


def _lost(error: LegFailedError) -> ApiError:
    if error.reason == SHUTTING_DOWN:
        return UnavailableError("this decode worker is shutting down", retryable=True)
    status = 504 if error.reason == "timeout" else 502
    return ApiError(
        f"the decode engine failed ({error.reason})",
        status=status,
        kind="server_error",
        code="engine_failed",
        retryable=error.reason not in ("timeout", "reply-too-large", "event-too-large"),
    )
