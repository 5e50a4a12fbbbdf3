"""Take sessions over from workers that they leave: ask what was known there, and say when its KV is not waited for."""

import asyncio
from time import monotonic

from weft_router.sessions.round_request import RoundRequest
from weft_router.sessions.session_export import SessionSource, load_session, way_of
from weft_router.sessions.session_table import SessionTable
from weft_router.state.registry import Registry
from weft_router.telemetry.instruments import Counter


class SessionImport:
    """The sessions that come to one decode worker from others."""

    def __init__(
        self, session_source: SessionSource | None, *, registry: Registry, sessions: SessionTable, moved: Counter
    ) -> None:
        """Fetch by ``session_source``, None where workers cannot be reached; ``moved`` counts imported sessions."""
        self._session_source = session_source
        self._registry = registry
        self._sessions = sessions
        self._moved = moved
        self._telling: set[asyncio.Task[None]] = set()

    async def take_over(self, request: RoundRequest) -> None:
        """Import the session from its previous worker, if that can be reached."""
        record = self._registry.reachable(request.previous_worker)
        if record is None or self._session_source is None:
            return
        found = await self._session_source.fetch(record, request.session)
        session = load_session(found, monotonic(), source=record.worker) if found is not None else None
        if session is not None:
            self._sessions.take_over(request.session, session)
            self._moved.labels(way_of(session)).inc()

    def report_read(self, request: RoundRequest) -> None:
        """Report to the previous worker that it need not keep the session's KV any more."""
        record = self._registry.reachable(request.previous_worker)
        if record is not None and self._session_source is not None:
            task = asyncio.get_running_loop().create_task(self._session_source.report_read(record, request.session))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def stop(self) -> None:
        """Cancel the reports in progress."""
        for task in self._telling:
            task.cancel()
        await asyncio.gather(*self._telling, return_exceptions=True)
