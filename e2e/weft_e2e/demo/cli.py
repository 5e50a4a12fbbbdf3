"""`weft demo`: the main job on the command line."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from weft_cli import running
from weft_cli.running import INTERRUPTED
from weft_e2e.checks import CheckFailed
from weft_e2e.cluster import ClusterError
from weft_e2e.demo import real_engines, table
from weft_e2e.demo.embedded import run_embedded
from weft_e2e.demo.form import FORMS, Form, choose_form
from weft_e2e.demo.install import take_down
from weft_e2e.demo.run import choose, fitted_workload, run
from weft_e2e.demo.settings import DEFAULT_TRACE, TRACE_LIMITS, Settings
from weft_e2e.demo.steps import DemoFailed
from weft_e2e.engines.environment import EngineSetupError
from weft_e2e.images import ImagesError
from weft_e2e.kube import KubeError
from weft_e2e.local.planner import NoPlan
from weft_e2e.local.supervisor import Fell
from weft_e2e.replay.selection import Limits
from weft_e2e.replay.traces import SOURCES, TraceError
from weft_e2e.waiting import WaitedTooLong
from weft_planner.workload.file import spec_form, to_yaml

LOCAL = (Fell, NoPlan, OSError)
"""What can go wrong without a cluster."""

Function = TypeVar("Function", bound=Callable[..., object])

# Flag: field of Limits, words for the help.
_LIMITS = {
    "--sessions": ("sessions", "most sessions"),
    "--max-rounds": ("max_rounds", "most rounds of a session"),
    "--max-added": ("max_added_tokens", "most tokens a round adds"),
    "--max-decode": ("max_decode_tokens", "most tokens of an answer"),
    "--arrivals-within": ("arrivals_within_s", "seconds in which sessions arrive"),
    "--gap-scale": ("gap_scale", "factor on the pauses between rounds"),
    "--seed": ("seed", "seed of the choice"),
}


def _limit_options(function: Function) -> Function:
    """Add an option for each limit of the replay; what is not given comes from the trace."""
    for flag, (field, words) in reversed(_LIMITS.items()):
        shown = ", ".join(f"{trace} {getattr(limits, field):g}" for trace, limits in TRACE_LIMITS.items())
        kind = type(getattr(Limits(), field))
        function = click.option(flag, field, type=kind, help=f"{words.capitalize()} (default: {shown}).")(function)
    return function


_context = click.option(
    "--context",
    default=lambda: os.environ.get("KUBE_CONTEXT") or None,
    help="kubectl context of your own cluster to use instead of a local one (also $KUBE_CONTEXT).",
)


_trace = click.option(
    "--trace",
    type=click.Choice(sorted(SOURCES)),
    default=DEFAULT_TRACE,
    show_default=True,
    help="Recorded sessions to replay.",
)


@click.group()
def demo() -> None:
    """A planned service on a real cluster, recorded agent sessions replayed through it, and a report."""


@demo.command()
@_trace
@_limit_options
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("out/demo"), show_default=True, help="Folder of the report."
)
@click.option("--set", "helm_set", multiple=True, metavar="KEY=VALUE", help="More Helm values; may be repeated.")
@click.option(
    "--drift/--no-drift",
    default=True,
    show_default=True,
    help="Let the traffic of a second service change (local cluster only).",
)
@click.option("--registry", default=lambda: os.environ.get("REGISTRY"), help="Registry of the images (also $REGISTRY).")
@click.option("--tag", default=lambda: os.environ.get("TAG"), help="Tag of the images (also $TAG).")
@click.option(
    "--simulate-gpus",
    is_flag=True,
    help="Let nodes of your own cluster that have no GPUs announce some that do nothing.",
)
@click.option(
    "--form",
    type=click.Choice(FORMS),
    default="auto",
    show_default=True,
    help="A local cluster, or processes of this machine; auto takes the cluster where one can run.",
)
@_context
def up(
    *,
    form: Form,
    trace: str,
    out: Path,
    helm_set: tuple[str, ...],
    registry: str | None,
    tag: str | None,
    context: str | None,
    drift: bool,
    simulate_gpus: bool,
    **limits: int | float | None,
) -> int:
    """Set up, serve, replay, let the traffic change, report."""
    try:
        settings = Settings(
            context=context,
            trace=trace,
            limits=_limits(trace, limits),
            out=out,
            helm_set=helm_set,
            registry=registry or None,
            tag=tag or None,
            simulate_gpus=simulate_gpus,
            drift=drift and context is None,
        )
        if choose_form(settings, form, click.echo) == "embedded":
            return run_embedded(settings, click.echo)
        facts = run(settings, click.echo)
    except (DemoFailed, ClusterError, ImagesError, KubeError, TraceError, WaitedTooLong, ValueError, *LOCAL) as error:
        click.echo(f"weft demo: {error}", err=True)
        return 1
    except KeyboardInterrupt:
        click.echo("weft demo: interrupted; `make demo-down` removes what was made", err=True)
        return INTERRUPTED
    click.echo(f"\n{table.render(facts)}\n")
    click.echo(f"Report: {settings.out / 'report.html'} (in all {sum(s.seconds for s in facts.steps):.0f} s)\n")
    click.echo("What to look at next:")
    for step in facts.next_steps:
        click.echo(f"  - {step.replace('`', '')}")
    return 1 if facts.problems else 0


@demo.command()
@_trace
@_limit_options
def workload(*, trace: str, **limits: int | float | None) -> int:
    """Print the workload fitted to the sessions that the demo replays: spec.workload of its example."""
    try:
        settings = Settings(trace=trace, limits=_limits(trace, limits))
        fitted = fitted_workload(settings, choose(settings))
    except (TraceError, ValueError) as error:
        click.echo(f"weft demo: {error}", err=True)
        return 1
    click.echo(to_yaml(spec_form(fitted.body), comments=fitted.notes), nl=False)
    return 0


@demo.command()
def engines() -> int:
    """Deploy real vLLM engines on a local cluster, no GPU needed, and watch KV go both ways in a conversation."""
    if os.environ.get("KUBE_CONTEXT"):
        click.echo("weft demo: its engines share this machine with a local cluster: unset KUBE_CONTEXT", err=True)
        return 1
    try:
        found = real_engines.run(click.echo)
    except (DemoFailed, EngineSetupError, ClusterError, ImagesError, KubeError, CheckFailed, WaitedTooLong) as error:
        click.echo(f"weft demo: {error}", err=True)
        return 1
    except KeyboardInterrupt:
        click.echo("weft demo: interrupted; `make demo-down` removes what was made", err=True)
        return INTERRUPTED
    for problem in found:
        click.echo(f"PROBLEM: {problem}", err=True)
    return 1 if found else 0


@demo.command()
@_context
def down(*, context: str | None) -> int:
    """Remove everything the demo made."""
    try:
        take_down(context, click.echo)
    except (DemoFailed, ClusterError, KubeError) as error:
        click.echo(f"weft demo: {error}", err=True)
        return 1
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run ``python -m weft_e2e.demo`` and return the exit status."""
    return running.run(demo, argv, prog="weft demo")


def _limits(trace: str, asked: Mapping[str, int | float | None]) -> Limits:
    """Return the trace's limits with those that were given in their place."""
    given: dict[str, Any] = {field: value for field, value in asked.items() if value is not None}
    limits = TRACE_LIMITS[trace]
    given["min_rounds"] = min(limits.min_rounds, given.get("max_rounds", limits.max_rounds))
    return replace(limits, **given)
