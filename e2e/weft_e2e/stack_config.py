"""Say what a stack on loopback runs: its workers, and the files and command lines of their processes. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from weft_core.cost import CostProfile
from weft_core.kv_tiers import KVTier
from weft_core.layouts import WorkerRole
from weft_core.profile_json import profile_to_json
from weft_core.worker_roles import has_duty

Role = WorkerRole
Front = Literal["sidecars", "standalone", "none"]
Protocol = Literal["vllm", "sglang"]
HOST = "127.0.0.1"
SERVICE, NAMESPACE = "stack", "loopback"
REPLAY_OFFSET = 100
"""An engine answers requests for missed KV events so many ports below the one that it sends them to."""
ENGINE_END_S = 0.5
"""Engines end soon after a SIGTERM, as vLLM does: what may take its time is the drain before it."""


@dataclass(frozen=True, slots=True)
class StackWorker:
    """One worker to run: name, role, tensor-parallel degree and GPU pool."""

    name: str
    role: Role
    degree: int
    pool: str = "loopback"
    engine_port: int = 0
    """Where its engine runs already; 0: the stack starts a mock engine."""
    events_port: int = 0
    """Where such an engine sends its KV events."""


@dataclass(frozen=True, slots=True)
class StackConfig:
    """What to run; times in seconds. ``time_scale`` below 1 makes the mock engines faster than their profile.

    ``mode`` is policy weft's, empty as ``binding`` for the router's own choice. ``chunk``: most tokens of a step of
    an engine that decodes, decodes first, as vLLM has it; None: whole prompts that pause decoding. Without a prefill
    worker the decode workers' engines do both. ``front``: coordinator and sidecars, all of them in one process, or no
    router at all.
    """

    profile: CostProfile
    workers: tuple[StackWorker, ...]
    policy: str = "ampd"
    mode: str = ""
    binding: str = ""
    ttft_s: float = 2.0
    itl_s: float = 0.04
    time_scale: float = 1.0
    max_model_len: int = 32768
    chunk: int | None = None
    kv_lease_s: float = 30.0
    handle_ttl_s: float = 120.0
    bidirectional: bool = True
    pools: Mapping[str, CostProfile] = field(default_factory=dict)
    """The profile of every pool, where pools differ."""
    drain_s: float = 30.0
    """Longest time for a worker to drain."""
    front: Front = "sidecars"
    engine_type: str = "mock"
    """What routers take the engines for."""
    protocol: Protocol = "vllm"
    """What the mock engines speak."""
    movable: bool = False
    """Whether the workers' roles may change: they are in files then, and every engine does both."""
    corrects: bool = True
    """Whether routers correct their predictions by what engines took lately."""
    kv_events: bool = False
    """Whether engines publish KV events to their sidecars."""
    kv_tiers: tuple[KVTier, ...] = ()
    """What every engine has below its GPUs; ``time_scale`` counts for their loads, too."""

    @property
    def paired(self) -> bool:
        """Tell whether some workers prefill for others, or may do so."""
        return self.movable or any(has_duty(worker.role, "prefill") for worker in self.workers)


def role_file(worker: str) -> str:
    """Return the name of the file with a worker's role."""
    return f"role-{worker}"


def router_config(config: StackConfig) -> dict[str, object]:
    """Return router.json as the operator would render it."""
    return {
        "service": SERVICE,
        "namespace": NAMESPACE,
        "model": {"name": config.profile.model, "maxModelLen": config.max_model_len},
        "engine": {
            "type": config.engine_type,
            "bidirectional": config.bidirectional and config.paired,
            "leaseSeconds": config.kv_lease_s,
            "handleTtlSeconds": config.handle_ttl_s,
        },
        "slo": {"ttft": config.ttft_s, "itl": config.itl_s},
        "routing": {
            "policy": config.policy,
            **({"binding": config.binding} if config.binding else {}),
            **({"mode": config.mode} if config.mode else {}),
            **({} if config.corrects else {"predictionCorrection": "off"}),
        },
        "profile": profile_to_json(config.profile),
        "planRevision": "stack",
        **({"profiles": {pool: profile_to_json(p) for pool, p in config.pools.items()}} if config.pools else {}),
    }


def engine_command(
    config: StackConfig, worker: StackWorker, port: int, side_port: int, events_port: int = 0
) -> list[str]:
    """Return the arguments of ``weft mock-engine`` for a worker's engine on two ports of loopback.

    Its KV events go to ``events_port``, if that is not 0.
    """
    profile = f"profile-{worker.pool}.json" if worker.pool in config.pools else "profile.json"
    argv = ["--model", config.profile.model, "--profile", profile]
    fixed = config.paired and not config.movable
    argv += ["--degree", str(worker.degree), "--role", worker.role if fixed else "both"]
    argv += ["--listen", f"{HOST}:{port}", "--protocol", config.protocol]
    argv += ["--side-channel-host", HOST, "--side-channel-port", str(side_port), "--engine-id", worker.name]
    argv += ["--time-scale", str(config.time_scale), "--max-model-len", str(config.max_model_len)]
    argv += ["--kv-lease-seconds", str(config.kv_lease_s), "--handle-ttl-seconds", str(config.handle_ttl_s)]
    argv += ["--drain-seconds", str(ENGINE_END_S)]
    argv += [f"--kv-tier={tier.text}" for tier in config.kv_tiers]
    if config.chunk is not None and (config.movable or has_duty(worker.role, "decode")):
        argv += ["--chunk", str(config.chunk)]
    if events_port:
        events = {
            "enable_kv_cache_events": True,
            "endpoint": f"tcp://{HOST}:{events_port}",
            "replay_endpoint": f"tcp://{HOST}:{events_port - REPLAY_OFFSET}",
        }
        argv += ["--kv-events-config", json.dumps(events)]
    bidirectional = config.bidirectional and config.paired and config.protocol == "vllm"
    return [*argv, "--bidirectional"] if bidirectional else argv


def sidecar_command(config: StackConfig, worker: StackWorker, port: int, engine: int) -> list[str]:
    """Return the arguments of the router in front of an engine."""
    argv = [
        *router_command("worker" if config.movable else worker.role, port),
        "--engine-url",
        f"http://{HOST}:{engine}",
    ]
    return [*argv, "--drain-seconds", str(config.drain_s), "--advertise", f"http://{HOST}:{port}"]


def workers_file(config: StackConfig, ports: Mapping[str, int]) -> dict[str, list[dict[str, object]]]:
    """Return the file of a standalone router's workers; ``ports`` are their engines'."""
    return {
        "workers": [
            {
                "name": worker.name,
                "role": worker.role,
                "url": f"http://{HOST}:{ports[worker.name]}",
                "degree": worker.degree,
                "pool": worker.pool,
                **({"roleFile": role_file(worker.name)} if config.movable else {}),
            }
            for worker in config.workers
        ]
    }


def router_command(role: str, port: int) -> list[str]:
    """Return the arguments that every router process has."""
    return ["--role", role, "--config", "router.json", "--listen", f"{HOST}:{port}"]
