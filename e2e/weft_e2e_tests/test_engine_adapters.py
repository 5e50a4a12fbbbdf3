"""Real vLLM engines with LoRA adapters, from their start and later: KV moves between them, and is its adapter's."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from weft_e2e.engines.environment import environment
from weft_e2e.waiting import until
from weft_e2e_tests.engine_routers import other_router
from weft_e2e_tests.engine_stack import LONG, MODEL, ROUND_S, EngineStack, engine_stack

pytestmark = [
    pytest.mark.component,
    pytest.mark.engine,
    pytest.mark.skipif(not os.environ.get("WEFT_E2E_ENGINE"), reason="real engines: make e2e-engine"),
]

RANK = 8
ADAPTERS = ("one", "two")
LATER = "three"
"""An adapter that the engines do not have at their start."""
ROUNDS = 2
TEXT = "Weaving begins with the warp, the set of threads that are held in tension on the loom. " * 6


def write_adapter(folder: Path, model: Path, seed: int) -> None:
    """Write an adapter of the queries and values of a Llama, with random weights that change its answers."""
    config = json.loads((model / "config.json").read_text())
    hidden = config["hidden_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    sizes = {"q_proj": head * config["num_attention_heads"], "v_proj": head * config["num_key_value_heads"]}
    rng = np.random.default_rng(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, size in sizes.items():
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{place}.lora_A.weight"] = rng.standard_normal((RANK, hidden)).astype(np.float32)
            tensors[f"{place}.lora_B.weight"] = rng.standard_normal((size, RANK)).astype(np.float32)
    folder.mkdir()
    header, at = {}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    head_bytes = json.dumps(header).encode()
    body = b"".join(values.tobytes() for values in tensors.values())
    (folder / "adapter_model.safetensors").write_bytes(len(head_bytes).to_bytes(8, "little") + head_bytes + body)
    settings = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 2 * RANK, "lora_dropout": 0.0,
        "bias": "none", "target_modules": sorted(sizes), "base_model_name_or_path": MODEL,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(settings))


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineStack]:
    """Give engines that have the first two adapters, and the plain one beside them."""
    folder = tmp_path_factory.mktemp("adapters")
    model = environment().model
    for seed, name in enumerate((*ADAPTERS, LATER)):
        write_adapter(folder / name, model, seed)
    modules = [f"{name}={folder / name}" for name in ADAPTERS]
    args = ["--enable-lora", "--max-loras=2", "--max-cpu-loras=4", "--lora-modules", *modules]
    with engine_stack(folder, args=args, env={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}) as running:
        yield running


def answer(url: str, model: str, messages: list[dict[str, str]], session: str = "") -> str:
    body = {"model": model, "messages": messages, "max_tokens": LONG, "temperature": 0}
    headers = {"X-Session-Id": session} if session else {}
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=ROUND_S)
    assert reply.status_code == 200, reply.text
    assert reply.json()["model"] == model
    return str(reply.json()["choices"][0]["message"]["content"])


def test_every_adapter_answers_as_by_itself_and_reads_its_own_history(stack: EngineStack, tmp_path: Path) -> None:
    before = stack.pages()
    with other_router(
        stack, tmp_path / "router", {"prefill": "prefill", "decode": "decode"}, routing={"policy": "always-remote"},
        slo={"ttft": 30.0, "itl": 1.0}, model={"adapters": list(ADAPTERS)},
    ) as url:  # fmt: skip
        listed = httpx.get(f"{url}/v1/models", timeout=ROUND_S).json()["data"]
        assert [one["id"] for one in listed] == [MODEL, *ADAPTERS]
        said: dict[str, list[dict[str, str]]] = {model: [] for model in (MODEL, *ADAPTERS)}
        for number in range(ROUNDS):
            for model, messages in said.items():  # the same session's name for all
                messages.append({"role": "user", "content": f"{number} {TEXT}"})
                messages.append({"role": "assistant", "content": answer(url, model, messages, "s")})
    for model, messages in said.items():
        for number in range(ROUNDS):
            history = messages[: 2 * number + 1]
            assert messages[2 * number + 1]["content"] == answer(stack.plain.url, model, history), f"{model} {number}"
    assert len({messages[1]["content"] for messages in said.values()}) == len(said), "the adapters change answers"
    # Every round was handed over, and every later one read its history.
    stack.until_moved(before, prefill=(ROUNDS - 1) * len(said), decode=ROUNDS * len(said))


def test_an_adapter_is_loaded_and_unloaded_while_the_engines_run(stack: EngineStack, tmp_path: Path) -> None:
    place = str(stack.folder.parent / LATER)
    with other_router(
        stack, tmp_path / "router", {"prefill": "prefill", "decode": "decode"}, routing={"policy": "always-remote"},
        slo={"ttft": 30.0, "itl": 1.0}, model={"adapters": list(ADAPTERS)}, sections={"adapters": []},
    ) as url:  # fmt: skip
        assert status(url, LATER) == 404
        use(tmp_path / "router", [{"name": LATER, "source": place}])
        until(lambda: status(url, LATER) == 200, what="the adapter to be served", timeout_s=ROUND_S, every_s=0.5)
        until(lambda: LATER in models(stack.prefill.url), what="the prefill engine to have it", timeout_s=ROUND_S)
        load = {"lora_name": LATER, "lora_path": place}
        httpx.post(f"{stack.plain.url}/v1/load_lora_adapter", json=load, timeout=ROUND_S).raise_for_status()
        messages: list[dict[str, str]] = []
        for number in range(ROUNDS):
            messages.append({"role": "user", "content": f"{number} {TEXT}"})
            said = answer(url, LATER, messages, "later")
            assert said == answer(stack.plain.url, LATER, messages)
            messages.append({"role": "assistant", "content": said})
        assert messages[1]["content"] != answer(stack.plain.url, MODEL, messages[:1])
        use(tmp_path / "router", [])
        until(lambda: status(url, LATER) == 404, what="the adapter to be gone", timeout_s=ROUND_S, every_s=0.5)
        for engine in (stack.prefill, stack.decode):
            until(
                lambda engine=engine: models(engine.url) == {MODEL, *ADAPTERS},  # type: ignore[misc]
                what=f"the {engine.name} engine to have unloaded it",
                timeout_s=ROUND_S,
            )
        assert status(url, ADAPTERS[0]) == 200
        refused = httpx.post(f"{url}/v1/load_lora_adapter", json=load, timeout=ROUND_S)
        assert refused.status_code == 404, "clients have no such endpoint"


def use(folder: Path, listed: list[dict[str, str]]) -> None:
    """Give a running router another list of adapters."""
    path = folder / "router.json"
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({**json.loads(path.read_text()), "adapters": listed}))
    fresh.replace(path)


def status(url: str, model: str) -> int:
    body = {"model": model, "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=ROUND_S).status_code


def models(url: str) -> set[str]:
    return {str(one["id"]) for one in httpx.get(f"{url}/v1/models", timeout=ROUND_S).json()["data"]}
