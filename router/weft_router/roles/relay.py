"""The way from a coordinator to decode pods; nothing is sent to the client before the pod's first byte."""

from time import monotonic
from typing import Final

import orjson

from weft_core.heartbeat import WorkerRecord
from weft_router.config import RouterConfig
from weft_router.engines.adapter import Adapter, Ask, SseFilter
from weft_router.engines.resume import kinds, resumable
from weft_router.errors import DEATHS, LegFailedError, StreamBrokenError
from weft_router.http.header_lines import checked, header_lines
from weft_router.http.leg import BufferedResponse, Leg
from weft_router.http.pool import Pool
from weft_router.http.sse import EventSplitter
from weft_router.openai.reply import Reply
from weft_router.roles.prefill_hop import DIED_HEADER
from weft_router.roles.sidecar_response import BROKEN, MARK, TOKENS, TOKENS_HEADER, counts, cut
from weft_router.rounds.response_writer import ResponseWriter
from weft_router.sessions.round_request import Job
from weft_router.telemetry.instruments import ByClass
from weft_router.telemetry.metrics import Metrics
from weft_router.workers.scheduling_priority import DEATHS_HEADER

ENGINE_FAILED: Final = "engine-failed"
ASK_S: Final = 30.0
PATIENCE_S: Final = 1.0
"""The decode sidecar waits for its engine for the same times; its own end of waiting shall come first."""
FORGET_S: Final = 5.0
FORGET_PATH: Final = "/internal/forget"
RETRY_HEADER: Final = "x-weft-retry"
SESSION_HEADER: Final = "x-weft-session"
TENANT_HEADER: Final = "x-weft-tenant"
CLASS_HEADER: Final = "x-weft-class"
LOCAL_HEADER: Final = "x-weft-local"
CAP_HEADER: Final = "x-weft-cap"
IDS_HEADER: Final = "x-weft-ids"
RESPONSE_HEADER: Final = "x-weft-response-id"
LEFT_HEADER: Final = "x-weft-left"
"""The decode worker that the session was bound to until now."""
RESUME_KEY: Final = "x_weft_resume"
RESUME_FIELD: Final = b'"x_weft_resume":'
REQUEST_ID: Final = "x-request-id"

PASSED: Final = ("X-Weft-Route", "X-Weft-Reason", "X-Weft-Worker", "X-Weft-Prefill-Worker", "Retry-After")
_REMEMBERED: Final = 1024
_told: Final[dict[tuple[str | None, ...], str]] = {}


class Relay:
    """The legs from a coordinator to decode sidecars."""

    def __init__(self, config: RouterConfig, *, adapter: Adapter, pool: Pool, metrics: Metrics) -> None:
        self._timeouts = config.timeouts
        self._total_s = config.timeouts.total + PATIENCE_S
        self._most_bytes = config.limits.max_reply_bytes
        self._legs = ByClass(metrics.leg_seconds, "relay")
        self._adapter = adapter
        self._kinds = kinds(adapter)
        self._pool = pool

    async def serve(self, record: WorkerRecord, job: Job, writer: ResponseWriter) -> None:
        """Serve a request by one worker.

        Raises:
            LegFailedError: the worker failed before its first byte; another one may serve the request, unless
                the time is over, the reply is too large or this process ends.
            StreamBrokenError: it failed after that.
        """
        inference, tap = job.inference, None
        if inference.stream:
            timeouts = self._timeouts
            leg = Leg(
                first_s=timeouts.first_byte + PATIENCE_S, idle_s=timeouts.idle + PATIENCE_S, total_s=self._total_s
            )
            writer.fed_by(leg)
            if self._kinds and resumable(inference).how in self._kinds:
                tap = self._adapter.tap(Ask(inference, job.id))
        else:
            leg = Leg(first_s=self._total_s)
        relayed = Relayed(job, writer, leg, self._most_bytes, tap, self._legs)
        try:
            self._send(record, job, relayed)
            await leg
            relayed.finish()
        except LegFailedError as error:
            if relayed.begun:
                raise StreamBrokenError(error.reason, relayed.reply(), told=relayed.told) from error
            raise
        finally:
            writer.fed_by(None)
            relayed.close()

    def _send(self, record: WorkerRecord, job: Job, relayed: "Relayed") -> None:
        """Send a request to a worker; its answer goes where ``relayed`` takes it."""
        lines = _lines(job)
        if relayed.resumable:
            lines += f"{IDS_HEADER}: 1\r\n"
        body = job.inference.whole()
        if job.resumed is not None:
            body = body[:-1] + b"," + RESUME_FIELD + orjson.dumps(job.resumed.dump()) + b"}"
        self._pool.send(relayed.leg, self._pool.origin(record.url), job.inference.path, body, relayed, lines=lines)

    async def ask(self, record: WorkerRecord, path: str, payload: bytes) -> tuple[int, bytes]:
        """Return the status and body of a worker's answer to a small question; raise LegFailedError without one."""
        answer = await self._pool.call(
            Leg(first_s=ASK_S), self._pool.origin(record.url), path, payload,
            limit=self._most_bytes, resend=True,
        )  # fmt: skip
        return answer.status, answer.body

    async def forget(self, record: WorkerRecord, session: str) -> None:
        """Have a worker forget a session; raise LegFailedError when it does not say that it did."""
        answer = await self._pool.call(
            Leg(first_s=FORGET_S), self._pool.origin(record.url), FORGET_PATH, b"",
            lines=header_lines({SESSION_HEADER: session}),
            limit=self._most_bytes, resend=True,
        )  # fmt: skip
        if answer.status != 204:
            raise LegFailedError("refused", f"status {answer.status}")


class Relayed:
    """One answer of a sidecar on its way to a client."""

    def __init__(
        self, job: Job, writer: ResponseWriter, leg: Leg, limit: int, tap: SseFilter | None, legs: ByClass
    ) -> None:
        self.leg = leg
        self._legs = legs
        self._sent = monotonic()
        self._tap = tap
        self._job = job
        self._writer = writer
        self._whole: BufferedResponse | None = BufferedResponse(leg, limit)
        self._status = 0
        self._headers: dict[str, str] = {}
        self._splitter = EventSplitter()
        self._broken = ""
        self._counted = False
        self.begun = False

    def head(self, status: int, headers: dict[str, str]) -> None:
        self._status = status
        self._headers = headers
        now = monotonic()
        self._legs.of(self._job.class_).mark(now - self._sent, self._job.trace, now)
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
        if MARK in chunk:
            chunk = self._told(chunk)
            if not chunk:
                return
        if self._tap is not None:
            chunk = self._tap.feed(chunk)
            if not chunk:
                return
        if not self.begun:
            self.begun = True
            self._job.facts["first_byte"] = round(monotonic() - self._job.started, 4)
            if not self._writer.begun:
                self._writer.begin(_passed(self._headers))
        self._writer.write(chunk)

    @property
    def resumable(self) -> bool:
        """Tell whether a stream goes on elsewhere should it break off."""
        return self._tap is not None

    @property
    def told(self) -> bool:
        """Tell whether the sidecar itself said that the stream is broken."""
        return self._broken != ""

    def reply(self) -> Reply | None:
        """Return what the client has of the stream, from this worker and those before."""
        if self._tap is None:
            return None
        before = self._job.resumed
        if before is None:
            return self._tap.reply
        before.go_on(self._tap.reply)
        return before

    def finish(self) -> None:
        """End the answer, which has come whole; raise LegFailedError where it is none to pass on."""
        if self._whole is not None:
            if self._headers.get(DIED_HEADER) in DEATHS:
                raise LegFailedError(self._headers[DIED_HEADER])
            if self._headers.get(RETRY_HEADER) == "1" or self._writer.begun:
                raise LegFailedError("refused" if self._status == 503 else ENGINE_FAILED)
            self._writer.used = counts(self._headers.get(TOKENS_HEADER, "").encode())
            kind = self._headers.get("content-type", "application/json")
            self._writer.whole(self._status, self._whole.body, _passed(self._headers), content_type=kind)
            return
        if self._broken or self._splitter.partial or not self.begun:
            raise LegFailedError(self._broken or "cut-short")
        self._writer.end()

    def close(self) -> None:
        """Count what came of a stream that broke off, beside what came before it."""
        if self._tap is not None and not self._counted:
            prompt, before = self._writer.used
            self._writer.used = prompt, before + self._tap.tokens

    def _told(self, chunk: bytes) -> bytes:
        """Take what the sidecar itself says out of its events."""
        chunk, said = cut(chunk)
        if said.startswith(TOKENS):
            self._writer.used = counts(said[len(TOKENS) :])
            self._counted = True
        elif said.startswith(BROKEN):
            self._broken = said[len(BROKEN) :].strip().decode("ascii", "replace") or "unknown"
        return chunk


def _lines(job: Job) -> str:
    """Return the lines of headers that tell a sidecar of a job."""
    lines = (
        f"{REQUEST_ID}: {checked(job.id)}\r\n{SESSION_HEADER}: {checked(job.session)}\r\n"
        f"{TENANT_HEADER}: {checked(job.tenant)}\r\n{CLASS_HEADER}: {checked(job.class_)}\r\n"
    )
    if job.local_only:
        lines += f"{LOCAL_HEADER}: 1\r\n"
    if job.cap is not None:
        lines += f"{CAP_HEADER}: {job.cap}\r\n"
    if job.deaths:
        lines += f"{DEATHS_HEADER}: {job.deaths}\r\n"
    if job.left:
        lines += f"{LEFT_HEADER}: {checked(job.left)}\r\n"
    if job.spans is not None:
        lines += f"traceparent: {checked(job.spans.header)}\r\n"
    if job.response_id is not None:
        lines += f"{RESPONSE_HEADER}: {checked(job.response_id)}\r\n"
    return lines


def _passed(headers: dict[str, str]) -> str:
    """Return the lines of a sidecar's headers that are its client's, too: a few that come again and again."""
    get = headers.get
    told = (
        get("x-weft-route"),
        get("x-weft-reason"),
        get("x-weft-worker"),
        get("x-weft-prefill-worker"),
        get("retry-after"),
    )
    lines = _told.get(told)
    if lines is None:
        lines = header_lines({name: value for name, value in zip(PASSED, told, strict=True) if value is not None})
        if len(_told) >= _REMEMBERED:
            _told.clear()
        _told[told] = lines
    return lines
