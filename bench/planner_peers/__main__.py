"""Compare both planners and write the page; exit status 1 when an aim is missed.

``--page-only`` makes the page from the outcomes of an earlier run.
"""

import logging
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import click
from bench.paper.page import machine
from bench.planner_peers import page as pages
from bench.planner_peers.cells import CELLS, SLOS, TRAFFICS, Slo
from bench.planner_peers.comparing import Outcome, compare
from bench.planner_peers.record import Record, read, save

log = logging.getLogger("bench.planner_peers")

RESULTS = Path(__file__).with_name("results.json")
QUICK = ("gpt-oss-120b H200", "Llama-3.1-70B H100")
NAMES = {str(cell): cell for cell in CELLS}


@click.command()
@click.option("--quick", is_flag=True, help="Two cells: 5 minutes.")
@click.option("--cells", help=f"Cells, by comma, of {', '.join(NAMES)}.")
@click.option("--slos", help=f"SLOs, by comma, of {', '.join(slo.name for slo in SLOS)}.")
@click.option(
    "--packages",
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    help="Where aiconfigurator is installed, if not beside Weft: its packages come after Weft's own.",
)
@click.option("--processes", type=click.IntRange(1), default=os.cpu_count(), help="Comparisons at a time.")
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS, help="What was found.")
@click.option("--resume", is_flag=True, help="Keep what is there.")
@click.option("--page-only", is_flag=True, help="Only make the page from what was found.")
def main(
    quick: bool,
    cells: str | None,
    slos: str | None,
    packages: str | None,
    processes: int,
    results: Path,
    resume: bool,
    page_only: bool,
) -> None:
    """Plan with Weft and aiconfigurator, and judge both. Exit status 1: an aim is missed.

    The page, RESULTS.md, is written beside what was found.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("weft_planner").setLevel(logging.WARNING)
    if packages is not None:
        sys.path.append(packages)
    names = cells.split(",") if cells else list(QUICK if quick else NAMES)
    if unknown := sorted(set(names) - set(NAMES)):
        raise click.BadParameter(f"{', '.join(unknown)} unknown; choose of {', '.join(NAMES)}", param_hint="--cells")
    chosen = [slo for slo in SLOS if slos is None or slo.name in slos.split(",")]
    record = read(results) if (resume or page_only) and results.exists() else Record()
    if not page_only:
        asked = [(name, slo) for name in names for slo in chosen if not record.has(name, slo.name)]
        _measure(record, asked, results, processes=processes)
    page = results.with_name("RESULTS.md")
    aims = pages.write(record, page)
    log.info("wrote %s", page)
    for aim in aims:
        click.echo(f"{aim.words}: {aim.found:.3g} (aim {aim.wanted:g}): {pages.verdict(aim).strip('*')}")
    sys.exit(0 if all(aim.met for aim in aims) else 1)


def _measure(record: Record, asked: list[tuple[str, Slo]], results: Path, *, processes: int) -> None:
    """Compare cell by cell and SLO by SLO, and save what was found after each."""
    began = time.monotonic()
    with ProcessPoolExecutor(processes) as pool:
        running = {pool.submit(compare, NAMES[name], (slo,), TRAFFICS): slo for name, slo in asked}
        for done, one in enumerate(as_completed(running), start=1):
            _keep(record, one.result(), running[one])
            log.info("%d of %d, %.0f s", done, len(asked), time.monotonic() - began)
            record.machine = machine()
            record.how = f"This one has {len({c.cell for c in record.comparisons})} of 12 cells."
            save(record, results)


def _keep(record: Record, found: Outcome, slo: Slo) -> None:
    """Add what was found for an SLO, and keep cells in order."""
    record.comparisons += found.comparisons
    order = list(NAMES)
    record.comparisons.sort(key=lambda one: (order.index(one.cell), [s.name for s in SLOS].index(one.slo)))
    if found.left_out:
        record.left_out[f"{found.cell}, {slo.name}"] = found.left_out
    else:
        before = record.notes.get(found.cell, [])
        record.notes[found.cell] = list(dict.fromkeys((*before, *found.notes)))


if __name__ == "__main__":
    main()
