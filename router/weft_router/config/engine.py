"""What is served, by which engine, and within which times."""

from typing import Literal

from pydantic import Field

from weft_router.config.section import Section

EngineType = Literal["vllm", "mock", "sglang", "tensorrt-llm", "neuron", "openai"]


class ModelConfig(Section):
    """The one model that a service runs."""

    name: str = Field(min_length=1)
    max_model_len: int = Field(ge=1)


class EngineConfig(Section):
    """How the engines are spoken to; each field says which engines read it."""

    type: EngineType
    bidirectional: bool = True
    """vllm, mock: prefill workers read a session's history back from its decode worker."""
    lease_seconds: float = Field(default=30.0, gt=0)
    """How long a prefill engine keeps KV that nobody has read."""
    handle_ttl_seconds: float = Field(default=120.0, gt=0)
    """How long a decode engine keeps a finished round's KV readable."""
    bootstrap_port: int = Field(default=8998, ge=1, le=65535)
    """sglang: the port of a prefill engine's bootstrap server, on the engine's own host."""
    api_key_file: str = ""
    """A file with the key that the engines ask for; engines of a sidecar listen on loopback and need none."""
    health_path: str = Field(default="/health", pattern=r"^/[^\s?#]*$")
    """Where an engine says that it lives."""


class SloConfig(Section):
    """The times a round has to hold, in seconds."""

    ttft: float = Field(gt=0)
    itl: float = Field(gt=0)


class TimeoutsConfig(Section):
    """Seconds; in streams ``first_byte`` covers queue and prefill, ``idle`` each gap; ``total`` bounds all answers.

    The others hold for clients of the front door: ``header`` from the first byte to the end of the headers, ``body``
    for the whole body, ``keep_alive`` between requests, ``slow_reader`` for a full buffer nobody reads.
    """

    connect: float = Field(default=2.0, gt=0)
    first_byte: float = Field(default=300.0, gt=0)
    idle: float = Field(default=60.0, gt=0)
    total: float = Field(default=3600.0, gt=0)
    body: float = Field(default=30.0, gt=0)
    header: float = Field(default=10.0, gt=0)
    keep_alive: float = Field(default=75.0, gt=0)
    slow_reader: float = Field(default=30.0, gt=0)
