"""What a decode sidecar asks of a prefill sidecar, and how that answers: one prefill, or what its queue holds."""

import asyncio
from dataclasses import replace
from typing import Final

import orjson

from weft_core.heartbeat import QueueEntry, WorkerRecord, queue_fields, read_queue
from weft_core.policies.snapshot import PrefillTask
from weft_router.config import RouterConfig
from weft_router.engines.adapter import Call
from weft_router.errors import InvalidRequestError, UpstreamFailedError
from weft_router.http.exchange import Exchange
from weft_router.http.header_lines import checked, header_lines
from weft_router.http.pool import ConnectionPool
from weft_router.http.upstream_request import BufferedResponse, UpstreamRequest
from weft_router.openai.answers import DIED
from weft_router.openai.inference import PATHS
from weft_router.rounds.prefill_service import PrefillService
from weft_router.telemetry.access_log import rounded
from weft_router.telemetry.tracing import Tracer
from weft_router.workers.prefill_client import QUEUE_PATH, PrefillResponse
from weft_router.workers.prefill_queue import PrefillQueue
from weft_router.workers.scheduling_priority import SchedulingPriority, read_priority

PREFILL_PATH: Final = "/internal/prefill"
PATH_HEADER: Final = "x-weft-path"
HISTORY_HEADER: Final = "x-weft-history"
INCREMENT_HEADER: Final = "x-weft-increment"
READ_HEADER: Final = "x-weft-read"
TASK_HEADER: Final = "x-weft-task"
FROM_ENGINE: Final = "x-weft-engine"
DIED_HEADER: Final = DIED.lower()
BY_ENGINE: Final = f"{FROM_ENGINE}: 1\r\n"
_DIGITS: Final = 9
_PASSED: Final = {"x-request-id": "X-Request-Id", "x-data-parallel-rank": "X-data-parallel-rank"}


class PrefillHop:
    """Asks prefill sidecars."""

    def __init__(self, config: RouterConfig, *, pool: ConnectionPool) -> None:
        self._first_byte_s = config.timeouts.first_byte
        self._most_bytes = config.limits.max_reply_bytes
        self._pool = pool

    async def prefill(
        self, record: WorkerRecord, call: Call, task: PrefillTask, request_id: str, scheduling: SchedulingPriority
    ) -> PrefillResponse:
        """Run one prefill on a worker; raise UpstreamFailedError when no answer came."""
        lines = (
            f"{TASK_HEADER}: {checked(request_id)}\r\n{PATH_HEADER}: {checked(call.path)}\r\n"
            f"{HISTORY_HEADER}: {task.history}\r\n{INCREMENT_HEADER}: {task.increment}\r\n"
            f"{READ_HEADER}: {task.read}\r\n{scheduling.lines()}"
            f"{call.lines}"
        )
        leg = UpstreamRequest(first_s=self._first_byte_s)
        answer = BufferedResponse(leg, self._most_bytes)
        origin = self._pool.origin(record.url)
        self._pool.send(leg, origin, PREFILL_PATH, call.body, answer, lines=lines, tail=call.tail)
        await leg
        headers = answer.headers
        return PrefillResponse(answer.status, answer.body, FROM_ENGINE in headers, headers.get(DIED_HEADER, ""))

    async def queue(self, record: WorkerRecord, *, within_s: float) -> tuple[QueueEntry, ...]:
        """Return what waits or runs on a worker now; raise UpstreamFailedError when no answer came in time."""
        leg = UpstreamRequest(first_s=within_s)
        # The pool looks for late requests ten times a second only.
        timer = asyncio.get_running_loop().call_later(within_s, leg.fail, "timeout")
        try:
            answer = await self._pool.call(
                leg, self._pool.origin(record.url), QUEUE_PATH, limit=self._most_bytes, resend=True, method="GET"
            )
        finally:
            timer.cancel()
        if answer.status != 200:  # a sidecar of the version before
            raise UpstreamFailedError("refused", f"status {answer.status}")
        try:
            return read_queue(orjson.loads(answer.body))
        except (TypeError, ValueError) as error:
            raise UpstreamFailedError("refused", "its queue cannot be read") from error


def serve_queue(exchange: Exchange, queue: PrefillQueue) -> None:
    """Answer with what waits or runs on this worker."""
    exchange.reply(200, orjson.dumps(queue_fields(queue.entries())))


async def serve_prefill(exchange: Exchange, prefilling: PrefillService, tracer: Tracer | None) -> None:
    """Answer a sidecar's request for a prefill, whose body comes ready for the engine.

    Raises:
        InvalidRequestError: its headers ask for none.
        ApiError: it cannot be served here.
    """
    headers, facts = exchange.headers, exchange.facts
    path = headers.get(PATH_HEADER, "")
    if path not in PATHS:
        raise InvalidRequestError(f"{PATH_HEADER}: {path[:64]!r} cannot be prefilled", param=PATH_HEADER)
    history, increment = _length(headers, HISTORY_HEADER), _length(headers, INCREMENT_HEADER)
    task = PrefillTask(history, increment, _length(headers, READ_HEADER) if READ_HEADER in headers else history)
    lines = header_lines({shown: headers[name] for name, shown in _PASSED.items() if name in headers})
    request_id, scheduling = headers.get(TASK_HEADER, ""), read_priority(headers)
    facts["request_id"] = request_id
    facts["history"] = task.history
    facts["increment"] = task.increment
    spans = None
    if tracer is not None:
        spans = tracer.begin(headers.get("traceparent"), request_id.removeprefix("weft-"), name="prefill")
        scheduling = replace(scheduling, spans=spans)
    try:
        done = await prefilling.run(path, exchange.body, lines, task=task, request_id=request_id, scheduling=scheduling)
    finally:
        if spans is not None:
            spans.end()
    facts["queued"] = rounded(done.queued)
    facts["prefill"] = rounded(done.seconds)
    exchange.reply(done.status, done.body, lines=BY_ENGINE)  # the same each time, so that it is read but once


def _length(headers: dict[str, str], name: str) -> int:
    value = headers.get(name, "")
    # Of what a header may hold only the digits 0 to 9 are decimals.
    if not value.isdecimal() or len(value) > _DIGITS:
        raise InvalidRequestError(f"{name}: {value[:32]!r} is not a number of tokens", param=name)
    return int(value)
