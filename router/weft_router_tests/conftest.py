"""Fixtures: a stack without Redis, a real Redis server, and a stack on it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from weft_router_tests.picker_kit import behind as behind
from weft_router_tests.redis_server import RedisServer as RedisServer
from weft_router_tests.redis_server import redis_server as redis_server
from weft_router_tests.stack import Stack


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


@pytest.fixture
async def redis_stack(tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[Stack]:
    made = Stack(tmp_path, redis_url=redis_server.url)
    yield made
    await asyncio.wait_for(made.close(), 15)
