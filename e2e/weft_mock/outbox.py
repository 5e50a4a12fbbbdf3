"""Carry what a sequence made from the engine to the task that sends it."""

import asyncio
from dataclasses import dataclass

from weft_mock.sequence import Emission, Sequence


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a sequence ended without an answer."""

    sequence: Sequence
    message: str


class Outbox:
    """Carry emissions from the engine to the one task that sends them; what piles up is taken at once."""

    __slots__ = ("_items", "_waiter")

    def __init__(self) -> None:
        """Start empty."""
        self._items: list[Emission | Failure] = []
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: Emission | Failure) -> None:
        """Add an item and wake the taker."""
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[Emission | Failure]:
        """Return everything since the last call, waiting for at least one item."""
        if not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        items, self._items = self._items, []
        return items
