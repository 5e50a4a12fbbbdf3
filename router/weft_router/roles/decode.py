"""The sidecar of a decode worker: serves rounds that coordinators send, and prefills where pools are symmetric."""

import logging
from collections.abc import Mapping
from typing import cast

import orjson

from weft_core.keys import derive
from weft_router.auth.cache_salts import CacheSalts
from weft_router.auth.principal import NO_KEYS_TENANT
from weft_router.config import RouterConfig, Settings
from weft_router.context import Context
from weft_router.engines.catalogue import adapter_of
from weft_router.errors import InvalidRequestError, StreamBrokenError
from weft_router.http.exchange import Exchange
from weft_router.openai.body import Json, sanitise
from weft_router.openai.bounds import RequestLimits
from weft_router.openai.inference import PATHS, check_request
from weft_router.openai.reply import Reply
from weft_router.roles import session_hop
from weft_router.roles.app import Routes
from weft_router.roles.body_reader import read_body
from weft_router.roles.prefill_hop import PREFILL_PATH, PrefillHop, serve_prefill
from weft_router.roles.relay import (
    CAP_HEADER,
    CLASS_HEADER,
    FORGET_PATH,
    IDS_HEADER,
    LOCAL_HEADER,
    PREVIOUS_WORKER_HEADER,
    REQUEST_ID,
    RESPONSE_HEADER,
    RESUME_KEY,
    SESSION_HEADER,
    TENANT_HEADER,
)
from weft_router.roles.session_hop import READ_PATH, TAKE_PATH, SessionHop
from weft_router.roles.sidecar import Sidecar
from weft_router.roles.sidecar_response import SidecarResponseWriter
from weft_router.rounds.accounting import meter_of
from weft_router.rounds.decode_service import DecodeService
from weft_router.rounds.prefill_service import PrefillService
from weft_router.rounds.request_log import RequestLog
from weft_router.sessions.round_request import RoundRequest
from weft_router.sessions.session_export import NO_BACKLOG, DrainBacklog
from weft_router.state.store import Store
from weft_router.workers.scheduling_priority import DEATHS_HEADER, RETRIED_HEADER

log = logging.getLogger(__name__)


class DecodeSidecar(Sidecar):
    """The application of role ``decode``."""

    def __init__(self, settings: Settings, store: Store, context: Context) -> None:
        super().__init__(settings, store, context)
        config, metrics = settings.config, context.metrics
        self._allowed = RequestLimits(config.model, config.limits, requests=None)
        self._ring = context.ring
        self._request_log = RequestLog(config.request_log, worker=settings.worker)
        prefill_hop = PrefillHop(config, pool=self._peers)
        self._decoding = DecodeService(
            self._worker,
            adapter=adapter_of(config),
            prefill_client=prefill_hop,
            registry=self._registry,
            metrics=metrics,
            meter=meter_of(config, metrics),
            salts=CacheSalts(derive(settings.token, "salt")),
            request_log=self._request_log,
            ring=self._ring,
            session_source=SessionHop(pool=self._peers),
            queue_source=prefill_hop,
        )
        self._prefilling = PrefillService(self._worker, metrics) if config.routing.symmetric else None

    def routes(self) -> Routes:
        """Return the endpoints of a decode worker."""
        own: Routes = {
            **super().routes(),
            **{path: {"POST": self._infer} for path in PATHS},
            "/tokenize": {"POST": self._tokenize},
            FORGET_PATH: {"POST": self._forget},
            TAKE_PATH: {"POST": self._take},
            READ_PATH: {"POST": self._read},
            "/debug/decisions": {"GET": self._debug},
        }
        return own if self._prefilling is None else {**own, PREFILL_PATH: {"POST": self._prefill}}

    async def start(self) -> None:
        """Start the worker's background work, and watch the others."""
        await self._worker.start(self._decoding.prove)
        await self._registry.start()

    async def stop(self) -> None:
        """End background work and close connections."""
        await self._decoding.stop()
        await super().stop()
        self._request_log.close()

    def reload(self, config: RouterConfig) -> None:
        """Apply another configuration; rounds in progress keep theirs."""
        super().reload(config)
        self._decoding.reload(config)

    async def drain_backlog(self) -> DrainBacklog:
        """Return the sessions whose next round is waited for, and whether KV is still to be read."""
        session_export = self._decoding.session_export
        if not self._worker.engine.healthy:
            return NO_BACKLOG
        unread = session_export.unread
        if not unread and self._prefilling is not None:
            unread = await self._worker.keeps_kv(self._prefilling.unread_until)
        return DrainBacklog(session_export.waiting(), unread)

    @property
    def moved(self) -> Mapping[str, int]:
        """Return how many sessions were handed over, by how their history goes on."""
        return self._decoding.session_export.moved

    def observe(self) -> None:
        """Bring gauges up to date."""
        super().observe()
        self._decoding.observe()
        metrics, registry = self._metrics, self._registry
        metrics.links.set(self._peers.links)
        metrics.sessions.set(len(self._decoding.sessions))
        metrics.predictions_trusted.set(self._decoding.trusted)
        metrics.state_up.set(registry.store_up)
        ready = len(registry.ready("prefill"))
        metrics.workers.labels("prefill", "ready").set(ready)
        metrics.workers.labels("prefill", "not-ready").set(len(registry.known("prefill")) - ready)

    async def _debug(self, exchange: Exchange) -> None:
        exchange.reply(200, self._ring.answer(exchange.query.encode()))

    async def _tokenize(self, exchange: Exchange) -> None:
        body = await read_body(exchange, self._allowed.hop_nodes)
        sanitise(body)
        status, reply = await self._worker.engine.ask("/tokenize", orjson.dumps(body))
        exchange.reply(status, reply)

    async def _forget(self, exchange: Exchange) -> None:
        self._decoding.forget(exchange.headers.get(SESSION_HEADER, ""))
        exchange.reply(204, content_type="")

    async def _take(self, exchange: Exchange) -> None:
        session_hop.serve_session(exchange, self._decoding.session_export, draining=self._worker.draining)

    async def _read(self, exchange: Exchange) -> None:
        self._decoding.session_export.mark_read(exchange.headers.get(SESSION_HEADER, ""))
        exchange.reply(204, content_type="")

    async def _prefill(self, exchange: Exchange) -> None:
        if self._prefilling is not None:
            await serve_prefill(exchange, self._prefilling, self._tracer)

    async def _infer(self, exchange: Exchange) -> None:
        """Read and check the request once more: what goes to the engine is what was checked here."""
        path, headers = exchange.path, exchange.headers
        session = headers.get(SESSION_HEADER, "")
        if not session:
            raise InvalidRequestError(f"{SESSION_HEADER}: the coordinator names the session", param=SESSION_HEADER)
        body = await read_body(exchange, self._allowed.hop_nodes)
        resumed = body.pop(RESUME_KEY, None)
        if sanitise(body, PATHS[path]):
            self._metrics.dropped_fields.inc()
        inference = check_request(path, body, self._allowed)
        id_ = headers.get(REQUEST_ID, "")
        spans = None
        if self._tracer is not None:
            spans = self._tracer.begin(headers.get("traceparent"), id_.removeprefix("weft-"), name="decode")
        request = RoundRequest(
            id=id_,
            trace=id_.removeprefix("weft-") if spans is None else spans.id,
            spans=spans,
            session=session,
            tenant=headers.get(TENANT_HEADER, NO_KEYS_TENANT),
            inference=inference,
            started=exchange.started,
            facts=exchange.facts,
            class_=headers.get(CLASS_HEADER, "default"),
            local_only=LOCAL_HEADER in headers,
            cap=int(headers[CAP_HEADER]) if CAP_HEADER in headers else None,
            response_id=headers.get(RESPONSE_HEADER),
            keep_ids=IDS_HEADER in headers,
            resumed=Reply.load(cast(Json, resumed)) if isinstance(resumed, dict) else None,
            retried=RETRIED_HEADER in headers,
            previous_worker=headers.get(PREVIOUS_WORKER_HEADER, ""),
            deaths=int(headers.get(DEATHS_HEADER, "0")),
        )
        del headers
        exchange.let_go()
        request.facts["request_id"] = id_
        request.facts["session"] = session
        writer = SidecarResponseWriter(exchange, "")
        try:
            await self._decoding.serve(request, writer)
        except StreamBrokenError as error:
            self._metrics.broken_streams.labels(error.reason).inc()
            log.warning("stream_broken", extra={"request_id": request.id, "reason": error.reason})
            writer.broken(error.reason)
        finally:
            if spans is not None:
                spans.end(status=exchange.status)
