"""Where a gateway's services come from: a list that is complete once it was read, and kept while it cannot be."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from time import monotonic

from weft_router.gateway.served_service import ServedService


class ServiceSource(ABC):
    """Knows the services; ``on_change`` is called whenever they are others."""

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._heard = monotonic()

    @property
    @abstractmethod
    def listed(self) -> bool:
        """Return whether all services were read once."""

    @abstractmethod
    def services(self) -> Iterable[ServedService]:
        """Return the services as they were read last."""

    @abstractmethod
    def work(self) -> list[Coroutine[None, None, None]]:
        """Return what has to run beside the server until it ends."""

    async def close(self) -> None:  # noqa: B027 - a file has nothing to close
        """Close connections."""

    def age(self) -> float:
        """Return how long ago it was last known that no other services are there, in seconds."""
        return monotonic() - self._heard

    def heard(self) -> None:
        """Note that what is known is right now."""
        self._heard = monotonic()
