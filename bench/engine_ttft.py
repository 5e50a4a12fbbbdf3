"""Measure what router and plug-in add to the time to first token on real engines, beside a client that makes both legs.

    make bench-engine

One prefill and one decode engine of stock vLLM (CPU build, NIXL over TCP), the tiny model, a core each. Each pair is
two prompts of the same length that nobody sent before: one through `weft local`, one by a client that asks the prefill
engine for one token and the decode engine for a stream, with nothing between. Which goes first alternates. The router
asks for KV handles, carries the proof, keeps the session's transcript and releases what it does not use; the direct
client does nothing of it. Exit status 1: the aim is missed.
"""

import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from weft_e2e_tests.engine_stack import ROUND_S, EngineStack, engine_stack, wanted

PAIRS = 120
LONGEST_S = 150.0
"""A slow machine measures fewer pairs."""
WARM = 5
AIM_S = 0.005
"""For the median of pairs, which holds what the machine did meanwhile in both of its parts."""
CHARACTERS = 600
"""Of a prompt; the tiny model's tokens are single characters."""
KEEP = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
DRAWS = 2000


def direct(stack: EngineStack, client: httpx.Client, body: dict[str, Any]) -> float:
    """Return the seconds to the first token by both legs, one after the other."""
    headers = {"X-Weft-Engine-Proof": stack.proof}
    began = time.perf_counter()
    first = {**body, "stream": False, "max_tokens": 1, "kv_transfer_params": KEEP}
    reply = client.post(f"{stack.prefill.url}/v1/chat/completions", json=first, headers=headers)
    handle = reply.raise_for_status().json()["kv_transfer_params"]
    second = {**body, "kv_transfer_params": handle}
    return _first_token(client, f"{stack.decode.url}/v1/chat/completions", second, headers, began)


def routed(stack: EngineStack, client: httpx.Client, body: dict[str, Any]) -> float:
    """Return the seconds to the first token through the router."""
    began = time.perf_counter()
    headers = {"X-Session-Id": f"s{began}"}
    return _first_token(client, f"{stack.url}/v1/chat/completions", body, headers, began)


def _first_token(client: httpx.Client, url: str, body: dict[str, Any], headers: dict[str, str], began: float) -> float:
    seconds = None
    with client.stream("POST", url, json=body, headers=headers) as reply:
        reply.raise_for_status()
        for part in reply.iter_bytes():
            if seconds is None and b'"content":"' in part.replace(b'"content":""', b""):
                seconds = time.perf_counter() - began
    if seconds is None:
        raise RuntimeError(f"{url} streamed no token")
    return seconds


def prompt(dice: random.Random) -> dict[str, Any]:
    """Return a streamed request of a text that nobody sent before."""
    text = "".join(dice.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(CHARACTERS))
    return {**wanted([{"role": "user", "content": text}], 4), "stream": True, "ignore_eos": True}


def interval(values: Sequence[float], dice: random.Random) -> tuple[float, float]:
    """Return the 95 % interval of the median, by drawing again."""
    medians = sorted(statistics.median(dice.choices(values, k=len(values))) for _ in range(DRAWS))
    return medians[DRAWS // 40], medians[-DRAWS // 40]


def main() -> int:
    """Measure and print one table; return 1 where the aim is missed."""
    dice = random.Random(7)  # noqa: S311 - prompts, nothing secret
    ways = (("direct", direct), ("routed", routed))
    seconds: dict[str, list[float]] = {name: [] for name, _ in ways}
    with (
        tempfile.TemporaryDirectory() as folder,
        engine_stack(Path(folder)) as stack,
        httpx.Client(timeout=ROUND_S) as client,
    ):
        begun = time.monotonic()
        for number in range(WARM + PAIRS):
            if number > WARM + 1 and time.monotonic() - begun > LONGEST_S:
                break
            for name, way in ways if number % 2 else ways[::-1]:
                took = way(stack, client, prompt(dice))
                if number >= WARM:
                    seconds[name].append(took)
    added = [routed_s - direct_s for routed_s, direct_s in zip(seconds["routed"], seconds["direct"], strict=True)]
    low, high = interval(added, dice)
    for name, values in seconds.items():
        print(f"{name}: TTFT P50 {statistics.median(values) * 1e3:.1f} ms")
    print(f"{len(added)} pairs")
    p50 = statistics.median(seconds["routed"]) - statistics.median(seconds["direct"])
    paired = statistics.median(added)
    print(
        f"added at P50: {p50 * 1e3:.2f} ms; median of pairs {paired * 1e3:.2f} ms [{low * 1e3:.2f}, {high * 1e3:.2f}] "
        f"(aim {AIM_S * 1e3:g} ms: {'met' if paired <= AIM_S else 'MISSED'})"
    )
    json.dump({"pairs": len(added), "p50AddedMs": p50 * 1e3, "pairedMedianMs": paired * 1e3}, sys.stdout)
    print()
    return 0 if paired <= AIM_S else 1


if __name__ == "__main__":
    sys.exit(main())
