"""The parts of a service's engine settings."""

# ruff: noqa: RUF012 - pydantic copies the defaults of fields

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue, StringConstraints

from weft_operator.api.base import ApiModel, Rule
from weft_operator.api.engine_flags import RESERVED_ENV
from weft_operator.api.fields import Fraction, Quantity

Arg = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
Args = Annotated[list[Arg], Field(max_length=64)]
RoleArgs = Annotated[list[Arg], Field(max_length=24)]
Image = Annotated[str, StringConstraints(pattern=r"^\S+$", min_length=1, max_length=512)]
MaxNumSeqs = Annotated[int, Field(ge=1, le=65_536)]
MaxNumBatchedTokens = Annotated[int, Field(ge=16, le=1_048_576)]
Quantization = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+([_-][a-z0-9]+)*$", min_length=1, max_length=64)]


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

    connector: Literal["nixl", "ucx", "mpi"] = "nixl"
    """Transfer library; ucx only with type tensorrt-llm, mpi with none; neuron has its runtime in its place. A change
    makes a new revision."""
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
    """Most tokens of a step, decodes first, as vLLM's max_num_batched_tokens."""
    kv_capacity_tokens: Annotated[int, Field(ge=256)] | None = None
    """Tokens of KV one worker holds; the cost profile's figure if absent."""


class EnvVar(ApiModel):
    """One environment variable of the engine container."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
    """Name of the variable."""
    value: Annotated[str, StringConstraints(max_length=2048)]
    """Its value; put secrets into a Secret, never here."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!self.name.matches('{RESERVED_ENV}')",
            "spec.engine.env: names that begin with WEFT_, POD_, NODE_, VLLM_NIXL_, VLLM_DP_, VLLM_RAY_DP_, "
            "NEURON_RT_ASYNC_SENDRECV or DYN_, the host, port and API key of vLLM and SGLang, and where their KV tiers "
            "are, are set by the operator; remove this one",
            lambda e: re.match(RESERVED_ENV, e.name) is None,
        ),
    )


_BY_NAME: dict[str, JsonValue] = {"x-kubernetes-list-map-keys": ["name"]}
Env = Annotated[list[EnvVar], Field(max_length=64, json_schema_extra=_BY_NAME)]
RoleEnv = Annotated[list[EnvVar], Field(max_length=12, json_schema_extra=_BY_NAME)]


class RoleEngine(ApiModel):
    """What the engines of one role have in place of the settings of both."""

    args: RoleArgs = []
    """Arguments after those of spec.engine.args; a flag that is here leaves out the same one there."""
    env: RoleEnv = []
    """Variables, merged over those of spec.engine.env by name."""
    resources: Resources | None = None
    """CPU and memory, in place of all of spec.engine.resources."""
    image: Image | None = None
    """Container image, of the same engine."""
    memory_fraction: Fraction | None = None
    """Share of GPU memory; the planner takes the smaller one of both roles."""
    max_num_seqs: MaxNumSeqs | None = None
    """Most sequences that a step takes."""
    max_num_batched_tokens: MaxNumBatchedTokens | None = None
    """Most tokens that a step takes."""
    quantization: Quantization | None = None
    """How weights are quantised."""
