"""A client ends its session: binding, memory and KV go, for the tenant's own session alone, however often it asks."""

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from yarl import URL

from weft_router.state.bindings import Bindings
from weft_router.state.store import MemoryStore
from weft_router_tests.conftest import RedisServer
from weft_router_tests.stack import Stack, is_so, until

pytestmark = pytest.mark.component

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]


async def end(stack: Stack, session: str, *, key: str = "", front: str = "", method: str = "DELETE") -> tuple[int, str]:
    """Ask for a session's end by its name as it stands in the path; return the status and the error's message."""
    url = URL(f"{front or stack.front}/v1/sessions/{session}", encoded=True)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with stack.http.request(method, url, headers=headers) as response:
        raw = await response.read()
        if response.status == 204:
            assert raw == b""
            assert not {"Content-Length", "Transfer-Encoding", "Content-Type"} & set(response.headers)
            return 204, ""
        return response.status, (await response.json())["error"]["message"]


async def sessions(stack: Stack, worker: str = "d0") -> int:
    return len(stack.decoding(worker).sessions)


async def test_an_ended_session_leaves_nothing_behind(stack: Stack, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alpha tenant=a\nbeta tenant=b\n")
    await stack.up(keys=keys)
    engine = stack.engines["d0"]
    own = {"Authorization": "Bearer alpha"}
    first = await stack.chat(HELLO, session="s", headers=own)
    assert first.status == 200
    await until(lambda: is_so(len(engine.held) == 1))
    assert await end(stack, "s", key="beta") == (204, "")
    assert await end(stack, "other", key="alpha") == (204, "")
    assert await sessions(stack) == 1, "it is another tenant's, or another session"
    assert await end(stack, "s", key="alpha") == (204, "")
    assert await sessions(stack) == 0
    assert await stack.store.unbind(_bound(stack)) is None
    await until(lambda: is_so(not engine.held))
    assert await stack.count("weft_router_kv_handles_total", "d0", outcome="closed") == 1
    assert await end(stack, "s", key="alpha") == (204, "")
    assert await stack.count("weft_router_kv_handles_total", "d0", outcome="closed") == 1
    follow = [*HELLO, {"role": "assistant", "content": first.text}, {"role": "user", "content": "more"}]
    again = await stack.chat(follow, session="s", headers=own)
    assert again.status == 200
    assert stack.engines["p0"].seen[-1]["kv_transfer_params"]["remote_engine_id"] is None, "its history was let go"


def _bound(stack: Stack) -> str:
    """Return the key of the one session that was served."""
    app: Any = stack.processes["c0"].app
    assert len(app._front._bindings) == 0
    return next((str(key) for key in getattr(stack.store, "_bindings", ())), "none")


async def test_a_session_is_named_as_its_client_named_it(stack: Stack) -> None:
    await stack.up()
    name = "a/b é?"
    assert (await stack.chat(HELLO, session_id=name)).status == 200
    assert (await stack.chat(HELLO, session="by-header")).status == 200
    assert await sessions(stack) == 2
    assert await end(stack, quote(name, safe="")) == (204, "")
    assert await sessions(stack) == 1
    assert await end(stack, "by-header") == (204, "")
    assert await sessions(stack) == 0


async def test_what_is_no_session_is_refused(stack: Stack, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alpha\nslow rps=0.001\n")
    await stack.up(keys=keys)
    assert (await end(stack, "s"))[0] == 401
    status, message = await end(stack, "", key="alpha")
    assert (status, "name the session" in message) == (400, True)
    for name in ("x" * 257, "a%0Ab"):
        assert (await end(stack, name, key="alpha"))[0] == 400
    assert (await end(stack, "a/b", key="alpha"))[0] == 404
    status, message = await end(stack, "s", key="alpha", method="GET")
    assert (status, "use DELETE" in message) == (405, True)
    assert await end(stack, "s", key="slow") == (204, "")
    assert (await end(stack, "s", key="slow"))[0] == 429


async def test_ending_a_session_takes_no_tokens(stack: Stack, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alpha tpm=1\n")
    await stack.up(keys=keys)
    for _ in range(5):
        assert await end(stack, "s", key="alpha") == (204, "")


async def test_any_coordinator_ends_a_session(sidecars: Stack) -> None:
    await sidecars.up(decode=2, coordinators=2)
    other = sidecars.processes["c1"].url
    worker = (await sidecars.chat(HELLO, session="s")).headers["X-Weft-Worker"]
    assert await sessions(sidecars, worker) == 1
    assert await end(sidecars, "s", front=other) == (204, "")
    assert await sessions(sidecars, worker) == 0


async def test_a_session_whose_worker_died_is_ended_all_the_same(sidecars: Stack) -> None:
    await sidecars.up(decode=2)
    worker = (await sidecars.chat(HELLO, session="s")).headers["X-Weft-Worker"]
    await sidecars.kill(worker)
    assert await end(sidecars, "s") == (204, "")
    app: Any = sidecars.processes["c0"].app
    assert len(app._front._bindings) == 0


async def test_only_the_routers_own_hops_have_a_worker_forget(sidecars: Stack) -> None:
    await sidecars.up()
    await sidecars.chat(HELLO, session="s")
    async with sidecars.http.post(sidecars.processes["d0"].url + "/internal/forget") as response:
        assert response.status == 401
    assert await sessions(sidecars) == 1


async def test_redis_forgets_an_ended_session_and_a_client_hears_when_it_could_not(
    redis_stack: Stack, redis_server: RedisServer
) -> None:
    await redis_stack.up(coordinators=2)
    other = redis_stack.processes["c1"].url
    for name in ("s", "t"):
        assert (await redis_stack.chat(HELLO, session=name)).status == 200
    assert await end(redis_stack, "s", front=other) == (204, "")
    assert await sessions(redis_stack) == 1
    redis_server.stop()
    status, message = await end(redis_stack, "t")
    assert (status, "try again" in message) == (503, True)
    assert await sessions(redis_stack) == 0, "the worker is known here, so it was told"


async def test_a_binding_on_its_way_to_the_store_does_not_bring_an_ended_session_back() -> None:
    now, store = [0.0], MemoryStore()
    bindings = Bindings(store, ttl_s=100, store_up=lambda: True, clock=lambda: now[0])
    assert await bindings.resolve("s", usable=lambda _: True, choose=lambda: "d0") == "d0"
    now[0] = 50.0
    assert bindings.bound("s") == "d0"  # a use after so long is published, by a task of its own
    assert bindings.forget("s") == "d0"
    assert await bindings.unbind("s") == "d0"
    await asyncio.sleep(0)
    assert await bindings.unbind("s") is None
    assert bindings.forget("s") is None
