"""Add the verb ``weft mock-engine``."""

import argparse
import os
import socket
import sys
from pathlib import Path

from weft_core.cost import CostProfileError


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the parser; everything heavy is imported when the verb runs."""
    parser = subparsers.add_parser(
        "mock-engine",
        help="serve vLLM's API and P/D protocol from a cost profile, without a GPU",
        description="Serve vLLM 0.32's HTTP API and NIXL P/D protocol with the timing of a cost profile and no GPU.",
    )
    parser.add_argument("--model", required=True, help="model name")
    parser.add_argument("--profile", required=True, type=Path, help="cost profile, a JSON file")
    parser.add_argument("--degree", required=True, type=int, help="tensor-parallel degree, one the profile has")
    parser.add_argument("--role", choices=("prefill", "decode", "both"), default="both")
    parser.add_argument("--listen", default="127.0.0.1:8000", help="host:port of the API (default %(default)s)")
    parser.add_argument("--side-channel-host", default="127.0.0.1", help="address other engines read KV from")
    parser.add_argument("--side-channel-port", type=int, default=5600)
    parser.add_argument("--engine-id", default="", help="unique name of this engine's process (default: host and pid)")
    parser.add_argument("--served-model-name", nargs="+", default=[], help="names clients may use (default: --model)")
    parser.add_argument(
        "--time-scale", type=float, default=1.0, help="factor on every duration of the profile; 0.1 is ten times faster"
    )
    parser.add_argument("--kv-capacity", type=int, default=0, help="KV cache in tokens (default: the profile's)")
    parser.add_argument("--block-size", type=int, default=16, help="tokens of a KV block")
    parser.add_argument(
        "--chunk",
        type=int,
        default=None,
        help="prefill at most this many tokens beside each decode step (default: prefills run alone)",
    )
    parser.add_argument(
        "--max-model-len", type=int, default=0, help="longest prompt with answer (default: 32768 or the KV cache)"
    )
    parser.add_argument("--max-num-seqs", type=int, default=256, help="largest batch")
    parser.add_argument("--no-plugin", action="store_true", help="behave like a stock engine: no KV handles in streams")
    parser.add_argument(
        "--bidirectional", action="store_true", help="keep the KV of decoded rounds for prefill engines to read"
    )
    parser.add_argument(
        "--kv-lease-seconds", type=float, default=30.0, help="how long a prefill engine keeps unread blocks"
    )
    parser.add_argument(
        "--handle-ttl-seconds", type=float, default=120.0, help="how long a decode engine keeps a round's blocks"
    )
    parser.add_argument(
        "--kv-recompute-threshold",
        type=int,
        default=0,
        help="compute shorter histories instead of reading them (vLLM: 64)",
    )
    parser.add_argument("--drain-seconds", type=float, default=25.0, help="how long SIGTERM waits for live requests")
    parser.add_argument("--fault", default="{}", help="faults from the start, as for python -m weft_mock.fault")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve until told to stop; exit status 2 for options that cannot be."""
    import uvloop

    from weft_core.profile_json import profile_from_json
    from weft_mock.config import ConfigError, EngineConfig
    from weft_mock.faults import FaultError, faults_from_json
    from weft_mock.logs import configure
    from weft_mock.server import serve

    try:
        host, port = _address(options.listen)
        config = EngineConfig(
            model=options.model,
            profile=profile_from_json(_json("--profile", options.profile.read_bytes())),
            degree=options.degree,
            engine_id=options.engine_id or f"{socket.gethostname()}-{os.getpid()}",
            role=options.role,
            served_names=tuple(options.served_model_name),
            host=host,
            port=port,
            side_channel_host=options.side_channel_host,
            side_channel_port=options.side_channel_port,
            time_scale=options.time_scale,
            kv_capacity=options.kv_capacity,
            block_size=options.block_size,
            chunk=options.chunk,
            max_model_len=options.max_model_len,
            max_sequences=options.max_num_seqs,
            plugin=not options.no_plugin,
            bidirectional=options.bidirectional,
            lease_seconds=options.kv_lease_seconds,
            ttl_seconds=options.handle_ttl_seconds,
            recompute_threshold=options.kv_recompute_threshold,
            node=os.environ.get("NODE_NAME", ""),
        )
        faults = faults_from_json(_json("--fault", options.fault))
    except (CostProfileError, ConfigError, FaultError, OSError, ValueError) as error:
        print(f"weft mock-engine: {error}", file=sys.stderr)
        return 2
    configure()
    return uvloop.run(serve(config, drain_seconds=options.drain_seconds, faults=faults))


def _json(flag: str, text: str | bytes) -> dict[str, object]:
    import orjson

    try:
        body = orjson.loads(text)
    except ValueError as error:
        raise ValueError(f"{flag}: no JSON: {error}") from error
    if not isinstance(body, dict):
        raise ValueError(f"{flag}: a JSON object is needed")
    return body


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"--listen: {text!r} is not host:port")
    return host.strip("[]"), int(port)
