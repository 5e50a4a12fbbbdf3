"""Run one engine as a process: its HTTP port, its side channel, signals, and an orderly end."""

import asyncio
import contextlib
import gc
import logging
import signal

from aiohttp import web

from weft_core.authority import listen_host
from weft_core.parallelism import degree_to_json
from weft_mock.api import api_app
from weft_mock.config import EngineConfig
from weft_mock.engine import Engine
from weft_mock.faults import Faults
from weft_mock.holder import side_channel_app
from weft_mock.nodes import Leader, Nodes, follow

log = logging.getLogger(__name__)

ALONE = Nodes()


class EngineServer:
    """An engine with both of its ports open; port 0 picks a free one, which matters to tests."""

    def __init__(self, engine: Engine) -> None:
        """Serve this engine once started."""
        self.engine = engine
        self._api = web.AppRunner(
            api_app(engine), handler_cancellation=True, access_log=None, shutdown_timeout=1.0, keepalive_timeout=75.0
        )
        # A reader leaves a meeting by closing its connection: that must reach the handler.
        self._side = web.AppRunner(
            side_channel_app(engine), handler_cancellation=True, access_log=None, shutdown_timeout=1.0
        )

    async def start(self) -> tuple[int, int]:
        """Open both ports, start the engine, and return the ports."""
        config = self.engine.config
        await self.engine.start()
        for runner, host, port in (
            (self._api, config.host, config.port),
            (self._side, config.side_channel_host, config.side_channel_port),
        ):
            await runner.setup()
            await web.TCPSite(runner, listen_host(host), port, backlog=1024).start()
        self.engine.side_channel_port = self._side.addresses[0][1]
        self.engine.api_port = self._api.addresses[0][1]
        return self.engine.api_port, self.engine.side_channel_port

    async def stop(self) -> None:
        """Fail what still runs and close everything."""
        await self.engine.stop()
        await self._api.cleanup()
        await self._side.cleanup()


async def serve(config: EngineConfig, *, drain_seconds: float, faults: Faults, nodes: Nodes = ALONE) -> int:
    """Serve until SIGTERM or SIGINT, then finish what is live within ``drain_seconds``; return the exit status.

    Live are requests, and a prefill's blocks that no decode engine has read yet. Of several nodes the first one serves,
    from when all have joined to when one is lost.
    """
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    if nodes.rank:
        return await follow(nodes, asked)
    if nodes.count == 1:
        return await _serve(config, asked, drain_seconds=drain_seconds, faults=faults)
    leader = Leader(nodes.count)
    await leader.start(*nodes.listen)
    joined = asyncio.create_task(leader.whole.wait())
    stopped = asyncio.create_task(asked.wait())
    try:
        await asyncio.wait({joined, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not joined.done():
            return 0
        return await _serve(config, asked, drain_seconds=drain_seconds, faults=faults, lost=leader.lost)
    finally:
        joined.cancel()
        stopped.cancel()
        await leader.stop()


async def _serve(
    config: EngineConfig,
    asked: asyncio.Event,
    *,
    drain_seconds: float,
    faults: Faults,
    lost: asyncio.Future[int] | None = None,
) -> int:
    engine = Engine(config)
    if faults != Faults():
        engine.set_faults(faults)
    server = EngineServer(engine)
    port, side_port = await server.start()
    # What exists now lives as long as the process: keep collections from walking it in the middle of a stream.
    gc.collect()
    gc.freeze()
    log.info(
        "engine_started",
        extra={
            "engine_id": config.engine_id,
            "protocol": config.protocol,
            "role": config.role,
            "degree": degree_to_json(config.degree),
            "port": port,
            "side_channel_port": side_port,
            "kv_tokens": config.capacity_tokens,
            "time_scale": config.time_scale,
        },
    )
    stopping = asyncio.create_task(asked.wait())
    loop = asyncio.get_running_loop()
    failed = engine.failed if engine.failed is not None else loop.create_future()
    torn = lost if lost is not None else loop.create_future()
    await asyncio.wait({stopping, failed, torn}, return_when=asyncio.FIRST_COMPLETED)
    status = 0
    if torn.done():
        log.error("node_lost", extra={"rank": torn.result()})
        stopping.cancel()
        status = 1
    elif failed.done():
        log.error("engine_failed", exc_info=failed.exception())
        stopping.cancel()
        status = 1
    else:
        log.info("engine_draining", extra={"seconds": drain_seconds})
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(engine.idle(), drain_seconds)
    await server.stop()
    log.info("engine_stopped", extra={"status": status})
    return status
