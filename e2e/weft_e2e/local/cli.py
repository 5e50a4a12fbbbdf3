"""The command ``weft local``."""

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from weft_cli import running
from weft_core.authority import is_http_url
from weft_core.layouts import WORKER_ROLES, WorkerRole

if TYPE_CHECKING:
    from weft_e2e.local.rendering import Layout

TRACES = ("claude_code", "gaia_whowhen")


def _engine_urls(
    _context: click.Context, _option: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[WorkerRole, str], ...]:
    """Return role and URL of each engine, the latter without a slash at its end."""
    return tuple(_engine_url(value) for value in values)


def _engine_url(value: str) -> tuple[WorkerRole, str]:
    role, _, url = value.partition("=")
    if role not in WORKER_ROLES:
        raise click.BadParameter(f"{value!r}: begin with prefill=, decode= or both=")
    if not is_http_url(url) or (parts := urlsplit(url)).query or parts.username:
        raise click.BadParameter(f"{value!r}: give a URL such as {role}=http://127.0.0.1:8000")
    return role, url.rstrip("/")


@click.group(invoke_without_command=True)
@click.option(
    "-f", "--file", type=click.Path(), metavar="FILE", help="The manifest (YAML), - for stdin (default: the demo's)."
)
@click.option("--name", help="Which service, when the file has several.")
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    type=click.Path(),
    metavar="FILE",
    help="A CostProfile that spec.profile names.",
)
@click.option(
    "--port", type=click.IntRange(1, 65535), help="The router's port (default: 8080, or a free one if that is taken)."
)
@click.option(
    "--engine",
    "engines",
    multiple=True,
    callback=_engine_urls,
    metavar="ROLE=URL",
    help="An engine that runs already, instead of mock engines: prefill=http://…, decode=http://… or both=http://…",
)
@click.option(
    "--time-scale",
    type=click.FloatRange(min=0, min_open=True),
    help="Factor on every duration of the mock engines; 0.1 is ten times faster (default: the file's).",
)
@click.option(
    "--replay",
    type=click.Choice([*TRACES, "off"]),
    default="off",
    show_default=True,
    help="Replay the demo's recorded sessions, write its report, and end.",
)
@click.option(
    "--sessions", type=click.IntRange(1, 1000), help="Sessions to replay (default: as in the demo, 12 or 32)."
)
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("out/local/report.html"),
    help="The report of --replay (default: out/local/report.html).",
)
@click.option(
    "--layout",
    type=click.Choice(["planned", "symmetric", "hybrid"]),
    default="planned",
    show_default=True,
    help="Begin with other roles than planned: symmetric: all workers have both; hybrid: those that decode have.",
)
@click.option(
    "--logs", type=click.Path(path_type=Path, file_okay=False), help="Folder of logs and files (default: a new one)."
)
@click.pass_context
def local(
    context: click.Context,
    *,
    file: str | None,
    name: str | None,
    profiles: tuple[str, ...],
    port: int | None,
    engines: tuple[tuple[WorkerRole, str], ...],
    time_scale: float | None,
    replay: str,
    sessions: int | None,
    report: Path,
    layout: "Layout",
    logs: Path | None,
) -> int:
    """Plan a service and run it as processes of this machine, without Kubernetes.

    The same file, plan, router and policies as on a cluster; engines are mock engines that follow the plan's cost
    profile, or your own by URL. Everything listens on loopback and ends with Ctrl-C.

    Exit status: 0 ended by Ctrl-C, or a replay without a failure; 1 no plan, a part that fell, or a round that
    failed; 2 a manifest that the API server would refuse.
    """
    if context.invoked_subcommand is not None:
        return 0
    if engines and time_scale is not None:
        raise click.UsageError("--time-scale is for mock engines; leave it out with --engine")
    if sessions is not None and replay == "off":
        raise click.UsageError("--sessions is for a replay; add --replay claude_code")
    if replay != "off" and os.environ.get("WEFT_API_KEYS_FILE"):
        raise click.UsageError("WEFT_API_KEYS_FILE is set, and recorded sessions have no key; unset it for a replay")
    from weft_e2e.example_files import example_file
    from weft_e2e.local.planner import NoPlan
    from weft_e2e.local.run import Options, run
    from weft_e2e.local.supervisor import Fell

    options = Options(
        file=file or str(example_file()),
        name=name,
        profiles=profiles,
        port=port,
        given=engines,
        time_scale=time_scale,
        replay=None if replay == "off" else replay,
        sessions=sessions,
        report=report,
        logs=logs,
        layout=layout,
    )
    try:
        return run(options, click.echo)
    except (Fell, NoPlan, OSError) as error:
        click.echo(f"weft local: {error}", err=True)
        return 1


@local.command(name="role")
@click.argument("worker")
@click.argument("role", type=click.Choice(WORKER_ROLES))
@click.option(
    "--logs",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder of logs of the service (default: that of the `weft local` that was started last).",
)
def change_role(*, worker: str, role: str, logs: Path | None) -> int:
    """Change the role of a worker while it serves, and wait until the new role is in force.

    No process restarts. A worker that is not to decode any more hands its sessions over first.
    """
    from weft_e2e.local import roles

    click.echo(roles.change(roles.running_folder(logs), worker, role))
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run ``python -m weft_e2e.local`` and return the exit status."""
    return running.run(local, argv, prog="weft local")
