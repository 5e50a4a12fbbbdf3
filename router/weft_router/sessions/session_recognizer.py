"""Find the session of a request without a session id by its prompt prefix, in memory or else in the store."""

import asyncio
import logging
from collections.abc import Callable

from weft_router.openai.identity import Identity, SessionIndex, derived_identity
from weft_router.openai.prompt_history import history_of
from weft_router.sessions.round_request import RoundRequest
from weft_router.state.store import MemoryStore, Store, StoreDownError

log = logging.getLogger(__name__)

MOST_GONE = 10_000
"""Limit of prefixes that wait to be removed from the store; others expire there."""


class SessionRecognizer:
    """The sessions that a front has seen, by the hashes of their prompt prefixes."""

    def __init__(
        self, store: Store, *, ttl_s: int, per_tenant: int, store_up: Callable[[], bool], ended: Callable[[str], object]
    ) -> None:
        """Remember ``per_tenant`` prefixes of each tenant; ``ended`` is called with sessions evicted for that bound."""
        self._store = store
        self._ttl_s = ttl_s
        self._store_up = store_up
        self._heads = SessionIndex(ttl_s=ttl_s, per_tenant=per_tenant)
        self._ended = ended
        self._gone: list[tuple[str, str]] = []
        """(prefix, session) that wait to be removed from the store."""
        self._forgetting: asyncio.Task[None] | None = None
        self._writes: set[asyncio.Task[None]] = set()

    async def identify(self, request: RoundRequest) -> Identity:
        """Return the identity of a request without a session id; an unknown prefix begins a new session."""
        prompt_history = request.prompt_history = history_of(request.inference)
        identity = derived_identity(request.scope, request.inference, prompt_history, fresh=request.id)
        parents = identity.parents
        session = self._heads.find(parents)
        if session is None and parents and self._store_up():
            try:
                found = await self._store.sessions_of(parents)
            except StoreDownError:
                found = []
            session = next((one for one in found if one is not None), None)
        if session is not None:
            identity = Identity(session, f"weft-{session[:16]}", parents, identity.prefix_hash)
        self._note(identity, request.scope)
        return identity

    def reload(self, per_tenant: int) -> None:
        """Apply another bound."""
        self._heads.per_tenant = per_tenant

    def _note(self, identity: Identity, tenant: str) -> None:
        """Record the prefix hash of a request, with which the session's next request is found."""
        if not identity.prefix_hash:
            return
        gone = self._heads.put(identity.prefix_hash, identity.key, tenant)
        if gone:
            self._forget(gone)
        store = self._store
        if not self._store_up():
            return
        if isinstance(store, MemoryStore):
            store.put_head_now(identity.prefix_hash, identity.key, ttl_s=self._ttl_s)
        else:
            task = asyncio.get_running_loop().create_task(self._put(identity))
            self._writes.add(task)
            task.add_done_callback(self._writes.discard)

    async def stop(self) -> None:
        """Cancel pending writes."""
        tasks = [*self._writes, *([] if self._forgetting is None else [self._forgetting])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, gone: list[tuple[str, str]]) -> None:
        """End sessions evicted from a tenant's index, and remove them from the store by one task at a time."""
        for _, session in gone:
            if session:
                self._ended(session)
        if not self._store_up() or len(self._gone) >= MOST_GONE:
            return  # they expire in the store
        self._gone += gone
        if self._forgetting is None or self._forgetting.done():
            self._forgetting = asyncio.get_running_loop().create_task(self._unbind())

    async def _unbind(self) -> None:
        while self._gone:
            gone, self._gone = self._gone, []
            sessions = [session for _, session in gone if session]
            try:
                await self._store.unbind_all(sessions, [head for head, _ in gone])
            except StoreDownError as error:
                log.info("sessions_not_unbound", extra={"error": str(error)})

    async def _put(self, identity: Identity) -> None:
        try:
            await self._store.put_head(identity.prefix_hash, identity.key, ttl_s=self._ttl_s)
        except StoreDownError as error:
            log.info("head_not_written", extra={"error": str(error)})
