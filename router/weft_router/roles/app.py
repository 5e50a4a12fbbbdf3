# ruff: noqa: B027 - hooks that most roles leave as they are
"""The application of a role, as the server in front of it sees it."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from weft_router.config import RouterConfig
from weft_router.http.exchange import Exchange
from weft_router.http.head import CredentialCache, Peer
from weft_router.sessions.session_export import NO_BACKLOG, DrainBacklog

Handler = Callable[[Exchange], Awaitable[None]]
Routes = Mapping[str, Mapping[str, Handler]]
"""Handlers by path, then by method; a path that ends with a slash stands for the names below it, too."""
DEEP: Final = "**"
"""A path that ends so stands for all paths below it: names of models have slashes."""
PLAIN: Final = "text/plain; charset=utf-8"
PAGE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of a metrics page."""
_NONE_MOVED: Final[Mapping[str, int]] = {}


class App(ABC):
    """What a role adds to a server: its routes, its readiness and its background work."""

    @property
    @abstractmethod
    def role(self) -> str:
        """Return the role in force."""

    @abstractmethod
    def routes(self) -> Routes:
        """Return the role's own endpoints."""

    @abstractmethod
    def admits(
        self, path: str, headers: dict[str, str], credential_cache: CredentialCache | None, peer: Peer, /
    ) -> object:
        """Let a request for a path in by its headers or its peer, and return who asks; raise ApiError otherwise.

        ``credential_cache`` is that of the requests with the same credentials.
        """

    @abstractmethod
    def ready(self) -> str | None:
        """Return None when requests can be served, else why not."""

    @abstractmethod
    async def start(self) -> None:
        """Start background work."""

    @abstractmethod
    async def stop(self) -> None:
        """End background work and close connections."""

    def before_body(self, principal: object, /) -> None:
        """Raise ApiError where nothing more may be read of a request by whom ``admits`` returned."""

    def reload(self, config: RouterConfig) -> None:
        """Apply another configuration; work in progress keeps its own."""

    def drain(self) -> None:
        """Tell the others that this process takes nothing new."""

    async def drain_backlog(self) -> DrainBacklog:
        """Return what keeps a draining process besides its live requests."""
        return NO_BACKLOG

    @property
    def moved(self) -> Mapping[str, int]:
        """Return how many sessions were handed over to others, by how their history goes on."""
        return _NONE_MOVED

    def terminate(self) -> None:
        """End what is still under way: the drain time is over."""

    def observe(self) -> None:
        """Bring gauges up to date before they are read."""
