"""The sidecar of a node that does not lead: it takes no requests, and holds its engine until the leader's is gone."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from weft_router.config import ConfigError, Flags, load
from weft_router.roles.follower import GONE_AFTER, WAITS, Follower
from weft_router.sessions.session_export import NO_BACKLOG
from weft_router_tests.conftest import RedisServer
from weft_router_tests.stack import TOKEN, free_port, router_json, until
from weft_router_tests.test_process import Processes, ready

NODE = {"WEFT_WORKER": "d-0", "WEFT_DEGREE": "1", "POD_IP": "127.0.0.1", "WEFT_NODE_RANK": "1"}


class Leader:
    """What a follower asks of the leader's sidecar."""

    def __init__(self) -> None:
        self.instance_id = "first"
        self.url = f"http://127.0.0.1:{free_port()}"
        self.asked = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/instance-id", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", int(self.url.rpartition(":")[2])).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, _: web.Request) -> web.Response:
        self.asked += 1
        return web.Response(text=f"{self.instance_id}\n")


def follower_of(leader: Leader, folder: Path) -> Follower:
    (folder / "token").write_text(TOKEN)
    (folder / "router.json").write_bytes(router_bytes())
    flags = Flags("decode", folder / "router.json", "127.0.0.1:0", "http://127.0.0.1:9", None, 5.0)
    env = {**NODE, "WEFT_LEADER_URL": leader.url, "WEFT_TOKEN_FILE": str(folder / "token")}
    settings = load(flags, env)
    assert settings.node_rank == 1
    return Follower(settings)


def router_bytes() -> bytes:
    return json.dumps(router_json()).encode()


@pytest.fixture
async def leader() -> AsyncIterator[Leader]:
    made = Leader()
    await made.start()
    yield made
    await made.stop()


async def test_it_waits_while_the_leader_of_its_life_is_there(leader: Leader, tmp_path: Path) -> None:
    follower = follower_of(leader, tmp_path)
    await follower.start()

    async def asked() -> bool:
        return leader.asked > 0

    await until(asked)
    follower.drain()
    assert await follower.drain_backlog() == WAITS
    leader.instance_id = "second"
    assert await follower.drain_backlog() == NO_BACKLOG, "another life of the leader's is none that this engine knows"
    await follower.stop()


async def test_some_calls_without_an_answer_are_the_leaders_end(leader: Leader, tmp_path: Path) -> None:
    follower = follower_of(leader, tmp_path)
    await follower.start()
    assert await follower.drain_backlog() == WAITS
    await leader.stop()
    for _ in range(GONE_AFTER - 1):
        assert await follower.drain_backlog() == WAITS
    assert await follower.drain_backlog() == NO_BACKLOG
    await follower.stop()


@pytest.mark.parametrize(
    ("env", "field"),
    [
        ({"WEFT_NODE_RANK": "one"}, "WEFT_NODE_RANK"),
        ({"WEFT_LEADER_URL": ""}, "WEFT_LEADER_URL"),
        ({"WEFT_LEADER_URL": "demo-d16-0-0"}, "WEFT_LEADER_URL"),
    ],
)
def test_a_node_that_cannot_find_its_leader_says_what_to_set(env: dict[str, str], field: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "router.json").write_bytes(router_bytes())
    flags = Flags("decode", tmp_path / "router.json", "127.0.0.1:0", "http://127.0.0.1:9", None, 5.0)
    with pytest.raises(ConfigError, match=field):
        load(flags, {**NODE, "WEFT_TOKEN_FILE": str(tmp_path / "token"), **env})


@pytest.mark.component
async def test_as_a_process_it_is_ready_and_takes_no_requests(tmp_path: Path, redis_server: RedisServer) -> None:
    processes = Processes(tmp_path, redis_server.url)
    processes.env |= {"WEFT_NODE_RANK": "1", "WEFT_LEADER_URL": f"http://127.0.0.1:{free_port()}"}
    try:
        _, url = processes.start("decode", engine="http://127.0.0.1:9", name="d-0")
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
            await until(lambda: ready(http, url), seconds=60)
            for path, status in (
                ("/engine/livez", 200),
                ("/engine/metrics", 200),
                ("/healthz", 200),
                ("/instance-id", 200),
                ("/v1/models", 404),
            ):
                async with http.get(url + path) as reply:
                    assert reply.status == status, path
    finally:
        processes.stop()
