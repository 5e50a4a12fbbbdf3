"""The client's side of an exchange whose answer goes to a proxy: takes its head and its body apart."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from weft_router.http.budget import Budget
from weft_router.http.client_memory import ClientMemory
from weft_router.http.exchange import ClientTransport, Exchange
from weft_router.http.head import Peer
from weft_router.picker.headers import split_head
from weft_router.picker.messages import Fields

_END_OF_HEAD = b"\r\n\r\n"


class AnswerReceiver(Protocol):
    """Where the answer goes."""

    def answer_head(self, status: int, fields: Fields) -> None:
        """Take status and headers."""

    def answer_data(self, data: bytes) -> None:
        """Take a piece of the body."""

    def answer_end(self) -> None:
        """Take the end."""

    def answer_aborted(self) -> None:
        """Handle an answer that cannot be ended properly, or that nobody reads."""


class ProxyTransport(ClientTransport):
    """A connection that has one request, whose response has no framing of its own (HTTP/1.0)."""

    __slots__ = ("_head", "_in_head", "_receiver", "_shed", "exchange", "memory")

    def __init__(self, receiver: AnswerReceiver, budget: Budget, *, shed: Callable[[], None]) -> None:
        self.closing = False
        self.full = False
        self.peer = Peer()
        self.memory = ClientMemory(budget)
        self.exchange: Exchange | None = None
        self._receiver = receiver
        self._shed = shed
        self._head = b""
        self._in_head = True

    def sockname(self) -> object:
        """Return None: the client did not reach this process."""
        return None

    def put(self, data: bytes) -> None:
        """Take bytes of the answer."""
        if self._in_head:
            head, mark, data = (self._head + data).partition(_END_OF_HEAD)
            if not mark:
                self._head = head
                return
            self._head = b""
            self._in_head = False
            status, fields = split_head(head)
            self._receiver.answer_head(status, fields)
        if data:
            self._receiver.answer_data(data)

    def put_two(self, first: bytes, second: bytes) -> None:
        """Take bytes of the answer."""
        self.put(first)
        self.put(second)

    def flush_soon(self) -> None:
        """Have the exchange flushed once the callback under way is over."""
        if self.exchange is not None:
            asyncio.get_running_loop().call_soon(self.exchange.flush)

    def switch(self) -> None:
        """Refuse to carry anything but requests.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("a proxy's request cannot become a link")

    def finished(self, *, keep: bool) -> None:
        """Take the end of the answer."""
        del keep
        self.give_all()
        self._receiver.answer_end()

    def abort(self) -> None:
        """Discard what was not sent."""
        self.give_all()
        self._receiver.answer_aborted()

    def hold(self, size: int) -> bool:
        """Reserve bytes for the request until it ends; False where the budget has no room."""
        return self.memory.hold(size, self)

    def release(self) -> None:
        """Count nothing any more for the request: nothing is kept of it."""
        self.memory.release()

    def shed(self) -> None:
        """Discard the unfinished request and free its memory, because others need it."""
        self._shed()

    def give_all(self) -> None:
        """Count nothing any more."""
        if self.memory.kept:
            self.memory.keep(0, self)
        self.memory.give_all((), self)

    def pause(self, *, full: bool) -> None:
        """Have the answer's source wait while the proxy does not read, or go on."""
        if full is self.full:
            return
        self.full = full
        source = None if self.exchange is None else self.exchange.source
        if source is not None:
            if full:
                source.pause()
            else:
                source.resume()
