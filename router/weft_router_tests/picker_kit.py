"""Endpoint pickers for tests: in the tests' own loop or as processes, and an Envoy in front of them."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from weft_router_tests.envoy import Envoy, Route
from weft_router_tests.stack import Answer, Stack, free_port

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "hello"}

Behind = Callable[..., Any]
"""Puts an Envoy in front of services."""


@pytest.fixture
async def behind(tmp_path: Path) -> AsyncIterator[Behind]:
    """Give a function that puts an Envoy in front of services."""
    made: list[Envoy] = []

    async def start(*stacks: Stack, by_workers: bool = False, **config: Any) -> Envoy:
        routes = [route_of(stack, by_workers=by_workers or len(stacks) > 1) for stack in stacks]
        for route, weight in zip(routes, config.pop("weights", [1] * len(routes)), strict=True):
            route.weight = weight
        for route, path in zip(routes, config.pop("paths", [""] * len(routes)), strict=True):
            route.path = path
        envoy = Envoy(tmp_path, routes, **config)
        made.append(envoy)
        await envoy.start()
        return envoy

    yield start
    for envoy in made:
        envoy.close()


def shown(answer: Answer, name: str) -> str:
    """Return a header of an answer; Envoy writes their names in lower case."""
    return {key.lower(): value for key, value in answer.headers.items()}[name.lower()]


def address(stack: Stack, worker: str) -> str:
    """Return where a worker's sidecar listens."""
    return urlsplit(stack.processes[worker].url).netloc


def route_of(stack: Stack, *, by_workers: bool = False) -> Route:
    """Return how an Envoy finds the processes of a service."""
    found = stack.processes
    grpc = next((p.settings for name, p in found.items() if name.startswith("e")), None)
    workers = tuple(address(stack, name) for name in found if name.startswith("d"))
    return Route(
        f"s{id(stack)}",
        f"127.0.0.1:{grpc.port if grpc is not None else free_port()}",
        coordinators=tuple(address(stack, name) for name in found if name.startswith("c")),
        workers=workers if by_workers else (),
    )


async def picked(stack: Stack, *, pickers: int = 1, coordinators: int = 0, keys: Path | None = None, **up: int) -> None:
    """Start workers, endpoint pickers and coordinators."""
    await stack.up(coordinators=coordinators, keys=keys, **up)
    for i in range(pickers):
        await stack.router("epp", f"e{i}", keys=keys)
    decode, prefill = up.get("decode", 1), up.get("prefill", 1)
    await stack.settle(decode=decode, prefill=prefill)


async def answers(stack: Stack, port: int) -> bool:
    """Return whether a process is ready."""
    try:
        async with stack.http.get(f"http://127.0.0.1:{port}/readyz") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


def picker_process(
    stack: Stack, port: int, health: int, *more: str, config: Path | None = None
) -> "subprocess.Popen[bytes]":
    """Start an endpoint picker by the command line; its configuration is that of a worker if none is given."""
    config = config or next(stack.folder.glob("decode-d0-*.json"))
    command = [sys.executable, "-m", "weft_router", "--role", "epp", "--config", str(config), "--drain-seconds", "20"]
    command += ["--listen", f"127.0.0.1:{port}", "--health-listen", f"127.0.0.1:{health}", *more]
    env = {**os.environ, "WEFT_TOKEN_FILE": str(stack.folder / "token"), "WEFT_REDIS_URL": stack.redis_url}
    with (stack.folder / "picker.log").open("wb") as log:
        return subprocess.Popen(command, env=env, stdout=log, stderr=log)
