"""Communication time between the GPUs of one worker: all-reduce, all-to-all to experts, sends between stages."""

from weft_core.dimensions import ModelDimensions
from weft_core.efficiency import Efficiency
from weft_core.gpus import Gpu
from weft_core.parallelism import Degree, Parallelism, parallelism_of

ACTIVATION_BYTES = 2
"""Activations between layers have 16 bits, whatever the weights have."""


def communication_seconds(
    model: ModelDimensions, gpu: Gpu, degree: Degree, efficiency: Efficiency, node_gpus: int = 0
) -> tuple[float, float]:
    """Return (per pass, per token) of what the GPUs of a worker send each other for one of its batches.

    An all-reduce over tp GPUs behind each attention and feed-forward; where there are ranks, one of an expert layer is
    an all-to-all to the experts and back instead; and one send between stages.
    """
    parts = parallelism_of(degree)
    exchanges = model.expert_layers if parts.dp > 1 else 0
    per_pass, per_token = all_reduce_seconds(model, gpu, parts.tp, efficiency, node_gpus)
    there, moved = _exchange(model, gpu, parts, efficiency, node_gpus)
    calls, hops = model.sublayers - exchanges, parts.pp - 1
    link = gpu.kv_across_nodes if node_gpus and parts.gpus > node_gpus else gpu.scale_up
    handed = model.hidden * ACTIVATION_BYTES / (parts.tp * link * efficiency.all_reduce_link)
    return (
        calls * per_pass + exchanges * there + hops * efficiency.all_reduce_latency_s,
        calls * per_token + exchanges * moved + hops * handed,
    )


def all_reduce_seconds(
    model: ModelDimensions, gpu: Gpu, members: int, efficiency: Efficiency, node_gpus: int = 0
) -> tuple[float, float]:
    """Return latency and time per token of one all-reduce: a ring over the scale-up link.

    A ring moves 2 (n - 1) / n of the hidden state through every GPU. Latency grows with the logarithm of n, and the
    time of the bytes with n where GPUs share the host's bridges (``all_reduce_crowding``). Over s nodes a second ring
    follows, of s GPUs that hold a ``node_gpus``-th each, with a latency of its own.
    """
    if members == 1:
        return 0.0, 0.0
    inside = min(members, node_gpus or members)
    within = _ring(model, efficiency, inside, share=1.0, link=gpu.scale_up / _crowding(efficiency, inside))
    across = _ring(model, efficiency, members // inside, share=1 / inside, link=gpu.kv_across_nodes)
    return within[0] + across[0], within[1] + across[1]


def _exchange(
    model: ModelDimensions, gpu: Gpu, parts: Parallelism, efficiency: Efficiency, node_gpus: int
) -> tuple[float, float]:
    """Return latency and time per token of a batch for the all-to-all of one layer, to the experts and back.

    With whole experts (``ep``) a token goes to those that it chose, otherwise to every other rank. The tp GPUs of a
    rank each send a part of its tokens. Links within and across nodes work beside each other, so the slower decides.
    """
    if parts.dp == 1:
        return 0.0, 0.0
    members = parts.expert_gpus
    copies = min(model.active_experts, members) * (members - 1) / members if parts.ep else float(parts.dp - 1)
    moved = 2 * model.hidden * ACTIVATION_BYTES * copies / parts.tp
    inside = min(members, node_gpus or members)
    outside = 1 - inside / members
    within = gpu.scale_up / _crowding(efficiency, inside)
    rates = within * efficiency.all_reduce_link, gpu.kv_across_nodes * efficiency.all_reduce_link
    seconds = max(moved * (1 - outside) / rates[0], moved * outside / rates[1])
    return 2 * _latency(efficiency, members), seconds


def _ring(
    model: ModelDimensions, efficiency: Efficiency, members: int, *, share: float, link: float
) -> tuple[float, float]:
    """Return latency and time per token of one ring over so many GPUs, each with its share of the hidden state."""
    if members == 1:
        return 0.0, 0.0
    moved = model.hidden * ACTIVATION_BYTES * share * 2 * (members - 1) / members
    return _latency(efficiency, members), moved / (link * efficiency.all_reduce_link)


def _crowding(efficiency: Efficiency, members: int) -> float:
    """Return how many times as long bytes take among so many GPUs as between two."""
    return 1 + efficiency.all_reduce_crowding * max(0, members - 2)


def _latency(efficiency: Efficiency, members: int) -> float:
    doublings = (members - 1).bit_length() - 1
    return efficiency.all_reduce_latency_s * (1 + efficiency.all_reduce_growth) ** doublings
