"""Measure routers, print the table and write the page."""

import logging
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
from bench.router import engines as mock
from bench.router import weft
from bench.router.compiled import BenchError, compiler
from bench.router.contenders import Contender, contenders, running, standalone
from bench.router.figures import BY_KEY, STREAMS_ONLY, WEFT, Results, missed
from bench.router.measures import MEASURES, Extent, cost, wide
from bench.router.page import GIVES, keys_of, text
from bench.router.processes import Cores, cores, pairs

log = logging.getLogger("bench.router")

PAGE = Path(__file__).with_name("RESULTS.md")
ENGINES, WIDE = 4, 32
"""Engines of each role; and of each role where the router has 64 workers."""
NAMES = ("weft", "vllm-router", "sglang-router", "bare")
EXTENTS = {"full": Extent(3.0, 1.0), "quick": Extent(1.0, 0.5), "tiny": Extent(0.3, 0.1)}


class Bench:
    """One run: where its files are, how long it measures, what it has found."""

    def __init__(self, folder: Path, extent: Extent, measures: Sequence[str], compiled: Path | None) -> None:
        self.folder = folder
        self.extent = extent
        self.measures = measures
        self.cores = cores()
        self.files = weft.written(folder, compiled)
        self.results = Results()

    def compare(self, contender: Contender, *, number: int) -> None:
        """Run one round of a contender's measures."""
        if contender.name in self.results.missing:
            return
        wanted = [name for name in MEASURES if name in self.measures]
        if not wanted:
            return
        log.info("round %d: %s", number + 1, contender.name)
        try:
            with (
                mock.running(self.folder, self.cores, prefill=ENGINES, decode=ENGINES) as engines,
                running(contender, engines, folder=self.folder, cores=self.cores) as router,
            ):
                for name in wanted:
                    self.measure(contender.name, name, number, partial(MEASURES[name], router))
        except BenchError as error:
            if contender.name == WEFT:
                self.fail(f"{WEFT}, round {number + 1}: {error}")
            else:
                self.results.missing[contender.name] = str(error)
                log.warning("%s is not available: %s", contender.name, error)

    def measure(self, contender: str, name: str, number: int, measure: Callable[[Extent], dict[str, float]]) -> None:
        """Measure both sets, of those figures of a measure that are in each; streams first."""
        for prefix in (STREAMS_ONLY, ""):
            if not any(prefix + key in BY_KEY for key in GIVES[name]):
                continue
            try:
                found = measure(replace(self.extent, streams_only=bool(prefix)))
            except BenchError as error:
                self.fail(f"{contender}, {prefix}{name}, round {number + 1}: {error}")
            else:
                self.keep(contender, found, prefix)

    def keep(self, contender: str, found: dict[str, float], prefix: str) -> None:
        """Keep a round's figures, and beside them what the loads say of themselves."""
        direct = found.pop("direct_p50_us", None), found.pop("direct_p99_us", None)
        busy = found.pop("busy", None)
        if not prefix:
            if direct[0] is not None and direct[1] is not None:
                self.results.direct_us.append((direct[0], direct[1]))
            if busy is not None:
                self.results.busy.setdefault(contender, []).append(busy)
        self.results.add(contender, {prefix + key: value for key, value in found.items()})
        log.info("  %s", ", ".join(f"{prefix}{key} {value:,.3g}" for key, value in found.items()))

    def fail(self, why: str) -> None:
        """Note a measure that came to nothing."""
        self.results.failures.append(why)
        log.warning("  failed: %s", why)

    def own(self, number: int) -> None:
        """Run one round of what only Weft has."""
        for name, measure in (("processes", self.scaling), ("decisions", self.decisions), ("sidecars", self.sidecars)):
            if name not in self.measures:
                continue
            log.info("round %d: Weft's %s", number + 1, name)
            self.measure(WEFT, name, number, measure)

    def scaling(self, extent: Extent) -> dict[str, float]:
        """Compare two processes with one: by the clock where the load has cores of its own, else by processor time."""
        one, two, apart = pairs()
        rate = "requests" if apart else "requests_core"
        alone = self._rate(rate, one, extent, processes=1)
        each, shared = (
            self._rate(rate, two, extent, processes=2),
            self._rate("requests_core", self.cores, extent, processes=2),
        )
        return {
            "scaling": each / alone if apart else 2 * each / alone,
            "sharing": 2 * shared / self._rate("requests_core", self.cores, extent, processes=1),
        }

    def _rate(self, rate: str, place: Cores, extent: Extent, *, processes: int) -> float:
        """Return how fast some processes serve requests, by the clock or each second of the processor."""
        with (
            mock.running(self.folder, place, prefill=ENGINES, decode=ENGINES) as engines,
            running(standalone(self.files, processes=processes), engines, folder=self.folder, cores=place) as router,
        ):
            return MEASURES["requests"](router, extent)[rate]

    def decisions(self, extent: Extent) -> dict[str, float]:
        """Measure one process in front of 64 workers."""
        with (
            mock.running(self.folder, self.cores, prefill=WIDE, decode=WIDE) as engines,
            running(standalone(self.files), engines, folder=self.folder, cores=self.cores) as router,
        ):
            return wide(router, extent)

    def sidecars(self, extent: Extent) -> dict[str, float]:
        """Measure a coordinator with a decode and a prefill sidecar."""
        with ExitStack() as ends:
            engines = ends.enter_context(mock.running(self.folder, self.cores, prefill=1, decode=1))
            port, processes = ends.enter_context(weft.sidecars(self.files, engines, self.cores))
            pids = [process.popen.pid for process in processes]
            return {"sidecar_us": cost(port, pids, extent, cores=self.cores, key=self.files.key)}


def _listed(known: Sequence[str]) -> "click.ParamType[list[str]]":
    class Listed(click.ParamType[list[str]]):
        name = "name,..."

        def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
            names = value.split(",") if isinstance(value, str) else list(known)
            if unknown := sorted(set(names) - set(known)):
                self.fail(f"{', '.join(unknown)} unknown; choose of {', '.join(known)}", param, ctx)
            return names

    return Listed()


@click.command()
@click.option("--quick", "size", flag_value="quick", help="One short round: seconds in place of minutes.")
@click.option("--tiny", "size", flag_value="tiny", help="Only to see that it runs.")
@click.option(
    "--rounds", type=click.IntRange(1), help="Rounds in which the routers take turns.  [default: 3; quick: 1]"
)
@click.option("--only", "measures", type=_listed(tuple(GIVES)), default=",".join(GIVES), help="Measures, by comma.")
@click.option("--routers", type=_listed(NAMES), default=",".join(NAMES), help="Routers, by comma.", show_default=True)
@click.option("--page", type=click.Path(path_type=Path), help="Where to write the page; a full run writes RESULTS.md.")
@click.option(
    "--compiled",
    type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True),
    help="The folder of `make compiled`, for Weft to run as in its image.",
)
def main(
    size: str | None,
    rounds: int | None,
    measures: list[str],
    routers: list[str],
    page: Path | None,
    compiled: Path | None,
) -> None:
    """Hold the router against its peers on one core. Exit status 1: an aim is missed, or something failed.

    Measures: memory, requests, long, latency, events, paced, streams of every router; processes, decisions and
    sidecars of Weft alone.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # routers and engines are ended on the way out
    extent = EXTENTS[size or "full"]
    count = rounds or (1 if size else 3)
    try:
        compiler()
    except BenchError as error:
        raise click.ClickException(str(error)) from error
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        bench = Bench(Path(folder), extent, measures, compiled)
        known = contenders(bench.files)
        for number in range(count):
            for name in routers:
                bench.compare(known[name], number=number)
            if "weft" in routers:
                bench.own(number)
    minutes = (time.perf_counter() - began) / 60
    keys = keys_of(measures)
    whole = not size and set(measures) == set(GIVES) and set(routers) == set(NAMES)
    kind = "a full run" if whole else f"a {size or 'partial'} run"
    form = "interpreted, not as in its image" if compiled is None else "compiled, as in its image"
    how = f"This one is of {kind} ({minutes:.1f} minutes); Weft runs {form}."
    found = text(
        bench.results,
        keys,
        contenders=[known[name].name for name in routers],
        how=how,
        engines=f"{ENGINES} prefill and {ENGINES} decode engines",
        rounds=count,
    )
    click.echo(found)
    if page is not None or whole:
        (page or PAGE).write_text(found, encoding="utf-8")
        log.info("wrote %s", page or PAGE)
    misses = "weft" in routers and missed(bench.results, keys)
    sys.exit(1 if misses or bench.results.failures else 0)


if __name__ == "__main__":
    main()
