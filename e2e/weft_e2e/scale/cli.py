"""Run the proof of scale and print its figures."""

import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click

from weft_e2e.cluster.bare import bare_cluster
from weft_e2e.scale import figures
from weft_e2e.scale.figures import RESYNC_S, ScaleFigure
from weft_e2e.scale.program import OPERATOR, Operator, give_rights, running

GPUS_PER_NODE = 16
READY_S_PER_SERVICE = 6.0


@click.command()
@click.option("--services", default=1000, show_default=True, type=click.IntRange(1, 1600))
@click.option("--nodes", default=200, show_default=True, type=click.IntRange(1, 500))
@click.option("--changes", default=100, show_default=True, help="How many specs are changed.")
@click.option("--idle-seconds", default=120.0, show_default=True, help="How long the idle operator is watched.")
@click.option("--keep", type=click.Path(path_type=Path), help="Folder for the logs, which are else removed.")
def scale(services: int, nodes: int, changes: int, idle_seconds: float, keep: Path | None) -> None:
    """Measure an operator with many services on fake nodes; exit with 1 when a limit is not kept."""
    with tempfile.TemporaryDirectory(prefix="weft-scale-") as scratch:
        folder = keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        kept = True
        for figure in _measure(folder, services, nodes, changes, idle_seconds):
            kept = kept and figure.kept
            note = "" if figure.kept else "  NOT KEPT"
            print(f"{figure.what:55} {figure.value:9.2f}  limit {figure.limit:g}{note}", flush=True)
    sys.exit(0 if kept else 1)


def _measure(folder: Path, services: int, nodes: int, changes: int, idle_seconds: float) -> Iterator[ScaleFigure]:
    """Yield each figure as soon as it is measured."""
    with (
        bare_cluster(folder, users={"operator": OPERATOR}, nodes=nodes, gpus=GPUS_PER_NODE) as bare,
        figures.client(bare) as http,
    ):
        give_rights(bare)
        with running(bare) as operator:
            figures.make(bare, services)
            limit_s = 120 + READY_S_PER_SERVICE * services
            took = figures.await_ready(http, services, timeout_s=limit_s, says=partial(print, flush=True))
            print(f"{services} services are ready after {took:.0f} s; operator: {operator.cpu_s():.1f} s of processor")
            planner = operator.total("weft_operator_planner_runs_total")
            print(f"the planner ran {planner:.0f} times")
            forbidden = _forbidden(operator)
        with running(bare) as operator:
            count, began = figures.objects(http), time.monotonic()
            figures.await_passes(operator, count, timeout_s=10 * RESYNC_S)
            yield ScaleFigure(f"seconds for a pass over all {count} objects", time.monotonic() - began, RESYNC_S)
            print(f"a pass over all of them: {operator.cpu_s():.1f} s of processor")
            figures.await_rest(operator, timeout_s=600)
            yield from figures.idle(operator, started=began, seconds=idle_seconds)
            yield figures.acted(bare, services, changes=changes)
            forbidden += _forbidden(operator)
            yield ScaleFigure("requests that the chart's role forbids", forbidden, 0)


def _forbidden(operator: Operator) -> float:
    return sum(value for name, value in operator.counts(figures.REQUESTS).items() if 'code="403"' in name)
