"""Two engines with addresses of IPv6 alone: each protocol names them so that the other one finds them."""

import asyncio
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest

from weft_mock.model import answer
from weft_mock.tokenizer import chat_ids, decode, filler
from weft_mock_tests.engines import EXPORT, Client, at_rest, config, engines, until

pytestmark = pytest.mark.component

ASKED: list[dict[str, object]] = [{"role": "user", "content": filler(60, 1)}]
SAID = decode(answer(chat_ids(ASKED), 8))
NAME = "0b9c54a4-0000-4000-8000-0242ac120002"


def pair(protocol: str, *, bidirectional: bool = False) -> Any:
    """Run a prefill and a decode engine on ::1."""
    both = {"protocol": protocol, "host": "::1", "side_channel_host": "::1", "time_scale": 0.1}
    return engines(
        *(config(engine_id=r[0], role=r, bidirectional=bidirectional, **both) for r in ("prefill", "decode"))
    )


async def at_rest_with_all_read(p: Client, d: Client) -> None:
    await at_rest(p, d)
    assert d.engine.ledger.recent[-1].read == 64
    assert not p.engine.ledger.violations
    assert not d.engine.ledger.violations


async def test_vllm_reads_from_the_bare_address_of_a_handle() -> None:
    async with pair("vllm", bidirectional=True) as (p, d):
        first = await p.chat(ASKED, max_tokens=1, kv_transfer_params=EXPORT)
        assert first.handle["remote_host"] == "::1"
        assert (await d.chat(ASKED, max_tokens=8, kv_transfer_params=first.handle)).text == SAID
        assert d.engine.ledger.recent[-1].read == 63


async def test_sglang_joins_host_and_port_so_the_host_has_brackets() -> None:
    async with pair("sglang") as (p, d):
        room = {"bootstrap_host": "[::1]", "bootstrap_port": p.side_port, "bootstrap_room": 7}
        _, reply = await asyncio.gather(p.chat(ASKED, max_tokens=8, **room), d.chat(ASKED, max_tokens=8, **room))
        assert reply.text == SAID
        await at_rest_with_all_read(p, d)
        bare = await d.chat(ASKED, max_tokens=8, **{**room, "bootstrap_host": "::1"})
        assert bare.status == 400
        assert "[fd00::7]:8080" in str(bare.body["message"])


async def test_tensorrt_llm_says_an_endpoint_with_brackets() -> None:
    async with pair("tensorrt-llm") as (c, g):
        _, info = await c.get("/server_info")
        endpoint = orjson.loads(info)["disaggregated_params"]["ctx_info_endpoint"][0]
        assert endpoint == f"[::1]:{c.side_port}"
        ids = chat_ids(ASKED)
        both = {"disagg_request_id": 99, "schedule_style": 1}
        asked = {"request_type": "generation_only", "ctx_request_id": 99, "ctx_info_endpoint": endpoint, **both}
        reading = asyncio.create_task(g.chat(ASKED, max_tokens=8, disaggregated_params=asked, prompt_token_ids=ids))
        await until(lambda: len(c.engine.meetings) == 1)
        asked = {"request_type": "context_only", **both}
        await c.chat(ASKED, max_tokens=8, stream=False, disaggregated_params=asked)
        assert (await reading).text == SAID
        await at_rest_with_all_read(c, g)


async def test_neuron_names_peers_with_brackets_in_ids() -> None:
    async with pair("neuron") as (p, d):
        mine, its = (f"cmpl-{NAME}_{urlsplit(each.url).netloc}" for each in (d, p))
        assert its.endswith(f"_[::1]:{urlsplit(p.url).port}")
        _, rest = await asyncio.gather(
            p.stream(ASKED, request_id=mine, max_tokens=1), d.stream(ASKED, request_id=its, max_tokens=8)
        )
        assert rest.text == SAID
        await at_rest_with_all_read(p, d)
