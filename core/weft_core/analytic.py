"""Derive a cost profile from a GPU's figures and a model's dimensions, without touching a GPU.

A roofline in the form of ``cost.py``. Operators follow each other, so their times add up; the matrices that every
token uses take the larger of computing and reading them, which makes the two pieces. Notation: n GPUs, F = 2 x active
weights without routed experts and F_e those of routed experts, W and W_e the bytes of both, kv KV bytes per token, B
memory rate; C, C_e and C_a the rates of computing matrices, experts and attention.

T_pre(h, l) = overhead + max(F l / (n C), W / (n B)) + experts(l) + A l (h + l/2) / (n C_a) + kv (h + l) / (n B)
              + all-reduce(l)
T_step(b, ctx, c, h) = overhead + max(F (b + c) / (n C), W / (n B)) + experts(b + c) + max(A_d / C_a, kv / B) ctx / n
                       + A c (h + c/2) / (n C_a) + kv (h + c) / (n B) + all-reduce(b + c)
experts(l) = W_e touched(l) / (n B) + F_e l / (n C_e) + copies of l tokens, one for each expert that a token chose
overhead = the engine's + layers x the time that a layer takes at least + expert layers x what their kernels add to it
           + where there are tokens of a prompt, sparse layers x what the kernels of sparse attention add
T_dec(b, ctx) = T_step(b, ctx, 0, 0): no chunk of c prefill tokens after h cached ones rides along
T_kv(l) = latency + l kv / (min(n_src, n_dst) x link)

Products of experts are counted at the 16-bit peak whatever their precision: NVIDIA's tables show none that are faster.

A worker on s nodes of g GPUs reduces in each node, then over the nodes, where each GPU has a g-th of it, then shares
it in each node again. The link between nodes is the catalogue's for KV (``kv_across_nodes``), an assumption.

A degree of several batches (``parallelism.py``) has the costs of one of them, n being its tp, while the others are as
full: stages follow each other, so a batch passes all layers at the rate of tp GPUs, and hands activations on between
stages; ranks share the experts, so each reads a dp-th of what all their tokens chose. Where ranks have batches of their
own, tokens go to the GPUs of their experts and back in place of the all-reduce behind the experts.

A and A_d (decode) count pairs of tokens in all layers without a window. A layer with one attends at most its window,
which is taken per new token, and caches at most its window, which is spread over a sequence of ``sequence_tokens``.
Approximations:

* Sparse attention attends like a window as long as what its indexer chooses, but caches all tokens, and all of them are
  read in a prefill, whose tokens choose different ones. The indexer scores all pairs, at the rate of attention.
* Linear attention has no pairs: its operations per token are added to those of the projections. Its states are a cost
  per sequence: read and written by every decode step, moved whole with every transfer (in its latency, so that kv is
  without them), and in the KV capacity spread over ``sequence_tokens``.
* What compressed attention caches and attends is a fraction of an entry per token. Merging tokens costs its weights.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from weft_core.attention_groups import attention_groups
from weft_core.communication import ACTIVATION_BYTES, communication_seconds
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
from weft_core.dimensions import ModelDimensions
from weft_core.efficiency import Efficiency, efficiency_for
from weft_core.gpus import GB, Gpu
from weft_core.memory import (
    decode_read_per_token,
    expert_bytes,
    expert_share,
    kv_layout,
    share_of_ranks,
    state_bytes,
    step_weight_bytes,
    weight_bytes,
    worker_weight_bytes,
)
from weft_core.memory import kv_capacity_tokens as capacity_tokens
from weft_core.parallelism import Degree, Parallelism, gpus_of, links_between, parallelism_of

__all__ = [
    "Efficiency",
    "ModelDoesNotFit",
    "attention_seconds",
    "derive_profile",
    "smallest_degree",
    "transfer_cost",
]

LARGEST_DEGREE = 64
"""Tensor parallelism beyond one rack-scale domain is not looked for when a model does not fit."""
EXPERT_COPY_PASSES = 8
"""How often a token's copies for experts pass through memory: when sorted, converted to the products' precision and
summed (read and written each), in the first product (read) and in the last one (written)."""


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
    degrees: Sequence[Degree],
    efficiency: Efficiency | None = None,
    engine: str = "analytic",
    min_kv_tokens: int = 1,
    sequence_tokens: float | None = None,
    node_gpus: int = 0,
) -> CostProfile:
    """Derive T_pre, T_step, T_kv and KV capacity for every degree that fits; the others are left out.

    Without an ``efficiency`` the one of the GPU type is taken (``efficiency_for``).
    ``node_gpus`` are the GPUs of a node: larger degrees fill several nodes; with 0 all GPUs of a worker share one.

    A degree fits when the weights leave room for ``min_kv_tokens`` of KV and the model's heads divide by it. Sliding
    windows and sparse attention save memory and time only in sequences longer than what they attend, and states weigh
    less per token the longer a sequence is: ``sequence_tokens`` is the length to count with. ``None`` counts no window,
    an upper bound of every cost, and the state of one sequence.

    Raises:
        ModelDoesNotFit: no degree fits; says what is needed, what there is, and the least degree that would do.
        CostProfileError: no degrees were given.
    """
    if efficiency is None:
        efficiency = efficiency_for(gpu.name)
    if not degrees:
        raise CostProfileError("degrees: at least one is needed")
    fitting = [n for n in sorted(set(degrees)) if fits(model, gpu, n, efficiency, min_kv_tokens)]
    if not fitting:
        raise _does_not_fit(model, gpu, degrees=degrees, efficiency=efficiency, min_kv_tokens=min_kv_tokens)
    return CostProfile(
        model=model.name,
        gpu=gpu.name,
        engine=engine,
        kv_bytes_per_token=math.ceil(kv_layout(model).token_bytes(sequence_tokens)),
        degrees={n: _degree_costs(model, gpu, n, efficiency, sequence_tokens, node_gpus) for n in fitting},
        transfers={
            (source, destination, link): transfer_cost(
                model,
                gpu,
                source=source,
                destination=destination,
                link=link,
                efficiency=efficiency,
                sequence_tokens=sequence_tokens,
            )
            for source in fitting
            for destination in fitting
            for link in LINKS
        },
        provenance={
            "source": "analytic",
            "gpu": gpu.source,
            "model": "dimensions of the model's config.json",
            **_window_note(model, sequence_tokens),
            **_span_note(gpu, fitting, node_gpus),
            "units": "seconds, tokens, bytes",
        },
    )


def kv_capacity_tokens(
    model: ModelDimensions, gpu: Gpu, degree: Degree, efficiency: Efficiency, sequence_tokens: float | None = None
) -> int:
    """Return how many tokens of KV fit beside the weights and the activation reserve; 0 or less: nothing fits."""
    return capacity_tokens(
        model,
        degree=degree,
        gpu_bytes=gpu.memory_bytes,
        fraction=efficiency.memory_fraction,
        reserve=efficiency.reserve_bytes_per_gpu,
        sequence_tokens=sequence_tokens,
    )


def transfer_cost(
    model: ModelDimensions,
    gpu: Gpu,
    *,
    source: Degree,
    destination: Degree,
    link: Link,
    efficiency: Efficiency,
    sequence_tokens: float | None = None,
) -> TransferCost:
    """Return T_kv between two workers: the one on which fewer GPUs hold a prompt has fewer links and sets the pace.

    These are the tp x pp GPUs of one rank. Every GPU of the destination fetches what it will store, so KV that its
    tensor parallelism repeats moves again. A state moves whole however few tokens do.
    """
    rate = gpu.kv_in_node if link == "intra-node" else gpu.kv_across_nodes
    moved = kv_layout(model, destination)
    links = links_between(source, destination) * rate * efficiency.kv_link
    alpha = efficiency.kv_latency_s + moved.state / links
    return TransferCost(
        alpha=_figure(alpha) if moved.state else alpha, per_token=_figure(moved.token_bytes(sequence_tokens) / links)
    )


def attention_seconds(
    model: ModelDimensions, gpu: Gpu, degree: Degree, efficiency: Efficiency, sequence_tokens: float | None = None
) -> float:
    """Return the time that the operations of a decode step's attention take per token of context, reading aside."""
    groups = attention_groups(model)
    pair = sum(group.layers * group.attended(sequence_tokens) * group.decode_pair_flops for group in groups)
    return pair / (parallelism_of(degree).tp * gpu.flops * efficiency.attention)


def fits(model: ModelDimensions, gpu: Gpu, degree: Degree, efficiency: Efficiency, min_kv_tokens: int) -> bool:
    """Return whether a worker of a degree has room for its part of a model and for a sequence of so many tokens."""
    if not model.splits(degree):
        return False
    of_rank = kv_capacity_tokens(model, gpu, degree, efficiency) // parallelism_of(degree).dp
    return of_rank >= max(1, min_kv_tokens)


def _window_note(model: ModelDimensions, sequence_tokens: float | None) -> dict[str, str]:
    counted = "not counted" if sequence_tokens is None else f"counted for sequences of {sequence_tokens:.0f} tokens"
    notes: dict[str, str] = {}
    if model.windowed_layers:
        notes["windows"] = f"{model.windowed_layers} of {model.layers} layers keep {model.window} tokens; {counted}"
    if state := kv_layout(model).state:
        once = "counted for one sequence" if sequence_tokens is None else counted
        notes["state"] = f"{state / 1e6:.1f} MB per sequence, whatever its length; {once}"
    if model.sparse is not None:
        entries = "tokens" if model.compressed is None else "merged entries"
        notes["sparse"] = (
            f"{model.sparse.layers} of {model.layers} layers attend {model.sparse.top} {entries}; {counted}"
        )
    return notes


def _span_note(gpu: Gpu, degrees: Sequence[Degree], node_gpus: int) -> dict[str, str]:
    if not node_gpus or max(map(gpus_of, degrees)) <= node_gpus:
        return {}
    rate = gpu.kv_across_nodes / GB
    return {"nodes": f"degrees above {node_gpus} span nodes; all-reduce between them at {rate:g} GB/s a GPU, assumed"}


@dataclass(frozen=True, slots=True)
class _Rates:
    """Seconds of the parts of a batch's pass: per token, per attended pair, per byte read, per pass.

    ``matrix_token`` is what the matrices of all tokens compute per token, ``token`` everything else that a token costs.
    ``decode_context`` is the attention of a decode step per token of context, ``kv_read`` what a prefill reads,
    ``state`` what a decode step reads and writes per sequence.
    """

    matrix_token: float
    token: float
    pair: float
    window_token: float
    kv_read: float
    decode_context: float
    state: float
    byte: float
    expert_byte: float
    sent: float


def _rates(
    model: ModelDimensions,
    gpu: Gpu,
    degree: Degree,
    efficiency: Efficiency,
    sequence_tokens: float | None,
    node_gpus: int,
) -> _Rates:
    parts = parallelism_of(degree)
    peak = gpu.flops_8bit if model.eight_bit_products and gpu.flops_8bit else gpu.flops
    attention = parts.tp * gpu.flops * efficiency.attention
    memory = parts.tp * gpu.memory_rate * efficiency.memory
    pair = window_token = 0.0
    for group in attention_groups(model):
        share = group.attended(sequence_tokens)
        if share < 1:
            window_token += group.layers * group.attends * group.pair_flops
        else:
            pair += group.layers * group.pair_flops
    linear = model.linear.layers * model.linear.token_flops if model.linear is not None else 0
    chosen = model.expert_params * expert_share(model)
    experts = 2 * chosen / (parts.tp * gpu.flops * efficiency.expert_compute)
    copied = expert_copy_bytes(model, parts) / (gpu.memory_rate * efficiency.memory)
    per_pass, per_token = communication_seconds(model, gpu, degree, efficiency, node_gpus)
    return _Rates(
        matrix_token=2 * (model.active_params - chosen) / (parts.tp * peak * efficiency.compute),
        token=linear / attention + experts + copied + per_token,
        pair=pair / attention,
        window_token=window_token / attention,
        kv_read=kv_layout(model, degree).token_bytes(sequence_tokens) / memory,
        decode_context=max(
            attention_seconds(model, gpu, degree, efficiency, sequence_tokens),
            decode_read_per_token(model, degree, sequence_tokens) / memory,
        ),
        state=2 * state_bytes(model) / memory,
        byte=1 / memory,
        expert_byte=1 / (parts.dp * memory),
        sent=per_pass,
    )


def expert_copy_bytes(model: ModelDimensions, parts: Parallelism) -> float:
    """Return the bytes that one GPU moves for the copies of a token that go to its experts, in all layers.

    Where experts are whole, a GPU has the copies of its own experts only, otherwise those of all ranks' tokens.
    """
    if model.experts == 1:
        return 0.0
    copies = model.active_experts * parts.dp / (parts.expert_gpus if parts.ep else 1)
    return model.expert_layers * copies * EXPERT_COPY_PASSES * model.hidden * ACTIVATION_BYTES


def _degree_costs(
    model: ModelDimensions,
    gpu: Gpu,
    degree: Degree,
    efficiency: Efficiency,
    sequence_tokens: float | None,
    node_gpus: int,
) -> DegreeCosts:
    """Return the costs of one degree, each figure to nine digits: more would be noise in every stored profile."""
    rate = _rates(model, gpu, degree, efficiency, sequence_tokens, node_gpus)
    kernels = rate.sent + (model.expert_layers * efficiency.expert_layer_s if model.experts > 1 else 0)
    sparse = model.sparse.layers * efficiency.sparse_layer_s if model.sparse is not None else 0.0
    prefill = efficiency.prefill_overhead_s + model.layers * efficiency.prefill_layer_s + sparse + kernels
    decode = efficiency.decode_overhead_s + model.layers * efficiency.decode_layer_s + kernels
    read = step_weight_bytes(model) * rate.byte
    experts_seconds = _figure(expert_bytes(model) * rate.expert_byte)
    share = share_of_ranks(expert_share(model), parallelism_of(degree).dp)
    # Per pass and per token of the matrices that every token uses: computed, or read.
    bounds = ((0.0, rate.matrix_token), (read, 0.0))
    return DegreeCosts(
        prefill=tuple(
            PrefillPiece(
                alpha=_figure(prefill + fixed),
                per_token=_figure(matrix + rate.token + rate.window_token),
                per_pair=_figure(rate.pair),
                per_context_token=_figure(rate.kv_read),
                experts_seconds=experts_seconds,
                expert_share=share,
            )
            for fixed, matrix in bounds
        ),
        decode=tuple(
            DecodePiece(
                alpha=_figure(decode + fixed),
                per_sequence=_figure(matrix + rate.token + rate.state),
                per_context_token=_figure(rate.decode_context),
                experts_seconds=experts_seconds,
                expert_share=share,
                per_chunk_token=_figure(matrix + rate.token + rate.window_token),
                per_chunk_pair=_figure(rate.pair),
                per_chunk_context=_figure(rate.kv_read),
                per_chunk=_figure(sparse),
            )
            for fixed, matrix in bounds
        ),
        weight_bytes_per_gpu=-(-worker_weight_bytes(model, degree) // gpus_of(degree)),
        kv_capacity_tokens=kv_capacity_tokens(model, gpu, degree, efficiency, sequence_tokens),
    )


def _figure(value: float) -> float:
    return float(f"{value:.9g}")


def smallest_degree(model: ModelDimensions, gpu: Gpu, *, efficiency: Efficiency, min_kv_tokens: int = 1) -> int | None:
    """Return the least power of two at which the model fits on this GPU, None when none up to 64 does."""
    degree = 1
    while degree <= LARGEST_DEGREE:
        if fits(model, gpu, degree, efficiency, min_kv_tokens):
            return degree
        degree *= 2
    return None


def _does_not_fit(
    model: ModelDimensions, gpu: Gpu, *, degrees: Sequence[Degree], efficiency: Efficiency, min_kv_tokens: int
) -> ModelDoesNotFit:
    listed = ", ".join(str(n) for n in sorted(set(degrees)))
    splitting = [n for n in degrees if model.splits(n)]
    least = smallest_degree(model, gpu, efficiency=efficiency, min_kv_tokens=min_kv_tokens)
    advice = f"degree {least} would do" if least else _no_degree(model, gpu, efficiency)
    if not splitting:
        reasons = ", ".join(f"at degree {n} ({model.why_not(n)})" for n in sorted(set(degrees)))
        return ModelDoesNotFit(
            f"{model.name} cannot run {reasons}; {advice}",
            needed_gb=0.0, available_gb=0.0, smallest_degree=least,
        )  # fmt: skip
    largest = max(splitting)
    kv_bytes = kv_layout(model, largest).sequence_bytes(max(1, min_kv_tokens))
    weights, gpus = worker_weight_bytes(model, largest), gpus_of(largest)
    needed = (weights + kv_bytes + gpus * efficiency.reserve_bytes_per_gpu) / GB
    available = gpus * gpu.memory_bytes * efficiency.memory_fraction / GB
    return ModelDoesNotFit(
        f"{model.name} needs {needed:.1f} GB at degree {largest} ({weights / GB:.1f} GB weights, "
        f"{kv_bytes / GB:.1f} GB KV for {max(1, min_kv_tokens)} tokens, the rest activations); {gpus} x {gpu.name} "
        f"offer {available:.1f} GB ({efficiency.memory_fraction:.0%} of memory; degrees tried: {listed}); {advice}",
        needed_gb=needed, available_gb=available, smallest_degree=least,
    )  # fmt: skip


def _no_degree(model: ModelDimensions, gpu: Gpu, efficiency: Efficiency) -> str:
    free = gpu.memory_bytes * efficiency.memory_fraction - efficiency.reserve_bytes_per_gpu
    least = f"; its weights alone take the memory of {math.ceil(weight_bytes(model) / free)} GPUs" if free > 0 else ""
    return f"no degree up to {LARGEST_DEGREE} would do{least}; use a GPU with more memory"
