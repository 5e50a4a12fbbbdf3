"""Keep the KV blocks of finished requests until another engine has read them, or their time is up.

A pin is single use: the first accepted read marks it, and the reader's acknowledgement frees the
blocks. Pins of a prefill engine live under a short lease that the reader renews; pins of a decode
engine live for a fixed time to live, as a session's next round comes when the client likes.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from weft_mock.blocks import Block, BlockPool

Holder = Literal["prefill", "decode"]
# How many ended pins are remembered, to tell "used before" and "expired" from "never existed".
_REMEMBERED = 4096


class ReadRefusedError(Exception):
    """Refuse a read; ``reason`` is stable: unknown_request, expired, replayed or wrong_blocks."""

    def __init__(self, reason: str, message: str) -> None:
        """Carry the reason for the ledger and a message for the reader."""
        super().__init__(message)
        self.reason = reason


@dataclass(slots=True, eq=False)
class Pin:
    """The blocks of one finished request; ``ids`` are the tokens whose KV they hold, ``deadline`` is on the clock.

    ``on_end`` is told once how it ended: read, released or expired.
    """

    request_id: str
    holder: Holder
    blocks: list[Block]
    ids: Sequence[int]
    deadline: float
    reading: bool = False
    on_end: Callable[[str], None] | None = None

    def states(self) -> list[int]:
        """Return the state at the end of every full block, as held."""
        return [block.state for block in self.blocks if block.state is not None]


class PinTable:
    """Pin, serve once, renew and expire."""

    def __init__(self, pool: BlockPool, *, lease_seconds: float, ttl_seconds: float) -> None:
        """Pin blocks of ``pool``: those of prefills for the lease, those of decoded rounds for the time to live."""
        self._pool = pool
        self._lease = lease_seconds
        self._ttl = ttl_seconds
        self._pins: dict[str, Pin] = {}
        self._ended: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        """Return how many requests have pinned blocks."""
        return len(self._pins)

    @property
    def blocks(self) -> int:
        """Return how many distinct blocks are pinned."""
        return len({block.index for pin in self._pins.values() for block in pin.blocks})

    @property
    def leased(self) -> bool:
        """Return whether a prefill's blocks wait for, or are at, their reader."""
        return any(pin.holder == "prefill" or pin.reading for pin in self._pins.values())

    def add(self, request_id: str, *, holder: Holder, blocks: list[Block], ids: Sequence[int], now: float) -> Pin:
        """Take over a finished request's references to its blocks."""
        deadline = now + (self._lease if holder == "prefill" else self._ttl)
        pin = Pin(request_id, holder, blocks, ids, deadline)
        self._pins[request_id] = pin
        return pin

    def get(self, request_id: str) -> Pin:
        """Return the pin of a request.

        Raises:
            KeyError: nothing is pinned under this id.
        """
        return self._pins[request_id]

    def find(self, request_id: str) -> Pin | None:
        """Return the pin of a request, None when nothing is pinned under this id."""
        return self._pins.get(request_id)

    def read(self, request_id: str, *, block_ids: Sequence[int], now: float) -> Pin:
        """Hand a pin to its one reader.

        Raises:
            ReadRefusedError: there is no such pin (any more), it is being read, or the blocks are not its own.
        """
        pin = self._pins.get(request_id)
        if pin is not None and pin.deadline <= now and not pin.reading:
            self._end(pin, "expired")
            pin = None
        if pin is None:
            ended = self._ended.get(request_id)
            if ended is None:
                raise ReadRefusedError("unknown_request", f"no blocks are pinned for request {request_id}")
            if ended == "expired":
                raise ReadRefusedError(
                    "expired", f"the blocks of request {request_id} were freed when their time was up"
                )
            raise ReadRefusedError("replayed", f"the blocks of request {request_id} were read or released before")
        if pin.reading:
            raise ReadRefusedError("replayed", f"the blocks of request {request_id} are being read already")
        if [block.index for block in pin.blocks] != list(block_ids):
            raise ReadRefusedError("wrong_blocks", f"the blocks named are not those of request {request_id}")
        pin.reading = True
        pin.deadline = max(pin.deadline, now + self._lease)
        return pin

    def renew(self, request_id: str, *, now: float) -> bool:
        """Extend a lease by two thirds of its length from now; False when nothing is pinned under this id."""
        pin = self._pins.get(request_id)
        if pin is None:
            return False
        if pin.holder == "prefill" or pin.reading:
            pin.deadline = max(pin.deadline, now + self._lease * 2 / 3)
        return True

    def release(self, request_id: str) -> Pin | None:
        """Free a pin's blocks because they were read, or never will be; None when nothing is pinned under this id."""
        pin = self._pins.get(request_id)
        if pin is not None:
            self._end(pin, "released")
        return pin

    def expire(self, now: float) -> list[Pin]:
        """Free every pin whose time is up and return them."""
        late = [pin for pin in self._pins.values() if pin.deadline <= now]
        for pin in late:
            self._end(pin, "expired")
        return late

    def _end(self, pin: Pin, how: str) -> None:
        del self._pins[pin.request_id]
        self._pool.release(pin.blocks)
        self._ended[pin.request_id] = how
        if pin.on_end is not None:
            pin.on_end("read" if how == "released" and pin.reading else how)
        if len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)
