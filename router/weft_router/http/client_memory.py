"""Count in a process's budget what one client makes it hold: a partial request, the one served, unread answers."""

import asyncio
from collections.abc import Sequence

from weft_router.http.budget import Budget
from weft_router.http.exchange import ClientTransport
from weft_router.http.head import Request


class ClientMemory:
    """The bytes that are counted for one connection, which is the ``holder`` that the budget may ask to shed some."""

    __slots__ = ("_budget", "held", "kept", "unread")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.kept = 0
        """Those of a request that is not whole yet."""
        self.held = 0
        """Those of the request that is served."""
        self.unread = 0
        """Those of answers that the client has not read yet."""

    def keep(self, kept: int, holder: ClientTransport) -> bool:
        """Count the bytes of a request that is not whole yet; False: there is no room for them."""
        more, budget = kept - self.kept, self._budget
        if more < 0:
            budget.release(-more)
        elif not budget.acquire(more, holder):
            return False
        self.kept = kept
        budget.unfinished(kept, holder)
        return True

    def hold(self, size: int, holder: ClientTransport) -> bool:
        """Count more bytes for the request that is served; False: there is no room for them."""
        if not self._budget.acquire(size, holder):
            return False
        self.held += size
        return True

    def release(self) -> None:
        """Count nothing any more for the request that is served."""
        self._budget.release(self.held)
        self.held = 0

    def count_unread(self, transport: asyncio.Transport | None, holder: ClientTransport) -> bool:
        """Count the bytes that the client has not read; tell whether there are some, and it read none of late."""
        before = self.unread
        unread = 0 if transport is None else transport.get_write_buffer_size()
        if unread == before:
            return unread != 0
        self.unread = unread
        if unread > before:
            self._budget.record(unread - before, holder)
            return before != 0
        self._budget.release(before - unread)
        self._budget.unfinished(self.kept, holder)
        return False

    def give_unread(self) -> None:
        """Count no unread bytes any more: they are not sent."""
        self._budget.release(self.unread)
        self.unread = 0

    def give_all(self, waiting: Sequence[Request], holder: ClientTransport) -> None:
        """Count nothing any more, nor for the requests that wait: there is no client."""
        held = self.held + self.unread
        for request in waiting:
            held += request.held
        self.held = self.unread = 0
        self._budget.release(held)
        self._budget.unfinished(0, holder)
