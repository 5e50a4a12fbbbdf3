"""Relay a request to a decode pod and its answer to the client; nothing is sent before the pod's first byte."""

import logging
from collections.abc import Mapping
from functools import partial
from time import monotonic

import aiohttp
from aiohttp import web

from weft_router.api.answers import RETRY_HEADER, cut_off, say_last
from weft_router.config import RouterConfig
from weft_router.errors import LegFailedError, StreamBrokenError
from weft_router.signals.metrics import Metrics
from weft_router.state.registry import Registry
from weft_router.state.store import WorkerRecord
from weft_router.wire.upstream import Deadline, Legs, post, read_bounded

log = logging.getLogger(__name__)

ENGINE_FAILED = "engine-failed"
SHUTTING_DOWN = "shutting down"
PATIENCE_S = 1.0
"""The decode sidecar waits for its engine for the same times; its own end of waiting shall come first."""

PASSED_HEADERS = (
    "X-Weft-Route",
    "X-Weft-Reason",
    "X-Weft-Worker",
    "X-Weft-Prefill-Worker",
    "Retry-After",
)


class Relay:
    """The leg from the coordinator to decode pods."""

    def __init__(
        self, config: RouterConfig, *, http: aiohttp.ClientSession, registry: Registry, metrics: Metrics
    ) -> None:
        self._config = config
        self._http = http
        self._registry = registry
        self._metrics = metrics
        self.legs = Legs()

    async def run(
        self, request: web.Request, record: WorkerRecord, payload: bytes, *, stream: bool,
        sent: Mapping[str, str], shown: Mapping[str, str], facts: dict[str, object],
    ) -> web.StreamResponse:  # fmt: skip
        """Serve a request by one worker; ``sent`` goes upstream, ``shown`` to the client.

        Raises:
            LegFailedError: the worker failed before its first byte; another one may serve the request, unless
                the time is over, the reply is too large or this process ends.
        """
        timeouts = self._config.timeouts
        deadline = Deadline((timeouts.first_byte if stream else timeouts.total) + PATIENCE_S)
        deadline.cap(timeouts.total + PATIENCE_S)
        answer = _Answer(request, shown, deadline, timeouts.idle, facts)
        try:
            with self.legs.track(deadline), self._registry.watched(record.worker, partial(deadline.end, "worker lost")):
                async with deadline, post(self._http, record.url + request.path, payload, sent) as response:
                    if response.headers.get(RETRY_HEADER) == "1":
                        raise LegFailedError("refused" if response.status == 503 else ENGINE_FAILED)
                    if response.content_type == "text/event-stream" and response.status == 200:
                        return await answer.stream(response)
                    raw = await read_bounded(response, self._config.limits.max_reply_bytes)
                    return answer.whole(response, raw)
        except TimeoutError as error:
            reason = deadline.lost or "timeout"
            if answer.out is None:
                raise LegFailedError(reason) from error
            if answer.writing and not deadline.lost:
                log.warning("slow_client", extra={"worker": record.worker})
                self._metrics.broken_streams.labels("slow client").inc()
                cut_off(request)
                return answer.out
            return await self._broken(request, answer.out, record, reason)
        except StreamBrokenError as error:
            if answer.out is None:
                raise LegFailedError(error.reason) from error
            return await self._broken(request, answer.out, record, error.reason)

    async def _broken(
        self, request: web.Request, out: web.StreamResponse, record: WorkerRecord, reason: str
    ) -> web.StreamResponse:
        self._registry.report_failure(record.worker)
        self._metrics.broken_streams.labels(reason).inc()
        log.warning("stream_broken", extra={"worker": record.worker, "reason": reason})
        await say_last(request, out, reason)
        return out


class _Answer:
    """One answer to one client."""

    def __init__(
        self,
        request: web.Request,
        shown: Mapping[str, str],
        deadline: Deadline,
        idle_s: float,
        facts: dict[str, object],
    ) -> None:
        self._request = request
        self._shown = shown
        self._deadline = deadline
        self._idle_s = idle_s
        self._facts = facts
        self._started = monotonic()
        self.out: web.StreamResponse | None = None
        self.writing = False

    async def stream(self, response: aiohttp.ClientResponse) -> web.StreamResponse:
        """Pass whole events on, so that a broken leg never leaves half an event before the error."""
        rest = b""
        while True:
            try:
                chunk = await response.content.readany()
            except (aiohttp.ClientError, OSError) as error:
                raise StreamBrokenError("worker lost") from error
            if not chunk:
                break
            self._deadline.extend(self._idle_s)
            if chunk.endswith(b"\n\n"):
                data, rest = rest + chunk if rest else chunk, b""
            else:
                buffer = rest + chunk
                cut = buffer.rfind(b"\n\n") + 2
                if cut < 2:
                    rest = buffer
                    continue
                data, rest = buffer[:cut], buffer[cut:]
            if self.out is None:
                self.out = await self._prepare(response)
            self.writing = True
            await self.out.write(data)
            self.writing = False
        if rest or self.out is None:
            raise StreamBrokenError("cut short")
        await self.out.write_eof()
        return self.out

    def whole(self, response: aiohttp.ClientResponse, raw: bytes) -> web.Response:
        """Return an answer that came in one piece, errors included."""
        return web.Response(
            status=response.status, body=raw, content_type=response.content_type, headers=self._headers(response)
        )

    async def _prepare(self, response: aiohttp.ClientResponse) -> web.StreamResponse:
        out = web.StreamResponse(
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **self._headers(response)}
        )
        out.content_type = "text/event-stream"
        out.charset = "utf-8"
        await out.prepare(self._request)
        self._facts["first_byte"] = round(monotonic() - self._started, 4)
        return out

    def _headers(self, response: aiohttp.ClientResponse) -> dict[str, str]:
        passed = {name: response.headers[name] for name in PASSED_HEADERS if name in response.headers}
        return {**self._shown, **passed}
