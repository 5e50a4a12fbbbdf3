"""What speculative decoding makes of a cost profile: the time per token of a step that drafts and verifies several.

Notation: k drafted tokens, acceptance a. A step verifies k + 1 tokens of each sequence and yields

E = (1 - a^(k+1)) / (1 - a)

of them on average (Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", Eq. 1).
Policies, the simulator and the mock engine count steps that yield one token of each sequence, so a profile with
speculation has steps of 1/E of the time. Such a step costs, per piece of the profile:

* the step itself, which reads weights once, and KV once unless the operations of k + 1 tokens take longer, as latent
  attention's do where all heads are on one GPU;
* k more tokens per sequence, each at the larger of what a sequence and what a token of a chunk costs, since pieces that
  were fitted may know of one of them only;
* k passes of the draft, each at its share of the weights and of the KV (``DraftModel``); none where n-grams of the text
  are looked up.

What rides along with a step keeps its own cost, as prefills do, which the draft repeats for its own KV.
Approximations:

* A step with a chunk and no decoding sequence is counted with 1/E of its fixed part.
* Tokens come in bursts of E. Means of ITL are right, the longest gap of a round is one whole step.
* Target and draft are bound by the same resource.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from weft_core.analytic import ModelDoesNotFit, attention_seconds
from weft_core.cost import CostProfile, CostProfileError, DecodePiece, DegreeCosts
from weft_core.dimensions import ModelDimensions
from weft_core.efficiency import efficiency_for
from weft_core.gpus import GB, gpu_named
from weft_core.memory import expert_bytes, kv_layout, weight_bytes
from weft_core.parallelism import Degree, gpus_of, parallelism_of

Method = Literal["mtp", "eagle", "ngram"]
ENGINES = ("vllm", "sglang", "tensorrt-llm", "mock")
"""Engine types that can decode speculatively."""
PROVENANCE = "speculation"
"""The entry of a profile's provenance that says that its steps are those of speculative decoding."""
EAGLE_VOCABULARY = 32_000
"""Tokens that the output head of an EAGLE-3 draft chooses from (the published ones of Llama 3 and gpt-oss)."""
EAGLE_FUSED = 3
"""Layers of the target whose hidden states the input projection of an EAGLE-3 draft takes."""


class SpeculationError(CostProfileError):
    """Report speculative decoding that a model cannot do; the message names the field of the setting and the fix."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """How tokens are drafted: ``tokens`` of them a step, each accepted with probability ``acceptance`` if all before
    it were."""

    method: Method
    tokens: int
    acceptance: float

    @property
    def tokens_per_step(self) -> float:
        """Return E, the tokens that a step yields of each sequence on average: 1 to ``tokens`` + 1."""
        return math.fsum(self.acceptance**drafted for drafted in range(self.tokens + 1))


@dataclass(frozen=True, slots=True)
class DraftModel:
    """What a draft costs beside its target; shares are of the target's own.

    * ``pass_share``: of the weights that a token is multiplied with, output head included: a pass over one token of
      each sequence. ``prompt_share``: the same without the heads, for prompts.
    * ``kv_share``: of the KV of a token.
    * ``weight_bytes``, of which ``expert_bytes`` are routed experts, which data-parallel ranks share.
    """

    pass_share: float = 0.0
    prompt_share: float = 0.0
    kv_share: float = 0.0
    weight_bytes: int = 0
    expert_bytes: int = 0


def draft_model(target: ModelDimensions, speculation: Speculation) -> DraftModel:
    """Return what the draft of a model costs.

    * mtp: as many of the checkpoint's next-token-prediction layers as tokens are drafted, each a layer of the target
      with experts, if it has any, and a projection of two hidden states to one; embeddings and head are the target's.
    * eagle: one layer as the target's with the experts of one token alone, a projection of three hidden states, and an
      output head of 32,000 tokens (EAGLE-3), at the precision of what the target does not quantise.
    * ngram: nothing.

    Raises:
        SpeculationError: mtp, and the model has no such layers.
    """
    if speculation.method == "ngram":
        return DraftModel()
    if speculation.method == "mtp" and not target.prediction_layers:
        raise SpeculationError(
            f"method: mtp needs a checkpoint with next-token-prediction layers, and none of {target.name} are known; "
            "choose eagle with a draft model, or ngram, or give the config.json that has them (spec.model.config: "
            "num_nextn_predict_layers)"
        )
    layers = min(target.prediction_layers, speculation.tokens) if speculation.method == "mtp" else 1
    mixing = (target.attention_params + target.linear_params) / target.layers
    dense = target.dense_ffn_params / target.feed_forwards
    experts = 0.0
    if target.experts > 1:
        dense = target.hidden * (target.ffn_matrices * target.shared_intermediate + 2 * target.expert_hidden)
        experts = target.expert_params / target.expert_layers
    chosen = experts * target.active_experts / target.experts
    output = target.vocab * target.hidden
    if speculation.method == "mtp":
        own = mixing + dense + 2 * target.hidden**2
        head = output
        routed = layers * round(experts * expert_bytes(target) / target.expert_params) if experts else 0
        rest = layers * own * _bytes_per_weight(target)
    else:
        own = mixing + dense + chosen + EAGLE_FUSED * target.hidden**2
        chosen = 0.0
        head = min(EAGLE_VOCABULARY, target.vocab) * target.hidden
        routed, rest = 0, (own + head) * target.dtype_bytes
    return DraftModel(
        pass_share=(own + chosen + head) / (target.active_params + output),
        prompt_share=layers * (own + chosen) / target.active_params,
        kv_share=layers / target.pair_layers if target.pair_layers else 0.0,
        weight_bytes=round(rest) + routed,
        expert_bytes=routed,
    )


def _bytes_per_weight(model: ModelDimensions) -> float:
    """Return the mean bytes of the weights that are neither routed experts, embeddings nor routers."""
    shared = model.attention_params + model.linear_params + model.dense_ffn_params
    kept = model.embedding_params + model.router_params + model.positions * model.hidden + model.encoder_params
    return (weight_bytes(model) - expert_bytes(model) - kept * model.dtype_bytes) / shared


def with_speculation(
    profile: CostProfile,
    speculation: Speculation,
    model: ModelDimensions | None = None,
    *,
    sequence_tokens: float | None = None,
) -> CostProfile:
    """Return a profile of plain decoding as one of speculative decoding.

    ``model`` is the target, which nothing but n-grams does without; ``sequence_tokens`` is the length of a sequence, as
    for ``derive_profile``. Degrees that have no room for KV beside the draft are left out.

    Raises:
        SpeculationError: the model cannot draft so, or is not given and needed.
        ModelDoesNotFit: no degree has room.
    """
    if model is None and speculation.method != "ngram":
        raise SpeculationError(
            f"method: what the draft of {speculation.method} costs follows from the dimensions of {profile.model}, "
            "which are not known; give the model's config.json (spec.model.config)"
        )
    draft = DraftModel() if model is None else draft_model(model, speculation)
    degrees = {
        degree: _with_draft(
            costs, speculation, draft, attention=_attention_seconds(profile.gpu, model, degree, sequence_tokens)
        )
        for degree, costs in _with_room(profile, draft, model, sequence_tokens).items()
    }
    if not degrees:
        largest = max(profile.degrees)
        raise ModelDoesNotFit(
            f"{profile.model} leaves no memory for KV beside the {speculation.method} draft of "
            f"{draft.weight_bytes / GB:.1f} GB at degree {largest} of {profile.gpu}; allow a larger degree, or leave "
            "out spec.engine.speculative",
            needed_gb=_of_worker(draft, largest) / GB,
            available_gb=0.0,
            smallest_degree=None,
        )
    moved = 1 + draft.kv_share
    return replace(
        profile,
        kv_bytes_per_token=math.ceil(profile.kv_bytes_per_token * moved),
        degrees=degrees,
        transfers={
            (source, destination, link): replace(cost, per_token=cost.per_token * moved)
            for (source, destination, link), cost in profile.transfers.items()
            if source in degrees and destination in degrees
        },
        provenance={**profile.provenance, PROVENANCE: _described(speculation, draft)},
    )


def _described(speculation: Speculation, draft: DraftModel) -> str:
    """Return in words what a profile's steps assume."""
    drafted = f"{speculation.tokens} token{'s' * (speculation.tokens > 1)} drafted a step"
    words = (
        f"{speculation.method}, {drafted}, acceptance {speculation.acceptance:g} (assumed), so "
        f"{speculation.tokens_per_step:.2f} tokens a step"
    )
    if not draft.weight_bytes:
        return words
    return f"{words}; draft of {draft.weight_bytes / GB:.1f} GB, each pass {draft.pass_share:.1%} of a step"


def _attention_seconds(gpu: str, model: ModelDimensions | None, degree: Degree, sequence_tokens: float | None) -> float:
    """Return the time of attention's operations per token of context, 0 where the model or the GPU is not known."""
    known = gpu_named(gpu)
    if known is None or model is None:
        return 0.0
    return attention_seconds(model, known, degree, efficiency_for(known.name), sequence_tokens)


def _with_room(
    profile: CostProfile, draft: DraftModel, model: ModelDimensions | None, sequence_tokens: float | None
) -> dict[Degree, DegreeCosts]:
    """Return the costs of the degrees that keep room for KV, with the draft's weights and KV in their memory."""
    found = {}
    for degree, costs in profile.degrees.items():
        capacity, weights = costs.kv_capacity_tokens, _of_worker(draft, degree)
        if model is not None and weights:
            token = kv_layout(model, degree).mean_per_token(sequence_tokens)
            capacity = int((capacity - weights / token) / (1 + draft.kv_share))
        if capacity > 0:
            found[degree] = replace(
                costs,
                weight_bytes_per_gpu=costs.weight_bytes_per_gpu + -(-weights // gpus_of(degree)),
                kv_capacity_tokens=capacity,
            )
    return found


def _of_worker(draft: DraftModel, degree: Degree) -> int:
    """Return the bytes of a draft on all GPUs of a worker: each rank has its own, but for routed experts."""
    return parallelism_of(degree).dp * (draft.weight_bytes - draft.expert_bytes) + draft.expert_bytes


def _with_draft(costs: DegreeCosts, speculation: Speculation, draft: DraftModel, *, attention: float) -> DegreeCosts:
    return replace(
        costs,
        prefill=tuple(piece.slower(1 + draft.prompt_share) for piece in costs.prefill),
        decode=tuple(_per_token(piece, speculation, draft, attention) for piece in costs.decode),
    )


def _per_token(piece: DecodePiece, speculation: Speculation, draft: DraftModel, attention: float) -> DecodePiece:
    """Return a regime of steps of one token: a speculative step over the tokens that it yields.

    ``attention`` is the time of attention's operations per token of context, of which the piece has no more than all.
    """
    tokens = speculation.tokens
    once = 1 / speculation.tokens_per_step
    passes = 1 + tokens * draft.pass_share
    context = piece.per_context_token
    attended = max(context, (tokens + 1) * min(context, attention)) + tokens * draft.kv_share * context
    verified = tokens * max(piece.per_sequence, piece.per_chunk_token)
    prompt = 1 + draft.prompt_share
    return DecodePiece(
        alpha=once * passes * piece.alpha,
        per_sequence=once * (passes * piece.per_sequence + verified),
        per_context_token=once * attended,
        experts_seconds=once * passes * piece.experts_seconds,
        expert_share=1 - (1 - piece.expert_share) ** (tokens + 1),
        per_chunk_token=prompt * piece.per_chunk_token,
        per_chunk_pair=prompt * piece.per_chunk_pair,
        per_chunk_context=prompt * piece.per_chunk_context,
        from_batch=float(math.ceil(piece.from_batch / (tokens + 1))),
        per_chunk=prompt * piece.per_chunk,
    )
