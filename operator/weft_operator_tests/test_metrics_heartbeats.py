"""Heartbeats of workers are read from Redis; without it there are none, and nobody waits for it."""

import time
from dataclasses import replace

from redis.exceptions import ConnectionError as NoConnection

from weft_core.heartbeat import WorkerRecord, worker_key, workers_key
from weft_core.records import seal_record
from weft_operator.api.objects import ServiceKey
from weft_operator.metrics.heartbeats import HeartbeatReader
from weft_operator_tests.service_keys import state_key, state_keys

KEY = ServiceKey("team", "demo")


class Stored:
    """As much of Redis as is asked; ``down``: it does not answer."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.down = False
        self.asked = 0

    async def eval(self, _: str, __: int, names: str, begin: str) -> list[object]:
        self.asked += 1
        if self.down:
            raise NoConnection("refused")
        assert (names, begin) == (workers_key("team", "demo"), worker_key("team", "demo", ""))
        found: list[object] = [b"set", b"demo-p4-9", None]
        for key, value in self.values.items():
            found += [key.removeprefix(begin).encode(), value]
        return found

    async def aclose(self) -> None:
        self.down = True


def sealed(record: WorkerRecord, service: str) -> bytes:
    name = worker_key("team", "demo", record.worker)
    return seal_record(record, key=state_key(ServiceKey("team", service)), name=name, now=time.time())


def reader(stored: Stored) -> HeartbeatReader:
    found = HeartbeatReader("redis://127.0.0.1:1/0", keys=state_keys())
    found._redis = stored  # type: ignore[assignment]
    return found


async def test_living_workers_are_read_and_what_cannot_be_read_is_left_out() -> None:
    stored = Stored()
    record = WorkerRecord("demo-p4-0", "prefill", "http://x", 4, 1, sessions=3, live_rounds=2, kv_tokens=70)
    stored.values = {
        worker_key("team", "demo", "demo-p4-0"): sealed(record, "demo"),
        worker_key("team", "demo", "demo-p4-1"): b"not json",
        worker_key("team", "demo", "demo-p4-2"): sealed(record, "demo"),  # another worker's
        worker_key("team", "demo", "demo-p4-3"): sealed(replace(record, worker="demo-p4-3"), "other"),
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
    found = HeartbeatReader("redis://127.0.0.1:1/0", keys=state_keys())
    assert await found.read(KEY) == {}
    await found.close()
