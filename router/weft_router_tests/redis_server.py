"""A real Redis server for tests of whoever speaks to one; conftest files take the fixture from here."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import redis
from weft_core.authority import authority


@dataclass
class RedisServer:
    """A redis-server process on a port of its own, which a test may stop and start again empty."""

    port: int
    folder: Path
    host: str = "127.0.0.1"
    options: tuple[str, ...] = ()
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"redis://{authority(self.host, self.port)}/0"

    def start(self) -> None:
        command = ["redis-server", "--port", str(self.port), "--bind", self.host, "--save", "", "--dir"]
        self.process = subprocess.Popen(
            [*command, str(self.folder), *self.options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 10
        with redis.Redis(self.host, self.port, socket_timeout=1) as client:
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
    """Give a server of the test's own."""
    from weft_router_tests.stack import free_port  # the whole router, which not all who take this fixture need

    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    server = RedisServer(free_port(), tmp_path)
    server.start()
    yield server
    server.stop()
