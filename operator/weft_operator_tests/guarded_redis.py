"""A real Redis server that asks for a password, as the chart's does, for tests of its users."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from redis import Redis, RedisError
from weft_router_tests.stack import free_port

PASSWORD = "canary-of-the-operator"


@dataclass
class GuardedRedis:
    """A server with the users of the chart's; ``url`` is the operator's."""

    port: int
    folder: Path
    more: tuple[str, ...] = ()
    """Further arguments of redis-server."""
    process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    @property
    def url(self) -> str:
        return f"redis://operator:{PASSWORD}@127.0.0.1:{self.port}/0"

    @property
    def plain_url(self) -> str:
        """Return the URL without a user."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self, *, file: bool = True) -> None:
        """Start it with the users of its file, written as the init container of Redis does."""
        users = self.folder / "users.acl"
        (self.folder / "password").write_text(PASSWORD)
        words = [f"--password-file={self.folder / 'password'}", f"--file={users}"]
        subprocess.run([sys.executable, "-m", "weft_operator.commands.redis_acl_file", *words], check=True, timeout=60)
        if not file:
            users = self.folder / "other.acl"
            users.write_text((self.folder / "users.acl").read_text().partition("user weft.")[0])
        place = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", ""]
        with (self.folder / "redis.log").open("ab") as log:
            self.process = subprocess.Popen(
                ["redis-server", *place, "--aclfile", str(users), *self.more], stdout=log, stderr=log
            )
        deadline = time.monotonic() + 30
        with self.admin() as client:
            while time.monotonic() < deadline:
                try:
                    if client.ping():
                        return
                except RedisError:
                    time.sleep(0.02)
        raise AssertionError((self.folder / "redis.log").read_text())

    def stop(self) -> None:
        """End it at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(timeout=10)
            self.process = None

    def admin(self) -> "closing[Redis]":
        """Return a client with all rights."""
        return closing(Redis.from_url(self.url, decode_responses=True))

    def users(self) -> set[str]:
        """Return the names of the users of services."""
        with self.admin() as client:
            names = [str(name) for name in client.acl_users()]
            return {name for name in names if name.startswith("weft.")}


@pytest.fixture
def guarded_redis(tmp_path: Path) -> Iterator[GuardedRedis]:
    """Give such a server of the test's own."""
    server = GuardedRedis(free_port(), tmp_path)
    server.start()
    yield server
    server.stop()
