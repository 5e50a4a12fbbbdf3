"""The inference engine of a service."""

# ruff: noqa: RUF012 - pydantic copies the defaults of fields

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from weft_operator.api.base import ApiModel, Rule
from weft_operator.api.engine_flags import EngineType
from weft_operator.api.engine_parts import (
    Args,
    Env,
    Image,
    KvTransfer,
    MaxNumBatchedTokens,
    MaxNumSeqs,
    MockEngine,
    Quantization,
    Resources,
    RoleEngine,
)
from weft_operator.api.engine_setting_rules import SETTING_RULES
from weft_operator.api.fields import Fraction, PullSecrets, Quantity
from weft_operator.api.neuron import NeuronEngine
from weft_operator.api.speculative import Speculative


def _blocks_pair(engine: "Engine") -> bool:
    sizes = engine.kv_transfer.block_tokens
    if sizes is None:
        return True
    if engine.type == "vllm":
        return sizes.prefill <= sizes.decode and sizes.decode % sizes.prefill == 0
    return sizes.prefill == sizes.decode


def _sequences_given(engine: "Engine") -> bool:
    roles = (engine.prefill, engine.decode)
    of_roles = all(role is not None and role.max_num_seqs is not None for role in roles)
    return engine.type != "neuron" or engine.max_num_seqs is not None or of_roles


class Engine(ApiModel):
    """The inference engine of every worker."""

    type: EngineType = "vllm"
    """Which engine; mock follows a cost profile and needs no GPU."""
    image: Image | None = None
    """Container image; needed for all but mock, which has the operator's default."""
    args: Args = []
    """Further arguments, after those that follow from the plan."""
    env: Env = []
    """Further environment variables; $(NAME) in a value is the variable of this name, if it stands before."""
    prefill: RoleEngine | None = None
    """What prefill workers have in place of settings here."""
    decode: RoleEngine | None = None
    """What decode workers, and co-located ones, have in place of settings here."""
    plugin: Literal["Expected"] | None = None
    """Expected: the engine's image has Weft's plug-in; the operator gives it the proof by which it knows the router,
    and the condition EnginePlugin says whether it is active."""
    kv_transfer: KvTransfer = KvTransfer()
    """How workers hand KV cache to each other."""
    kv_events: Literal["Enabled"] | None = None
    """Enabled: engines tell their sidecars which KV blocks they keep, so that the bindings prefix-aware and kv-aware
    know what is cached and need not estimate it; for vllm, sglang and mock, not where a worker's data-parallel ranks
    lie on several nodes. A change restarts workers one by one."""
    mock: MockEngine | None = None
    """Settings of the mock engine; only with type mock."""
    neuron: NeuronEngine | None = None
    """Settings of Neuron's engine; only with type neuron."""
    resources: Resources = Resources()
    """CPU and memory of the engine container; GPUs and RDMA devices come from the pool."""
    shared_memory: Quantity = "1Gi"
    """Size of /dev/shm, which the engine's GPU processes share."""
    memory_fraction: Fraction = 0.9
    """Share of GPU memory that the engine may take; for tensorrt-llm: of what its weights leave, for KV."""
    max_num_seqs: MaxNumSeqs | None = None
    """Most sequences that a step takes; the engine's own default if absent."""
    max_num_batched_tokens: MaxNumBatchedTokens | None = None
    """Most tokens that a step takes: longer prompts are prefilled in chunks; the engine's own default if absent."""
    quantization: Quantization | None = None
    """How weights are quantised, as vllm and sglang name it, such as fp8 or awq_marlin; as the checkpoint says if
    absent."""
    speculative: Speculative | None = None
    """Speculative decoding, of both roles; none if absent. A change of all but acceptance makes a new revision."""
    run_as_user: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """User id of the engine. Absent: on OpenShift the one that it assigns, elsewhere 65532; for mock the image's."""
    image_pull_secrets: PullSecrets = []
    """Secrets to pull the engine's image with, beside spec.imagePullSecrets."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.type == 'mock' || has(self.image)",
            "spec.engine.image: is needed for every type but mock; name one with vLLM 0.32, SGLang 0.5, "
            "TensorRT-LLM 1.3 or newer, or Neuron's fork of vLLM 0.9.1",
            lambda e: e.type == "mock" or e.image is not None,
        ),
        Rule(
            "self.type in ['vllm', 'mock'] || !self.kvTransfer.bidirectional",
            "spec.engine.kvTransfer.bidirectional: sglang, tensorrt-llm and neuron cannot read a session's history "
            "back from its decode worker; set it to false",
            lambda e: e.type in ("vllm", "mock") or not e.kv_transfer.bidirectional,
        ),
        Rule(
            "self.kvTransfer.connector != 'mpi'",
            "spec.engine.kvTransfer.connector: mpi moves KV only between processes of one MPI world, and every worker "
            "is started on its own; choose nixl, or ucx for tensorrt-llm",
            lambda e: e.kv_transfer.connector != "mpi",
        ),
        Rule(
            "self.kvTransfer.connector != 'ucx' || self.type == 'tensorrt-llm'",
            "spec.engine.kvTransfer.connector: only tensorrt-llm takes ucx; set it to nixl, which itself moves KV over "
            "UCX",
            lambda e: e.kv_transfer.connector != "ucx" or e.type == "tensorrt-llm",
        ),
        Rule(
            "!has(self.plugin) || self.type == 'vllm'",
            "spec.engine.plugin: there is a plug-in for vllm only; remove it",
            lambda e: e.plugin is None or e.type == "vllm",
        ),
        Rule(
            "!has(self.kvTransfer.blockTokens) || !(self.type in ['mock', 'neuron'])",
            "spec.engine.kvTransfer.blockTokens: the engines mock and neuron have no blocks to choose; remove it",
            lambda e: e.kv_transfer.block_tokens is None or e.type not in ("mock", "neuron"),
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
            "!has(self.kvEvents) || self.type in ['vllm', 'sglang', 'mock']",
            "spec.engine.kvEvents: tensorrt-llm and neuron publish no KV events; remove it",
            lambda e: e.kv_events is None or e.type in ("vllm", "sglang", "mock"),
        ),
        Rule(
            "!has(self.mock) || self.type == 'mock'",
            "spec.engine.mock: only for type mock; remove it or set spec.engine.type to mock",
            lambda e: e.mock is None or e.type == "mock",
        ),
        Rule(
            "!has(self.neuron) || self.type == 'neuron'",
            "spec.engine.neuron: only for type neuron; remove it or set spec.engine.type to neuron",
            lambda e: e.neuron is None or e.type == "neuron",
        ),
        Rule(
            "self.type != 'neuron' || has(self.maxNumSeqs) || (has(self.prefill) && has(self.prefill.maxNumSeqs)"
            " && has(self.decode) && has(self.decode.maxNumSeqs))",
            "spec.engine.maxNumSeqs: neuron is compiled for a number of sequences; set it, here or in both roles",
            _sequences_given,
        ),
        *SETTING_RULES,
    )
