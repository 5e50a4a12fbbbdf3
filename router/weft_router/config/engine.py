"""What is served, by which engine, and within which times."""

from typing import Literal

from pydantic import Field

from weft_core.adapters import adapter_version
from weft_core.kv_tiers import SPEEDS, KVTierName, TierSpeed
from weft_router.config.section import Section

EngineType = Literal["vllm", "mock", "sglang", "tensorrt-llm", "neuron", "openai"]


class ModelConfig(Section):
    """The one model that a service runs."""

    name: str = Field(min_length=1)
    """The name that requests ask for, and engines know the model by."""
    aliases: tuple[str, ...] = ()
    """Other names that requests may ask for."""
    adapters: tuple[str, ...] = ()
    """LoRA adapters that engines have from their start, by the names that requests ask for."""
    max_model_len: int = Field(ge=1)
    """Longest context in tokens, prompt and answer together."""


class AdapterConfig(Section):
    """A LoRA adapter that sidecars load into their engines."""

    name: str = Field(min_length=1, max_length=128)
    """The name that requests ask for in place of the model's."""
    source: str = Field(min_length=1, max_length=1024)
    """Where engines find it: a folder, or a repository of the Hugging Face hub."""

    @property
    def version(self) -> str:
        """Return what stands for the adapter from this source."""
        return adapter_version(self.name, self.source)


class KvTierConfig(Section):
    """How fast KV is loaded from a tier below the GPUs' memory."""

    bytes_per_second: float | None = Field(default=None, gt=0)
    """Of each worker; absent: 25e9 for cpu, 5e9 for disk and remote, which plans count with."""
    latency_seconds: float = Field(default=0.0, ge=0)
    """Of each load."""


class EngineConfig(Section):
    """How the engines are spoken to; each field says which engines read it."""

    type: EngineType
    """Which protocol they speak; openai is any OpenAI-compatible server, without disaggregation."""
    bidirectional: bool = True
    """vllm, mock: prefill workers read a session's history back from its decode worker."""
    lease_seconds: float = Field(default=30.0, gt=0)
    """How long a prefill engine keeps KV that nobody has read."""
    handle_ttl_seconds: float = Field(default=120.0, gt=0)
    """How long a decode engine keeps a finished round's KV readable."""
    proof_seconds: float = Field(default=60.0, ge=1, le=3600)
    """vllm: how often a proven KV path is proven again; side channels and closed paths are tried twice as often."""
    kv_tiers: dict[KVTierName, KvTierConfig] = Field(default_factory=dict)
    """vllm, mock: the speed of tiers, cpu, disk or remote, where it is not what plans count with. Routes and bindings
    count the time of loads from them; which tier has what is known by KV events."""
    bootstrap_port: int = Field(default=8998, ge=1, le=65535)
    """sglang: the port of a prefill engine's bootstrap server, on the engine's own host."""

    def tier_speeds(self) -> dict[str, TierSpeed]:
        """Return the speed of each tier."""
        found = dict(SPEEDS)
        for name, tier in self.kv_tiers.items():
            found[name] = TierSpeed(tier.bytes_per_second or SPEEDS[name].bytes_per_s, tier.latency_seconds)
        return found


class SloConfig(Section):
    """The times a round has to hold, in seconds, and how many must hold them."""

    ttft: float = Field(gt=0)
    """To the first token of a round."""
    itl: float = Field(gt=0)
    """Between two tokens."""
    attainment: float = Field(default=0.9, gt=0, le=1)
    """Share of rounds, or sessions, that must hold both: shown by a metric, which the alerts go by."""


class TimeoutsConfig(Section):
    """Seconds that connections, answers and clients may take."""

    connect: float = Field(default=2.0, gt=0)
    """To connect to a worker or an engine."""
    first_byte: float = Field(default=300.0, gt=0)
    """To the first byte of a stream, queue and prefill included."""
    idle: float = Field(default=300.0, gt=0)
    """Each gap within an engine's stream; while a tool's arguments are made, some engines send nothing."""
    silence: float = Field(default=15.0, ge=0)
    """A client: the longest gap within a stream; then it gets a comment, so that no proxy takes the connection for
    dead. 0: none."""
    total: float = Field(default=3600.0, gt=0)
    """The whole of any answer."""
    body: float = Field(default=30.0, gt=0)
    """A client: the whole body of its request."""
    header: float = Field(default=10.0, gt=0)
    """A client: from the first byte of a request to the end of its headers."""
    keep_alive: float = Field(default=75.0, gt=0)
    """A client: between two requests on one connection."""
    slow_reader: float = Field(default=30.0, gt=0)
    """A client: how long its buffer may stay full because it does not read."""
