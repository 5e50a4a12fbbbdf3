"""A gateway in the tests' own loop, before services that are stacks, or before a server that says what it was sent."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from weft_core.authority import http_url
from weft_router.config import Flags
from weft_router.config.gateway import ApiAccess, KubernetesConfig, load_gateway
from weft_router.gateway.kube_api import KubeApi
from weft_router.gateway.service_source import ServiceSource
from weft_router.gateway.service_watch import ServiceWatch
from weft_router.roles.gateway import Gateway
from weft_router.roles.gateway_setup import build_gateway
from weft_router.roles.lifecycle import run_server
from weft_router_tests.stack import MODEL, Answer, free_port, until

TIMEOUT = aiohttp.ClientTimeout(total=15)


def listed(
    url: str, *, name: str = "llama", namespace: str = "team-a", model: str = MODEL, **more: Any
) -> dict[str, Any]:
    """Return a service as a gateway's file lists it."""
    names = {key: more.pop(key) for key in ("aliases", "adapters") if key in more}
    return {
        "name": name, "namespace": namespace, "url": url, "model": {"name": model, "maxModelLen": 4096, **names}, **more
    }  # fmt: skip


@dataclass
class RunningGateway:
    """A gateway that serves."""

    url: str
    app: Gateway
    services_file: Path
    http: aiohttp.ClientSession

    def serve(self, *services: Mapping[str, Any]) -> None:
        """Write the list of services."""
        self.services_file.write_text(json.dumps({"services": list(services)}))

    async def knows(self, count: int) -> None:
        """Wait until the gateway knows so many services."""

        async def seen() -> bool:
            return len(self.app.table.services) == count

        await until(seen)

    async def send(
        self, path: str = "/v1/chat/completions", body: Any = None, *, method: str = "POST",
        headers: Mapping[str, str] | None = None, model: str = MODEL, **fields: Any,
    ) -> Answer:  # fmt: skip
        """Send a request; without a body a chat completion of the model."""
        if body is None and method == "POST":
            body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, **fields}
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        async with self.http.request(method, self.url + path, data=data, headers=headers) as response:
            return Answer(response.status, dict(response.headers), await response.read())

    async def count(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of one name that have these labels."""
        async with self.http.get(self.url + "/metrics") as response:
            lines = (await response.text()).splitlines()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        found = [line.rsplit(" ", 1) for line in lines if line.partition("{")[0].partition(" ")[0] == name]
        return sum(float(value) for key, value in found if all(part in key for part in wanted))


def _files(folder: Path, services: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> tuple[Path, Path]:
    """Write a gateway's file and its list of services; return where they are."""
    folder.mkdir(exist_ok=True)
    path, listing = folder / "gateway.json", folder / "services.json"
    path.write_text(json.dumps({"servicesFile": str(listing), "timeouts": {"connect": 1.0, "body": 2.0}, **config}))
    listing.write_text(json.dumps({"services": list(services)}))
    return path, listing


@asynccontextmanager
async def gateway(
    folder: Path, *services: Mapping[str, Any], source: ServiceSource | None = None, **config: Any
) -> AsyncIterator[RunningGateway]:
    """Run a gateway before services that its file lists, or that a source knows."""
    path, listing = _files(folder, services, config)
    port = free_port()
    flags = Flags(
        role="gateway", config=path, listen=f"127.0.0.1:{port}", engine_url="", advertise=None, drain_seconds=5.0
    )
    settings = load_gateway(flags, {})
    server, app = build_gateway(settings, source=source)
    task = asyncio.get_running_loop().create_task(run_server(server, app, settings, asyncio.Event()))
    async with aiohttp.ClientSession(timeout=TIMEOUT) as http:
        running = RunningGateway(http_url("127.0.0.1", port), app, listing, http)

        async def up() -> bool:
            assert not task.done(), task.exception()
            try:
                async with http.get(running.url + "/healthz") as response:
                    return response.status == 200
            except aiohttp.ClientError:
                return False

        try:
            await until(up)
            yield running
        finally:
            task.cancel()
            await asyncio.wait([task], timeout=10)


@dataclass
class Recorder:
    """Stands for the coordinators of a service: records its requests, and gives the answers that a test sets."""

    url: str = ""
    seen: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    """Method, path with query, headers by lower-case names, body."""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b'{"ok":true}'

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a request."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.seen.append((request.method, request.path_qs, headers, await request.read()))
        return web.Response(
            status=self.status, body=b"" if self.status == 204 else self.body, headers=self.headers,
            content_type=None if self.status == 204 else "application/json",
        )  # fmt: skip


@asynccontextmanager
async def recorder(*, tls: ssl.SSLContext | None = None) -> AsyncIterator[Recorder]:
    """Run a recorder, with TLS as localhost."""
    made = Recorder()
    app = web.Application(client_max_size=2**27)
    app.add_routes([web.route("*", "/{rest:.*}", made.answer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
    made.url = http_url("127.0.0.1", port) if tls is None else f"https://localhost:{port}"
    try:
        yield made
    finally:
        await runner.cleanup()


@asynccontextmanager
async def watching(access: ApiAccess, **config: Any) -> AsyncIterator[ServiceWatch]:
    """Run a gateway's watch on an API server."""
    made = ServiceWatch(KubernetesConfig.model_validate(config), KubeApi(access))
    tasks = [asyncio.get_running_loop().create_task(work) for work in made.work()]
    try:
        yield made
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await made.close()
