"""The books of a server and its straight way, as the two see each other."""

from collections.abc import Awaitable, Coroutine
from typing import Protocol

from weft_router.wire.exchange import Exchange


class Books(Protocol):
    """What a server counts of each request."""

    def enter(self) -> None:
        """Count one that is served from now on."""

    def leave(self, exchange: Exchange) -> None:
        """Count one that is over, and write its access line."""

    def through(self, exchange: Exchange, work: Awaitable[None]) -> Coroutine[object, None, None]:
        """Serve one that was counted already, to its end."""


class Lane(Protocol):
    """A straight way for usual requests."""

    books: Books
    """Who counts them; set by the server."""

    def takes(self, exchange: Exchange) -> bool:
        """Serve a request by callbacks; False where it is not usual, and not begun."""
