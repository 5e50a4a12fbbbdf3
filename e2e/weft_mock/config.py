"""Describe one mock engine: what its command line says, checked."""

import math
from dataclasses import dataclass, field
from typing import Literal

from weft_core.cost import CostProfile
from weft_core.kv_tiers import KVTier, KVTierError, KVWrites, check_order
from weft_core.parallelism import Degree
from weft_mock.kv_events_config import KvEventsConfig
from weft_mock.kv_params import Role

Protocol = Literal["vllm", "sglang", "tensorrt-llm", "neuron", "openai"]


class ConfigError(ValueError):
    """Report an option that cannot be; the message names the flag and the fix."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One engine; times in seconds of wall time except those of the profile, which are multiplied by ``time_scale``."""

    model: str
    profile: CostProfile
    degree: Degree
    engine_id: str
    role: Role = "both"
    served_names: tuple[str, ...] = ()
    adapters: dict[str, str] = field(default_factory=dict)
    """The LoRA adapters that are loaded now, by name, and where each comes from."""
    host: str = "127.0.0.1"
    port: int = 8000
    side_channel_host: str = "127.0.0.1"
    side_channel_port: int = 5600
    time_scale: float = 1.0
    kv_capacity: int = 0
    block_size: int = 16
    kv_tiers: tuple[KVTier, ...] = ()
    kv_writes: KVWrites = "through"
    """Below the GPUs' memory, fastest first; bandwidths are those of the profile's time."""
    chunk: int | None = None
    max_model_len: int = 0
    max_sequences: int = 256
    shared_work: float = 0.0
    plugin: bool = True
    bidirectional: bool = False
    lease_seconds: float = 30.0
    ttl_seconds: float = 120.0
    recompute_threshold: int = 0
    node: str = ""
    protocol: Protocol = "vllm"
    meeting_seconds: float = 300.0
    priority_scheduling: bool = False
    trusting: bool = False
    kv_events: KvEventsConfig | None = None
    """Where its KV events go; None: it publishes none."""
    disk_events: bool = True
    """Whether there are events of its disk, too."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the model names clients may use; the first is the one in replies."""
        return self.served_names or (self.model,)

    def reply_name(self, model: object) -> str:
        """Return the model's name in the reply to a request for ``model``: an adapter answers under its own."""
        return model if isinstance(model, str) and model in self.adapters else self.names[0]

    @property
    def capacity_tokens(self) -> int:
        """Return the size of the KV cache in whole blocks, in tokens."""
        tokens = self.kv_capacity or self.profile.kv_capacity(self.degree)
        return tokens // self.block_size * self.block_size

    @property
    def context_limit(self) -> int:
        """Return the longest prompt with answer; without the flag 32,768 or what the KV cache holds."""
        return self.max_model_len or min(32768, self.capacity_tokens)

    def __post_init__(self) -> None:
        """Refuse what vLLM refuses at start.

        Raises:
            ConfigError: an option is out of range, or one sequence could never fit the KV cache.
        """
        for flag, value in (
            ("--time-scale", self.time_scale),
            ("--kv-lease-seconds", self.lease_seconds),
            ("--handle-ttl-seconds", self.ttl_seconds),
            ("--meeting-seconds", self.meeting_seconds),
        ):
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{flag}: {value} is not a number above 0")
        if not 0.0 <= self.shared_work <= 1.0:
            raise ConfigError(f"--shared-work: {self.shared_work} is not a share from 0 to 1")
        for flag, number, least in (
            ("--block-size", self.block_size, 1),
            ("--chunk", self.chunk if self.chunk is not None else 1, 1),
            ("--max-num-seqs", self.max_sequences, 1),
            ("--kv-capacity", self.kv_capacity, 0),
            ("--max-model-len", self.max_model_len, 0),
            ("--kv-recompute-threshold", self.recompute_threshold, 0),
        ):
            if number < least:
                raise ConfigError(f"{flag}: {number} is below {least}")
        if self.protocol != "vllm":
            for flag, given in (("--bidirectional", self.bidirectional), ("--trusting", self.trusting)):
                if given:
                    raise ConfigError(f"{flag}: only with --protocol vllm")
        if self.protocol == "openai" and self.role != "both":
            raise ConfigError("--role: an engine of --protocol openai has no roles; leave it at both")
        try:
            check_order([tier.name for tier in self.kv_tiers])
        except KVTierError as error:
            raise ConfigError(f"--kv-tier: {error}") from error
        for tier in self.kv_tiers:
            if tier.capacity_tokens(self.profile.kv_bytes_per_token) < self.block_size:
                raise ConfigError(f"--kv-tier {tier.name}: less than one block of {self.block_size} tokens; raise it")
        if self.capacity_tokens < self.block_size:
            raise ConfigError(f"--kv-capacity: less than one block of {self.block_size} tokens; raise it")
        if self.max_model_len > self.capacity_tokens:
            raise ConfigError(
                f"--max-model-len: {self.max_model_len} tokens do not fit the KV cache of {self.capacity_tokens}; "
                "lower it or raise --kv-capacity"
            )
