"""One prefill between a decode and a prefill sidecar: how it is asked for, and how it is answered."""

from collections.abc import Mapping
from typing import Final

from weft_core.heartbeat import WorkerRecord
from weft_core.policies.snapshot import PrefillTask
from weft_router.api.inference import PATHS
from weft_router.config import RouterConfig
from weft_router.engines.adapter import Call
from weft_router.errors import InvalidRequestError
from weft_router.guard.hops import TOKEN_HEADER
from weft_router.rounds.prefilling import Prefilling
from weft_router.rounds.remote import PrefillAnswer
from weft_router.rounds.standing import Standing, read_standing
from weft_router.signals.access import rounded
from weft_router.signals.tracing import Tracer
from weft_router.wire.exchange import Exchange
from weft_router.wire.leg import Leg
from weft_router.wire.lines import checked, header_lines
from weft_router.wire.pool import Pool

PREFILL_PATH: Final = "/internal/prefill"
PATH_HEADER: Final = "x-weft-path"
HISTORY_HEADER: Final = "x-weft-history"
INCREMENT_HEADER: Final = "x-weft-increment"
TASK_HEADER: Final = "x-weft-task"
FROM_ENGINE: Final = "x-weft-engine"
_BY_ENGINE: Final = f"{FROM_ENGINE}: 1\r\n"
_PASSED: Final = {"x-request-id": "X-Request-Id", "x-data-parallel-rank": "X-data-parallel-rank"}


class PrefillHop:
    """Asks prefill sidecars."""

    def __init__(self, config: RouterConfig, *, pool: Pool, token: bytes) -> None:
        self._first_byte_s = config.timeouts.first_byte
        self._most_bytes = config.limits.max_reply_bytes
        self._pool = pool
        self._token_line = header_lines({TOKEN_HEADER: token.decode("latin-1")})

    async def prefill(
        self, record: WorkerRecord, call: Call, task: PrefillTask, request_id: str, standing: Standing
    ) -> PrefillAnswer:
        """Run one prefill on a worker; raise LegFailedError when no answer came."""
        lines = (
            f"{self._token_line}{TASK_HEADER}: {checked(request_id)}\r\n{PATH_HEADER}: {checked(call.path)}\r\n"
            f"{HISTORY_HEADER}: {task.history}\r\n{INCREMENT_HEADER}: {task.increment}\r\n{standing.lines()}"
        )
        answer = await self._pool.call(
            Leg(first_s=self._first_byte_s), self._pool.origin(record.url), PREFILL_PATH, call.body,
            lines=lines + call.lines, limit=self._most_bytes, tail=call.tail,
        )  # fmt: skip
        return PrefillAnswer(answer.status, answer.body, FROM_ENGINE in answer.headers)


async def serve(exchange: Exchange, prefilling: Prefilling, tracer: Tracer | None) -> None:
    """Answer a sidecar's request for a prefill; its body comes ready for the engine."""
    headers = exchange.headers
    path = headers.get(PATH_HEADER, "")
    if path not in PATHS:
        raise InvalidRequestError(f"{PATH_HEADER}: {path[:64]!r} cannot be prefilled", param=PATH_HEADER)
    task = PrefillTask(_length(headers, HISTORY_HEADER, 0), _length(headers, INCREMENT_HEADER, 0))
    request_id = headers.get(TASK_HEADER, "")
    facts = exchange.facts
    facts["request_id"] = request_id
    facts["history"] = task.history
    facts["increment"] = task.increment
    passed = header_lines({shown: headers[name] for name, shown in _PASSED.items() if name in headers})
    spans = None
    if tracer is not None:
        spans = tracer.begin(headers.get("traceparent"), request_id.removeprefix("weft-"), name="prefill")
    standing = read_standing(headers, spans)
    try:
        done = await prefilling.run(path, exchange.body, passed, task=task, request_id=request_id, standing=standing)
    finally:
        if spans is not None:
            spans.end()
    facts["queued"] = rounded(done.queued)
    facts["prefill"] = rounded(done.seconds)
    exchange.reply(done.status, done.body, lines=_BY_ENGINE)  # the same each time, so that it is read but once


def _length(headers: Mapping[str, str], name: str, least: int) -> int:
    value = headers.get(name, "")
    if not (value.isascii() and value.isdigit()) or not least <= int(value) < 2**31:
        raise InvalidRequestError(f"{name}: {value[:32]!r} is not a number of tokens", param=name)
    return int(value)
