"""Listen, serve, and stop in good order: unready first, live requests finished, the rest ended with a word."""

import asyncio
import logging

from weft_router.background import Background
from weft_router.config import FRONT_ROLES, Settings
from weft_router.context import COMPILED
from weft_router.roles.app import App
from weft_router.roles.server import Server

log = logging.getLogger(__name__)

LAME_DUCK_S = 3.0
"""A coordinator that must go takes new connections until no request came for this long.

Kube-proxy learns of its unreadiness within about 1 s, on a busy node later.
"""
LAME_DUCK_MOST_S = 15.0
"""Requests that still come after this bypass the Service."""


async def run_server(server: Server, app: App, settings: Settings, stop: asyncio.Event) -> None:
    """Serve until ``stop`` is set, then drain: unready, nothing new announced, live requests up to the drain time."""
    await server.start()
    await app.start()
    background = Background()
    background.start(server.live.run(app.reload))
    listener = server.listener
    try:
        await listener.start(settings.host, settings.port, shared=settings.processes > 1, tls=server.tls)
        if settings.health_port:
            await server.health.start(settings.health_host, settings.health_port, shared=settings.processes > 1)
        facts = {"role": settings.role, "host": settings.host, "port": settings.port, "compiled": COMPILED}
        log.info("listening", extra=facts)
        await stop.wait()
        server.drain.begin()
        if settings.role in FRONT_ROLES:
            await server.drain.wait_quiet(LAME_DUCK_S, most_s=LAME_DUCK_MOST_S)
            listener.stop_accepting()  # sidecars listen to their end: a worker that refuses connections counts as dead
        await server.drain.wait()
        listener.connections.close_after_replies(idle=True)
    finally:
        log.info("stopping", extra={"unfinished": server.inflight})
        if server.inflight:
            await server.drain.terminate()
        await listener.close()
        await server.health.close()
        await background.stop()
        await app.stop()
        await server.close()
