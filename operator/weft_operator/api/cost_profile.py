"""CostProfile: predicted times of one model on one GPU type and engine, measured or derived."""

# ruff: noqa: RUF012 - pydantic copies the defaults of fields

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from weft_operator.api.base import ApiModel, Rule
from weft_operator.api.fields import AnyDegree

Seconds = Annotated[float, Field(ge=0, le=1e6)]
Bytes = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=253)]


def _both_or_neither(role: str) -> Rule:
    return Rule(
        "has(self.expertsSeconds) == has(self.expertShare)",
        f"spec.degrees.{role}: give both of expertsSeconds and expertShare, or neither",
        lambda piece: (piece.experts_seconds is None) == (piece.expert_share is None),
    )


class PrefillPiece(ApiModel):
    """One affine regime of prefill: alpha + perToken x increment + perPair x increment x (history + increment / 2) + perContextToken x (history + increment) + expertsSeconds x (1 - (1 - expertShare)^increment)."""  # noqa: E501 - one sentence of the reference page

    alpha: Seconds
    """Seconds per call."""
    per_token: Seconds = 0
    """Seconds per new token."""
    per_pair: Seconds = 0
    """Seconds per attended pair of tokens."""
    per_context_token: Seconds = 0
    """Seconds per token of context."""
    experts_seconds: Seconds | None = None
    """Seconds to read all experts of a mixture-of-experts model; with expertShare."""
    expert_share: Share | None = None
    """Share of the experts that one token reads; with expertsSeconds."""
    from_context: Annotated[int, Field(ge=1, le=10_485_760)] | None = None
    """Tokens of history and increment from which on the regime applies; always if absent."""

    rules: ClassVar[tuple[Rule, ...]] = (_both_or_neither("prefill"),)


class DecodePiece(ApiModel):
    """One affine regime of an engine step: alpha + perSequence x batch + perContextToken x context + perChunkToken x chunk + perChunkPair x chunk x (chunk's history + chunk / 2) + perChunkContext x (chunk's history + chunk), and perChunk where there is a chunk."""  # noqa: E501 - one sentence of the reference page

    alpha: Seconds
    """Seconds per step."""
    per_sequence: Seconds = 0
    """Seconds per sequence of the batch."""
    per_context_token: Seconds = 0
    """Seconds per token held by the batch."""
    experts_seconds: Seconds | None = None
    """Seconds to read all experts of a mixture-of-experts model; with expertShare."""
    expert_share: Share | None = None
    """Share of the experts that one token reads; with expertsSeconds."""
    per_chunk_token: Seconds | None = None
    """Seconds per prefill token that rides along with the step; estimated from prefill if absent."""
    per_chunk_pair: Seconds | None = None
    """Seconds per pair of tokens that such a chunk attends."""
    per_chunk_context: Seconds | None = None
    """Seconds per token that the chunk's sequence holds after the step."""
    per_chunk: Seconds | None = None
    """Seconds of a chunk of any length."""
    from_batch: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Sequences of the batch from which on the regime applies; to every batch if absent."""

    rules: ClassVar[tuple[Rule, ...]] = (
        _both_or_neither("decode"),
        Rule(
            "has(self.perChunkToken) == has(self.perChunkPair) && has(self.perChunkToken) == has(self.perChunkContext)",
            "spec.degrees.decode: give all of perChunkToken, perChunkPair and perChunkContext, or none",
            lambda p: len({p.per_chunk_token is None, p.per_chunk_pair is None, p.per_chunk_context is None}) == 1,
        ),
    )


class FitError(ApiModel):
    """How well fitted figures predict measurements that were held out."""

    median: Annotated[float, Field(ge=0)]
    """Median relative error, as a share of the measured time."""
    p95: Annotated[float, Field(ge=0)]
    """95th percentile of the relative error, as a share of the measured time."""
    points: Annotated[int, Field(ge=1)]
    """Measured shapes the figures were fitted to."""


class DegreeFit(ApiModel):
    """How well a degree's figures fit what was measured; absent where nothing was."""

    prefill: FitError | None = None
    """Of prefill."""
    step: FitError | None = None
    """Of engine steps."""


class DegreeCosts(ApiModel):
    """One worker of one degree; of one of its batches where it runs several at a time, while the others are as full."""

    degree: AnyDegree
    """GPUs of the worker that share layers by tensors; or how it splits the model otherwise, such as dp16ep."""
    weight_bytes_per_gpu: Bytes
    """Bytes of weights on each GPU."""
    kv_capacity_tokens: Annotated[int, Field(ge=1)]
    """Tokens of KV cache the worker holds."""
    prefill: Annotated[list[PrefillPiece], Field(min_length=1, max_length=32)]
    """Regimes of prefill; the slowest counts."""
    decode: Annotated[list[DecodePiece], Field(min_length=1, max_length=16)]
    """Regimes of decode; the slowest counts."""
    fit: DegreeFit | None = None
    """How well the figures fit what was measured."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.prefill.exists(p, !has(p.fromContext))",
            "spec.degrees.prefill: every row has fromContext; one must apply to every prompt",
            lambda d: any(p.from_context is None for p in d.prefill),
        ),
        Rule(
            "self.decode.exists(p, !has(p.fromBatch))",
            "spec.degrees.decode: every row has fromBatch; one must apply to every batch",
            lambda d: any(p.from_batch is None for p in d.decode),
        ),
    )


class Transfer(ApiModel):
    """Time of moving KV between two workers: alpha + perToken x tokens."""

    source: AnyDegree
    """Degree of the sender."""
    destination: AnyDegree
    """Degree of the receiver."""
    link: Literal["intra-node", "inter-node"]
    """Where the two are."""
    alpha: Seconds
    """Seconds per transfer."""
    per_token: Seconds
    """Seconds per token."""
    fit: FitError | None = None
    """How well the figures fit what was measured."""


class CostProfileSpec(ApiModel):
    """Times in seconds, lengths in tokens, sizes in bytes."""

    model: Name
    """Model the figures are of."""
    gpu: Name
    """GPU type the figures are of."""
    engine: Name
    """Engine and version the figures are of."""
    kv_bytes_per_token: Bytes
    """KV cache of one token over all layers and GPUs."""
    degrees: Annotated[
        list[DegreeCosts],
        Field(min_length=1, max_length=16, json_schema_extra={"x-kubernetes-list-map-keys": ["degree"]}),
    ]
    """Figures per tensor-parallel degree."""
    transfers: Annotated[
        list[Transfer],
        Field(
            min_length=1,
            max_length=512,
            json_schema_extra={"x-kubernetes-list-map-keys": ["source", "destination", "link"]},
        ),
    ]
    """KV transfer times per pair of degrees and link."""
    provenance: Annotated[
        dict[str, Annotated[str, StringConstraints(max_length=1024)]],
        Field(max_length=32),
    ] = {}
    """Where the figures come from, and how well they fit."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            None,  # the list is keyed by degree
            "spec.degrees: two rows have the same degree; remove one",
            lambda s: len({d.degree for d in s.degrees}) == len(s.degrees),
        ),
        Rule(
            None,  # API servers before Kubernetes 1.34 take a field of two types for 3 MB, and the rule for too dear
            "spec.transfers: names a degree that spec.degrees lacks; add the degree or remove the transfer",
            lambda s: (
                {t.source for t in s.transfers} | {t.destination for t in s.transfers} <= {d.degree for d in s.degrees}
            ),
        ),
    )


def profile_name(service: str, gpu: str) -> str:
    """Return the name of the CostProfile that holds what was measured on a GPU type."""
    return f"{service}-measured-{gpu}".replace(".", "-")
