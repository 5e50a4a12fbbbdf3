"""An API server that has DisaggInferenceServices and nothing else: lists in pages, watches, and ends both on demand."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from weft_core.authority import http_url
from weft_router.config.gateway import ApiAccess
from weft_router_tests.stack import free_port

Manifest = dict[str, Any]


def service(name: str, namespace: str = "team-a", *, created: str = "2026-01-01T00:00:00Z", **model: Any) -> Manifest:
    """Return the object of a service."""
    return {
        "metadata": {"name": name, "namespace": namespace, "creationTimestamp": created},
        "spec": {"model": {"name": f"model-of-{name}", "maxModelLen": 4096, **model}},
    }


@dataclass
class KubeServices:
    """The server; ``put`` and ``drop`` change what it has."""

    folder: Path
    port: int = field(default_factory=free_port)
    objects: dict[tuple[str, str], Manifest] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str], str]] = field(default_factory=list)
    """Path, query and Authorization header of every request."""
    status: int = 200
    """What it answers; another status than 200 refuses everything."""
    version: int = 1
    oldest: int = 0
    """Versions before this one are forgotten."""
    page: int = 2
    """The most objects of a page, whatever is asked for."""
    _events: list[tuple[int, Manifest]] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _watches: set[asyncio.Task[Any]] = field(default_factory=set)
    _runner: web.AppRunner | None = None

    def access(self) -> ApiAccess:
        """Return how to ask it."""
        self.folder.mkdir(exist_ok=True)
        token = self.folder / "token"
        if not token.exists():
            token.write_text("token-1\n")
        return ApiAccess(http_url("127.0.0.1", self.port), token, self.folder / "ca.crt")

    def put(self, manifest: Manifest) -> None:
        """Create or change a service."""
        key = (manifest["metadata"]["namespace"], manifest["metadata"]["name"])
        self._tell("MODIFIED" if key in self.objects else "ADDED", manifest)
        self.objects[key] = manifest

    def drop(self, name: str, namespace: str = "team-a") -> None:
        """Delete a service."""
        self._tell("DELETED", self.objects.pop((namespace, name)))

    def tell(self, event: Manifest) -> None:
        """Send any event to all watches."""
        self.version += 1
        self._events.append((self.version, event))
        self._changed.set()
        self._changed = asyncio.Event()

    def forget(self) -> None:
        """Compact: a watch from an earlier version is refused."""
        self.oldest = self.version

    def hang_up(self) -> None:
        """End all watches at once, as a network does."""
        for task in list(self._watches):
            task.cancel()

    async def start(self) -> None:
        """Listen."""
        app = web.Application()
        app.add_routes([web.get("/{rest:.*}", self._serve)])
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def stop(self) -> None:
        """Be away."""
        self.hang_up()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def _tell(self, kind: str, manifest: Manifest) -> None:
        versioned = {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": str(self.version + 1)}}
        self.tell({"type": kind, "object": versioned})

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.path, dict(request.query), request.headers.get("Authorization", "")))
        if self.status != 200:
            return web.json_response({"kind": "Status", "message": "not allowed"}, status=self.status)
        if "watch" in request.query:
            return await self._watch(request)
        found = [manifest for key, manifest in sorted(self.objects.items()) if _inside(request.path, key[0])]
        start = int(request.query.get("continue", "0"))
        end = start + min(self.page, int(request.query["limit"]))
        metadata = {"resourceVersion": str(self.version), "continue": str(end) if end < len(found) else ""}
        return web.json_response({"metadata": metadata, "items": found[start:end]})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        since = int(request.query["resourceVersion"])
        if since < self.oldest:
            return web.json_response({"kind": "Status", "code": 410, "message": "too old"}, status=410)
        response = web.StreamResponse()
        response.content_type = "application/json"
        await response.prepare(request)
        task = asyncio.current_task()
        assert task is not None
        self._watches.add(task)
        try:
            while True:
                changed = self._changed
                for version, event in self._events:
                    namespace = event["object"].get("metadata", {}).get("namespace", "")
                    if version > since and (not namespace or _inside(request.path, namespace)):
                        since = version
                        await response.write(json.dumps(event).encode() + b"\n")
                await changed.wait()
        finally:
            self._watches.discard(task)


def _inside(path: str, namespace: str) -> bool:
    return "/namespaces/" not in path or f"/namespaces/{namespace}/" in path


@asynccontextmanager
async def kube_services(folder: Path, *services: Manifest) -> AsyncIterator[KubeServices]:
    """Run an API server that has some services."""
    made = KubeServices(folder)
    for one in services:
        made.put(one)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
