"""Heartbeats of workers are read from Redis; without it there are none, and nobody waits for it."""

import json
from collections.abc import Sequence

from redis.exceptions import ConnectionError as NoConnection

from weft_core.heartbeat import WorkerRecord, worker_key, workers_key
from weft_operator.manifest import ServiceKey
from weft_operator.measuring.heartbeats import Heartbeats

KEY = ServiceKey("team", "demo")


class Stored:
    """As much of Redis as is asked; ``down``: it does not answer."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.down = False
        self.asked = 0

    async def smembers(self, key: str) -> set[bytes]:
        self.asked += 1
        if self.down:
            raise NoConnection("refused")
        assert key == workers_key("team", "demo")
        return {name.rpartition(":")[2].encode() for name in self.values} | {b"demo-p4-9"}

    async def mget(self, keys: Sequence[str]) -> list[bytes | None]:
        return [self.values.get(key) for key in keys]

    async def aclose(self) -> None:
        self.down = True


def reader(stored: Stored) -> Heartbeats:
    found = Heartbeats("redis://127.0.0.1:1/0")
    found._redis = stored  # type: ignore[assignment]
    return found


async def test_living_workers_are_read_and_what_cannot_be_read_is_left_out() -> None:
    stored = Stored()
    record = WorkerRecord("demo-p4-0", "prefill", "http://x", 4, 1, sessions=3, live_rounds=2, kv_tokens=70)
    stored.values = {
        worker_key("team", "demo", "demo-p4-0"): json.dumps(record.fields()).encode(),
        worker_key("team", "demo", "demo-p4-1"): b"not json",
        worker_key("team", "demo", "demo-p4-2"): b'{"role": "other"}',
    }
    assert await reader(stored).read(KEY) == {"demo-p4-0": record}


async def test_a_redis_that_is_down_is_left_in_peace_for_a_while() -> None:
    stored = Stored()
    stored.down = True
    found = reader(stored)
    assert await found.read(KEY) == {}
    stored.down = False
    assert await found.read(KEY) == {}
    assert stored.asked == 1


async def test_no_redis_at_all_means_no_heartbeats() -> None:
    found = Heartbeats("redis://127.0.0.1:1/0")
    assert await found.read(KEY) == {}
    await found.close()
