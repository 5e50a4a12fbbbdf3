"""The watch of one engine: what requests tell about it counts as much as its health endpoint."""

import pytest

from weft_router.engines.watch import REST_S, STRIKES, Engine, version_of
from weft_router.http.pool import ConnectionPool
from weft_router_tests.fake_engine import FakeEngine
from weft_router_tests.stack import free_port

pytestmark = pytest.mark.component


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def healthy(engine: Engine) -> bool:
    return engine.healthy


@pytest.mark.parametrize("replaceable", [True, False])
async def test_failures_in_a_row_count_against_a_green_health_check(replaceable: bool) -> None:
    clock, changes = Clock(), 0

    def changed() -> None:
        nonlocal changes
        changes += 1

    fake = FakeEngine("d0")
    await fake.start(free_port())
    pool = ConnectionPool(connect_s=1.0, keepalive_s=1.0)
    try:
        engine = Engine(pool, fake.url, on_change=changed, may_rest=lambda: replaceable, clock=clock)
        await engine.poll()
        assert healthy(engine)
        for _ in range(2):
            for _ in range(STRIKES - 1):
                engine.failed()
            assert healthy(engine)
            engine.served()
        for _ in range(STRIKES):
            engine.failed()
        assert healthy(engine) is not replaceable
        if replaceable:
            clock.now = REST_S - 0.1
            await engine.poll()
            assert not healthy(engine)
            clock.now = REST_S
            await engine.poll()
            assert healthy(engine)
            engine.failed()
            assert not healthy(engine)
            clock.now = 2 * REST_S
            await engine.poll()
            engine.served()
            engine.failed()
            assert healthy(engine)
            assert changes == 5
    finally:
        await pool.close()
        await fake.stop()


def plugged(engine: Engine) -> bool | None:
    return engine.plugin


async def test_the_plug_in_is_asked_for_once_after_each_start() -> None:
    fake = FakeEngine("d0")
    port = free_port()
    await fake.start(port)
    pool = ConnectionPool(connect_s=1.0, keepalive_s=1.0)
    try:
        plain = Engine(pool, fake.url, on_change=lambda: None)
        await plain.poll()
        assert plugged(plain) is None
        engine = Engine(pool, fake.url, on_change=lambda: None, plugin_page="/weft/plugin")
        await engine.poll()
        assert plugged(engine) is True
        fake.script.plugin = False
        await engine.poll()
        assert plugged(engine) is True
        await fake.stop()
        await engine.poll()
        assert plugged(engine) is None
        await fake.start(port)
        await engine.poll()
        assert plugged(engine) is False
        assert engine.plugin_word == "absent"
    finally:
        await pool.close()
        await fake.stop()


@pytest.mark.parametrize(
    ("page", "version"),
    [
        (b'{"plugin": "1", "vllm": "0.33.0", "handles": false}', "0.33.0"),
        (b'{"detail": "Not Found"}', ""),
        (b'{"vllm": "0.33.0"}', ""),
        (b'{"plugin": "1", "vllm": 3}', ""),
        (b'["plugin"]', ""),
        (b"<html>", ""),
    ],
)
def test_only_a_plug_in_tells_the_version_on_which_it_stays_off(page: bytes, version: str) -> None:
    assert version_of(page) == version
