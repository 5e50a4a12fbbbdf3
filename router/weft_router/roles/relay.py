"""The way from a coordinator to decode pods; nothing is sent to the client before the pod's first byte."""

from time import monotonic
from typing import Final

import orjson

from weft_core.heartbeat import WorkerRecord
from weft_router.config import RouterConfig
from weft_router.engines.adapter import Adapter, EngineRequest
from weft_router.engines.resume import resume_kinds, resume_method
from weft_router.errors import DEATHS, ApiError, StreamBrokenError, UpstreamFailedError
from weft_router.http.header_lines import checked, header_lines
from weft_router.http.pool import ConnectionPool
from weft_router.http.sse import EventSplitter
from weft_router.http.upstream_request import BufferedResponse, UpstreamRequest
from weft_router.openai.event_filter import EventFilter
from weft_router.openai.reply import Reply
from weft_router.roles.prefill_hop import DIED_HEADER
from weft_router.roles.sidecar_response import BROKEN, MARK, TOKENS, TOKENS_HEADER, read_usage, split_comment
from weft_router.rounds.response_writer import ResponseWriter
from weft_router.sessions.round_request import RoundRequest
from weft_router.telemetry.instruments import BucketsByClass
from weft_router.telemetry.metrics import Metrics
from weft_router.workers.scheduling_priority import DEATHS_HEADER, RETRIED_HEADER

ENGINE_FAILED: Final = "engine-failed"
ASK_S: Final = 30.0
SILENCES: Final = 4
"""A sidecar that sent nothing for so many of the longest silences that clients are to bear is lost."""
PATIENCE_S: Final = 1.0
"""The decode sidecar waits for its engine for the same times; its own end of waiting shall come first."""
FORGET_S: Final = 5.0
FORGET_PATH: Final = "/internal/forget"
RETRY_HEADER: Final = "x-weft-retry"
OVERLOAD_HEADER: Final = "x-weft-overload"
SESSION_HEADER: Final = "x-weft-session"
TENANT_HEADER: Final = "x-weft-tenant"
CLASS_HEADER: Final = "x-weft-class"
LOCAL_HEADER: Final = "x-weft-local"
CAP_HEADER: Final = "x-weft-cap"
IDS_HEADER: Final = "x-weft-ids"
RESPONSE_HEADER: Final = "x-weft-response-id"
PREVIOUS_WORKER_HEADER: Final = "x-weft-previous-worker"
"""The decode worker that the session was bound to until now."""
LAST_PREFILL_HEADER: Final = "x-weft-last-prefill"
"""The prefill worker that had its last prompt, the tokens of that, and how many seconds ago."""
RESUME_KEY: Final = "x_weft_resume"
RESUME_FIELD: Final = b'"x_weft_resume":'
REQUEST_ID: Final = "x-request-id"

PASSED: Final = ("X-Weft-Route", "X-Weft-Reason", "X-Weft-Worker", "X-Weft-Prefill-Worker", "Retry-After")
_REMEMBERED: Final = 1024
_passed_lines: Final[dict[tuple[str | None, ...], str]] = {}


class Relay:
    """The legs from a coordinator to decode sidecars."""

    def __init__(self, config: RouterConfig, *, adapter: Adapter, pool: ConnectionPool, metrics: Metrics) -> None:
        timeouts = config.timeouts
        silence_s = SILENCES * timeouts.silence
        self._first_s = timeouts.first_byte + PATIENCE_S
        self._idle_s = (min(timeouts.idle, silence_s) if silence_s else timeouts.idle) + PATIENCE_S
        self._total_s = config.timeouts.total + PATIENCE_S
        self._most_bytes = config.limits.max_reply_bytes
        self._legs = BucketsByClass(metrics.leg_seconds, "relay")
        self._adapter = adapter
        self._kinds = resume_kinds(adapter)
        self._pool = pool

    def endpoints(self, writer: ResponseWriter) -> frozenset[str] | None:
        """Return the addresses of the only workers that may serve a request; None where all may."""
        del writer
        return None

    async def serve(self, record: WorkerRecord, request: RoundRequest, writer: ResponseWriter) -> None:
        """Serve a request by one worker.

        Raises:
            UpstreamFailedError: the worker failed before its first byte; another one may serve the request, unless
                the time is over, the reply is too large or this process ends.
            StreamBrokenError: it failed after that.
        """
        inference, sse_filter, method = request.inference, None, ""
        if inference.stream:
            leg = UpstreamRequest(first_s=self._first_s, idle_s=self._idle_s, total_s=self._total_s)
            writer.set_source(leg)
            method = resume_method(inference, self._kinds) if self._kinds else "no"
            if method != "no":
                sse_filter = self._adapter.sse_filter(EngineRequest(inference, request.id))
        else:
            leg = UpstreamRequest(first_s=self._total_s)
        relayed = RelayedResponse(
            request, writer, leg, self._most_bytes, sse_filter, self._legs, needs_ids=method in ("exact", "sampled")
        )
        try:
            self._send(record, request, relayed)
            await leg
            relayed.finish()
            request.prefilled_by = relayed.prefill_worker
        except UpstreamFailedError as error:
            if relayed.headers_sent:
                raise StreamBrokenError(error.reason, relayed.reply(), from_worker=relayed.ended_by_worker) from error
            raise
        finally:
            writer.set_source(None)
            relayed.close()

    def _send(self, record: WorkerRecord, request: RoundRequest, relayed: "RelayedResponse") -> None:
        """Send a request to a worker; its answer goes where ``relayed`` takes it."""
        lines, body = sidecar_message(request, relayed)
        path = request.inference.path
        self._pool.send(relayed.leg, self._pool.origin(record.url), path, body, relayed, lines=lines)

    async def ask(self, record: WorkerRecord, path: str, payload: bytes) -> tuple[int, bytes]:
        """Return the status and body of a worker's answer to a short call; raise UpstreamFailedError without one."""
        answer = await self._pool.call(
            UpstreamRequest(first_s=ASK_S), self._pool.origin(record.url), path, payload,
            limit=self._most_bytes, resend=True,
        )  # fmt: skip
        return answer.status, answer.body

    async def forget(self, record: WorkerRecord, session: str) -> None:
        """Have a worker forget a session; raise UpstreamFailedError when it does not say that it did."""
        answer = await self._pool.call(
            UpstreamRequest(first_s=FORGET_S), self._pool.origin(record.url), FORGET_PATH, b"",
            lines=header_lines({SESSION_HEADER: session}),
            limit=self._most_bytes, resend=True,
        )  # fmt: skip
        if answer.status != 204:
            raise UpstreamFailedError("refused", f"status {answer.status}")


class RelayedResponse:
    """One answer of a sidecar on its way to a client."""

    def __init__(
        self,
        request: RoundRequest,
        writer: ResponseWriter,
        leg: UpstreamRequest,
        limit: int,
        sse_filter: EventFilter | None,
        legs: BucketsByClass,
        *,
        needs_ids: bool = False,
    ) -> None:
        self.leg = leg
        self.needs_ids = needs_ids
        """Whether a stream is continued from its token ids should it break off."""
        self._legs = legs
        self._sent = monotonic()
        self._sse_filter = sse_filter
        self.request = request
        self.writer = writer
        self._whole: BufferedResponse | None = BufferedResponse(leg, limit)
        self._status = 0
        self._headers: dict[str, str] = {}
        self._splitter = EventSplitter()
        self._broken = ""
        self._counted = False
        self.headers_sent = False

    def head(self, status: int, headers: dict[str, str]) -> None:
        self._status = status
        self._headers = headers
        now = monotonic()
        self._legs.of(self.request.class_).mark(now - self._sent, self.request.trace, now)
        if status == 200 and headers.get("content-type", "").startswith("text/event-stream"):
            self._whole = None

    def data(self, chunk: bytes) -> None:
        """Pass whole events on, so that a broken leg never leaves half an event before the error."""
        if self._whole is not None:
            self._whole.data(chunk)
            return
        if self._splitter.partial or not chunk.endswith(b"\n\n"):
            chunk = b"".join(self._splitter.feed(chunk))
            if not chunk:
                return
        if chunk.find(MARK) >= 0:  # without an error for each chunk, as ``in`` raises and drops one
            chunk = self._without_comment(chunk)
            if not chunk:
                return
        if self._sse_filter is not None:
            chunk = self._sse_filter.feed(chunk)
            if not chunk:
                return
        if not self.headers_sent:
            self.headers_sent = True
            self.request.facts.setdefault("first_byte", round(monotonic() - self.request.started, 4))
            if not self.writer.headers_sent:
                self.writer.begin(_passed(self._headers))
        self.writer.write(chunk)

    @property
    def prefill_worker(self) -> str:
        """Return the prefill worker that the sidecar had the round prefilled by, "" without one."""
        return self._headers.get("x-weft-prefill-worker", "")

    @property
    def ended_by_worker(self) -> bool:
        """Return whether the sidecar itself said that the stream is broken."""
        return self._broken != ""

    def reply(self) -> Reply | None:
        """Return what the client has of the stream, from this worker and those before."""
        if self._sse_filter is None:
            return None
        before = self.request.resumed
        if before is None:
            return self._sse_filter.reply
        before.go_on(self._sse_filter.reply)
        return before

    def finish(self) -> None:
        """End the answer, which has come whole.

        Raises:
            UpstreamFailedError: it is none to pass on.
            ApiError: the worker refused the request, and another service may serve it.
        """
        if self._whole is not None:
            if self._headers.get(DIED_HEADER) in DEATHS:
                raise UpstreamFailedError(self._headers[DIED_HEADER])
            if self._headers.get(RETRY_HEADER) == "1" or self.writer.headers_sent:
                raise UpstreamFailedError("refused" if self._status == 503 else ENGINE_FAILED)
            if self.request.has_fallback and self._headers.get(OVERLOAD_HEADER) == "1":
                raise _refusal(self._status, self._headers, self._whole.body)
            self.writer.used = read_usage(self._headers.get(TOKENS_HEADER, "").encode())
            kind = self._headers.get("content-type", "application/json")
            self.writer.whole(self._status, self._whole.body, _passed(self._headers), content_type=kind)
            return
        if self._broken or self._splitter.partial or not self.headers_sent:
            raise UpstreamFailedError(self._broken or "cut-short")
        self.writer.end()

    def close(self) -> None:
        """Count what came of a stream that broke off, beside what came before it."""
        if self._sse_filter is not None and not self._counted:
            prompt, before = self.writer.used
            self.writer.used = prompt, before + self._sse_filter.tokens

    def _without_comment(self, chunk: bytes) -> bytes:
        """Take what the sidecar itself says out of its events."""
        chunk, said = split_comment(chunk)
        if said.startswith(TOKENS):
            self.writer.used = read_usage(said[len(TOKENS) :])
            self._counted = True
        elif said.startswith(BROKEN):
            self._broken = said[len(BROKEN) :].strip().decode("ascii", "replace") or "unknown"
        return chunk


def _refusal(status: int, headers: dict[str, str], body: bytes) -> ApiError:
    """Return a sidecar's refusal as the error that it was there."""
    error = orjson.loads(body)["error"]
    retry = headers.get("retry-after")
    return ApiError(
        error["message"], status=status, kind=error["type"], param=error["param"], code=error["code"],
        retry_after_s=None if retry is None else int(retry), overload=True,
    )  # fmt: skip


def sidecar_message(request: RoundRequest, relayed: "RelayedResponse") -> tuple[str, bytes]:
    """Return the header lines and the body by which a sidecar is asked to serve a round."""
    lines = _lines(request)
    if relayed.needs_ids:
        lines += f"{IDS_HEADER}: 1\r\n"
    body = request.inference.whole()
    if request.resumed is not None:
        body = body[:-1] + b"," + RESUME_FIELD + orjson.dumps(request.resumed.dump()) + b"}"
    return lines, body


def _lines(request: RoundRequest) -> str:
    """Return the lines of headers that tell a sidecar of a request."""
    lines = (
        f"{REQUEST_ID}: {checked(request.id)}\r\n{SESSION_HEADER}: {checked(request.session)}\r\n"
        f"{TENANT_HEADER}: {checked(request.tenant)}\r\n{CLASS_HEADER}: {checked(request.class_)}\r\n"
    )
    if request.local_only:
        lines += f"{LOCAL_HEADER}: 1\r\n"
    if request.cap is not None:
        lines += f"{CAP_HEADER}: {request.cap}\r\n"
    if request.deaths:
        lines += f"{DEATHS_HEADER}: {request.deaths}\r\n"
    if request.retried:
        lines += f"{RETRIED_HEADER}: 1\r\n"
    if request.previous_worker:
        lines += f"{PREVIOUS_WORKER_HEADER}: {checked(request.previous_worker)}\r\n"
    if request.last_prefill is not None:
        worker, tokens, at = request.last_prefill
        lines += f"{LAST_PREFILL_HEADER}: {checked(worker)} {tokens} {max(0.0, monotonic() - at):.3f}\r\n"
    if request.spans is not None:
        lines += f"traceparent: {checked(request.spans.header)}\r\n"
    if request.response_id is not None:
        lines += f"{RESPONSE_HEADER}: {checked(request.response_id)}\r\n"
    return lines


def _passed(headers: dict[str, str]) -> str:
    """Return the lines of a sidecar's headers that are its client's, too: a few that come again and again."""
    get = headers.get
    values = (
        get("x-weft-route"),
        get("x-weft-reason"),
        get("x-weft-worker"),
        get("x-weft-prefill-worker"),
        get("retry-after"),
    )
    lines = _passed_lines.get(values)
    if lines is None:
        lines = header_lines({name: value for name, value in zip(PASSED, values, strict=True) if value is not None})
        if len(_passed_lines) >= _REMEMBERED:
            _passed_lines.clear()
        _passed_lines[values] = lines
    return lines
