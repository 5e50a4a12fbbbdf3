"""What the roles that serve clients, coordinator and standalone, have in common."""

from typing import cast

from weft_router.auth.principal import Principal
from weft_router.config import RouterConfig
from weft_router.errors import SHUTTING_DOWN
from weft_router.http.head import CredentialCache, Peer
from weft_router.http.pool import ConnectionPool
from weft_router.roles.app import App, Routes
from weft_router.roles.front import Front
from weft_router.state.registry import Registry


class FrontApp(App):
    """A front, the workers that it knows, and its connections to them."""

    def __init__(self, front: Front, *, registry: Registry, pool: ConnectionPool, role: str) -> None:
        self._front = front
        self._role = role
        self._registry = registry
        self._pool = pool

    @property
    def role(self) -> str:
        """Return the role, which never changes."""
        return self._role

    def routes(self) -> Routes:
        """Return the public endpoints."""
        return self._front.routes()

    def admits(self, _: str, headers: dict[str, str], credential_cache: CredentialCache | None, __: Peer, /) -> object:
        """Let known callers in."""
        return self._front.admits(headers, credential_cache)

    def before_body(self, principal: object, /) -> None:
        """Refuse callers that may send nothing now."""
        self._front.before_body(cast(Principal, principal))

    async def start(self) -> None:
        """Watch the workers."""
        await self._registry.start()
        self._front.start()

    async def stop(self) -> None:
        """End background work and close connections."""
        await self._front.stop()
        await self._registry.stop()
        await self._pool.close()

    def reload(self, config: RouterConfig) -> None:
        """Apply another configuration; requests in progress keep theirs."""
        self._front.reload(config)

    def terminate(self) -> None:
        """End what is still under way."""
        self._front.terminate()
        self._pool.terminate(SHUTTING_DOWN)

    def observe(self) -> None:
        """Bring gauges up to date."""
        self._front.observe()
