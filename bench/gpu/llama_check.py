"""Compare the Llama of these passes with transformers' LlamaForCausalLM on the CPU, at toy size and in float32.

A prompt is prefilled in two parts, the second after the first's history; then one token is decoded for two sequences
beside it. Prints the largest difference of logits as a share of the largest logit; with TRITON_INTERPRET=1 also how
far the Triton kernels' results lie from torch's, computed by Triton's interpreter.
"""

import json
import os
import sys
from typing import Any

from bench.gpu.llama import EPSILON, THETA, Batch, Layer, Llama, Weights

from weft_core.dimensions import ModelDimensions
from weft_planner.profiling.fused import FusedKernels, TorchKernels
from weft_planner.profiling.fused import differences as kernel_differences

TINY = ModelDimensions("weft/tiny-llama", 3, 64, 8, 2, 16, 96, 101)


def reference(torch: Any, model: ModelDimensions) -> Any:
    """Return transformers' model of these dimensions with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=model.vocab, hidden_size=model.hidden, intermediate_size=model.intermediate,
        num_hidden_layers=model.layers, num_attention_heads=model.heads, num_key_value_heads=model.kv_heads,
        head_dim=model.head_dim, max_position_embeddings=512, rms_norm_eps=EPSILON, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": THETA}, initializer_range=0.2,
    )  # fmt: skip
    found = LlamaForCausalLM(config).eval()
    for name, parameter in found.named_parameters():
        if name.endswith("norm.weight"):  # all ones would hide a norm left out
            parameter.data.uniform_(0.5, 1.5)
    return found


def weights_of(torch: Any, model: Any) -> Weights:
    """Return a transformers model's weights, fused."""
    state = model.state_dict()

    def layer(number: int) -> Layer:
        def of(*names: str) -> Any:
            return torch.cat([state[f"model.layers.{number}.{name}.weight"] for name in names])

        return Layer(
            of("input_layernorm"), of("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            of("self_attn.o_proj"), of("post_attention_layernorm"), of("mlp.gate_proj", "mlp.up_proj"),
            of("mlp.down_proj"),
        )  # fmt: skip

    layers = tuple(layer(number) for number in range(model.config.num_hidden_layers))
    norm, head = state["model.norm.weight"], state["lm_head.weight"]
    return Weights(state["model.embed_tokens.weight"], layers, norm, head)


def differences(torch: Any, fused: FusedKernels) -> dict[str, float]:
    """Return how far logits of prefill, prefill after a history, and a mixed step lie from the reference's."""
    theirs = reference(torch, TINY)
    ours = Llama(torch, TINY, weights_of(torch, theirs), fused, kv_tokens=256)
    # Two sequences of 33 tokens in slots [0, 66), and a prompt of 40 behind them.
    pair, prompt = torch.randint(0, TINY.vocab, (2, 33)), torch.randint(0, TINY.vocab, (40,))

    def prefill(tokens: Any, history: int, start: int) -> Any:
        positions = torch.arange(history, history + len(tokens))
        answers = torch.tensor([len(tokens) - 1])
        return ours.forward(Batch(tokens, positions, start + positions, answers, 0, 0, len(tokens), history, start))

    def off(found: Any, *expected: Any) -> float:
        wanted = torch.stack([theirs(tokens[None]).logits[0, -1] for tokens in expected])
        return float((found - wanted).abs().max() / wanted.abs().max())

    for number in range(2):
        prefill(pair[number, :32], 0, 33 * number)
    found = {"prefill": off(prefill(prompt[:17], 0, 66), prompt[:17])}
    found["history"] = off(prefill(prompt[17:30], 17, 66), prompt[:30])
    last, new = torch.tensor([32, 32]), torch.arange(30, 40)
    step = Batch(
        torch.cat((pair[:, 32], prompt[30:])), torch.cat((last, new)), torch.cat((torch.tensor([32, 65]), 66 + new)),
        torch.tensor([0, 1, 11]), 2, 33, 10, 30, 66,
    )  # fmt: skip
    return {**found, "mixed": off(ours.forward(step), pair[0], pair[1], prompt)}


def main() -> int:
    """Print the differences."""
    import torch

    torch.set_num_threads(1)
    with torch.inference_mode():
        found: dict[str, Any] = {"llama": differences(torch, TorchKernels(torch))}
        if os.environ.get("TRITON_INTERPRET") == "1":
            from weft_planner.profiling.triton_kernels import TritonKernels

            by_triton = TritonKernels(torch)
            found["llamaByTriton"] = differences(torch, by_triton)
            found["kernels"] = kernel_differences(torch, by_triton, torch.device("cpu"), "float32")
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
