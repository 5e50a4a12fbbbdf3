"""A store for tests to change: it may be compiled, and nothing that is not can inherit from MemoryStore then."""

from collections.abc import Sequence

from weft_core.heartbeat import WorkerRecord
from weft_router.state.store import MemoryStore, Snapshot


class PassingStore:
    """A Store that passes everything on to one in memory."""

    def __init__(self) -> None:
        self._kept = MemoryStore()

    async def heartbeat(self, record: WorkerRecord) -> None:
        await self._kept.heartbeat(record)

    async def withdraw(self, worker: str) -> None:
        await self._kept.withdraw(worker)

    async def snapshot(self) -> Snapshot:
        return await self._kept.snapshot()

    async def demand(self) -> None:
        await self._kept.demand()

    async def bind(self, session: str, worker: str, *, replaces: str, ttl_s: int) -> str:
        return await self._kept.bind(session, worker, replaces=replaces, ttl_s=ttl_s)

    async def bind_all(self, bindings: Sequence[tuple[str, str]], *, ttl_s: int) -> None:
        for session, worker in bindings:
            await self.bind(session, worker, replaces="", ttl_s=ttl_s)

    async def unbind(self, session: str) -> str | None:
        return await self._kept.unbind(session)

    async def unbind_all(self, sessions: Sequence[str], heads: Sequence[str]) -> None:
        await self._kept.unbind_all(sessions, heads)

    async def sessions_of(self, heads: Sequence[str]) -> list[str | None]:
        return await self._kept.sessions_of(heads)

    async def put_head(self, head: str, session: str, *, ttl_s: int) -> None:
        await self._kept.put_head(head, session, ttl_s=ttl_s)

    async def close(self) -> None:
        await self._kept.close()
