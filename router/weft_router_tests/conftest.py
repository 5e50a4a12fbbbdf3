"""Fixtures: a stack without Redis, a real Redis server, and a stack on it."""

import asyncio
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from weft_router_tests.stack import Stack, free_port


@pytest.fixture(params=["sidecars", "standalone"])
async def stack(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    """Give a service in both compositions."""
    made = Stack(tmp_path, request.param)
    yield made
    await asyncio.wait_for(made.close(), 15)


@pytest.fixture
async def sidecars(tmp_path: Path) -> AsyncIterator[Stack]:
    """Give a service of a coordinator and sidecars, for what only processes of their own can do."""
    made = Stack(tmp_path)
    yield made
    await asyncio.wait_for(made.close(), 15)


@dataclass
class RedisServer:
    """A redis-server process on a port of its own, which a test may stop and start again empty."""

    port: int
    folder: Path
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir"]
        self.process = subprocess.Popen(
            [*command, str(self.folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 10
        with redis.Redis(port=self.port, socket_timeout=1) as client:
            while time.monotonic() < deadline:
                try:
                    if client.ping():
                        return
                except redis.RedisError:
                    time.sleep(0.02)
        raise AssertionError("redis-server did not start")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(timeout=10)
            self.process = None


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    server = RedisServer(free_port(), tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def redis_stack(tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[Stack]:
    made = Stack(tmp_path, redis_url=redis_server.url)
    yield made
    await asyncio.wait_for(made.close(), 15)
