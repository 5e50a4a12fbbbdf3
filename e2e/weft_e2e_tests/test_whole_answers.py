"""Clients that do not stream are measured like those that do: the same load twice, against mock engines over sockets.

Most of the load is clearly within its SLO or clearly outside, so that its shares do not hang on a busy machine.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import aiohttp
import pytest

from weft_core.profile_json import profile_from_json
from weft_e2e.metrics import Growth, growth
from weft_e2e.stack import Stack, StackConfig, StackWorker, running
from weft_mock.tokenizer import filler

pytestmark = [pytest.mark.component, pytest.mark.alone]  # outcomes near a threshold, in real time

PROFILE = profile_from_json(
    {
        "model": "test/model",
        "gpu": "none",
        "engine": "mock",
        "kvBytesPerToken": 1000,
        "degrees": [
            {
                "degree": 1,
                "weightBytesPerGpu": 1,
                "kvCapacityTokens": 64000,
                "prefill": [{"alpha": 0.02, "perToken": 4e-4, "perPair": 0.0, "perContextToken": 0.0}],
                "decode": [{"alpha": 0.01, "perSequence": 0.004, "perContextToken": 0.0}],
            }
        ],
        "transfers": [{"source": 1, "destination": 1, "link": "inter-node", "alpha": 0.002, "perToken": 1e-7}],
        "provenance": {},
    }
)
TTFT_S, ITL_S = 0.45, 0.02
ROUTES = {"always-local": "local", "always-remote": "remote"}
POINTS = 0.05
"""How far shares may differ; means may by a tenth, because gaps of remote prefills include the transfer of their KV."""
CROWD = 8
"""Sessions that decode together: their steps take 42 ms, those of one alone 14 ms."""


@pytest.fixture(scope="module", params=sorted(ROUTES))
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    workers = (StackWorker("p-0", "prefill", 1), StackWorker("d-0", "decode", 1))
    config = StackConfig(
        profile=PROFILE, workers=workers, policy=request.param, ttft_s=TTFT_S, itl_s=ITL_S, max_model_len=8192
    )
    with running(config, Path(tmp_path_factory.mktemp(request.param))) as found:
        yield found


def text_of(reply: str) -> str:
    """Return the text of a reply, whether its events or one object."""
    if reply.startswith("{"):
        return str(json.loads(reply)["choices"][0]["message"]["content"])
    events = [json.loads(line[6:]) for line in reply.splitlines() if line.startswith("data: {")]
    return "".join(c["delta"].get("content") or "" for event in events for c in event["choices"])


async def session(stack: Stack, name: str, *, prompt: int, answer: int, rounds: int, stream: bool) -> None:
    """Run one session's rounds and end it."""
    messages: list[dict[str, str]] = []
    headers = {"X-Session-Id": name}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as http:
        for k in range(rounds):
            messages.append({"role": "user", "content": filler(prompt, seed=crc32(f"{name}/{k}".encode()))})
            body = {"model": PROFILE.model, "messages": messages, "max_tokens": answer, "ignore_eos": True}
            url = f"{stack.target.url}/v1/chat/completions"
            async with http.post(url, json={**body, "stream": stream, "temperature": 0}, headers=headers) as response:
                assert response.status == 200
                assert response.headers["X-Weft-Route"] == ROUTES[stack.config.policy]
                messages.append({"role": "assistant", "content": text_of(await response.text())})
        async with http.delete(f"{stack.target.url}/v1/sessions/{name}", headers=headers) as response:
            assert response.status in (200, 204)


async def load(stack: Stack, *, stream: bool) -> Growth:
    """Send sessions alone, alone with long prompts, and in a crowd; return what the routers counted."""
    kind = "stream" if stream else "whole"
    before = stack.metrics_pages()
    for k in range(4):
        await session(stack, f"{kind}-calm-{k}", prompt=250, answer=25, rounds=2, stream=stream)
    for k in range(2):
        await session(stack, f"{kind}-long-{k}", prompt=1800, answer=25, rounds=1, stream=stream)
    async with asyncio.TaskGroup() as group:
        for k in range(CROWD):
            group.create_task(session(stack, f"{kind}-crowd-{k}", prompt=20, answer=50, rounds=1, stream=stream))
    return growth(before, stack.metrics_pages())


def good(grown: Growth, name: str, **labels: str) -> tuple[float, float]:
    """Return the share of good ones and how many there are."""
    met = grown.total(name, outcome="good", **labels)
    total = met + grown.total(name, outcome="bad", **labels)
    return met / total, total


def gaps_of(grown: Growth, part: str, **labels: str) -> float:
    """Return a part of the histogram of gaps, over all routers."""
    wanted, name = frozenset(labels.items()), f"weft_router_itl_seconds_{part}"
    samples = [item for page in grown.pages.values() for item in page.samples.items()]
    return sum(value for (found, have), value in samples if found == name and wanted <= have)


async def test_both_kinds_of_client_are_measured_alike(stack: Stack) -> None:
    streams = await load(stack, stream=True)
    wholes = await load(stack, stream=False)
    for objective in ("ttft", "itl", "round"):
        share, count = good(streams, "weft_router_slo_rounds_total", objective=objective)
        assert 0.2 < share < 1, "the load shows both outcomes"
        again = good(wholes, "weft_router_slo_rounds_total", objective=objective)
        assert again[0] == pytest.approx(share, abs=max(POINTS, 1.01 / count)), (
            "one round at the threshold may fall either way"
        )
        assert again[1] == count
    share, count = good(streams, "weft_router_slo_sessions_total")
    again = good(wholes, "weft_router_slo_sessions_total")
    assert again[0] == pytest.approx(share, abs=POINTS)
    assert again[1] == count
    counts = [gaps_of(grown, "count") for grown in (streams, wholes)]
    assert counts[0] == counts[1] > 0
    within = [gaps_of(grown, "bucket", le="0.02") / counts[0] for grown in (streams, wholes)]
    assert within[1] == pytest.approx(within[0], abs=POINTS)
    means = [gaps_of(grown, "sum") / counts[0] for grown in (streams, wholes)]
    assert means[1] == pytest.approx(means[0], rel=0.1)
