"""``make bench-roles``: role switches against restarts and a fixed layout, on full nodes; exit status 1: aim missed."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click
from bench.paper.page import machine
from bench.roles.day import CONTENDERS, PHASES, Day, Session
from bench.roles.page import ratio, write
from bench.roles.running import live

from weft_e2e.scenarios.installed import installed

RESULTS = Path(__file__).with_name("results.json")
AIM = 1.3


@click.command()
@click.option("--phase", "phase_s", type=click.FloatRange(10), default=180.0, show_default=True, help="Seconds.")
@click.option(
    "--start", "start_s", type=click.IntRange(0), default=60, show_default=True,
    help="Seconds that the start of an engine takes beside the mock's own.",
)  # fmt: skip
@click.option("--only", help=f"Contenders, by comma, of {', '.join(CONTENDERS)}; what is known of others is kept.")
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS, help="The raw outcomes.")
@click.option("--page-only", is_flag=True, help="Only make the page from the raw outcomes.")
def main(phase_s: float, start_s: int, only: str | None, results: Path, page_only: bool) -> None:
    """Let prompts and answers take turns at being long, and count the sessions within the SLO."""
    names = tuple(only.split(",")) if only else tuple(CONTENDERS)
    if unknown := sorted(set(names) - set(CONTENDERS)):
        raise click.BadParameter(
            f"{', '.join(unknown)} unknown; choose of {', '.join(CONTENDERS)}", param_hint="--only"
        )
    if not page_only:
        extent = {
            "start_s": start_s,
            "phase_s": phase_s,
            "sessions_per_s": [traffic.sessions_per_s for _, traffic in PHASES],
        }
        before = json.loads(results.read_text(encoding="utf-8")) if only and results.exists() else {}
        found = before.get("days", {}) if {name: before.get(name) for name in extent} == extent else {}
        with installed() as weft:
            for one in names:
                found[one] = asdict(live(weft.kube, one, phase_s=phase_s, start_s=start_s, say=_say))
        body = {"machine": machine(), **extent, "days": {one: found[one] for one in CONTENDERS if one in found}}
        results.write_text(json.dumps(body, separators=(",", ":")) + "\n", encoding="utf-8")
    body = json.loads(results.read_text(encoding="utf-8"))
    days = [_day(one) for one in body["days"].values()]
    page = results.with_name("RESULTS.md")
    click.echo(write(days, page, machine=body["machine"], start_s=body["start_s"], aim=AIM))
    sys.exit(0 if ratio(days) >= AIM else 1)


def _day(body: dict[str, object]) -> Day:
    sessions = tuple(Session(**one) for one in body["sessions"])  # type: ignore[attr-defined]
    changes = tuple((at_s, plan) for at_s, plan in body.get("changes", ()))  # type: ignore[attr-defined]
    layouts: tuple[str, ...] = tuple(body["layouts"])  # type: ignore[arg-type]
    return Day(**{**body, "sessions": sessions, "layouts": layouts, "changes": changes})  # type: ignore[arg-type]


def _say(words: str) -> None:
    click.echo(words, err=True)


if __name__ == "__main__":
    main()
