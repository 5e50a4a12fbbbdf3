"""Three hundred hostile bodies: what a client writes about transfers, ids or caches reaches no engine of any kind."""

import random
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import orjson
import pytest

from weft_router.config import LimitsConfig, ModelConfig
from weft_router.engines.adapter import Adapter, Call, EngineEndpoint, EngineRequest, NotPossibleError, PrefillResult
from weft_router.engines.catalogue import ADAPTERS, adapter_for
from weft_router.openai.body import parse, sanitise
from weft_router.openai.bounds import RequestLimits
from weft_router.openai.inference import PATHS, check_request
from weft_router.openai.reply import Reply

MODEL = ModelConfig.model_validate({"name": "m", "maxModelLen": 100_000})
LIMITS = LimitsConfig.model_validate({})
NAMES = [
    "kv_transfer_params", "ec_transfer_params", "disaggregated_params", "disagg_request_id", "disagg_prefill_dp_rank",
    "bootstrap_host", "bootstrap_port", "bootstrap_room", "do_remote_prefill", "do_remote_decode", "do_local_prefill",
    "remote_host", "remote_port", "remote_block_ids", "remote_engine_id", "data_parallel_rank", "routed_dp_rank",
    "nvext", "cache_salt", "request_id", "rid", "session_params", "x_weft_resume", "extra_body",
]  # fmt: skip
CONTAINERS = ["extra_args", "vllm_xargs", "sampling_params", "custom_params"]
EVIL = ["10.9.9.9-evil", {"remote_host": "evil"}, [{"kv_transfer_params": "evil"}], {"a": {"b": ["evil"]}}, "evil"]
WIDE = str.maketrans({chr(c): chr(c + 0xFEE0) for c in range(ord("a"), ord("z") + 1)})
PARAMS: dict[str, object] = {"do_remote_prefill": True, "remote_host": "10.0.0.1"}


def disguised(name: str, dice: random.Random) -> str:
    return dice.choice(
        [
            name, name, name.upper(), name.title(), name.replace("_", "-"), " " + name, name + "\t",
            name.translate(WIDE), name.replace("k", "\u212a"), name.replace("s", "\u017f"),
        ]
    )  # fmt: skip


def container(dice: random.Random, depth: int) -> Any:
    inner = {disguised(dice.choice(NAMES), dice): dice.choice(EVIL), "harmless": "fine"}
    if depth:
        inner["deeper"] = container(dice, depth - 1)
    return dice.choice([inner, [inner], [[inner, inner]]])


def hostile(path: str, dice: random.Random) -> bytes:
    body: dict[str, Any] = {"model": "m", "seed": 1, "stream": dice.random() < 0.5}
    contents: dict[str, dict[str, Any]] = {
        "chat": {"messages": [{"role": "user", "content": 'fine "kv_transfer_params"'}]},
        "text": {"prompt": "fine"},
        "responses": {"input": "fine"},
    }
    body |= contents[PATHS[path]]
    for _ in range(dice.randint(1, 4)):
        body[disguised(dice.choice(NAMES), dice)] = dice.choice(EVIL)
    for _ in range(dice.randint(0, 2)):
        body[disguised(dice.choice(CONTAINERS), dice)] = container(dice, dice.randint(0, 3))
    raw = orjson.dumps(body)
    if dice.random() < 0.3:  # the same key twice: the last one counts, and is looked at
        raw = raw[:-1] + b',"kv_transfer_params":null,"kv_transfer_params":"evil"}'
    return raw


@pytest.mark.parametrize("path", sorted(PATHS))
def test_engines_see_only_what_the_router_wrote(path: str) -> None:
    dice = random.Random(path)
    adapters = [adapter_for(kind) for kind in sorted(ADAPTERS)]
    for _ in range(100):
        body = parse(hostile(path, dice))
        assert sanitise(body, PATHS[path])
        ask = EngineRequest(
            check_request(path, body, RequestLimits(MODEL, LIMITS, None)),
            "weft-1",
            prefill=EngineEndpoint("p", 1),
            decode=EngineEndpoint("d", 1),
        )
        calls = [call for adapter in adapters for call in legs(adapter, ask)]
        assert len(calls) > 7
        assert not any("evil" in call.lines for call in calls)
        for written in (ask.inference.whole(), *(call.whole for call in calls)):
            assert b"evil" not in written
            assert b"fine" in written


def legs(adapter: Adapter, ask: EngineRequest) -> Iterator[Call]:
    """Yield every leg that an engine of this kind has."""
    handed = PrefillResult(dict(PARAMS), Reply(ask.inference.kind))
    for leg in (adapter.prefill, adapter.local, adapter.tokenize, partial(decode, adapter, handed)):
        with suppress(NotPossibleError):
            call = leg(ask)
            if call is not None:
                yield call


def decode(adapter: Adapter, handed: PrefillResult, ask: EngineRequest) -> Call:
    return adapter.decode(ask, handed)
