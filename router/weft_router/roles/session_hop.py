"""One session on its way from a decode sidecar that drains, or has lost its engine, to another: question and answer."""

import logging
from typing import Final, cast

import orjson

from weft_core.heartbeat import WorkerRecord
from weft_router.errors import UpstreamFailedError
from weft_router.http.exchange import Exchange
from weft_router.http.header_lines import header_lines
from weft_router.http.pool import ConnectionPool
from weft_router.http.upstream_request import UpstreamRequest
from weft_router.openai.body import Json
from weft_router.roles.relay import SESSION_HEADER
from weft_router.sessions.session_export import SessionExport

log = logging.getLogger(__name__)

TAKE_PATH: Final = "/internal/take"
READ_PATH: Final = "/internal/read"
TAKE_S: Final = 1.0
"""A client waits for it: a worker that takes longer than this is no help, and the history is recomputed."""
MAX_BYTES: Final = 16 * 2**20


class SessionHop:
    """Asks draining sidecars for sessions."""

    def __init__(self, *, pool: ConnectionPool) -> None:
        self._pool = pool

    async def fetch(self, record: WorkerRecord, session: str) -> Json | None:
        """Return what a worker knew of a session; None when it knows nothing, or does not answer."""
        try:
            answer = await self._pool.call(
                UpstreamRequest(first_s=TAKE_S), self._pool.origin(record.url), TAKE_PATH, b"",
                lines=header_lines({SESSION_HEADER: session}), limit=MAX_BYTES,
            )  # fmt: skip
            found: object = orjson.loads(answer.body) if answer.status == 200 else None
        except (UpstreamFailedError, orjson.JSONDecodeError) as error:
            log.info("session_not_taken", extra={"worker": record.worker, "error": str(error)})
            return None
        return cast(Json, found) if isinstance(found, dict) else None

    async def report_read(self, record: WorkerRecord, session: str) -> None:
        """Tell a worker that a session's KV was read from it; one that does not hear waits for the lease."""
        try:
            await self._pool.call(
                UpstreamRequest(first_s=TAKE_S), self._pool.origin(record.url), READ_PATH, b"",
                lines=header_lines({SESSION_HEADER: session}), limit=MAX_BYTES, resend=True,
            )  # fmt: skip
        except UpstreamFailedError as error:
            log.info("session_read_not_told", extra={"worker": record.worker, "error": str(error)})


def serve_session(exchange: Exchange, session_export: SessionExport, *, leaves: bool) -> None:
    """Hand over the session that another sidecar asks for, if it is here and rounds are not (``leaves``)."""
    session = exchange.headers.get(SESSION_HEADER, "")
    exchange.facts.update(session=session)
    found = session_export.export(session) if leaves else None
    if found is None:
        exchange.reply(404, content_type="")
    else:
        exchange.reply(200, orjson.dumps(found))
