"""Serve clients: authenticate, admit, find the session, bind it to a decode worker, and keep the stream whole."""

import asyncio
import logging
from functools import partial
from itertools import chain
from time import monotonic, time
from typing import Protocol, cast

from weft_core.heartbeat import WorkerRecord
from weft_core.keys import derive
from weft_router.auth.principal import Principal
from weft_router.background import Background, guarded
from weft_router.config import RouterConfig, Settings
from weft_router.context import Context
from weft_router.engines.adapter import Adapter
from weft_router.engines.deaths import POISON, SUSPECT
from weft_router.errors import (
    DEATHS,
    SHUTTING_DOWN,
    ApiError,
    LegFailedError,
    StreamBrokenError,
    UnavailableError,
    stream_error,
)
from weft_router.http.exchange import Exchange
from weft_router.http.head import Notes
from weft_router.limits.admission import Admission, Admitted, Load, Refusal
from weft_router.limits.classes import Classifier
from weft_router.limits.quarantine import Quarantine
from weft_router.openai.answers import models, not_ready
from weft_router.openai.body import Json, sanitise
from weft_router.openai.bounds import Allowed
from weft_router.openai.identity import explicit
from weft_router.openai.inference import PATHS, Inference, check
from weft_router.openai.responses import new_id
from weft_router.openai.tokens import START_CHARS_PER_TOKEN
from weft_router.roles.app import Routes
from weft_router.roles.body_reader import read
from weft_router.roles.front_counts import FrontCounts
from weft_router.roles.relay import ENGINE_FAILED
from weft_router.roles.request_holder import RequestHolder
from weft_router.roles.retry_trials import Trial, Trials, died
from weft_router.roles.session_closer import PATH as SESSIONS
from weft_router.roles.session_closer import SessionCloser
from weft_router.roles.tokenize_endpoint import TokenizeEndpoint
from weft_router.rounds.response_writer import ResponseWriter, shown_to_all
from weft_router.rounds.stream_resumer import StreamResumer
from weft_router.routing.session_placer import SessionPlacer
from weft_router.sessions.round_request import Job
from weft_router.sessions.session_recognizer import SessionRecognizer
from weft_router.state.bindings import Bindings
from weft_router.state.registry import Registry
from weft_router.state.store import Store
from weft_router.telemetry.ids import Ids
from weft_router.telemetry.tracing import Trace

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
"""Three workers lost under one request is a sick cluster or a sick request; more replays would spread either."""
FINAL = frozenset({"timeout", "reply-too-large", SHUTTING_DOWN})
"""Not the worker's fault, or the same on any other: sent again, a slow request would only double the load."""
RESUME_WAIT_S = 1.0
POLL_S = 0.05
WATCH_S = 0.5
RESPONSES = "/v1/responses"
HOUSEKEEPING_S = 5.0


class Workers(Protocol):
    """The way to decode workers: over HTTP to their sidecars, or to workers of this very process."""

    async def serve(self, record: WorkerRecord, job: Job, writer: ResponseWriter) -> None:
        """Serve a round; raise LegFailedError before its first byte, StreamBrokenError after it, or ApiError."""

    async def ask(self, record: WorkerRecord, path: str, payload: bytes) -> tuple[int, bytes]:
        """Return the status and body of a worker's answer to a small question; raise LegFailedError without one."""

    async def forget(self, record: WorkerRecord, session: str) -> None:
        """Have a worker forget a session; raise LegFailedError when it does not say that it did."""


class Front:
    """What coordinators and standalone routers do for every client."""

    def __init__(
        self, settings: Settings, *, adapter: Adapter, store: Store, registry: Registry, workers: Workers,
        context: Context,
    ) -> None:  # fmt: skip
        config = settings.config
        self._settings = settings
        self._allowed = Allowed(config.model, config.limits, config.requests)
        """What requests may ask for now."""
        self._metrics = context.metrics
        self._tracer = context.tracer
        self._registry = registry
        self._workers = workers
        self._responses = adapter.can.responses
        self._resumer = StreamResumer(adapter, context.metrics)
        self._access = context.access
        self._authenticator = context.access.authenticator
        self._tokenize_endpoint = TokenizeEndpoint(
            config, registry=registry, ask=workers.ask, admit=self._admit_counting
        )
        self._secret = derive(settings.token, "response ids")
        self._kv_use = 0.0
        self._queued = 0.0
        self._classifier = Classifier(config.qos)
        self.admission = Admission(config.qos, config.limits, config.session_classes())
        self._bindings = Bindings(store, ttl_s=config.routing.session_ttl_seconds, store_up=lambda: registry.store_up)
        registry.on_new_epoch(self._bindings.republish)
        self._counts = FrontCounts(context.metrics, registry=registry, bindings=self._bindings)
        self.placer = SessionPlacer(config, registry=registry, bindings=self._bindings)
        self._closer = SessionCloser(
            self._bindings, registry=registry, forget=workers.forget, admit=self._admit_counting
        )
        self._recognizer = SessionRecognizer(
            store, ttl_s=config.routing.session_ttl_seconds, per_tenant=config.limits.max_nameless_sessions,
            store_up=lambda: registry.store_up, ended=self._bindings.forget,
        )  # fmt: skip
        self._holder: RequestHolder | None = None
        if config.hold is not None:
            there = partial(registry.ready, "decode")
            self._holder = RequestHolder(config.hold, store=store, ready=there, refused=self._counts.refused)
        self.quarantine = Quarantine(settings.token, config.limits.quarantine_seconds)
        self._trials = Trials()
        self._ids = Ids()
        self._background = Background()
        self._ending = False

    def routes(self) -> Routes:
        """Return the public endpoints."""
        return {
            **{path: {"POST": self._infer} for path in PATHS},
            "/v1/models": {"GET": self._models},
            "/tokenize": {"POST": self._tokenize_endpoint.serve},
            SESSIONS: {"DELETE": self._closer.serve},
        }

    def admits(self, headers: dict[str, str], notes: Notes | None) -> Principal:
        """Let known callers in."""
        known = self._authenticator.noted(notes)
        return (
            known if known is not None else self._authenticator.principal(headers.get("authorization"), time(), notes)
        )

    def before_body(self, principal: Principal) -> None:
        """Refuse a caller that may send nothing now, whatever its request asks for.

        Raises:
            ApiError: too many requests wait, or this caller has sent too many.
        """
        refusal = self.admission.closed_to(monotonic(), principal)
        if refusal is not None:
            self._counts.refused(refusal.reason)
            raise refusal.error()

    def start(self) -> None:
        """Start background work."""
        self._background.start(self._housekeeping(), self._watching(), *self._access.work())
        if self._holder is not None:
            self._background.start(self._holder.tell())

    def reload(self, config: RouterConfig) -> None:
        """Go on by another configuration; requests under way keep theirs."""
        self._allowed = Allowed(config.model, config.limits, config.requests)
        self._classifier = Classifier(config.qos)
        self.admission.use(config.qos, config.limits, config.session_classes())
        self.placer.use(config)
        self._recognizer.use(config.limits.max_nameless_sessions)

    async def stop(self) -> None:
        """End background work."""
        await self._background.stop()
        await self._recognizer.stop()

    def cut(self) -> None:
        """Send nothing anywhere again: this process ends, and what it calls off is nobody's failure."""
        self._ending = True
        if self._holder is not None:
            self._holder.cut()

    def observe(self) -> None:
        """Bring gauges up to date."""
        metrics, registry = self._metrics, self._registry
        metrics.sessions.set(len(self._bindings))
        metrics.state_up.set(registry.store_up)
        metrics.count_refused(registry.refused)
        self.quarantine.entries()
        metrics.quarantined.set(len(self.quarantine))
        metrics.held.set(0 if self._holder is None else self._holder.held)
        for role in ("decode", "prefill"):
            ready = len(registry.ready(role))
            metrics.workers.labels(role, "ready").set(ready)
            metrics.workers.labels(role, "not-ready").set(len(registry.known(role)) - ready)

    async def _housekeeping(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            await guarded(self._tidy)

    async def _watching(self) -> None:
        """Keep the pressure that admission looks at: of the emptiest decode worker, and of all prefill queues."""
        while True:
            decode, prefill = self._registry.ready("decode"), self._registry.ready("prefill")
            self._kv_use = min((r.kv_used / r.capacity for r in decode if r.capacity > 0), default=0.0)
            self._queued = sum(len(record.queue) for record in prefill) / max(1, len(prefill))
            known = chain(self._registry.known("decode"), self._registry.known("prefill"))
            self.quarantine.hear(entry for record in known for entry in record.quarantined)
            await asyncio.sleep(WATCH_S)

    async def _tidy(self) -> None:
        self._access.reload()
        self._bindings.expire()
        self.placer.tidy()

    async def _models(self, exchange: Exchange) -> None:
        models(exchange, self._settings)

    async def _infer(self, exchange: Exchange) -> None:
        principal = cast(Principal, exchange.admitted)
        if self._holder is None and not self._registry.ready("decode"):
            self._counts.refused("no-worker")
            raise not_ready("decode worker")
        self.before_body(principal)
        body = await read(exchange, self._allowed.max_nodes)
        path = exchange.path
        responses = path == RESPONSES
        if responses and not self._responses:
            raise ApiError("the engines of this service have no Responses API; use chat completions", status=501)
        identity = explicit(principal.tenant, exchange.headers, body, secret=self._secret if responses else None)
        class_ = self._classifier.of(principal, exchange.headers, body)
        if dropped := sanitise(body, PATHS[path]):
            self._metrics.dropped_fields.inc(len(dropped))
        inference = check(path, body, self._allowed)
        try:
            self.quarantine.check(principal.tenant, inference)
        except ApiError:
            self._counts.refused("quarantined", class_)
            raise
        load = self._load(inference)
        admitted = self._admit(principal, class_, load)
        if admitted.output_cap is not None or admitted.local_only:
            self._counts.degraded(class_, capped=admitted.output_cap is not None, local=admitted.local_only)
        spans: Trace | None = None
        writer = ResponseWriter(exchange, "", admitted)
        refused = 0
        try:
            if self._holder is not None:
                await self._holder.until_ready(class_)
            trace = id_ = self._ids.next()
            if self._tracer is not None:
                spans = self._tracer.begin(exchange.headers.get("traceparent"), id_)
                trace = id_ if spans is None else spans.id
            job = Job(
                id="weft-" + id_, trace=trace, spans=spans, session="", tenant=principal.tenant, inference=inference,
                started=exchange.started, facts=exchange.facts, class_=class_, local_only=admitted.local_only,
                cap=admitted.output_cap,
            )  # fmt: skip
            if identity is None:
                identity = await self._recognizer.identify(job)
            job.session = identity.key
            if responses:
                job.response_id = new_id(self._secret, principal.tenant, identity.key)
            exchange.let_go()
            facts = exchange.facts
            facts["request_id"] = job.id
            facts["session"] = identity.key
            facts["tenant"] = principal.tenant
            facts["class"] = class_
            if trace is not id_:
                facts["trace"] = trace
            writer.shown = shown_to_all(job.id, _shown_session(identity.key, identity.shown))
            await self._serve(job, writer)
        except ApiError as error:
            refused = error.status
            raise
        finally:
            admitted.done(monotonic(), _took(load, writer, refused or exchange.status))
            if spans is not None:
                facts = exchange.facts
                spans.end(
                    status=exchange.status, route=str(facts.get("route", "")), reason=str(facts.get("reason", "")),
                    attempts=int(str(facts.get("attempts", 0))),
                )  # fmt: skip

    def _admit_counting(self, exchange: Exchange, body: Json) -> Admitted:
        principal = cast(Principal, exchange.admitted)
        return self._admit(principal, self._classifier.of(principal, exchange.headers, body), Load(1.0, output=1))

    def _admit(self, principal: Principal, class_: str, load: Load) -> Admitted:
        admitted = self.admission.admit(monotonic(), principal, class_, load)
        if isinstance(admitted, Refusal):
            self._counts.refused(admitted.reason, class_)
            raise admitted.error()
        return admitted

    def _load(self, inference: Inference) -> Load:
        """Return what a request asks for, and how busy the service is."""
        prompt = inference.exact_tokens or int(inference.chars / START_CHARS_PER_TOKEN)
        return Load(prompt, output=inference.max_tokens, n=inference.n, kv_use=self._kv_use, queued=self._queued)

    async def _serve(self, job: Job, writer: ResponseWriter) -> None:
        """Serve by the bound worker; as long as nothing reached the client, a lost worker is replaced unseen."""
        tried: frozenset[str] = frozenset()
        failure: LegFailedError | None = None
        failed_engines = 0
        broken = ""
        suspect = False
        trial: Trial | None = None
        try:  # around the loop: mypyc compiles no break out of a try with a finally
            for _ in range(MAX_ATTEMPTS):
                if trial is not None:
                    trial.over()
                trial = await self._trials.enter(job.tenant) if suspect and not writer.begun else None
                record = await self._take(job, tried, wait_s=RESUME_WAIT_S if writer.begun else 0.0, trial=trial)
                if record is None:
                    break
                job.facts["worker"] = record.worker
                job.facts["attempts"] = len(tried) + 1
                try:
                    await self._workers.serve(record, job, writer)
                except StreamBrokenError as lost:
                    if self._ending:
                        broken = SHUTTING_DOWN
                        break
                    if not lost.told:
                        self._registry.report_failure(record.worker)
                    log.warning(
                        "stream_broken", extra={"request_id": job.id, "worker": record.worker, "reason": lost.reason}
                    )
                    broken = lost.reason
                    tried |= {record.worker}
                    if self._resumer.completes(job, lost.reply, writer):
                        return
                    if self._died(job, lost.reason, trial) or not self._resumer.goes_on(job, lost.reply):
                        break
                except ApiError:
                    if not writer.begun:
                        raise
                    broken = "engine-error"
                    tried |= {record.worker}
                    log.warning("not_resumed", extra={"request_id": job.id, "worker": record.worker})
                    if job.resumed is None:
                        break  # from its start it would be a second answer in the same stream
                except LegFailedError as error:
                    if writer.begun:
                        broken = error.reason
                        tried |= {record.worker}
                        if self._died(job, error.reason, trial) or job.resumed is None:
                            break
                        continue
                    if self._ending or error.reason in FINAL:
                        raise _final(SHUTTING_DOWN if self._ending else error.reason) from error
                    if self._died(job, error.reason, trial):
                        raise died() from error
                    suspect = suspect or error.reason == SUSPECT
                    failure = error
                    tried |= {record.worker}
                    self._metrics.replays.labels(error.reason).inc()
                    log.warning(
                        "leg_failed", extra={"request_id": job.id, "worker": record.worker, "reason": error.reason}
                    )
                    if error.reason == ENGINE_FAILED:
                        failed_engines += 1
                        if failed_engines > 1:
                            break  # two engines failed on it: a third would more likely be hurt than serve it
                    elif error.reason != "refused" and error.reason not in DEATHS:
                        self._registry.report_failure(record.worker)
                else:
                    return
        finally:
            if trial is not None:
                trial.over()
        if writer.begun:
            self._metrics.broken_streams.labels(broken).inc()
            writer.write(stream_error(broken).event())
            writer.end()
            return
        if failure is None or failure.reason in ("refused", "connect"):
            raise not_ready("decode worker")
        raise ApiError(
            f"{len(tried)} decode worker(s) failed to serve this request ({failure.reason}); try again",
            status=502,
            kind="server_error",
            code="worker_failed",
        )

    def _died(self, job: Job, reason: str, trial: Trial | None) -> bool:
        """Tell whether a request is not sent again, as its engine ended and it was the reason, or saw that before."""
        if reason not in DEATHS:
            return False
        job.deaths += 1
        if reason == POISON:
            self.quarantine.add(job.tenant, job.inference)
            if trial is not None:
                trial.over(poison=True)
        return reason == POISON or job.deaths > 1

    async def _take(
        self, job: Job, tried: frozenset[str], *, wait_s: float, trial: Trial | None
    ) -> WorkerRecord | None:
        """Return the worker to serve by; a client with half a stream waits a moment for one that is coming back.

        A request on trial goes where no other one is, if there is such a worker.
        """
        if trial is None:
            return await self._find(job, tried, wait_s)
        record = None
        try:
            apart = self._trials.workers - tried
            if apart:
                record = await self._find(job, tried | apart, 0.0)
            record = record or await self._find(job, tried, wait_s)
        finally:
            if record is None:
                trial.over()
            else:
                trial.worker = record.worker
        return record

    async def _find(self, job: Job, tried: frozenset[str], wait_s: float) -> WorkerRecord | None:
        until = 0.0
        while True:
            worker = await self.placer.place(job, tried)
            record = self._registry.get(worker) if worker is not None else None
            if record is not None or not wait_s:
                return record
            until = until or monotonic() + wait_s
            others = any(known.worker not in tried for known in self._registry.known("decode"))
            if not others or monotonic() >= until:
                return None
            await asyncio.sleep(POLL_S)


def _took(load: Load, writer: ResponseWriter, status: int) -> float | None:
    """Return the tokens that a request really took; None where nobody knows, so that the estimate stays charged."""
    prompt, answer = writer.used
    if prompt or answer:
        return (prompt or load.prompt) + answer
    return 0.0 if 400 <= status < 500 or status == 503 else None


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


def _shown_session(key: str, shown: str) -> str:
    """Return the name of a session as its client's headers may hold it."""
    return shown if shown.isascii() else key
