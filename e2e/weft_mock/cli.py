"""The command ``weft mock-engine``."""

import os
import socket
from pathlib import Path
from typing import Literal

import click

from weft_cli.degree import DEGREE
from weft_core.authority import split_authority
from weft_core.cost import CostProfileError
from weft_core.kv_tiers import KV_WRITES, KVTier, KVWrites, tier_from_text
from weft_core.parallelism import Degree

Role = Literal["prefill", "decode", "both"]
Protocol = Literal["vllm", "sglang", "tensorrt-llm", "neuron", "openai"]


class _ListCommand(click.Command):
    """A command whose ``--served-model-name`` takes several words at once, as vLLM's does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give each word after the flag a flag of its own."""
        spread: list[str] = []
        words = 0
        for word in args:
            if word == "--served-model-name":
                words = 1
            elif words and not word.startswith("-"):
                spread += ["--served-model-name", word]
                words += 1
            else:
                spread += ["--served-model-name"] if words == 1 else []
                words = 0
                spread.append(word)
        spread += ["--served-model-name"] if words == 1 else []
        return super().parse_args(ctx, spread)


@click.command("mock-engine", cls=_ListCommand)
@click.option("--model", required=True, help="Model name.")
@click.option("--profile", required=True, type=click.Path(path_type=Path), help="Cost profile, a JSON file.")
@click.option("--degree", required=True, type=DEGREE, help="One the profile has: GPUs, or dp16ep.")
@click.option(
    "--protocol",
    type=click.Choice(["vllm", "sglang", "tensorrt-llm", "neuron", "openai"]),
    default="vllm",
    show_default=True,
    help="The engine to stand in for.",
)
@click.option("--role", type=click.Choice(["prefill", "decode", "both"]), default="both", show_default=True)
@click.option("--listen", default="127.0.0.1:8000", show_default=True, help="HOST:PORT of the API.")
@click.option("--side-channel-host", default="127.0.0.1", show_default=True, help="Address other engines read KV from.")
@click.option(
    "--side-channel-port",
    type=int,
    default=5600,
    show_default=True,
    help="Port other engines read KV from; SGLang's bootstrap port.",
)
@click.option("--engine-id", default="", help="Unique name of this engine's process (default: host and pid).")
@click.option(
    "--served-model-name",
    "served_names",
    multiple=True,
    metavar="NAME...",
    help="Names clients may use (default: --model).",
)
@click.option(
    "--lora-module",
    "adapters",
    multiple=True,
    metavar="NAME[=PATH]...",
    help="LoRA adapters clients may ask for; they answer as the model does, and share no cached prefix with it.",
)
@click.option(
    "--time-scale",
    type=float,
    default=1.0,
    show_default=True,
    help="Factor on every duration of the profile; 0.1 is ten times faster.",
)
@click.option("--kv-capacity", type=int, default=0, help="KV cache in tokens (default: the profile's).")
@click.option("--block-size", type=int, default=16, show_default=True, help="Tokens of a KV block.")
@click.option(
    "--kv-tier",
    "kv_tiers",
    multiple=True,
    metavar="NAME:SIZE[:BYTES_PER_S[:LATENCY_S]]",
    help="Memory below the GPUs' that keeps KV, such as cpu:200Gi:25e9; cpu, disk, remote, once each in this order.",
)
@click.option(
    "--kv-writes",
    type=click.Choice(KV_WRITES),
    default="through",
    show_default=True,
    help="When blocks are written to tiers: as soon as they are full, or on eviction from the GPUs, as TensorRT-LLM's.",
)
@click.option("--chunk", type=int, help="Most tokens of a step, decodes first (default: a prefill alone).")
@click.option(
    "--max-model-len", type=int, default=0, help="Longest prompt with answer (default: 32768 or the KV cache)."
)
@click.option("--max-num-seqs", type=int, default=256, show_default=True, help="Most sequences that run at a time.")
@click.option(
    "--shared-work",
    type=float,
    default=0.0,
    show_default=True,
    help="Share of a step's work that data-parallel ranks do together: that of routed experts.",
)
@click.option("--no-plugin", is_flag=True, help="Behave like a stock engine: no KV handles in streams.")
@click.option("--bidirectional", is_flag=True, help="Keep the KV of decoded rounds for prefill engines to read.")
@click.option(
    "--kv-transfer-config",
    help="vLLM's connectors, a JSON object: checked against the other flags; --kv-tier gives the tiers to model.",
)
@click.option(
    "--kv-events-config",
    help="Publish KV events as vLLM does: a JSON object with addresses on 127.0.0.1 (default: none are published).",
)
@click.option(
    "--kv-lease-seconds",
    type=float,
    default=30.0,
    show_default=True,
    help="How long a prefill engine keeps unread blocks.",
)
@click.option(
    "--handle-ttl-seconds",
    type=float,
    default=120.0,
    show_default=True,
    help="How long a decode engine keeps a round's blocks.",
)
@click.option(
    "--meeting-seconds",
    type=float,
    default=300.0,
    show_default=True,
    help="How long a leg waits for its other leg where both are sent at once.",
)
@click.option(
    "--kv-recompute-threshold",
    type=int,
    default=0,
    help="Compute shorter histories instead of reading them (vLLM: 64).",
)
@click.option(
    "--scheduling-policy",
    type=click.Choice(["fcfs", "priority"]),
    default="fcfs",
    show_default=True,
    help="First come, first served, or by the requests' priority; without the latter a priority is refused.",
)
@click.option(
    "--trusting", is_flag=True, help="Crash and leak on wrong transfer parameters as stock vLLM does, for tests."
)
@click.option(
    "--drain-seconds", type=float, default=25.0, show_default=True, help="How long SIGTERM waits for live requests."
)
@click.option("--nodes", type=int, default=1, show_default=True, help="Nodes this engine runs on, a process on each.")
@click.option("--node-rank", type=int, default=0, help="Which of them this is; 0 leads, and alone serves the API.")
@click.option("--leader", default="", metavar="HOST:PORT", help="Where the other nodes find the one that leads.")
@click.option(
    "--nodes-listen", default="[::]:29500", show_default=True, help="HOST:PORT where the one that leads is joined."
)
@click.option(
    "--weights",
    type=click.Path(path_type=Path),
    help="Do not start unless this folder holds a config.json and safetensors; they are not loaded.",
)
@click.option("--fault", default="{}", help="Faults from the start, as for python -m weft_mock.fault.")
def mock_engine(
    *,
    model: str,
    profile: Path,
    degree: Degree,
    protocol: Protocol,
    role: Role,
    listen: str,
    side_channel_host: str,
    side_channel_port: int,
    engine_id: str,
    served_names: tuple[str, ...],
    adapters: tuple[str, ...],
    time_scale: float,
    kv_capacity: int,
    block_size: int,
    kv_tiers: tuple[str, ...],
    kv_writes: KVWrites,
    chunk: int | None,
    max_model_len: int,
    max_num_seqs: int,
    shared_work: float,
    no_plugin: bool,
    bidirectional: bool,
    kv_transfer_config: str | None,
    kv_events_config: str | None,
    kv_lease_seconds: float,
    handle_ttl_seconds: float,
    meeting_seconds: float,
    kv_recompute_threshold: int,
    scheduling_policy: Literal["fcfs", "priority"],
    trusting: bool,
    drain_seconds: float,
    nodes: int,
    node_rank: int,
    leader: str,
    nodes_listen: str,
    weights: Path | None,
    fault: str,
) -> int:
    """Serve an engine's API and P/D protocol from a cost profile, without a GPU.

    The HTTP API and NIXL P/D protocol are those of vLLM 0.32, or another engine's with --protocol; the timing is the
    profile's. Exit status 2 for options that cannot be.
    """
    import uvloop

    from weft_core.profile_json import profile_from_json
    from weft_mock.config import ConfigError, EngineConfig
    from weft_mock.faults import FaultError, faults_from_json
    from weft_mock.kv_events_config import events_config
    from weft_mock.kv_transfer_config import check_transfer_config
    from weft_mock.logs import configure
    from weft_mock.nodes import Nodes
    from weft_mock.server import serve

    try:
        host, port = _address("--listen", listen)
        _insist_on_weights(weights)
        disk_events = True
        if kv_transfer_config is not None:
            if protocol != "vllm":
                raise ValueError("--kv-transfer-config: only with --protocol vllm")
            disk_events = check_transfer_config(kv_transfer_config, bidirectional=bidirectional)
        config = EngineConfig(
            model=model,
            profile=profile_from_json(_json("--profile", profile.read_bytes())),
            degree=degree,
            engine_id=engine_id or f"{socket.gethostname()}-{os.getpid()}",
            role=role,
            served_names=served_names,
            adapters={name: path or name for name, _, path in (one.partition("=") for one in adapters)},
            host=host,
            port=port,
            side_channel_host=side_channel_host,
            side_channel_port=side_channel_port,
            time_scale=time_scale,
            kv_capacity=kv_capacity,
            block_size=block_size,
            kv_tiers=tuple(map(_tier, kv_tiers)),
            kv_writes=kv_writes,
            chunk=chunk,
            max_model_len=max_model_len,
            max_sequences=max_num_seqs,
            shared_work=shared_work,
            plugin=not no_plugin,
            bidirectional=bidirectional,
            lease_seconds=kv_lease_seconds,
            ttl_seconds=handle_ttl_seconds,
            recompute_threshold=kv_recompute_threshold,
            node=os.environ.get("NODE_NAME", ""),
            protocol=protocol,
            meeting_seconds=meeting_seconds,
            priority_scheduling=scheduling_policy == "priority",
            trusting=trusting,
            kv_events=None if kv_events_config is None else events_config(kv_events_config),
            disk_events=disk_events,
        )
        faults = faults_from_json(_json("--fault", fault))
        own = Nodes(
            nodes,
            node_rank,
            _address("--leader", leader) if leader else ("", 0),
            _address("--nodes-listen", nodes_listen),
        )
    except (CostProfileError, ConfigError, FaultError, OSError, ValueError) as error:
        click.echo(f"weft mock-engine: {error}", err=True)
        return 2
    configure()
    return uvloop.run(serve(config, drain_seconds=drain_seconds, faults=faults, nodes=own))


def _json(flag: str, text: str | bytes) -> dict[str, object]:
    import orjson

    try:
        body = orjson.loads(text)
    except ValueError as error:
        raise ValueError(f"{flag}: no JSON: {error}") from error
    if not isinstance(body, dict):
        raise ValueError(f"{flag}: a JSON object is needed")
    return body


def _tier(text: str) -> KVTier:
    try:
        return tier_from_text(text)
    except ValueError as error:
        raise ValueError(f"--kv-tier: {error}") from None


def _insist_on_weights(folder: Path | None) -> None:
    if folder is not None and not ((folder / "config.json").is_file() and any(folder.glob("*.safetensors"))):
        raise ValueError(f"--weights: {folder} holds no config.json and safetensors")


def _address(flag: str, text: str) -> tuple[str, int]:
    try:
        return split_authority(text)
    except ValueError as error:
        raise ValueError(f"{flag}: {error}") from None
