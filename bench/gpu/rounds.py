"""Hold a conversation over both engines, KV both ways in every round, and compare answers with a plain engine."""

import random
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx
from bench.profile.engines import Pair

from weft_e2e.engines.process import EngineProcess

ROUND_S = 300.0
KEEP: Mapping[str, object] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
_BYTES, _SECONDS = "vllm:nixl_bytes_transferred_sum", "vllm:nixl_xfer_time_seconds_sum"


@dataclass(slots=True)
class Figures:
    """What came of the rounds: how many, how many equal the plain engine's, and what each reader counted."""

    rounds: int = 0
    equal: int = 0
    wall_s: list[float] = field(default_factory=list)
    bytes_there: float = 0.0
    bytes_back: float = 0.0
    gb_per_s_there: float = 0.0
    gb_per_s_back: float = 0.0

    def dump(self) -> dict[str, Any]:
        """Return everything in JSON form."""
        return asdict(self)

    @property
    def right(self) -> bool:
        """Tell whether every answer was the plain engine's and KV went both ways."""
        return self.rounds == self.equal > 0 and self.bytes_there > 0 and self.bytes_back > 0


def hold(pair: Pair, ids: tuple[int, ...], *, rounds: int, first: int, added: int, tokens: int) -> Figures:
    """Hold one conversation: a prompt of ``first`` tokens, ``added`` more each round, answers of ``tokens``."""
    if pair.plain is None:
        raise ValueError("a plain engine is needed to compare with")
    dice = random.Random(11)  # noqa: S311 - prompts, nothing secret
    history: list[int] = []
    handle: Mapping[str, object] = KEEP
    found = Figures()
    before = {engine.name: _counted(engine) for engine in (pair.prefill, pair.decode)}
    with httpx.Client(timeout=ROUND_S) as client:
        model = client.get(f"{pair.plain.url}/v1/models").raise_for_status().json()["data"][0]["id"]
        common = {"model": model, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        for number in range(rounds):
            prompt = history + dice.choices(ids, k=added if history else first)
            asked = {**common, "prompt": prompt, "max_tokens": tokens}
            want = _ids(_ask(client, pair.plain, asked))
            began = time.perf_counter()
            # Under a salt of its own the prefill engine knows nothing of rounds before: all of it has to come back.
            salted = {**asked, "max_tokens": 1, "cache_salt": f"round {number}", "kv_transfer_params": handle}
            there = _ask(client, pair.prefill, salted)["kv_transfer_params"]
            reply = _ask(client, pair.decode, {**asked, "cache_salt": f"{number}", "kv_transfer_params": there})
            found.wall_s.append(round(time.perf_counter() - began, 4))
            found.rounds += 1
            found.equal += _ids(reply) == want
            history = prompt + _ids(reply)
            handle = {**reply["kv_transfer_params"], "do_remote_decode": True, "do_remote_prefill": False}
        pointer = {**handle, "do_remote_decode": False, "do_remote_prefill": True}
        refused = {"model": "weft-no-such-model", "prompt": [1], "max_tokens": 1, "kv_transfer_params": pointer}
        client.post(f"{pair.prefill.url}/v1/completions", json=refused)  # lets go of the last round's KV
    there_bytes, there_s = _since(pair.decode, before)
    back_bytes, back_s = _since(pair.prefill, before)
    found.bytes_there, found.bytes_back = there_bytes, back_bytes
    found.gb_per_s_there = there_bytes / there_s / 1e9 if there_s else 0.0
    found.gb_per_s_back = back_bytes / back_s / 1e9 if back_s else 0.0
    return found


def _ask(client: httpx.Client, engine: EngineProcess, body: Mapping[str, object]) -> dict[str, Any]:
    reply = client.post(f"{engine.url}/v1/completions", json=dict(body))
    if reply.status_code != 200:
        raise RuntimeError(f"{engine.name} answered {reply.status_code}: {reply.text[:300]}")
    found: dict[str, Any] = reply.json()
    return found


def _ids(reply: Mapping[str, Any]) -> list[int]:
    return list(reply["choices"][0]["token_ids"])


def _counted(engine: EngineProcess) -> tuple[float, float]:
    samples = engine.page().samples.items()
    size, seconds = (sum(value for (name, _), value in samples if name == wanted) for wanted in (_BYTES, _SECONDS))
    return size, seconds


def _since(engine: EngineProcess, before: Mapping[str, tuple[float, float]]) -> tuple[float, float]:
    size, seconds = _counted(engine)
    return size - before[engine.name][0], seconds - before[engine.name][1]
