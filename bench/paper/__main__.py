"""Rerun everything and write the page; ``--quick`` takes a few minutes, ``--tiny`` only shows that it runs."""

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bench.paper import layouts, peers, ppd, retention, uplift
from bench.paper.cells import CELLS, SETTINGS, Length
from bench.paper.page import Results, write
from bench.paper.regret import Regret, regret

from weft_planner.request.infeasible import Infeasible

PARTS = ("uplift", "peers", "retention", "ppd", "planning", "table2", "regret")
PAGE = Path(__file__).with_name("RESULTS.md")
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is run."""

    main: Length
    others: Length
    settings: int
    cells: int
    layouts_too: bool
    ppd_seeds: tuple[int, ...]
    ppd_workloads: int
    sizes: tuple[int, ...]
    rates: tuple[float, ...]
    services: int


SEEDS = tuple(range(1, 11))
EXTENTS = {
    "full": Extent(
        main=Length(180, 300, SEEDS),
        others=Length(180, 300, SEEDS[:3]),
        settings=len(SETTINGS),
        cells=len(CELLS),
        layouts_too=True,
        ppd_seeds=(1, 2, 3),
        ppd_workloads=18,
        sizes=(8, 16, 32, 64, 128, 256),
        rates=layouts.RATES,
        services=20,
    ),
    "quick": Extent(
        main=Length(90, 150, SEEDS[:2]),
        others=Length(90, 150, SEEDS[:2]),
        settings=2,
        cells=len(CELLS),
        layouts_too=True,
        ppd_seeds=(1,),
        ppd_workloads=18,
        sizes=(8, 16, 32, 64),
        rates=(0.4, 0.8),
        services=6,
    ),
    "tiny": Extent(
        main=Length(20, 30, SEEDS[:1]),
        others=Length(20, 30, SEEDS[:1]),
        settings=1,
        cells=1,
        layouts_too=False,
        ppd_seeds=(1,),
        ppd_workloads=1,
        sizes=(8,),
        rates=(0.4,),
        services=1,
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench.paper", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", dest="extent", action="store_const", const="quick", help="fewer settings and sessions")
    size.add_argument("--tiny", dest="extent", action="store_const", const="tiny", help="one cell, to see that it runs")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, comma-separated, of {', '.join(PARTS)}")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="how many cells at once, beside timings")
    parser.add_argument("--page", type=Path, default=PAGE, help="where to write the page")
    options = parser.parse_args(arguments)
    parts = options.only.split(",")
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"--only: {', '.join(unknown)} unknown; choose of {', '.join(PARTS)}")
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("weft_planner").setLevel(logging.WARNING)
    name = options.extent or "full"
    began = time.perf_counter()
    results = gathered(EXTENTS[name], parts, processes=options.processes)
    minutes = (time.perf_counter() - began) / 60
    main, others = EXTENTS[name].main, EXTENTS[name].others
    results.how = (
        f"This one is of a {name} run ({minutes:.1f} minutes): at least {main.seconds:g} s of arrivals and "
        f"{main.sessions} sessions per rate and seed, paired seeds, {len(main.seeds)} in the first setting and "
        f"{len(others.seeds)} in the others."
    )
    write(results, options.page)
    logging.getLogger(__name__).info("wrote %s", options.page)
    return 0


def gathered(extent: Extent, parts: Sequence[str], *, processes: int | None = None) -> Results:
    """Run the parts; what is timed runs alone, the rest in so many processes (as many as there are cores)."""
    results = Results()
    if "planning" in parts:
        results.timed = layouts.timed(extent.sizes, runs=len(extent.ppd_seeds))
    if "table2" in parts:
        results.ranked = layouts.ranked(extent.rates, CELLS[: extent.cells])
    if "ppd" in parts:
        workloads = dict(list(ppd.conversations().items())[: extent.ppd_workloads])
        results.changes = ppd.table(extent.ppd_seeds, workloads)
        results.fitted_changes = ppd.table(extent.ppd_seeds, workloads, efficiency=None)
    with ProcessPoolExecutor(processes or os.cpu_count()) as pool:
        if "uplift" in parts:
            tasks = uplift.scoring_tasks(
                CELLS[: extent.cells],
                SETTINGS[: extent.settings],
                main=extent.main,
                others=extent.others,
                plan_too=extent.layouts_too,
            )
            results.scores = [one for found in _each(pool.map(uplift.scores, tasks), tasks) for one in found]
        if "peers" in parts:
            cells = CELLS[: extent.cells]
            results.peers = list(_each(pool.map(peers.row, cells, [extent.others] * len(cells)), cells))
        if "retention" in parts:
            cells = CELLS[: extent.cells]
            found = pool.map(retention.rows, cells, [extent.others] * len(cells))
            results.retention = [row for rows in _each(found, cells) for row in rows]
        if "regret" in parts:
            results.regrets = _regrets(pool.map, extent.services)
    return results


def _each(found: Iterable[Found], tasks: Sequence[object]) -> Iterable[Found]:
    began = time.perf_counter()
    for done, one in enumerate(found, start=1):
        logging.getLogger(__name__).info("cell %d of %d, %.0f s", done, len(tasks), time.perf_counter() - began)
        yield one


def _regrets(each: Callable[..., Iterable[Regret | None]], wanted: int) -> list[Regret]:
    """Return so many services' regrets; those whose SLO no layout holds at any rate are passed over."""
    found: list[Regret] = []
    number = 0
    while len(found) < wanted and number < 5 * wanted:
        batch = range(number, number + max(1, wanted - len(found)))
        found += [one for one in each(_regret_or_none, batch) if one is not None]
        number = batch.stop
    return found[:wanted]


def _regret_or_none(number: int) -> Regret | None:
    try:
        one = regret(number)
    except Infeasible:
        return None
    return one if one.best_rate > 0 else None


if __name__ == "__main__":
    sys.exit(main())
