"""Which service serves a model: by every name that a service gives it, the oldest first. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from weft_router.config import ModelConfig
from weft_router.gateway.served_service import ServedService

SHOWN: Final = 32
"""Names that a message lists."""


@dataclass(frozen=True, slots=True)
class NameConflict:
    """A name that several services give to a model: one has it, the others are not reached by it."""

    name: str
    service: str
    """The oldest of them."""
    others: tuple[str, ...]


class RouteTable:
    """The services at one time, by their own names and by those of their models."""

    def __init__(self, services: Iterable[ServedService] = ()) -> None:
        """Give each name to the oldest service that has it; of two of one age, to the first by namespace and name."""
        ordered = sorted(services, key=lambda service: (service.created, service.key))
        self.services: Mapping[str, ServedService] = {service.key: service for service in ordered}
        self._by_model: dict[str, ServedService] = {}
        claims: dict[str, list[str]] = {}
        for service in ordered:
            for name in service.names:
                self._by_model.setdefault(name, service)
                claims.setdefault(name, []).append(service.key)
        self.conflicts = tuple(
            NameConflict(name, keys[0], tuple(keys[1:])) for name, keys in sorted(claims.items()) if len(keys) > 1
        )
        """Names that more than one service has."""
        self.pooling = tuple(service for service in ordered if service.pooling)
        """The services that answer requests for embeddings and ranks."""

    def find(self, model: str) -> ServedService | None:
        """Return the service that serves a model under this name."""
        return self._by_model.get(model)

    @property
    def models(self) -> list[tuple[str, ModelConfig]]:
        """Return every name with the model, each service's together, the oldest service's first."""
        return [(name, service.model) for name, service in self._by_model.items()]

    @property
    def shown_names(self) -> str:
        """Return the names for a message, not more than a person reads."""
        names = [repr(name) for name in self._by_model]
        more = len(names) - SHOWN
        return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "") or "none yet"
