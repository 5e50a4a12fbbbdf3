"""A store that is there and does not answer, or answers one call and not the next: nobody waits, nothing fails."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from weft_core.heartbeat import WorkerRecord
from weft_router.state import heartbeat as beating
from weft_router.state import redis_store
from weft_router.state.heartbeat import Heartbeat
from weft_router.state.redis_store import RedisStore
from weft_router.state.store import StoreDownError
from weft_router_tests.passing_store import PassingStore
from weft_router_tests.stack import STATE_KEY, Stack, is_so, until

pytestmark = pytest.mark.component


class Forgetful(PassingStore):
    """Knows workers and bindings; every other question goes unanswered."""

    async def sessions_of(self, heads: Sequence[str]) -> list[str | None]:
        raise StoreDownError(f"no answer about {len(heads)} heads")

    async def put_head(self, head: str, session: str, *, ttl_s: int) -> None:
        raise StoreDownError(f"no answer about {head}, {session}, {ttl_s}")


async def test_a_store_that_hangs_is_a_store_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_store, "TIMEOUT_S", 0.05)
    over = asyncio.Event()

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    store = RedisStore(f"redis://127.0.0.1:{port}/0", namespace="ns", service="svc", key=STATE_KEY)
    for ask in (store.snapshot(), store.bind("s", "d0", replaces="", ttl_s=1), store.sessions_of(["a"])):
        with pytest.raises(StoreDownError):
            await asyncio.wait_for(ask, 5)
    over.set()
    await store.close()
    server.close()
    await server.wait_closed()


async def test_a_nameless_conversation_is_served_when_nobody_can_say_whose_it_is(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="weft_router")
    stack.store = Forgetful()
    await stack.up()
    said: list[dict[str, Any]] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    answer = await stack.chat([*said, {"role": "user", "content": "c"}])
    assert answer.status == 200
    await until(lambda: is_so("head_not_written" in [record.message for record in caplog.records]))
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_heart_beats_on_without_the_store(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beating, "HEARTBEAT_S", 0.01)
    seen: list[int] = []

    class Flaky(PassingStore):
        async def heartbeat(self, record: WorkerRecord) -> None:
            seen.append(record.seq)
            if len(seen) < 3:
                raise StoreDownError("gone")

    heart = Heartbeat(Flaky(), lambda seq: WorkerRecord("d0", "decode", "http://x", 1, 1000, seq=seq))
    task = asyncio.ensure_future(heart.run())
    await until(lambda: is_so(heart.written))
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert seen[:3] == [1, 2, 3]
    assert not [record for record in caplog.records if record.exc_info]
