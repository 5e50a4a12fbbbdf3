"""Serve clients: authenticate, admit, check the request, find its session, and have its round served."""

import asyncio
import logging
from functools import partial
from time import monotonic, time
from typing import Final, cast
from urllib.parse import unquote

import orjson

from weft_core.keys import derive
from weft_router.anthropic.request import chat_of
from weft_router.auth.authenticator import authorization_of
from weft_router.auth.principal import Principal
from weft_router.background import Background, guarded
from weft_router.config import RouterConfig, Settings
from weft_router.context import Context
from weft_router.engines.adapter import Adapter
from weft_router.errors import (
    ApiError,
)
from weft_router.http.exchange import Exchange
from weft_router.http.head import CredentialCache
from weft_router.limits.admission import Admission, AdmissionPermit, Refusal, RequestLoad
from weft_router.limits.classifier import Classifier
from weft_router.limits.quarantine import Quarantine
from weft_router.openai.answers import MESSAGES, model_entry, not_ready, reply_models
from weft_router.openai.body import Json, sanitise
from weft_router.openai.bounds import RequestLimits
from weft_router.openai.identity import Identity, explicit_identity, scope_of
from weft_router.openai.inference import CHAT, PATHS, RESPONSES, TEXT, Inference, check_model, check_request, model_of
from weft_router.openai.prompt_list import prompts_of
from weft_router.openai.responses import new_id
from weft_router.openai.tokens import START_CHARS_PER_TOKEN
from weft_router.roles.app import DEEP, Routes
from weft_router.roles.body_reader import read_body
from weft_router.roles.failover import DecodeClient, Failover
from weft_router.roles.fallback import HEADER as FALLBACK_HEADER
from weft_router.roles.fallback import FallbackService
from weft_router.roles.front_metrics import FrontMetrics
from weft_router.roles.pooling_endpoint import PATHS as POOLING
from weft_router.roles.pooling_endpoint import PoolingEndpoint
from weft_router.roles.prompt_list import PromptList, check_prompts
from weft_router.roles.request_holder import RequestHolder
from weft_router.roles.session_closer import PATH as SESSIONS
from weft_router.roles.session_closer import SessionCloser
from weft_router.roles.tokenize_endpoint import TokenizeEndpoint
from weft_router.rounds.message_writer import MessageWriter
from weft_router.rounds.response_writer import ResponseWriter, WriterType, request_header_lines
from weft_router.routing.session_placer import SessionPlacer
from weft_router.sessions.round_request import RoundRequest
from weft_router.sessions.session_recognizer import SessionRecognizer
from weft_router.state.bindings import Bindings
from weft_router.state.registry import Registry
from weft_router.state.store import Store
from weft_router.telemetry.id_generator import IdGenerator
from weft_router.telemetry.tracing import Trace

log = logging.getLogger(__name__)

MODELS: Final = "/v1/models"
WATCH_S = 0.5
HOUSEKEEPING_S = 5.0


class Front:
    """What coordinators and standalone routers do for every client."""

    def __init__(
        self, settings: Settings, *, adapter: Adapter, store: Store, registry: Registry, workers: DecodeClient,
        context: Context,
    ) -> None:  # fmt: skip
        config = settings.config
        self._settings = settings
        self._allowed = RequestLimits(config.model, config.limits, config.requests, adapters=config.adapters)
        """What requests may ask for now."""
        self._metrics = context.metrics
        self._tracer = context.tracer
        self._registry = registry
        self._responses = adapter.can.responses
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
        self._counts = FrontMetrics(context.metrics, registry=registry, bindings=self._bindings)
        self.placer = SessionPlacer(config, registry=registry, bindings=self._bindings, profile_of=settings.profile_of)
        self._closer = SessionCloser(
            self._bindings, registry=registry, forget=workers.forget, admit=self._admit_counting,
            adapters=lambda: self._allowed.adapters,
        )  # fmt: skip
        self._recognizer = SessionRecognizer(
            store, ttl_s=config.routing.session_ttl_seconds, per_tenant=config.limits.max_nameless_sessions,
            store_up=lambda: registry.store_up, ended=self._bindings.forget,
        )  # fmt: skip
        self._fallback = FallbackService(config, context.metrics)
        self._pooling = PoolingEndpoint(config, admit=self._admit_counting)
        self._holder: RequestHolder | None = None
        if config.hold is not None:
            there = partial(registry.ready, "decode")
            self._holder = RequestHolder(config.hold, store=store, ready=there, refused=self._counts.refused)
        self.quarantine = Quarantine(settings.token, config.limits.quarantine_seconds)
        self._failover = Failover(
            adapter=adapter, registry=registry, workers=workers, placer=self.placer, quarantine=self.quarantine,
            metrics=context.metrics,
        )  # fmt: skip
        self._ids = IdGenerator()
        self._background = Background()

    def routes(self) -> Routes:
        """Return the public endpoints."""
        return {
            **{path: {"POST": self._infer} for path in PATHS},
            MODELS: {"GET": self._models},
            f"{MODELS}/{DEEP}": {"GET": self._model},
            "/tokenize": {"POST": self._tokenize_endpoint.serve},
            MESSAGES: {"POST": self._message},
            f"{MESSAGES}/count_tokens": {"POST": self._tokenize_endpoint.serve_messages},
            **{path: {"POST": self._pooling.serve} for path in POOLING},
            SESSIONS: {"DELETE": self._closer.serve},
        }

    def admits(self, headers: dict[str, str], credential_cache: CredentialCache | None) -> Principal:
        """Let known callers in."""
        known = self._authenticator.cached(credential_cache)
        return (
            known
            if known is not None
            else self._authenticator.principal(authorization_of(headers), time(), credential_cache)
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
            self._background.start(self._holder.announce_demand())

    def reload(self, config: RouterConfig) -> None:
        """Apply another configuration; requests in progress keep theirs."""
        self._allowed = RequestLimits(config.model, config.limits, config.requests, adapters=config.adapters)
        self._classifier = Classifier(config.qos)
        self.admission.reload(config.qos, config.limits, config.session_classes())
        self.placer.reload(config)
        self._recognizer.reload(config.limits.max_nameless_sessions)
        self._fallback.reload(config)
        self._tokenize_endpoint.reload(config)

    async def stop(self) -> None:
        """End background work."""
        await self._background.stop()
        await self._recognizer.stop()
        await self._fallback.close()
        await self._pooling.close()

    def terminate(self) -> None:
        """Send nothing anywhere again: this process ends."""
        self._failover.terminate()
        self._fallback.terminate()
        self._pooling.terminate()
        if self._holder is not None:
            self._holder.terminate()

    def observe(self) -> None:
        """Bring gauges up to date."""
        metrics, registry = self._metrics, self._registry
        metrics.sessions.set(len(self._bindings))
        metrics.state_up.set(registry.store_up)
        metrics.count_refused(registry.refused)
        self.quarantine.entries()
        metrics.quarantined.set(len(self.quarantine))
        metrics.held.set(0 if self._holder is None else self._holder.held)
        self.placer.observe(metrics)
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
            self.quarantine.merge(entry for record in self._registry.workers() for entry in record.quarantined)
            await asyncio.sleep(WATCH_S)

    async def _tidy(self) -> None:
        self._access.reload()
        self._bindings.expire()
        self.placer.update_workers()

    async def _models(self, exchange: Exchange) -> None:
        reply_models(exchange, self._settings.config.model, self._allowed.adapters)

    async def _model(self, exchange: Exchange) -> None:
        name = unquote(exchange.path.removeprefix(f"{MODELS}/"))
        model_of(name, self._allowed)
        entry = model_entry(name, self._settings.config.model, self._allowed.adapters)
        exchange.reply(200, orjson.dumps(entry))

    async def _infer(self, exchange: Exchange) -> None:
        await self._round(exchange, await self._read(exchange), exchange.path, ResponseWriter)

    async def _message(self, exchange: Exchange) -> None:
        await self._round(exchange, chat_of(await self._read(exchange)), CHAT, MessageWriter)

    async def _read(self, exchange: Exchange) -> Json:
        """Return the body of a request that may be served."""
        if self._holder is None and not self._fallback.is_configured and not self._registry.ready("decode"):
            self._counts.refused("no-worker")
            raise not_ready("decode worker")
        self.before_body(cast(Principal, exchange.admitted))
        return await read_body(exchange, self._allowed.max_nodes)

    async def _round(self, exchange: Exchange, body: Json, path: str, form: WriterType) -> None:
        """Check a request, and have it served here or by the other service; ``form`` writes the answer."""
        principal = cast(Principal, exchange.admitted)
        responses = path == RESPONSES
        if responses and not self._responses:
            raise ApiError("the engines of this service have no Responses API; use chat completions", status=501)
        if FALLBACK_HEADER in exchange.headers:
            body["model"] = self._allowed.model
        asked = body.get("model")
        check_model(body, self._allowed)
        model = cast(str, body["model"])
        if asked != model:
            exchange.facts["asked_model"] = asked
        scope = scope_of(principal.tenant, "" if model == self._allowed.model else model)
        identity = explicit_identity(scope, exchange.headers, body, secret=self._secret if responses else None)
        class_ = self._classifier.of(principal, exchange.headers, body)
        if dropped := sanitise(body, PATHS[path]):
            self._metrics.dropped_fields.inc(len(dropped))
        prompts = prompts_of(body) if path == TEXT else []
        if prompts:
            await self._serve_prompts(exchange, check_prompts(path, body, prompts, self._allowed), class_)
            return
        inference = check_request(path, body, self._allowed)
        self._check_quarantine(principal, inference, class_)
        fallback = self._fallback.request(exchange, inference, form)
        try:
            await self._serve(
                exchange, inference, class_, identity, form, facts=exchange.facts, has_fallback=fallback is not None
            )
            return
        except ApiError as error:
            if fallback is None or not error.overload:
                raise
            refusal = error
        if not await fallback.serve():
            raise refusal

    async def _serve_prompts(self, exchange: Exchange, requests: list[Inference], class_: str) -> None:
        """Serve each of several prompts as a round of a session without a name."""
        for inference in requests:
            self._check_quarantine(cast(Principal, exchange.admitted), inference, class_)
        exchange.facts["prompts"] = len(requests)

        async def serve(inference: Inference, form: WriterType) -> None:
            await self._serve(exchange, inference, class_, None, form, facts={}, has_fallback=False)

        answers = PromptList(exchange, requests, most_bytes=self._settings.config.limits.max_reply_bytes)
        await answers.serve(serve)

    def _check_quarantine(self, principal: Principal, inference: Inference, class_: str) -> None:
        try:
            self.quarantine.check(principal.tenant, inference)
        except ApiError:
            self._counts.refused("quarantined", class_)
            raise

    async def _serve(
        self, exchange: Exchange, inference: Inference, class_: str, identity: Identity | None, form: WriterType, *,
        facts: dict[str, object], has_fallback: bool,
    ) -> None:  # fmt: skip
        """Admit a checked request, and have its round served; ``facts`` collects what is to say of it."""
        principal = cast(Principal, exchange.admitted)
        if self._holder is None and not self._registry.ready("decode"):
            self._counts.refused("no-worker")
            raise not_ready("decode worker")
        load = self._load(inference)
        admitted = self._admit(principal, class_, load)
        if admitted.output_cap is not None or admitted.local_only:
            self._counts.degraded(class_, capped=admitted.output_cap is not None, local=admitted.local_only)
        spans: Trace | None = None
        writer = form(exchange, "", admitted)
        refused = 0
        try:
            if self._holder is not None:
                await self._holder.until_ready(class_)
            trace = id_ = self._ids.next()
            if self._tracer is not None:
                spans = self._tracer.begin(exchange.headers.get("traceparent"), id_)
                trace = id_ if spans is None else spans.id
            request = RoundRequest(
                id="weft-" + id_, trace=trace, spans=spans, session="", tenant=principal.tenant, inference=inference,
                started=exchange.started, facts=facts, class_=class_, local_only=admitted.local_only,
                cap=admitted.output_cap, has_fallback=has_fallback,
            )  # fmt: skip
            if identity is None:
                identity = await self._recognizer.identify(request)
            request.session = identity.key
            if exchange.path == RESPONSES:
                request.response_id = new_id(self._secret, request.scope, identity.key)
            exchange.let_go()
            facts["request_id"] = request.id
            facts["session"] = identity.key
            facts["tenant"] = principal.tenant
            facts["class"] = class_
            if trace is not id_:
                facts["trace"] = trace
            shown = _shown_session(identity.key, identity.shown)
            writer.shown = request_header_lines(request.id, shown, admitted.output_cap)
            await self._failover.serve(request, writer)
        except ApiError as error:
            refused = error.status
            raise
        finally:
            admitted.done(monotonic(), _took(load, writer, refused or exchange.status))
            if spans is not None:
                spans.end(
                    status=exchange.status, route=str(facts.get("route", "")), reason=str(facts.get("reason", "")),
                    attempts=int(str(facts.get("attempts", 0))),
                )  # fmt: skip

    def _admit_counting(self, exchange: Exchange, body: Json) -> AdmissionPermit:
        principal = cast(Principal, exchange.admitted)
        return self._admit(
            principal, self._classifier.of(principal, exchange.headers, body), RequestLoad(1.0, output=1)
        )

    def _admit(self, principal: Principal, class_: str, load: RequestLoad) -> AdmissionPermit:
        admitted = self.admission.admit(monotonic(), principal, class_, load)
        if isinstance(admitted, Refusal):
            self._counts.refused(admitted.reason, class_)
            raise admitted.error()
        return admitted

    def _load(self, inference: Inference) -> RequestLoad:
        """Return what a request asks for, and how busy the service is."""
        prompt = inference.exact_tokens or int(inference.chars / START_CHARS_PER_TOKEN)
        return RequestLoad(prompt, output=inference.max_tokens, n=inference.n, kv_use=self._kv_use, queued=self._queued)


def _took(load: RequestLoad, writer: ResponseWriter, status: int) -> float | None:
    """Return the tokens that a request used; None if unknown, so that the estimate stays charged."""
    prompt, answer = writer.used
    if prompt or answer:
        return (prompt or load.prompt) + answer
    return 0.0 if 400 <= status < 500 or status == 503 else None


def _shown_session(key: str, shown: str) -> str:
    """Return the name of a session as its client's headers may hold it."""
    return shown if shown.isascii() else key
