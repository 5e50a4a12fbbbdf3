"""Put one router process together: choose the role's application, run it on uvloop until SIGTERM."""

import asyncio
import ctypes
import gc
import logging
import signal
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop

from weft_core.keys import derive
from weft_router import process_group
from weft_router.config import ConfigError, Settings
from weft_router.config.gateway import GatewaySettings
from weft_router.context import context_of
from weft_router.openai.digest import use_key
from weft_router.picker.tls_version import limit_tls_version
from weft_router.roles.app import App
from weft_router.roles.coordinator import Coordinator
from weft_router.roles.follower import Follower
from weft_router.roles.lifecycle import run_server as serve
from weft_router.roles.server import Server
from weft_router.roles.sidecar import Sidecar
from weft_router.roles.standalone import Standalone
from weft_router.state.store import MemoryStore, Store

log = logging.getLogger(__name__)

COLLECTING = (5_000, 20, 20)
"""Cycles are rare here. All streams wait while the collector looks for them, so it does that often, at little."""
KEPT_BYTES = 8 * 2**20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
AnySettings = Settings | GatewaySettings


def open_store(settings: Settings) -> Store:
    """Return the shared store the settings name; ``memory://`` serves one process by itself."""
    if settings.redis_url.startswith("memory://"):
        return MemoryStore(alone=True)
    from weft_router.state.redis_store import RedisStore  # 22 MB that a process by itself need not have

    try:
        return RedisStore(
            settings.redis_url, namespace=settings.config.namespace, service=settings.config.service,
            key=derive(settings.token, "state"),
        )  # fmt: skip
    except ValueError as error:  # the URL itself stays unsaid: it may hold a password
        raise ConfigError("WEFT_REDIS_URL: is not a Redis URL; give redis://host:6379/0") from error


def build(settings: Settings, store: Store) -> tuple[Server, App]:
    """Return the server and application of the settings' role."""
    context = context_of(settings)
    app: App
    if settings.role == "coordinator":
        app = Coordinator(settings, store, context)
    elif settings.role == "epp":
        from weft_router.picker.app import EndpointPicker

        app = EndpointPicker(settings, store, context)
    elif settings.node_rank:
        app = Follower(settings)
    elif settings.role == "standalone":
        app = Standalone(settings, store, context)
    else:
        app = Sidecar(settings, store, context)
    return Server(settings, context, app), app


async def _main(settings: AnySettings) -> None:
    store: Store | None = None
    app: App
    if isinstance(settings, GatewaySettings):
        from weft_router.roles.gateway_setup import build_gateway  # which other roles need not load

        server, app = build_gateway(settings)
    else:
        store = open_store(settings)
        server, app = build(settings, store)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        if settings.role == "epp":
            limit_tls_version(settings.config.tls)
            from weft_router.picker.lifecycle import run_picker  # gRPC, which other roles need not load

            await run_picker(server, app, settings, stop)
        else:
            await serve(server, app, settings, stop)
    finally:
        if store is not None:
            await store.close()


def run(settings: AnySettings) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status."""
    if isinstance(settings, Settings):
        # Coordinators find each other's nameless sessions by the same digests, and cached prompts by those of sidecars.
        use_key(derive(settings.token, "transcripts"))
    if settings.processes == 1:
        return _alone(settings)
    with TemporaryDirectory(prefix="weft-router-") as folder:
        return process_group.run(settings.processes, lambda place: _alone(_member(settings, place, Path(folder))))


def _member(settings: AnySettings, place: int, folder: Path) -> AnySettings:
    return replace(settings, instance_id=f"{settings.instance_id}-{place}", place=place, family=folder)


def _keep_memory() -> None:
    """Have glibc keep what is freed: it gives the heap's top back, and each 65 KB body pays for its pages anew."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # other C libraries have no such thing, or no such need
        for what in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            mallopt(what, KEPT_BYTES)


def _alone(settings: AnySettings) -> int:
    _keep_memory()
    try:
        # What is loaded now stays: the collector need not look at it again.
        gc.freeze()
        gc.set_threshold(*COLLECTING)
        uvloop.run(_main(settings))
    except ConfigError as error:
        log.critical("wrong_configuration", extra={"error": str(error)})
        return 2
    except OSError as error:
        log.critical("cannot_run", extra={"error": str(error)})
        return 1
    return 0
