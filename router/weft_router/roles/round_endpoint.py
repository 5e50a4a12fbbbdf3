"""The endpoint of a sidecar that serves rounds which coordinators send."""

import logging
from time import monotonic
from typing import cast

from weft_router.auth.passes import Pass, PassVerifier
from weft_router.auth.principal import NO_KEYS_TENANT
from weft_router.config import RouterConfig, Settings
from weft_router.context import Context
from weft_router.errors import InvalidRequestError, StreamBrokenError
from weft_router.http.exchange import Exchange
from weft_router.openai.body import Json, sanitise
from weft_router.openai.bounds import RequestLimits
from weft_router.openai.inference import PATHS, check_request
from weft_router.openai.reply import Reply
from weft_router.roles.body_reader import read_body
from weft_router.roles.relay import (
    CAP_HEADER,
    CLASS_HEADER,
    IDS_HEADER,
    LAST_PREFILL_HEADER,
    LOCAL_HEADER,
    PREVIOUS_WORKER_HEADER,
    REQUEST_ID,
    RESPONSE_HEADER,
    RESUME_KEY,
    SESSION_HEADER,
    TENANT_HEADER,
)
from weft_router.roles.sidecar_response import SidecarResponseWriter
from weft_router.rounds.decode_service import DecodeService
from weft_router.sessions.round_request import RoundRequest
from weft_router.state.bindings import LastPrefill
from weft_router.workers.scheduling_priority import DEATHS_HEADER, RETRIED_HEADER

log = logging.getLogger(__name__)


class RoundEndpoint:
    """Reads the requests of coordinators and has them served by one worker."""

    def __init__(self, settings: Settings, decoding: DecodeService, passes: PassVerifier, context: Context) -> None:
        config = settings.config
        self.allowed = RequestLimits(config.model, config.limits, requests=None, adapters=config.adapters)
        """What requests may ask for now."""
        self._decoding = decoding
        self._passes = passes
        self._metrics = context.metrics
        self._tracer = context.tracer

    def reload(self, config: RouterConfig) -> None:
        """Apply another configuration's adapters."""
        self.allowed = RequestLimits(config.model, config.limits, requests=None, adapters=config.adapters)

    async def read(self, exchange: Exchange) -> Json:
        """Return the body of a request."""
        return await read_body(exchange, self.allowed.hop_nodes)

    async def serve(self, exchange: Exchange) -> None:
        """Read and check the request once more: what goes to the engine is what was checked here."""
        path, headers = exchange.path, exchange.headers
        if isinstance(exchange.admitted, Pass):
            self._passes.redeem(exchange.admitted, exchange.body)
        session = headers.get(SESSION_HEADER, "")
        if not session:
            raise InvalidRequestError(f"{SESSION_HEADER}: the coordinator names the session", param=SESSION_HEADER)
        body = await self.read(exchange)
        resumed = body.pop(RESUME_KEY, None)
        if sanitise(body, PATHS[path]):
            self._metrics.dropped_fields.inc()
        inference = check_request(path, body, self.allowed)
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
            last_prefill=_last_prefill(headers.get(LAST_PREFILL_HEADER, "")),
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


def _last_prefill(said: str) -> LastPrefill | None:
    """Return where a coordinator says that a session's prompt was prefilled last."""
    if not said:
        return None
    try:
        worker, tokens, seconds = said.split(" ")
        return LastPrefill(worker, int(tokens), monotonic() - float(seconds))
    except ValueError:
        return None
