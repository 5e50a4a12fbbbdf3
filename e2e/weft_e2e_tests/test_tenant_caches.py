"""C12: what one tenant's prompt left in a prefix cache, another tenant's does not find, whatever that tenant sends."""

from pathlib import Path

import httpx
import pytest

from weft_e2e_tests.test_router_on_engines import Front, fronted
from weft_mock.tokenizer import filler
from weft_router_tests.stack import MODEL

pytestmark = pytest.mark.component

TOKENS, BLOCK = 1024, 16
PAIRS = 10


async def computed(front: Front, key: str, prompt: str, **fields: object) -> int:
    """Send a prompt as a tenant; return how many of its tokens the engines had to compute."""
    before = [worker.engine.ledger.prefilled_tokens for worker in front.workers]
    async with httpx.AsyncClient(timeout=30.0) as http:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 2, **fields}
        reply = await http.post(f"{front.url}/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"})
    assert reply.status_code == 200, reply.text
    return max(worker.engine.ledger.prefilled_tokens - had for worker, had in zip(front.workers, before, strict=True))


@pytest.mark.parametrize("sidecars", [False, True], ids=["standalone", "sidecars"])
@pytest.mark.parametrize("protocol", ["vllm", "sglang", "tensorrt-llm"])
async def test_no_tenant_finds_the_prefix_of_another(tmp_path: Path, protocol: str, sidecars: bool) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alpha\nbeta\n")
    async with fronted(tmp_path, protocol, sidecars=sidecars, keys=keys) as front:
        found: list[int] = []
        for pair in range(PAIRS):
            prompt = filler(TOKENS, pair)
            whole = await computed(front, "alpha", prompt)
            assert whole >= TOKENS
            # The control: a tenant finds its own.
            assert await computed(front, "alpha", prompt) <= BLOCK
            salt = {} if pair % 2 else {"cache_salt": "0" * 64}
            found.append(whole - await computed(front, "beta", prompt, **salt))
        assert found == [0] * PAIRS
