"""Find the conversation that a nameless request continues, here or, at first sight, in the store."""

import asyncio
import logging
from collections.abc import Callable

from weft_router.api.identity import Heads, Identity, derived
from weft_router.api.transcript import of_request
from weft_router.rounds.job import Job
from weft_router.state.store import Store, StoreDownError

log = logging.getLogger(__name__)


class Recognising:
    """The conversations that a front has seen, by the hashes of what they began with."""

    def __init__(self, store: Store, *, ttl_s: int, store_up: Callable[[], bool]) -> None:
        self._store = store
        self._ttl_s = ttl_s
        self._store_up = store_up
        self._heads = Heads(ttl_s=ttl_s)
        self._writes: set[asyncio.Task[None]] = set()

    async def identify(self, job: Job) -> Identity:
        """Return who a request without a name is; a conversation that nobody has seen is a new one."""
        job.transcript = of_request(job.inference)
        identity = derived(job.tenant, job.inference, job.transcript, fresh=job.id)
        parents = identity.parents
        session = self._heads.find(parents)
        if session is None and parents and self._store_up():
            try:
                session = next((s for s in await self._store.sessions_of(parents) if s is not None), None)
            except StoreDownError:
                session = None
        if session is not None:
            identity = Identity(session, f"weft-{session[:16]}", identity.parents, identity.head)
        if identity.head:
            self._heads.put(identity.head, identity.key)
            if self._store_up():
                task = asyncio.get_running_loop().create_task(self._put(identity))
                self._writes.add(task)
                task.add_done_callback(self._writes.discard)
        return identity

    async def stop(self) -> None:
        """Give up what is not written yet."""
        for task in self._writes:
            task.cancel()
        await asyncio.gather(*self._writes, return_exceptions=True)

    async def _put(self, identity: Identity) -> None:
        try:
            await self._store.put_head(identity.head, identity.key, ttl_s=self._ttl_s)
        except StoreDownError as error:
            log.info("head_not_written", extra={"error": str(error)})
