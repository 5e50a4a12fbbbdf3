"""Bind sessions to the decode worker that keeps their KV; read from the store once, then from memory."""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import NamedTuple

from weft_router.mypyc_compat import mypyc_attr
from weft_router.state.store import MemoryStore, Store, StoreDownError

log = logging.getLogger(__name__)

MAX_SESSIONS = 200_000
PUBLISHED_SHARE = 4
"""A session in use is published again after this part of its time to live."""


class LastPrefill(NamedTuple):
    """The prefill worker of a session's last round that had one, the tokens of its prompt, and when it ended."""

    worker: str
    tokens: int
    at: float


@mypyc_attr(acyclic=True)
@dataclass(slots=True)
class _Binding:
    """A session's worker, and when it was last used and last published; inf: it need not be published."""

    worker: str
    used_at: float
    published_at: float
    last_prefill: LastPrefill | None = None


class Bindings:
    """The worker of each session, equal in all coordinators while the store is reachable."""

    def __init__(
        self, store: Store, *, ttl_s: int, store_up: Callable[[], bool], clock: Callable[[], float] = monotonic
    ) -> None:
        self._store = store
        self._alone = isinstance(store, MemoryStore) and store.alone
        self._ttl_s = ttl_s
        # The store must keep a binding for as long as this process uses it; otherwise another coordinator would bind
        # the session to another worker. Its last use may be a share of the time to live after it was published.
        self._store_ttl_s = ttl_s + math.ceil(ttl_s / PUBLISHED_SHARE) + 1
        self._store_up = store_up
        self._clock = clock
        self._known: dict[str, _Binding] = {}
        """In order of last use."""
        self._publishing: dict[str, asyncio.Task[None]] = {}
        """Publications under way, by session."""
        self._republishing = False
        self._ended: set[str] = set()
        """Sessions that ended during ``republish``."""
        self._move_listeners: list[Callable[[str], None]] = []

    def on_move(self, listener: Callable[[str], None]) -> None:
        """Call a listener with the previous worker of each session that is bound to another one."""
        self._move_listeners.append(listener)

    def __len__(self) -> int:
        """Return how many bindings this process has cached."""
        return len(self._known)

    def peek(self, session: str) -> str | None:
        """Return the cached worker; None when there is none or it expired."""
        binding = self._live(session)
        return None if binding is None else binding.worker

    def bound(self, session: str) -> str | None:
        """Return the cached worker, and count that as a use; None when the store must be read."""
        binding = self._live(session)
        if binding is None:
            return None
        self._touch(session, binding)
        return binding.worker

    def note_prefill(self, session: str, worker: str, tokens: int) -> None:
        """Remember where a session's prompt was prefilled: its decode worker, which knows it, too, may be lost."""
        binding = self._known.get(session)
        if binding is not None:
            binding.last_prefill = LastPrefill(worker, tokens, self._clock())

    def last_prefill(self, session: str) -> LastPrefill | None:
        """Return where a session's prompt was prefilled last, None where that is not known."""
        binding = self._live(session)
        return None if binding is None else binding.last_prefill

    async def resolve(
        self, session: str, *, usable: Callable[[str], bool], choose: Callable[[], str | None],
        on_departure: Callable[[str], None] | None = None,
    ) -> str | None:  # fmt: skip
        """Return the worker to use: the bound one while it is usable, else a new choice; None when there is none.

        ``on_departure`` is called with the previous worker, whether it was cached or in the store.

        Coordinators that bind a session at the same time all use the first binding in the store. Without the store
        each makes its own choice, which is published when the store is reachable again.
        """
        binding = self._live(session)
        worker = None if binding is None else binding.worker
        if binding is not None and usable(binding.worker):
            self._touch(session, binding)
            return binding.worker
        chosen = choose()
        if chosen is None:
            return None
        if worker is not None and on_departure is not None:
            on_departure(worker)
        if self._alone or not self._store_up():
            self._remember(session, chosen, published=False)
            return chosen
        try:
            owner = await self._store.bind(session, chosen, replaces=worker or "", ttl_s=self._store_ttl_s)
            if owner != chosen and not usable(owner):
                if on_departure is not None:
                    on_departure(owner)
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
        """Remove a session, already forgotten here, from the store; return the worker it was bound to there.

        A publication under way is awaited first, because it would restore the binding.

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
        """Write all bindings into a store that lost them."""
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
            self._known.pop(session, None)  # reinserted at the end: in order of last use
        published_at = math.inf if self._alone else now if published else -math.inf
        self._known[session] = _Binding(worker, now, published_at, None if old is None else old.last_prefill)

    def _live(self, session: str) -> _Binding | None:
        """Return a session's binding; remove it if it expired."""
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
            return  # the session ended meanwhile
        try:
            owner = await self._store.bind(session, binding.worker, replaces=binding.worker, ttl_s=self._store_ttl_s)
        except StoreDownError:
            binding.published_at = -math.inf
            return
        if owner != binding.worker:
            log.info("binding_adopted", extra={"session": session, "worker": owner})
            binding.worker = owner
