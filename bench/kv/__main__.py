"""Simulate, or with ``--live`` run, sessions with recorded pauses, with and without tiers below the GPUs.

Exit status 1: an aim is missed.
"""

import json
import logging
import shutil
import signal
import sys
from dataclasses import asdict
from pathlib import Path

import click
from bench.kv import live_page, simulated
from bench.kv.live_runs import LiveRecord, measure_all, measure_tiny, predict_again, read, save
from bench.kv.live_scenario import Scenario
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
@click.option("--resume", is_flag=True, help="Go on from the raw outcomes of live runs: no run is made twice.")
@click.option("--page-only", is_flag=True, help="Only write the live section, by what was measured before.")
def main(
    *, live: bool, tiny: bool, minutes: float | None, speed: float | None, page: Path, resume: bool, page_only: bool
) -> None:
    """Find what tiers bring, and write the page; raw outcomes are written beside it."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("weft_planner").setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # engines and routers are ended on the way out
    if live or tiny or page_only:
        outcomes = page.with_name("live.json")
        before = read(outcomes) if (resume or page_only) and outcomes.exists() else None
        if tiny:
            record = measure_tiny(TINY, rate=TINY_RATE)
        elif page_only:
            if before is None:
                raise click.ClickException(f"{outcomes} is missing: there is nothing to make the page of")
            record = predict_again(before)
        else:
            record = _measured(before, outcomes, minutes=minutes, speed=speed)
        record.machine = record.machine or machine()
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


def _measured(before: LiveRecord | None, outcomes: Path, *, minutes: float | None, speed: float | None) -> LiveRecord:
    if shutil.which("redis-server") is None:
        raise click.ClickException("redis-server is missing: apt-get install redis-server")
    known = (before.minutes, before.speed) if before is not None else (LIVE.minutes, LIVE.speed)
    scenario = Scenario(minutes=minutes or known[0], speed=speed or known[1])
    if before is not None and (scenario.minutes, scenario.speed) != known:
        raise click.ClickException(f"the earlier runs are of {known[0]:g} minutes, {known[1]:g} times as fast")
    return measure_all(
        scenario, limit_minutes=LIVE_LIMIT_MINUTES, before=before, keep=lambda found: save(found, outcomes)
    )


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
