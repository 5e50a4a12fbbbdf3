"""``make e2e-drain``: 50 workers go under 200 streams, and fewer go in other ways beside it; prints what was measured.

The whole scenario has all its checks: no failed request, no lost session. In the others one node after the other is
replaced, its worker with all the time it needs, and after each of them a worker is scaled in with less time than a
round takes, so that it matters who goes: victims by value, by highest ordinal, and by highest ordinal with a hook that
only sleeps. ``--parts`` with ``--out`` measures them one at a time: what the file holds is compared, too.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click

from weft_e2e.checks import CheckFailed
from weft_e2e.checks.drains import check_fewer_recomputed
from weft_e2e.leaving import Gone, Hook, Victims
from weft_e2e.scenarios.draining import (
    CHECKS,
    STEP_S,
    DrainResults,
    DrainScenario,
    ScaleIn,
    no_failures,
    no_lost_sessions,
    run,
    scale_ins,
)

WHOLE_S = 14.0
"""A deadline that every round meets."""
SHORT_STEPS = 5.0
"""Decode steps that a deadline is long which is shorter than most rounds."""
RESTED = 0.5
"""Rounds that each stream has on average before a worker is cut short, so that one just started is no empty one."""
SIDE = 10
"""Scale-ins of each way that is only measured beside."""
OURS = "value"
OTHERS = ("ordinal", "sleep")


def parts_of(*, whole_: int, beside_: int, streams: int, step_s: float) -> dict[str, DrainScenario]:
    """Return what is measured, by the name of the part."""
    calm = DrainScenario("no scale-in", (), (no_failures, no_lost_sessions), streams=streams, warm_rounds=3.0)
    whole = DrainScenario("value, by session", scale_ins(whole_), CHECKS, streams=streams, drain_s=WHOLE_S)
    ways: dict[str, tuple[Victims, Hook]] = {
        OURS: ("value", "session"),
        "ordinal": ("ordinal", "session"),
        "sleep": ("ordinal", "sleep"),
    }
    sides = {name: beside(*way, count=beside_, streams=streams, step_s=step_s) for name, way in ways.items()}
    every = {"calm": calm, "whole": whole, **sides}
    return {name: replace(one, step_s=step_s) for name, one in every.items()}


def beside(victims: Victims, hook: Hook, *, count: int, streams: int, step_s: float) -> DrainScenario:
    """Return decode workers that go in one way within SHORT_STEPS, after another that was replaced in good order."""
    events, short_s = [], SHORT_STEPS * step_s
    for k in range(count):
        events += [ScaleIn(named=f"d-{k % 5}"), ScaleIn("decode", victims, hook, within_s=short_s, rested=RESTED)]
    words = {"session": "by session", "sleep": "fixed sleep"}[hook]
    return DrainScenario(f"{victims}, {words}, cut short", events, (), streams=streams, drain_s=WHOLE_S)


def figures(seen: DrainResults, scenario: DrainScenario) -> dict[str, object]:
    """Return what is reported; scale-ins are those that were chosen, not the nodes that were replaced before them."""
    chosen = [one for one, event in zip(seen.gone, scenario.events, strict=True) if not event.named]
    failed = [record for record in seen.records if not record.ok]
    why = Counter(f"{record.outcome}: {record.error}" for record in failed if record.outcome != "not_sent")
    return {
        "scenario": scenario.name,
        "scale_ins": len(chosen),
        "streams": scenario.streams,
        "requests": len(seen.records),
        "failed": len(failed),
        "why": dict(why.most_common(3)),
        "sessions": len(seen.transcripts),
        "sessions_failed": sum(not all(r.ok for r in t.records) for t in seen.transcripts),
        "moved_by_handle": _sum(chosen, "moved_by_handle"),
        "moved_by_prefill": _sum(chosen, "moved_by_prefill"),
        "forced_rounds": _sum(chosen, "forced"),
        "seconds_each": round(sum(one.seconds for one in chosen) / max(1, len(chosen)), 1),
        "recomputed_tokens": seen.recomputed_tokens,
    }


def _sum(gone: Sequence[Gone], name: str) -> int:
    return sum(int(str(one.drain.get(name, 0))) for one in gone)


def main(argv: Sequence[str]) -> int:
    """Run everything; return 1 when a check failed."""
    names = ("calm", "whole", OURS, *OTHERS)
    parser = argparse.ArgumentParser(prog="weft_e2e.drains", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=names, default=names, help="what to measure (default: all)")
    parser.add_argument("--scale-ins", type=int, default=50, help="workers that go with all checks (default: 50)")
    parser.add_argument("--streams", type=int, default=200, help="sessions held at once (default: 200)")
    parser.add_argument("--beside", type=int, default=SIDE, help=f"workers that go in each other way (default: {SIDE})")
    parser.add_argument("--step", type=float, default=STEP_S, help=f"seconds of a decode step (default: {STEP_S})")
    parser.add_argument("--out", type=Path, help="a file for the figures, which keeps those of parts not measured now")
    options = parser.parse_args(argv)
    parts = parts_of(whole_=options.scale_ins, beside_=options.beside, streams=options.streams, step_s=options.step)
    found = _kept(options.out)
    wrong: list[str] = []
    for part in (name for name in names if name in options.parts):
        scenario = parts[part]
        click.echo(f"{scenario.name}: {len(scenario.events)} scale-ins, {scenario.streams} streams")
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="weft-drain-") as folder:
            seen = run(replace(scenario, checks=()), Path(folder), lambda words: click.echo("  " + words))
        wrong += _wrong(seen, scenario)
        found[part] = {**figures(seen, scenario), "wall_s": round(time.monotonic() - begun)}
        click.echo(json.dumps(found[part]))
        if options.out is not None:
            options.out.write_text(json.dumps(found, indent=1) + "\n")
    wrong += compared(found)
    click.echo("\n".join(wrong) if wrong else "all checks passed")
    return 1 if wrong else 0


def compared(found: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Say what is wrong with the figures beside each other; parts that were not measured are not compared."""
    if "calm" not in found or OURS not in found:
        return []
    usual = _number(found["calm"], "recomputed_tokens") / _number(found["calm"], "requests")

    def again(part: str) -> float:
        """Return the tokens that a scale-in makes some worker compute again, beside what rounds do anyway."""
        one = found[part]
        extra = _number(one, "recomputed_tokens") - usual * _number(one, "requests")
        return max(0.0, extra) / max(1.0, _number(one, "scale_ins"))

    wrong = []
    for part in (name for name in OTHERS if name in found):
        click.echo(f"computed again by each scale-in: {again(OURS):.0f} tokens, {again(part):.0f} by {part}")
        try:
            check_fewer_recomputed(again(OURS), again(part))
        except CheckFailed as error:
            wrong.append(f"victims by value against {found[part]['scenario']}: {error}")
    return wrong


def _wrong(seen: DrainResults, scenario: DrainScenario) -> list[str]:
    wrong = []
    for check in scenario.checks:
        try:
            check(seen, scenario)
        except CheckFailed as error:
            wrong.append(f"{scenario.name}: {error}")
    return wrong


def _kept(file: Path | None) -> dict[str, dict[str, object]]:
    if file is None or not file.exists():
        return {}
    found: dict[str, dict[str, object]] = json.loads(file.read_text())
    return found


def _number(figures_: Mapping[str, object], name: str) -> float:
    return float(str(figures_[name]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
