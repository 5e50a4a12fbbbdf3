"""The verb ``weft router``: run a coordinator, or the sidecar of a prefill or decode worker."""

import argparse
import sys
from pathlib import Path


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the ``router`` verb to the weft command line."""
    parser = subparsers.add_parser(
        "router",
        help="run the coordinator, or the sidecar of a prefill or decode worker",
        description="Run one router process. Redis, token and worker identity come from the environment: "
        "WEFT_REDIS_URL, WEFT_TOKEN_FILE, WEFT_API_KEYS_FILE, WEFT_WORKER, WEFT_DEGREE, WEFT_POOL, POD_IP.",
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of one router process."""
    parser.add_argument("--role", required=True, choices=("coordinator", "prefill", "decode"))
    parser.add_argument("--config", type=Path, default=Path("/etc/weft/router.json"), help="router.json of the service")
    parser.add_argument("--listen", default="0.0.0.0:8080", metavar="HOST:PORT")
    parser.add_argument("--engine-url", default="http://127.0.0.1:8000", help="the engine of this pod (sidecars)")
    parser.add_argument("--advertise", metavar="URL", help="address other pods reach this worker at (default POD_IP)")
    parser.add_argument(
        "--drain-seconds", type=float, default=30.0, help="how long live requests may finish on SIGTERM"
    )
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM; exit status 2 when the configuration is wrong."""
    from weft_router import config, logs, process

    logs.configure(args.log_level)
    try:
        settings = config.load(args)
    except config.ConfigError as error:
        print(f"weft router: {error}", file=sys.stderr)
        return 2
    return process.run(settings)
