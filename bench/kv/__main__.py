"""Simulate, or with ``--live`` run, sessions with recorded pauses, with and without tiers below the GPUs.

Exit status 1: an aim is missed.
"""

import json
import logging
import shutil
import signal
import sys
from dataclasses import asdict, replace
from pathlib import Path

import click
from bench.kv import live_page, simulated
from bench.kv.live_runs import LiveRecord, measure_all, read, save
from bench.kv.live_scenario import ALONE, WITH_TIER, Scenario
from bench.paper.page import machine

RESULTS = Path(__file__).with_name("RESULTS.md")
MINUTES = 40.0
"""In which sessions arrive in the simulation."""
LIVE = Scenario(speed=12.5, minutes=50.0)
LIVE_LIMIT_MINUTES = 25.0
TINY = Scenario(speed=20.0, minutes=3.0)
TINY_RATE = 0.03


@click.command()
@click.option("--live", is_flag=True, help="Run a stack of mock engines instead (25 minutes), and write its section.")
@click.option("--tiny", is_flag=True, help="Run it for a few seconds, only to see that it runs.")
@click.option("--minutes", type=click.FloatRange(1), help="In which sessions arrive.  [default: 40; live: 50]")
@click.option(
    "--speed", type=click.FloatRange(1, 50), help="How many times as fast everything is live.  [default: 12.5]"
)
@click.option("--page", type=click.Path(path_type=Path), default=RESULTS, help="Where the page goes.")
@click.option("--page-only", is_flag=True, help="Only write the live section from its raw outcomes.")
def main(*, live: bool, tiny: bool, minutes: float | None, speed: float | None, page: Path, page_only: bool) -> None:
    """Find what tiers bring, and write the page; raw outcomes are written beside it."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("weft_planner").setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # engines and routers are ended on the way out
    if live or tiny or page_only:
        outcomes = page.with_name("live.json")
        record = read(outcomes) if page_only else _measured(tiny=tiny, minutes=minutes, speed=speed)
        save(record, outcomes)
        text, met = live_page.section(record), all(one.met for one in live_page.verdicts(record))
        page.write_text(replaced(_text(page), live=text), encoding="utf-8")
    else:
        minutes = minutes or MINUTES
        found, calm = simulated.find(minutes)
        body = {"lru": [asdict(one) for one in found], "retentions": [asdict(one) for one in calm]}
        page.with_name("results.json").write_text(json.dumps(body) + "\n", encoding="utf-8")
        text, met = simulated.written(found, calm, minutes), all(met for _, _, met in simulated.aims(found))
        page.write_text(replaced(_text(page), simulation=text), encoding="utf-8")
    click.echo(text)
    sys.exit(0 if met else 1)


def _measured(*, tiny: bool, minutes: float | None, speed: float | None) -> LiveRecord:
    if shutil.which("redis-server") is None:
        raise click.ClickException("redis-server is missing: apt-get install redis-server")
    scenario = TINY if tiny else LIVE
    scenario = replace(scenario, minutes=minutes or scenario.minutes, speed=speed or scenario.speed)
    if tiny:
        record = measure_all(
            scenario,
            limit_minutes=LIVE_LIMIT_MINUTES,
            plan=lambda found: list(found.items()),
            goodputs=dict.fromkeys((ALONE, WITH_TIER), TINY_RATE),
            overhead=False,
        )
    else:
        record = measure_all(scenario, limit_minutes=LIVE_LIMIT_MINUTES)
    record.machine = machine()
    return record


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8") if page.exists() else ""


def replaced(page: str, *, simulation: str | None = None, live: str | None = None) -> str:
    """Return a page with another simulated part, or another live section."""
    before, heading, after = page.partition(f"\n{live_page.HEADING}\n")
    if simulation is not None:
        before = simulation
    if live is None:
        live = live_page.HEADING + "\n" + after if heading else ""
    return "\n\n".join(part.strip("\n") for part in (before, live) if part) + "\n"


if __name__ == "__main__":
    main()
