"""Bind sessions to the decode worker that keeps their KV; the store is asked at first sight, memory afterwards."""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic

from weft_router.mypyc_compat import mypyc_attr
from weft_router.state.store import MemoryStore, Store, StoreDownError

log = logging.getLogger(__name__)

MAX_SESSIONS = 200_000
PUBLISHED_SHARE = 4
"""A session in use is published again after this part of its time to live."""


@mypyc_attr(acyclic=True)
@dataclass(slots=True)
class _Binding:
    """A session's worker, and when the session was used and told to the store last: inf, it need not be told."""

    worker: str
    used_at: float
    published_at: float


class Bindings:
    """Sessions and their workers, the same for all coordinators as long as the store is there."""

    def __init__(
        self, store: Store, *, ttl_s: int, store_up: Callable[[], bool], clock: Callable[[], float] = monotonic
    ) -> None:
        self._store = store
        self._alone = isinstance(store, MemoryStore) and store.alone
        self._ttl_s = ttl_s
        # The store has to keep a binding for as long as anybody here goes by it: it was published up to a share of the
        # time to live before it was used last. Or another coordinator would bind the session to another worker.
        self._store_ttl_s = ttl_s + math.ceil(ttl_s / PUBLISHED_SHARE) + 1
        self._store_up = store_up
        self._clock = clock
        self._known: dict[str, _Binding] = {}
        """Those used last are at the end."""
        self._publishing: dict[str, asyncio.Task[None]] = {}
        """By session what is being told to the store."""
        self._republishing = False
        self._ended: set[str] = set()
        """Sessions that were ended while all were being given back to the store."""
        self._move_listeners: list[Callable[[str], None]] = []

    def on_move(self, listener: Callable[[str], None]) -> None:
        """Have a listener called with the worker that a session leaves for another one."""
        self._move_listeners.append(listener)

    def __len__(self) -> int:
        """Return how many sessions this process remembers."""
        return len(self._known)

    def peek(self, session: str) -> str | None:
        """Return the worker this process remembers, None when it does not know the session or it expired."""
        binding = self._live(session)
        return None if binding is None else binding.worker

    def bound(self, session: str) -> str | None:
        """Return the worker this process remembers, and count that as a use; None when the store has to be asked."""
        binding = self._live(session)
        if binding is None:
            return None
        self._touch(session, binding)
        return binding.worker

    async def resolve(
        self, session: str, *, usable: Callable[[str], bool], choose: Callable[[], str | None],
        leaves: Callable[[str], None] | None = None,
    ) -> str | None:  # fmt: skip
        """Return the worker to use: the bound one while it is usable, else a newly chosen one; None when none is.

        ``leaves`` is told of the worker that the session was bound to until now, by this process or by the store.

        Two coordinators that meet a session at once agree on the store's first answer. Without the
        store the choice is this process's own and is published when the store is back.
        """
        binding = self._live(session)
        worker = None if binding is None else binding.worker
        if binding is not None and usable(binding.worker):
            self._touch(session, binding)
            return binding.worker
        chosen = choose()
        if chosen is None:
            return None
        if worker is not None and leaves is not None:
            leaves(worker)
        if self._alone or not self._store_up():
            self._remember(session, chosen, published=False)
            return chosen
        try:
            owner = await self._store.bind(session, chosen, replaces=worker or "", ttl_s=self._store_ttl_s)
            if owner != chosen and not usable(owner):
                if leaves is not None:
                    leaves(owner)
                owner = await self._store.bind(session, chosen, replaces=owner, ttl_s=self._store_ttl_s)
        except StoreDownError:
            self._remember(session, chosen, published=False)
            return chosen
        if not usable(owner):
            owner = chosen
        self._remember(session, owner, published=True)
        return owner

    def forget(self, session: str) -> str | None:
        """Forget a session here; return the worker it was bound to, None where it is not known."""
        binding = self._known.pop(session, None)
        return None if binding is None else binding.worker

    async def unbind(self, session: str) -> str | None:
        """Have the store forget a session that was forgotten here; return the worker it was bound to there.

        What this process is telling the store of the session is waited for: it would bring the binding back.

        Raises:
            StoreDownError: the store did not answer.
        """
        if self._republishing:
            self._ended.add(session)
        publishing = self._publishing.get(session)
        if publishing is not None:
            await asyncio.wait([publishing])
        return await self._store.unbind(session)

    async def republish(self) -> None:
        """Give the store back what it lost."""
        now = self._clock()
        live = [(s, b.worker) for s, b in self._known.items() if now - b.used_at <= self._ttl_s]
        self._republishing = True
        try:
            await self._store.bind_all(live, ttl_s=self._store_ttl_s)
            if self._ended:
                await self._store.unbind_all([session for session in self._ended if session not in self._known], [])
        except StoreDownError:
            return
        finally:
            self._republishing = False
            self._ended.clear()
        for session, _ in live:
            binding = self._known.get(session)  # it may have expired meanwhile
            if binding is not None:
                binding.published_at = now
        log.info("bindings_republished", extra={"sessions": len(live)})

    def expire(self) -> None:
        """Forget sessions idle beyond their time to live."""
        now, left, gone = self._clock(), len(self._known), []
        for session, binding in self._known.items():
            if now - binding.used_at <= self._ttl_s and left <= MAX_SESSIONS:
                break
            gone.append(session)
            left -= 1
        for session in gone:
            del self._known[session]

    def _remember(self, session: str, worker: str, *, published: bool) -> None:
        now = self._clock()
        old = self._known.get(session)
        if old is not None:
            if old.worker != worker:
                for listener in self._move_listeners:
                    listener(old.worker)
            self._known.pop(session, None)  # the latest goes to the end
        published_at = math.inf if self._alone else now if published else -math.inf
        self._known[session] = _Binding(worker, now, published_at)

    def _live(self, session: str) -> _Binding | None:
        """Return a session's binding; one that expired is forgotten."""
        binding = self._known.get(session)
        if binding is not None and self._clock() - binding.used_at > self._ttl_s:
            del self._known[session]
            return None
        return binding

    def _touch(self, session: str, binding: _Binding) -> None:
        now = binding.used_at = self._clock()
        del self._known[session]
        self._known[session] = binding
        if now - binding.published_at > self._ttl_s / PUBLISHED_SHARE and self._store_up():
            binding.published_at = now
            task = asyncio.get_running_loop().create_task(self._publish(session, binding))
            self._publishing[session] = task
            task.add_done_callback(partial(self._published, session))

    def _published(self, session: str, task: asyncio.Task[None]) -> None:
        if self._publishing.get(session) is task:
            del self._publishing[session]

    async def _publish(self, session: str, binding: _Binding) -> None:
        if self._known.get(session) is not binding:
            return  # it was ended meanwhile
        try:
            owner = await self._store.bind(session, binding.worker, replaces=binding.worker, ttl_s=self._store_ttl_s)
        except StoreDownError:
            binding.published_at = -math.inf
            return
        if owner != binding.worker:
            log.info("binding_adopted", extra={"session": session, "worker": owner})
            binding.worker = owner
