"""A real vLLM engine's KV events: the index has the blocks of each prompt, by its token ids, and drops what is gone."""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from weft_core.kv_block_keys import START, block_keys, id_bytes, prompt_extras
from weft_core.kv_index import BlockIndex, CachedPrefix
from weft_e2e.engines.command import HOST, command, tiny_service
from weft_e2e.engines.environment import environment
from weft_e2e.engines.process import EngineProcess, running
from weft_e2e.local.ports import free_ports
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.render.engines.kv_events import KV_EVENTS_PORT
from weft_router.kv_events.rank_cache import RankCache
from weft_router.kv_events.subscriber import KvEventSubscriber
from weft_router.telemetry.metrics import Metrics
from weft_router_tests.stack import until

pytestmark = [
    pytest.mark.component,
    pytest.mark.engine,
    pytest.mark.skipif(not os.environ.get("WEFT_E2E_ENGINE"), reason="real engines: make e2e-engine"),
]

MODEL = "weft/tiny"
WORDS = "Weaving begins with the warp, the set of threads that are held in tension on the loom. "


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """Run an engine with the operator's own flags for events."""
    folder = tmp_path_factory.mktemp("events")
    body: dict[str, Any] = tiny_service()["spec"]
    body["engine"] |= {"kvEvents": "Enabled"}
    port, side_port = free_ports(2)
    started = command(
        DisaggInferenceServiceSpec.model_validate(body), environment(), "decode", port=port, side_port=side_port,
        core=0, home=folder, paired=False,
    )  # fmt: skip
    found = EngineProcess("events", f"http://{HOST}:{port}", started, folder / "events.log")
    with running(found):
        yield found


class Reader:
    """A subscriber, and what it says of prompts."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.cache = RankCache(BlockIndex())
        self.subscriber = KvEventSubscriber([self.cache], port=KV_EVENTS_PORT, metrics=self.metrics)

    def keys(self, ids: list[int], salt: str | None = None) -> list[int]:
        return block_keys(START, id_bytes(ids), self.cache.block_tokens, prompt_extras(None, salt))

    async def keeps(self, ids: list[int], salt: str | None = None) -> int:
        """Wait until all whole blocks of a prompt are kept, and return how many they are."""

        async def found() -> bool:
            if not self.cache.block_tokens:
                return False
            keys = self.keys(ids, salt)
            return self.cache.index.prefix(keys) == CachedPrefix(len(keys), len(keys))

        await until(found)
        return len(self.keys(ids, salt))


async def ids_of(engine: EngineProcess, prompt: str, **fields: object) -> list[int]:
    """Let the engine complete a prompt; return the token ids of both."""
    body = {
        "model": MODEL, "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True,
        "return_token_ids": True, **fields,
    }  # fmt: skip
    async with httpx.AsyncClient(timeout=120.0) as http:
        reply = (await http.post(f"{engine.url}/v1/completions", json=body)).raise_for_status().json()
    choice = reply["choices"][0]
    return [*choice["prompt_token_ids"], *choice["token_ids"][:-1]]


async def test_the_index_has_what_the_engine_keeps(engine: EngineProcess) -> None:
    early = await ids_of(engine, "Before anyone listens. " + WORDS * 20)
    reader = Reader()
    task = asyncio.create_task(reader.subscriber.run())
    try:
        number = 0
        while not reader.cache.expected:  # the engine reconnects a few times a second
            await ids_of(engine, f"Word {number}. " + WORDS * 2)
            number += 1
        first = await ids_of(engine, WORDS * 20)
        assert await reader.keeps(first) >= 2
        assert await reader.keeps(early) >= 2, "what was before is replayed"
        assert reader.metrics.kv_events.labels("lost").value == 0
        longer = await ids_of(engine, WORDS * 30)
        assert await reader.keeps(longer) > len(reader.keys(first))
        salted = await ids_of(engine, WORDS * 20, cache_salt="pepper")
        await reader.keeps(salted, "pepper")
        assert reader.cache.index.prefix(reader.keys(salted, "salt")) == (0, 0)
        for number in range(12):  # more than its 160 blocks
            await ids_of(engine, f"{number} other words. " + WORDS * 30)

        async def dropped() -> bool:
            return reader.cache.index.prefix(reader.keys(early)).kept == 0

        await until(dropped)
        assert reader.cache.index.blocks[0] <= 160
        assert set(reader.cache.outcomes) <= {"stored", "removed"}
        assert reader.metrics.kv_events.labels("malformed").value == 0
    finally:
        task.cancel()
        await asyncio.wait([task])
