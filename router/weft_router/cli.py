"""The command ``weft router``: run a coordinator, an endpoint picker, a sidecar, a standalone router, or a gateway."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from weft_router.config import FlagRole

ROLES = ("coordinator", "epp", "worker", "prefill", "decode", "both", "standalone", "gateway")


@click.command()
@click.option(
    "--role",
    required=True,
    type=click.Choice(ROLES),
    help="What this process is: epp is an endpoint picker; the role of a worker is in WEFT_ROLE_FILE; prefill, decode "
    "and both are fixed roles; a gateway is one address for many services.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    default=Path("/etc/weft/router.json"),
    show_default=True,
    help="router.json of the service; gateway.json of a gateway.",
)
@click.option(
    "--listen", default="[::]:8080", show_default=True, metavar="HOST:PORT",
    help="Where to listen, an endpoint picker for gRPC; [::] is every address, of IPv4 and of IPv6.",
)  # fmt: skip
@click.option(
    "--health-listen",
    metavar="HOST:PORT",
    help="A second port, without TLS, for health and metrics alone; where tls is set in the configuration, and of an "
    "endpoint picker.",
)
@click.option(
    "--engine-url", default="http://127.0.0.1:8000", show_default=True, help="The engine of this pod (sidecars)."
)
@click.option(
    "--workers",
    type=click.Path(path_type=Path),
    help="The engines a standalone router stands in front of: a YAML or JSON file.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Processes that share the port, one per core (coordinator, standalone and gateway).",
)
@click.option("--advertise", metavar="URL", help="Address other pods reach this worker at (default: POD_IP).")
@click.option(
    "--drain-seconds", type=float, default=30.0, show_default=True, help="How long live requests may finish on SIGTERM."
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
def router(
    *,
    role: "FlagRole",
    config: Path,
    listen: str,
    health_listen: str | None,
    engine_url: str,
    workers: Path | None,
    processes: int,
    advertise: str | None,
    drain_seconds: float,
    log_level: str,
) -> int:
    """Run the coordinator, an endpoint picker, the sidecar of a worker, all in one process, or a gateway.

    Redis, token and worker identity come from the environment: WEFT_REDIS_URL, WEFT_TOKEN_FILE, WEFT_API_KEYS_FILE,
    WEFT_WORKER, WEFT_DEGREE, WEFT_POOL, WEFT_ROLE_FILE, POD_IP. Exit status 2 when the configuration is wrong.
    """
    from weft_router import process
    from weft_router.config import ConfigError, Flags, load
    from weft_router.config.gateway import load_gateway
    from weft_router.telemetry import logs

    logs.configure(log_level)
    flags = Flags(
        role=role,
        config=config,
        listen=listen,
        engine_url=engine_url,
        advertise=advertise,
        drain_seconds=drain_seconds,
        workers=workers,
        processes=processes,
        health_listen=health_listen,
    )
    try:
        settings = load_gateway(flags) if role == "gateway" else load(flags)
    except ConfigError as error:
        click.echo(f"weft router: {error}", err=True)
        return 2
    return process.run(settings)
