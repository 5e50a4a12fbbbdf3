"""The sidecar on a node of a worker that does not lead it: it takes no requests, and holds its engine until the end.

The leader's sidecar alone registers the worker, answers for it and drains it. An engine that spans nodes cannot spare
one, so when a worker is asked to go, the engines of the other nodes must outlive the leader's: their preStop waits
here until the leader's sidecar is gone, at most until the drain time is over.
"""

import asyncio

from weft_router.background import Background, guarded
from weft_router.config import Settings
from weft_router.errors import NotFoundError, UpstreamFailedError
from weft_router.http.exchange import Exchange
from weft_router.http.head import CredentialCache, Peer
from weft_router.http.pool import ConnectionPool
from weft_router.http.upstream_request import UpstreamRequest
from weft_router.roles.app import PAGE, PLAIN, App, Routes
from weft_router.sessions.session_export import NO_BACKLOG, DrainBacklog

ASK_S = 1.0
LOOK_S = 1.0
GONE_AFTER = 3
"""One call that gets no answer may be a full accept queue; three in a row are not."""
SMALL_PAGE = 4096
WAITS = DrainBacklog(kv=True)


class Follower(App):
    """The application of a sidecar whose engine is one of several nodes, and not the first."""

    def __init__(self, settings: Settings) -> None:
        self._role = settings.role
        self._pool = ConnectionPool(connect_s=ASK_S, keepalive_s=0.0)
        self._leader = self._pool.origin(settings.leader)
        self._background = Background()
        self._known = ""
        self._unanswered = 0
        self._drains = False

    @property
    def role(self) -> str:
        """Return the role that the worker had when this process began."""
        return self._role

    def routes(self) -> Routes:
        """Return the endpoints that the kubelet asks."""
        return {"/engine/livez": {"GET": self._livez}, "/engine/metrics": {"GET": self._metrics}}

    def admits(self, _: str, __: dict[str, str], ___: CredentialCache | None, ____: Peer, /) -> None:
        """Admit no request: requests go to the leader."""
        raise NotFoundError("this node follows the leader of its worker; requests go there")

    def ready(self) -> str | None:
        """Return None: whether the worker serves is the leader's to say."""
        return None

    async def start(self) -> None:
        """Begin to look who leads."""
        self._background.start(self._run())

    async def stop(self) -> None:
        """Close connections."""
        await self._background.stop()
        await self._pool.close()

    def drain(self) -> None:
        """Hold on to the leader of this life: see ``drain_backlog``."""
        self._drains = True

    async def _run(self) -> None:
        while True:
            await guarded(self._look)
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        seen = await self._instance_id()
        if seen and not self._drains:
            self._known = seen

    async def drain_backlog(self) -> DrainBacklog:
        """Return something as long as the leader of this life is there."""
        seen = await self._instance_id()
        self._unanswered = 0 if seen else self._unanswered + 1
        self._known = self._known or seen or ""
        if self._unanswered >= GONE_AFTER or (seen and seen != self._known):
            return NO_BACKLOG
        return WAITS

    async def _instance_id(self) -> str | None:
        try:
            answer = await self._pool.call(
                UpstreamRequest(first_s=ASK_S),
                self._leader,
                "/instance-id",
                limit=SMALL_PAGE,
                method="GET",
                resend=True,
            )
        except UpstreamFailedError:
            return None
        return answer.body.decode(errors="replace").strip() if answer.status == 200 else None

    async def _metrics(self, exchange: Exchange) -> None:
        """Say nothing: the leader's engine counts for all nodes."""
        exchange.reply(200, b"", content_type=PAGE)

    async def _livez(self, exchange: Exchange) -> None:
        """Say yes: an engine on a node that does not lead has no API, and its end is its container's."""
        exchange.reply(200, b"ok\n", content_type=PLAIN)
