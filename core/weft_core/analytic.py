"""Derive a cost profile from a GPU's figures and a model's dimensions, without touching a GPU.

A roofline in the form of ``cost.py``: each time is the larger of a compute-bound and a memory-bound piece.
Notation: n GPUs, F = 2 x active weights, W weight bytes, kv KV bytes per token, C compute rate, B memory rate.

T_pre(h, l) = overhead + max(F l / (n C) + A l (h + l/2) / (n C_a),  (W + kv (h + l)) / (n B)) + all-reduce(l)
T_step(b, ctx, c, h) = overhead + max(F (b + c) / (n C) + A (ctx + c (h + c/2)) / (n C_a),
                                      (W_touched(b + c) + kv (ctx + h + c)) / (n B)) + all-reduce(b + c)
T_dec(b, ctx) = T_step(b, ctx, 0, 0): no chunk of c prefill tokens after h cached ones rides along
T_kv(l) = latency + l kv / (min(n_src, n_dst) x link)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from weft_core.cost import (
    LINKS,
    CostProfile,
    CostProfileError,
    DecodePiece,
    DegreeCosts,
    Link,
    PrefillPiece,
    TransferCost,
)
from weft_core.gpus import GB, Gpu
from weft_core.models import ModelDimensions

LARGEST_DEGREE = 64
"""Tensor parallelism beyond one rack-scale domain is not looked for when a model does not fit."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """How much of the data sheet an engine reaches, and what it adds: assumptions, to be replaced by measurements.

    The shares are of the dense peak, of memory bandwidth and of link bandwidth; times are seconds.
    ``all_reduce_latency_s`` is one all-reduce over 2 GPUs and grows by ``all_reduce_growth`` with each doubling.
    """

    compute: float = 0.6
    attention: float = 0.4
    memory: float = 0.75
    all_reduce_link: float = 0.75
    kv_link: float = 0.7
    prefill_overhead_s: float = 0.015
    decode_overhead_s: float = 0.006
    all_reduce_latency_s: float = 15e-6
    all_reduce_growth: float = 0.25
    kv_latency_s: float = 0.005
    memory_fraction: float = 0.9
    reserve_bytes_per_gpu: int = 2 * GB


class ModelDoesNotFit(CostProfileError):  # noqa: N818 - the condition's reason in a service's status has this name
    """Report a model too large for every degree asked for, with the figures in decimal GB."""

    def __init__(self, message: str, *, needed_gb: float, available_gb: float, smallest_degree: int | None) -> None:
        super().__init__(message)
        self.needed_gb = needed_gb
        self.available_gb = available_gb
        self.smallest_degree = smallest_degree


def derive_profile(
    model: ModelDimensions,
    gpu: Gpu,
    *,
    degrees: Sequence[int],
    efficiency: Efficiency = Efficiency(),
    engine: str = "analytic",
    min_kv_tokens: int = 1,
) -> CostProfile:
    """Derive T_pre, T_dec, T_kv and KV capacity for every degree that fits; the others are left out.

    A degree fits when the weights leave room for ``min_kv_tokens`` of KV and the model's heads divide by it.

    Raises:
        ModelDoesNotFit: no degree fits; says what is needed, what there is, and the least degree that would do.
        CostProfileError: no degrees were given.
    """
    if not degrees:
        raise CostProfileError("degrees: at least one tensor-parallel degree is needed")
    fitting = [n for n in sorted(set(degrees)) if _fits(model, gpu, n, efficiency, min_kv_tokens)]
    if not fitting:
        raise _does_not_fit(model, gpu, degrees=degrees, efficiency=efficiency, min_kv_tokens=min_kv_tokens)
    return CostProfile(
        model=model.name,
        gpu=gpu.name,
        engine=engine,
        kv_bytes_per_token=model.kv_bytes_per_token,
        degrees={n: _degree_costs(model, gpu, n, efficiency) for n in fitting},
        transfers={
            (source, destination, link): transfer_cost(
                model, gpu, source=source, destination=destination, link=link, efficiency=efficiency
            )
            for source in fitting
            for destination in fitting
            for link in LINKS
        },
        provenance={
            "source": "analytic",
            "gpu": gpu.source,
            "model": "dimensions of the model's config.json",
            "units": "seconds, tokens, bytes",
        },
    )


def kv_capacity_tokens(model: ModelDimensions, gpu: Gpu, degree: int, efficiency: Efficiency) -> int:
    """Return how many tokens of KV fit beside the weights and the activation reserve; 0 or less: nothing fits."""
    usable = degree * gpu.memory_bytes * efficiency.memory_fraction
    free = usable - model.weight_bytes - degree * efficiency.reserve_bytes_per_gpu
    return int(free // (model.kv_bytes_per_token * model.kv_copies(degree)))


def all_reduce_seconds(model: ModelDimensions, gpu: Gpu, degree: int, efficiency: Efficiency) -> tuple[float, float]:
    """Return (per pass, per token): two all-reduces per layer, each a latency plus a ring over the scale-up link.

    A ring moves 2 (n - 1) / n of the hidden state through every GPU; latency grows with the logarithm of n.
    """
    if degree == 1:
        return 0.0, 0.0
    calls = 2 * model.layers
    doublings = (degree - 1).bit_length() - 1
    latency = efficiency.all_reduce_latency_s * (1 + efficiency.all_reduce_growth) ** doublings
    moved = model.hidden * model.dtype_bytes * 2 * (degree - 1) / degree
    return calls * latency, calls * moved / (gpu.scale_up * efficiency.all_reduce_link)


def transfer_cost(
    model: ModelDimensions, gpu: Gpu, *, source: int, destination: int, link: Link, efficiency: Efficiency
) -> TransferCost:
    """Return T_kv between two workers: the one with fewer GPUs has fewer links and sets the pace."""
    rate = gpu.kv_in_node if link == "intra-node" else gpu.kv_across_nodes
    per_token = model.kv_bytes_per_token / (min(source, destination) * rate * efficiency.kv_link)
    return TransferCost(alpha=efficiency.kv_latency_s, per_token=_figure(per_token))


def _fits(model: ModelDimensions, gpu: Gpu, degree: int, efficiency: Efficiency, min_kv_tokens: int) -> bool:
    return model.splits(degree) and kv_capacity_tokens(model, gpu, degree, efficiency) >= max(1, min_kv_tokens)


def _degree_costs(model: ModelDimensions, gpu: Gpu, degree: int, efficiency: Efficiency) -> DegreeCosts:
    """Return the costs of one degree, each figure to nine digits: more would be noise in every stored profile."""
    compute = degree * gpu.flops * efficiency.compute
    attention = degree * gpu.flops * efficiency.attention
    memory = degree * gpu.memory_rate * efficiency.memory
    kv_read = model.kv_bytes_per_token * model.kv_copies(degree) / memory
    per_pass, per_token = all_reduce_seconds(model, gpu, degree, efficiency)
    flops_per_token = 2 * model.active_params / compute
    # Scores and weighted values: 2 x 2 operations per head dimension for each pair of a query and a cached token.
    flops_per_pair = 4 * model.layers * model.heads * model.head_dim / attention
    prefill = efficiency.prefill_overhead_s + per_pass
    decode = efficiency.decode_overhead_s + per_pass
    return DegreeCosts(
        prefill=(
            PrefillPiece(
                alpha=_figure(prefill),
                per_token=_figure(flops_per_token + per_token),
                per_pair=_figure(flops_per_pair),
            ),
            # A prompt of some dozens of tokens touches every expert, so all weights are read.
            PrefillPiece(
                alpha=_figure(prefill + model.weight_bytes / memory),
                per_token=_figure(per_token),
                per_context_token=_figure(kv_read),
            ),
        ),
        decode=(
            DecodePiece(
                alpha=_figure(decode),
                per_sequence=_figure(flops_per_token + per_token),
                per_context_token=_figure(flops_per_pair),
                per_chunk_token=_figure(flops_per_token + per_token),
                per_chunk_pair=_figure(flops_per_pair),
            ),
            DecodePiece(
                alpha=_figure(decode + (model.weight_bytes - model.expert_bytes) / memory),
                per_sequence=_figure(per_token),
                per_context_token=_figure(kv_read),
                experts_seconds=_figure(model.expert_bytes / memory),
                expert_share=model.active_experts / model.experts if model.expert_bytes else 0.0,
                per_chunk_token=_figure(per_token),
                per_chunk_context=_figure(kv_read),
            ),
        ),
        weight_bytes_per_gpu=-(-model.weight_bytes // degree),
        kv_capacity_tokens=kv_capacity_tokens(model, gpu, degree, efficiency),
    )


def _figure(value: float) -> float:
    return float(f"{value:.9g}")


def smallest_degree(model: ModelDimensions, gpu: Gpu, *, efficiency: Efficiency, min_kv_tokens: int = 1) -> int | None:
    """Return the least power of two at which the model fits on this GPU, None when none up to 64 does."""
    degree = 1
    while degree <= LARGEST_DEGREE:
        if _fits(model, gpu, degree, efficiency, min_kv_tokens):
            return degree
        degree *= 2
    return None


def _does_not_fit(
    model: ModelDimensions, gpu: Gpu, *, degrees: Sequence[int], efficiency: Efficiency, min_kv_tokens: int
) -> ModelDoesNotFit:
    listed = ", ".join(str(n) for n in sorted(set(degrees)))
    splitting = [n for n in degrees if model.splits(n)]
    least = smallest_degree(model, gpu, efficiency=efficiency, min_kv_tokens=min_kv_tokens)
    advice = f"degree {least} would do" if least else "no degree up to 64 would do; use a GPU with more memory"
    if not splitting:
        return ModelDoesNotFit(
            f"{model.name} has {model.heads} heads and {model.kv_heads} KV heads, which do not split over {listed} "
            f"GPUs; {advice}",
            needed_gb=0.0, available_gb=0.0, smallest_degree=least,
        )  # fmt: skip
    largest = max(splitting)
    kv_bytes = max(1, min_kv_tokens) * model.kv_bytes_per_token * model.kv_copies(largest)
    needed = (model.weight_bytes + kv_bytes + largest * efficiency.reserve_bytes_per_gpu) / GB
    available = largest * gpu.memory_bytes * efficiency.memory_fraction / GB
    return ModelDoesNotFit(
        f"{model.name} needs {needed:.1f} GB at degree {largest} ({model.weight_bytes / GB:.1f} GB weights, "
        f"{kv_bytes / GB:.1f} GB KV for {max(1, min_kv_tokens)} tokens, the rest activations); {largest} x {gpu.name} "
        f"offer {available:.1f} GB ({efficiency.memory_fraction:.0%} of memory; degrees tried: {listed}); {advice}",
        needed_gb=needed, available_gb=available, smallest_degree=least,
    )  # fmt: skip
