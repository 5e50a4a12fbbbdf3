"""The inference engine of a service."""

# ruff: noqa: RUF012 - pydantic copies the defaults of fields

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from weft_operator.api.base import ApiModel, Rule
from weft_operator.api.engine_flags import (
    FROM_A_VARIABLE,
    MANAGED,
    NAME,
    RESERVED_ENV,
    EngineType,
    is_managed,
    managed_pattern,
)
from weft_operator.api.fields import Fraction, PullSecrets, Quantity

Arg = Annotated[str, StringConstraints(min_length=1, max_length=1024)]


def _managed_rule(engine: EngineType) -> Rule:
    flags = ", ".join(f"-{flag}" for flag in MANAGED[engine].short)
    return Rule(
        f"self.type != '{engine}' || self.args.all(a, !a.find('{NAME}').matches('{managed_pattern(engine)}'))",
        f"spec.engine.args: the operator sets {', '.join('--' + flag for flag in MANAGED[engine].long)} "
        f"{f'({flags}) ' if flags else ''}from other fields; remove them here, and write others in full",
        lambda e: e.type != engine or not any(is_managed(engine, arg) for arg in e.args),
        culprit=lambda e: next(arg for arg in e.args if is_managed(engine, arg)),
    )


def _blocks_pair(engine: "Engine") -> bool:
    sizes = engine.kv_transfer.block_tokens
    if sizes is None:
        return True
    if engine.type == "vllm":
        return sizes.prefill <= sizes.decode and sizes.decode % sizes.prefill == 0
    return sizes.prefill == sizes.decode


class Resources(ApiModel):
    """Compute resources of one container, as in a pod."""

    requests: Annotated[dict[str, Quantity], Field(max_length=16)] = {}
    """What the scheduler sets aside."""
    limits: Annotated[dict[str, Quantity], Field(max_length=16)] = {}
    """What the container may use at most."""


class BlockTokens(ApiModel):
    """Tokens of one KV block; which sizes may pair depends on the engine."""

    prefill: Annotated[int, Field(ge=1, le=1024)]
    """Of prefill workers."""
    decode: Annotated[int, Field(ge=1, le=1024)]
    """Of decode workers."""


class KvTransfer(ApiModel):
    """How workers hand KV cache to each other."""

    connector: Literal["nixl"] = "nixl"
    """Transfer library."""
    bidirectional: bool = True
    """Prefill workers read a session's history back from its decode worker instead of computing it again."""
    lease_seconds: Annotated[int, Field(ge=5, le=3600)] = 60
    """How long a prefill worker keeps unread KV."""
    handle_ttl_seconds: Annotated[int, Field(ge=5, le=86400)] = 120
    """How long a decode worker keeps a finished round's KV readable; set it near the time between rounds."""
    block_tokens: BlockTokens | None = None
    """Tokens of one KV block for each role; the engine's own default if absent."""
    proof_seconds: Annotated[int, Field(ge=2, le=3600)] | None = None
    """vllm: how often sidecars prove again that KV goes between paired workers, and twice as often where it did not;
    60 if absent. A change restarts workers."""

    def block_size(self, role: str) -> int | None:
        """Return the tokens of a role's KV blocks, None where the engine chooses."""
        if self.block_tokens is None:
            return None
        return self.block_tokens.prefill if role == "prefill" else self.block_tokens.decode


class MockEngine(ApiModel):
    """Settings of the mock engine, which follows the cost profile in real time and needs no GPU."""

    time_scale: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Seconds that pass for each second of the cost profile; 0.1 runs ten times faster."""
    chunk_tokens: Annotated[int, Field(ge=16, le=1_048_576)] = 8192
    """Most prompt tokens that a step takes beside decoding, as vLLM's max_num_batched_tokens."""
    kv_capacity_tokens: Annotated[int, Field(ge=256)] | None = None
    """Tokens of KV one worker holds; the cost profile's figure if absent."""


class EnvVar(ApiModel):
    """One environment variable of the engine container."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
    """Name of the variable."""
    value: Annotated[str, StringConstraints(max_length=4096)]
    """Its value; put secrets into a Secret, never here."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!self.name.matches('{RESERVED_ENV}')",
            "spec.engine.env: names that begin with WEFT_, POD_, NODE_, VLLM_NIXL_, VLLM_DP_, VLLM_RAY_DP_ or DYN_, "
            "and the host, port and API key of vLLM and SGLang, are set by the operator; remove this one",
            lambda e: re.match(RESERVED_ENV, e.name) is None,
        ),
    )


class Engine(ApiModel):
    """The inference engine of every worker."""

    type: EngineType = "vllm"
    """Which engine; mock follows a cost profile and needs no GPU."""
    image: Annotated[str, StringConstraints(pattern=r"^\S+$", min_length=1, max_length=512)] | None = None
    """Container image; needed for all but mock, which has the operator's default."""
    args: Annotated[list[Arg], Field(max_length=64)] = []
    """Further arguments, after those that follow from the plan."""
    env: Annotated[list[EnvVar], Field(max_length=64, json_schema_extra={"x-kubernetes-list-map-keys": ["name"]})] = []
    """Further environment variables."""
    plugin: Literal["Expected"] | None = None
    """Expected: the engine's image has Weft's plug-in; the operator gives it the proof by which it knows the router,
    and the condition EnginePlugin says whether it is active."""
    kv_transfer: KvTransfer = KvTransfer()
    """How workers hand KV cache to each other."""
    mock: MockEngine | None = None
    """Settings of the mock engine; only with type mock."""
    resources: Resources = Resources()
    """CPU and memory of the engine container; GPUs and RDMA devices come from the pool."""
    shared_memory: Quantity = "1Gi"
    """Size of /dev/shm, which the engine's GPU processes share."""
    memory_fraction: Fraction = 0.9
    """Share of GPU memory that the engine may take; for tensorrt-llm: of what its weights leave, for KV."""
    run_as_user: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """User id of the engine. Absent: on OpenShift the one that it assigns, elsewhere 65532; for mock the image's."""
    image_pull_secrets: PullSecrets = []
    """Secrets to pull the engine's image with, beside spec.imagePullSecrets."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.type == 'mock' || has(self.image)",
            "spec.engine.image: is needed for every type but mock; name one with vLLM 0.32, SGLang 0.5, "
            "TensorRT-LLM 1.0 or newer",
            lambda e: e.type == "mock" or e.image is not None,
        ),
        Rule(
            "self.type in ['vllm', 'mock'] || !self.kvTransfer.bidirectional",
            "spec.engine.kvTransfer.bidirectional: sglang and tensorrt-llm cannot read a session's history back from "
            "its decode worker; set it to false",
            lambda e: e.type in ("vllm", "mock") or not e.kv_transfer.bidirectional,
        ),
        Rule(
            "!has(self.plugin) || self.type == 'vllm'",
            "spec.engine.plugin: there is a plug-in for vllm only; remove it",
            lambda e: e.plugin is None or e.type == "vllm",
        ),
        Rule(
            "!has(self.kvTransfer.blockTokens) || self.type != 'mock'",
            "spec.engine.kvTransfer.blockTokens: the mock engine has no blocks to choose; remove it",
            lambda e: e.kv_transfer.block_tokens is None or e.type != "mock",
        ),
        Rule(
            "!has(self.kvTransfer.blockTokens) || (self.type == 'vllm'"
            " ? self.kvTransfer.blockTokens.decode % self.kvTransfer.blockTokens.prefill == 0"
            " : self.kvTransfer.blockTokens.prefill == self.kvTransfer.blockTokens.decode)",
            "spec.engine.kvTransfer.blockTokens: blocks of these sizes cannot pair; for vllm decode must be a multiple "
            "of prefill, for sglang and tensorrt-llm both must be the same",
            _blocks_pair,
        ),
        Rule(
            "!has(self.mock) || self.type == 'mock'",
            "spec.engine.mock: only for type mock; remove it or set spec.engine.type to mock",
            lambda e: e.mock is None or e.type == "mock",
        ),
        Rule(
            None,  # the list is keyed by name
            "spec.engine.env: two variables have the same name; remove one",
            lambda e: len({item.name for item in e.env}) == len(e.env),
        ),
        Rule(
            f"self.args.all(a, !a.matches('{FROM_A_VARIABLE}'))",
            "spec.engine.args: only a value may come from a variable; write --flag=$(NAME)",
            lambda e: not any(re.search(FROM_A_VARIABLE, arg) for arg in e.args),
        ),
        *(_managed_rule(engine) for engine in MANAGED),
    )
