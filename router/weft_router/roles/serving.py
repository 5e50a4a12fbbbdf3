"""Listen, serve, and stop in good order: unready first, live requests finished, the rest ended with a word."""

import asyncio
import logging

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from weft_router.background import Background
from weft_router.config import Settings
from weft_router.roles.server import Duty, Server

log = logging.getLogger(__name__)

LAME_DUCK_S = 3.0
"""How long a coordinator that must go takes new connections: kube-proxy learns of its unreadiness within about 1 s."""


async def run(server: Server, duty: Duty, settings: Settings, stop: asyncio.Event) -> None:
    """Serve until ``stop`` is set, then drain: unready, nothing new announced, live requests up to the drain time."""
    runner = web.AppRunner(
        server.app,
        logger=_quiet_logger(),
        access_log=None,
        handler_cancellation=True,
        keepalive_timeout=75.0,
        shutdown_timeout=1.0,
        auto_decompress=False,
        max_line_size=8190,
        max_field_size=8190,
    )
    background = Background()
    await runner.setup()
    await duty.start()
    try:
        site = web.TCPSite(runner, settings.host, settings.port, backlog=1024, reuse_address=True)
        await site.start()
        log.info("listening", extra={"role": settings.role, "host": settings.host, "port": settings.port})
        if runner.server is not None:
            background.start(server.connections.watch(runner.server))
        await stop.wait()
        server.begin_drain()
        if settings.role == "coordinator":
            await asyncio.sleep(min(LAME_DUCK_S, settings.drain_s))
            await site.stop()  # sidecars listen to their end: a worker that refuses connections counts as dead
        await server.drained()
        if runner.server is not None:
            server.connections.close_idle(runner.server)
    finally:
        log.info("stopping", extra={"unfinished": server.inflight})
        await background.stop()
        if server.inflight:
            await server.last_words()
        await runner.cleanup()
        await duty.stop()


def _quiet_logger() -> logging.Logger:
    """Return a logger for aiohttp that names broken HTTP but does not quote it: headers hold keys."""
    quiet = logging.getLogger(__name__ + ".http")
    if not quiet.filters:
        quiet.addFilter(_without_quotes)
    return quiet


def _without_quotes(record: logging.LogRecord) -> bool:
    if record.exc_info and isinstance(record.exc_info[1], HttpProcessingError):
        record.msg, record.args, record.exc_info = "bad_http", (), None
        record.levelno, record.levelname = logging.INFO, "INFO"
    return True
