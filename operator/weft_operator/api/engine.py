"""What is served and by which engine."""

# ruff: noqa: RUF012 - pydantic copies the defaults of fields

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue, StringConstraints

from weft_operator.api.base import ApiModel, Rule
from weft_operator.api.fields import Fraction, ObjectName, PullSecrets, Quantity

Arg = Annotated[str, StringConstraints(min_length=1, max_length=1024)]

EngineType = Literal["vllm", "sglang", "tensorrt-llm", "mock"]

MANAGED_FLAGS: Mapping[EngineType, tuple[str, ...]] = {
    "vllm": (
        "host",
        "port",
        "model",
        "served-model-name",
        "tensor-parallel-size",
        "pipeline-parallel-size",
        "nnodes",
        "node-rank",
        "master-addr",
        "master-port",
        "headless",
        "kv-transfer-config",
        "max-model-len",
        "dtype",
        "kv-cache-dtype",
        "gpu-memory-utilization",
        "api-key",
    ),
    "sglang": (
        "host",
        "port",
        "model-path",
        "model",
        "served-model-name",
        "tp-size",
        "tp",
        "tensor-parallel-size",
        "pp-size",
        "pipeline-parallel-size",
        "nnodes",
        "node-rank",
        "dist-init-addr",
        "context-length",
        "dtype",
        "kv-cache-dtype",
        "mem-fraction-static",
        "page-size",
        "disaggregation-mode",
        "disaggregation-transfer-backend",
        "disaggregation-bootstrap-port",
        "api-key",
    ),
    "tensorrt-llm": (
        "host",
        "port",
        "backend",
        "tp-size",
        "tensor-parallel-size",
        "pp-size",
        "pipeline-parallel-size",
        "max-seq-len",
        "extra-llm-api-options",
        "config",
        "server-role",
        "free-gpu-memory-fraction",
        "kv-cache-free-gpu-memory-fraction",
    ),
}
"""Engine flags that follow from other fields; the same flag given twice would quietly break the plan."""


def _managed(engine: EngineType) -> str:
    """Return the pattern of an engine's managed flags; underscores and hyphens are the same to them."""
    return f"--({'|'.join(flag.replace('-', '[-_]') for flag in MANAGED_FLAGS[engine])})(=|$)"


def _managed_rule(engine: EngineType, cel: str, engines: tuple[str, ...]) -> Rule:
    pattern = f"^{_managed(engine)}"
    return Rule(
        f"!({cel}) || self.args.all(a, !a.matches('{pattern}'))",
        f"spec.engine.args: the operator sets {', '.join('--' + flag for flag in MANAGED_FLAGS[engine])} "
        "from other fields; remove them here",
        lambda e: e.type not in engines or not any(re.match(pattern, arg) for arg in e.args),
    )


def _blocks_pair(engine: "Engine") -> bool:
    sizes = engine.kv_transfer.block_tokens
    if sizes is None:
        return True
    if engine.type == "vllm":
        return sizes.prefill <= sizes.decode and sizes.decode % sizes.prefill == 0
    return sizes.prefill == sizes.decode


_RESERVED_ENV = "^(WEFT_|POD_|NODE_|VLLM_NIXL_)"


class Resources(ApiModel):
    """Compute resources of one container, as in a pod."""

    requests: Annotated[dict[str, Quantity], Field(max_length=16)] = {}
    """What the scheduler sets aside."""
    limits: Annotated[dict[str, Quantity], Field(max_length=16)] = {}
    """What the container may use at most."""


class SecretKey(ApiModel):
    """One key of a Secret in the service's namespace."""

    name: ObjectName
    """Name of the Secret."""
    key: Annotated[str, StringConstraints(pattern=r"^[-._a-zA-Z0-9]+$", min_length=1, max_length=253)]
    """Key in the Secret."""


class HuggingFace(ApiModel):
    """Weights from the Hugging Face hub, loaded by the engine at start."""

    revision: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._/-]+$", min_length=1, max_length=128)] | None = (
        None
    )
    """Branch, tag or commit; the repository's default branch if absent."""
    token_secret_ref: SecretKey | None = None
    """Access token for gated models."""


class Pvc(ApiModel):
    """Weights on a volume that every worker mounts read-only."""

    claim_name: ObjectName
    """PersistentVolumeClaim in the service's namespace, ReadOnlyMany or ReadWriteMany."""
    path: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._/-]+$", max_length=512)] = "."
    """Folder of the model on the volume."""


class ModelSource(ApiModel):
    """Where the weights come from."""

    hugging_face: HuggingFace | None = None
    """The Hugging Face hub."""
    pvc: Pvc | None = None
    """A volume."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.huggingFace) != has(self.pvc)",
            "spec.model.source: give exactly one of huggingFace and pvc",
            lambda s: (s.hugging_face is None) != (s.pvc is None),
        ),
    )


class Model(ApiModel):
    """The model that is served."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$", max_length=128)]
    """Name that clients ask for, and the model's id on the hub: meta-llama/Llama-3.1-70B-Instruct."""
    source: ModelSource | None = None
    """Where the weights come from; the hub, by the model's name, if absent."""
    max_model_len: Annotated[int, Field(ge=256, le=10_485_760)] = 32768
    """Longest context in tokens, prompt and answer together."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "bfloat16"
    """Number format of weights and activations."""
    kv_cache_dtype: Literal["auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"] = "auto"
    """Number format of the KV cache; auto follows dtype."""
    config: (
        Annotated[
            dict[str, JsonValue],
            Field(max_length=512, json_schema_extra={"x-kubernetes-preserve-unknown-fields": True}),
        ]
        | None
    ) = None
    """The model's Hugging Face config.json, for an analytic profile of a model that is not in the catalogue."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.name == oldSelf.name",
            "spec.model.name: cannot change, because workers of two models cannot exchange KV; "
            "create a second service for the other model",
            None,
        ),
    )


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
    """How long a prefill worker keeps KV that nobody has read yet."""
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
    chunk_tokens: Annotated[int, Field(ge=16, le=1_048_576)] | None = None
    """Slice length of chunked prefill; whole prompts if absent, which is what plans assume."""
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
            f"!self.name.matches('{_RESERVED_ENV}')",
            "spec.engine.env: names that begin with WEFT_, POD_, NODE_ or VLLM_NIXL_ are set by the operator; "
            "remove this one",
            lambda e: re.match(_RESERVED_ENV, e.name) is None,
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
        _managed_rule("vllm", "self.type in ['vllm', 'mock']", ("vllm", "mock")),
        _managed_rule("sglang", "self.type == 'sglang'", ("sglang",)),
        _managed_rule("tensorrt-llm", "self.type == 'tensorrt-llm'", ("tensorrt-llm",)),
    )
