"""Measure goodput live, write the page and its raw outcomes; exit status 1 when an aim is missed.

In a full run, an aim that was not measured is missed, too.

``--page-only`` makes the page from the outcomes of an earlier run.
"""

import logging
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import click
from bench.live import page as pages
from bench.live.cells import CELLS, FULL, QUICK
from bench.live.contenders import AMPD, DEFAULT
from bench.live.record import Record, read, save
from bench.live.running import Extent, measure
from bench.paper.page import machine
from bench.router.compiled import BenchError
from bench.router.peers import SGLANG, VLLM

log = logging.getLogger("bench.live")

RESULTS = Path(__file__).with_name("results.json")
SEEDS = (1, 2, 3)


def seeds_after(count: int) -> tuple[int, ...]:
    """Return so many further seeds."""
    return tuple(range(SEEDS[-1] + 1, SEEDS[-1] + 1 + count))


EXTENTS = {
    "full": Extent(FULL, seeds=SEEDS, share=0.5, at_once=14, minutes=58.0, further=seeds_after(3)),
    "quick": Extent(
        QUICK, seeds=SEEDS, share=1.0, at_once=14, minutes=10.0,
        only=(DEFAULT, "weft/imd", "remote-jsq", AMPD, "vllm cache_aware", "vllm sticky_least_loaded"),
    ),
    "tiny": Extent(
        QUICK[:1], seeds=(1,), share=0.03, at_once=2, minutes=1.0, only=(DEFAULT, "always-local"), front="standalone",
        slow=0.5,
    ),
}  # fmt: skip


@click.command()
@click.option("--quick", "size", flag_value="quick", help="One cell, six contenders: 10 minutes.")
@click.option("--tiny", "size", flag_value="tiny", help="Three sessions at a time, only to see that it runs.")
@click.option("--cells", help=f"Cells, by comma, of {', '.join(CELLS)}.")
@click.option("--only", help="Contenders, by comma, such as default,weft/imd,vllm cache_aware.")
@click.option("--share", type=click.FloatRange(0.01, 10), help="Share of each cell's sessions that a run has.")
@click.option("--further", type=click.IntRange(1, 40), help="How many further seeds decide.  [default: 3]")
@click.option("--at-once", type=click.IntRange(1, 16), help="Most runs beside each other.  [default: 14]")
@click.option("--minutes", type=click.FloatRange(0.1), help="Start no run that would end after this time.")
@click.option("--slower", type=click.FloatRange(0.5, 20), help="How many times as long everything takes.  [default: 1]")
@click.option("--front", type=click.Choice(["sidecars", "standalone"]), help="How Weft runs.  [default: sidecars]")
@click.option(
    "--compiled",
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    help="The folder of `make compiled`, for Weft to run as in its image.",
)
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS, help="The raw outcomes.")
@click.option("--resume", is_flag=True, help="Go on from the raw outcomes that are there: no run is made twice.")
@click.option("--page-only", is_flag=True, help="Only make the page from the raw outcomes.")
def main(
    size: str | None,
    cells: str | None,
    only: str | None,
    share: float | None,
    further: int | None,
    at_once: int | None,
    minutes: float | None,
    slower: float | None,
    front: str | None,
    compiled: str | None,
    results: Path,
    resume: bool,
    page_only: bool,
) -> None:
    """Find each contender's goodput in each cell, live on mock engines.

    Exit status 1: an aim is missed, or, in a full run, not measured.

    The page, RESULTS.md, and its pictures are written beside the raw outcomes.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("weft_planner").setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # engines and routers are ended on the way out
    page = results.with_name("RESULTS.md")
    if page_only:
        record = read(results)
    else:
        extent = EXTENTS[size or "full"]
        given = {
            "cells": _cells(cells), "only": tuple(only.split(",")) if only else None,
            "share": share, "at_once": at_once, "minutes": minutes, "slow": slower, "front": front,
            "compiled": compiled, "further": None if further is None else seeds_after(further),
        }  # fmt: skip
        extent = replace(extent, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
        record = _measured(extent, size or "full", results, resume=resume and results.exists())
    aims = pages.write(record, page)
    log.info("wrote %s", page)
    for aim in aims:
        click.echo(f"{aim.words}: {aim.found:.2f} (aim {aim.wanted:g}): {pages.verdict(aim).strip('*')}")
    whole = page_only or size is None
    sys.exit(0 if all(aim.met or not (whole or aim.missed) for aim in aims) else 1)


def _measured(extent: Extent, name: str, results: Path, *, resume: bool) -> Record:
    if shutil.which("redis-server") is None and extent.front == "sidecars":
        raise click.ClickException("redis-server is missing: apt-get install redis-server")
    for peer in (VLLM, SGLANG):
        try:
            peer.installed()
        except BenchError as error:
            log.warning("%s", error)  # its contenders will be broken, and the page says why
    began = time.monotonic()
    try:
        before = read(results) if resume else None
        record = measure(extent, before=before, keep=lambda found: save(found, results))
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    took = (time.monotonic() - began) / 60
    form = "compiled, as in its image" if extent.compiled else "interpreted"
    again = f"continued for {took:.1f} minutes" if resume else f"{took:.1f} minutes"
    record.how = f"This one is of a {name} run ({again}, up to {extent.at_once} runs at a time); Weft runs {form}."
    record.machine = machine()
    save(record, results)
    return record


def _cells(words: str | None) -> tuple[str, ...] | None:
    if words is None:
        return None
    names = tuple(words.split(","))
    if unknown := sorted(set(names) - set(CELLS)):
        raise click.BadParameter(f"{', '.join(unknown)} unknown; choose of {', '.join(CELLS)}", param_hint="--cells")
    return names


if __name__ == "__main__":
    main()
