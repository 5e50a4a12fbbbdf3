"""Serve a picker, and stop in good order: unready first, live requests finished, the rest ended with an error."""

import asyncio
import logging
from typing import Any

from weft_router.background import Background
from weft_router.config import ConfigError, Settings
from weft_router.context import COMPILED
from weft_router.picker.app import EndpointPicker
from weft_router.picker.service import PickerService, open_server
from weft_router.roles.app import App
from weft_router.roles.lifecycle import LAME_DUCK_MOST_S, LAME_DUCK_S
from weft_router.roles.server import Server

log = logging.getLogger(__name__)


async def run_picker(server: Server, app: App, settings: Settings, stop: asyncio.Event) -> None:
    """Serve until ``stop`` is set, then drain.

    Raises:
        ConfigError: the application is no picker's.
        OSError: a port is taken.
    """
    if not isinstance(app, EndpointPicker):
        raise ConfigError("--role epp: this process has another role")

    def ready() -> str | None:
        return "draining" if server.drain.draining else app.ready()

    await server.start()
    await app.start()
    background = Background()
    if server.live is not None:
        background.start(server.live.run(app.reload))
    grpc = open_server(PickerService(server, app.requests, ready=ready), settings)
    try:
        await grpc.start()
        await server.health.start(settings.health_host, settings.health_port, shared=settings.processes > 1)
        facts = {"role": settings.role, "host": settings.host, "port": settings.port, "compiled": COMPILED}
        log.info("listening", extra=facts)
        await stop.wait()
        server.drain.begin()
        await server.drain.wait_quiet(LAME_DUCK_S, most_s=LAME_DUCK_MOST_S)
        background.start(_refuse_new(grpc, settings.drain_s))
        await server.drain.wait()
    finally:
        log.info("stopping", extra={"unfinished": server.inflight})
        if server.inflight:
            await server.drain.terminate()
        await grpc.stop(None)
        await server.health.close()
        await background.stop()
        await app.stop()
        await server.close()


async def _refuse_new(grpc: Any, grace_s: float) -> None:
    """Have proxies open no new streams here; those that are open go on."""
    await grpc.stop(grace_s)
