"""Write what was measured as one page in Markdown, with the papers' figures beside it."""

import math
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, median

from bench.paper import svg, words
from bench.paper.cells import CELLS, SETTINGS
from bench.paper.choosing import PREDICTION_ERROR, WORTH_A_CHANGE
from bench.paper.goodputs import READINGS
from bench.paper.layouts import SHIPPED, SHIPPED_RATE, Ranked, Timed, trivial
from bench.paper.peers import CONTENDERS as ROUTERS
from bench.paper.peers import PEERS, Row
from bench.paper.ppd import Change, error
from bench.paper.regret import Regret
from bench.paper.retention import CONTENDERS as RETENTION_CONTENDERS
from bench.paper.retention import RetentionRow
from bench.paper.uplift import Score, spread

from weft_core.efficiency import Efficiency
from weft_planner.evaluation.candidates import careful_share

CONTENDERS = {"weft": "weft (imd)", "chosen": "mode by the planner", "planned": "layout and mode by the planner"}


@dataclass
class Results:
    """Everything one run found; parts that were left out are empty."""

    scores: Sequence[Score] = ()
    peers: Sequence[Row] = ()
    retention: Sequence[RetentionRow] = ()
    changes: Sequence[Change] = ()
    fitted_changes: Sequence[Change] = ()
    timed: Sequence[Timed] = ()
    ranked: Sequence[Ranked] = ()
    regrets: Sequence[Regret] = ()
    how: str = ""


def write(results: Results, page: Path) -> None:
    """Write the page and, into a folder beside it, its pictures."""
    pictures = page.parent / "plots"
    pictures.mkdir(parents=True, exist_ok=True)
    parts = [words.HEAD.format(how=results.how, machine=machine())]
    if results.scores:
        (pictures / "uplift.svg").write_text(_uplift_picture(results.scores), encoding="utf-8")
        parts.append(_uplift(results.scores))
    if results.peers:
        parts.append(_peers(results.peers))
    if results.retention:
        parts.append(_retention(results.retention))
    if results.changes:
        parts.append(_ppd(results.changes, results.fitted_changes))
    if results.timed:
        (pictures / "planning.svg").write_text(_planning_picture(results.timed), encoding="utf-8")
        parts.append(_planning(results.timed))
    if results.ranked:
        parts.append(_table2(results.ranked))
    if results.regrets:
        parts.append(_regret(results.regrets))
    parts.append(words.NOT_REPRODUCED)
    page.write_text("\n".join(parts), encoding="utf-8")


def machine() -> str:
    """Name the machine in words."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = [line for line in info.read_text(encoding="utf-8").splitlines() if line.startswith("model name")]
        name = found[0].split(":", 1)[1].strip() if found else name
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} cores of {name}, load {load:.1f} at the end, Python {platform.python_version()}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def _of(scores: Sequence[Score], setting: str, reading: str) -> list[Score]:
    return [one for one in scores if one.setting == setting and one.reading == reading]


def _uplift(scores: Sequence[Score]) -> str:
    names = [s.name for s in SETTINGS if _of(scores, s.name, "mean ITL")]
    settings = [
        [
            name,
            *(str(spread(s.ratio(who) for s in _of(scores, name, r))) for r in READINGS for who in ("weft", "chosen")),
        ]
        for name in names
    ]
    head = ["setting", *(f"{who}, {reading}" for reading in READINGS for who in ("weft (imd)", "planner's mode"))]
    below = [f"{s.cell}, {s.setting}, {s.reading} ({s.ratio('chosen'):.2f})" for s in scores if s.ratio("chosen") < 1]
    first = [s for reading in READINGS for s in _of(scores, names[0], reading)]
    default = ", ".join(f"{spread(s.ratio('default') for s in _of(first, names[0], r))} on {r}" for r in READINGS)
    planned = ", ".join(_planned(_of(scores, names[0], reading)) + f" on {reading}" for reading in READINGS)
    rows = [
        [
            s.cell,
            s.reading,
            "none" if s.ampd is None else f"{s.ampd.rate:.2f}",
            _ratio(s, "weft"),
            _ratio(s, "chosen"),
            s.mode,
            *([_ratio(s, "default"), s.default_mode, _ratio(s, "planned"), s.plan] if s.plan else [""] * 4),
        ]
        for s in first
    ]
    columns = [
        "cell",
        "reading",
        "AMPD, sessions/s",
        "weft (imd)",
        "planner's mode",
        "it is",
        "default mode",
        "it is",
        "planner's plan",
        "it is",
    ]
    return words.UPLIFT.format(
        settings=table(head, settings),
        below="; ".join(below) or "none",
        left=_left_out(scores),
        modes=_modes(scores),
        error=PREDICTION_ERROR,
        careful=careful_share(PREDICTION_ERROR),
        worth=100 * (WORTH_A_CHANGE - 1),
        planned=words.PLANNED.format(default=default, figures=planned) if any(s.plan for s in first) else "",
        first=names[0],
        cells=table(columns, rows),
    )


def _peers(rows: Sequence[Row]) -> str:
    best = [max(PEERS, key=row.rate) for row in rows]
    cells = [
        [row.cell, row.layout, *(f"{row.rate(name):.2f}" for name in ROUTERS), top]
        for row, top in zip(rows, best, strict=True)
    ]
    ratios = [[name, str(spread(row.ratio(name) for row in rows))] for name in ROUTERS if name not in PEERS]
    return words.PEERS.format(
        cells=table(["cell", "layout", *ROUTERS, "best of the routers"], cells),
        ratios=table(["rule", "times the best router: mean (least to most)"], ratios),
    )


def _retention(rows: Sequence[RetentionRow]) -> str:
    shares = sorted({row.kv_share for row in rows}, reverse=True)
    of_share = {share: [row for row in rows if row.kv_share == share] for share in shares}
    cells = [
        [row.cell, f"{row.kv_share:.0%}", *(f"{row.rate(name):.2f}" for name in RETENTION_CONTENDERS)] for row in rows
    ]
    ratios = [
        [name, *(str(spread(row.ratio(name, "vLLM") for row in of_share[share])) for share in shares)]
        for name in RETENTION_CONTENDERS
        if name != "vLLM"
    ]
    return words.RETENTION.format(
        cells=table(["cell", "KV memory", *RETENTION_CONTENDERS], cells),
        ratios=table(
            ["times vLLM: mean (least to most)", *(f"{share:.0%} of the KV memory" for share in shares)], ratios
        ),
    )


def _planned(scores: Sequence[Score]) -> str:
    """Return how the planner's own layouts do, and how without their best cell: one alone should not carry a mean."""
    ratios = [s.ratio("planned") for s in scores]
    finite = sorted(ratio for ratio in ratios if math.isfinite(ratio))
    return f"{spread(ratios)}, without its best cell {spread(finite[:-1]).mean:.2f}"


def _ratio(score: Score, contender: str) -> str:
    """Return a ratio with half of its seeds' 95 % interval, where there are seeds enough to tell."""
    found = score.interval(contender)
    ratio = f"{score.ratio(contender):.2f}"
    return ratio if found is None or math.isnan(found.low) else f"{ratio} ± {(found.high - found.low) / 2:.2f}"


def _left_out(scores: Sequence[Score]) -> str:
    """Say in which cells AMPD holds the goal at no rate, and how many of them the planner's mode serves."""
    lost = [s for s in scores if s.ampd is None]
    if not lost:
        return "AMPD holds the goal at some rate in every cell."
    served = [f"{s.cell}, {s.setting}, {s.reading}" for s in lost if s.chosen is not None]
    return (
        f"Left out, because AMPD holds the goal nowhere: {len(lost)} of {len(scores)}. In {len(served)} of these the "
        f"planner's mode holds it at some rate: {'; '.join(served) or 'none'}."
    )


def _modes(scores: Sequence[Score]) -> str:
    """Return a table of modes: a row for each cell, a column for each engine's costs."""
    names: dict[Efficiency, str] = {}
    for setting in SETTINGS:
        if _of(scores, setting.name, "mean ITL"):
            names.setdefault(setting.efficiency, setting.name)
    rows = []
    for cell in dict.fromkeys(s.cell for s in scores):
        found = {(s.setting, s.reading): s.mode for s in scores if s.cell == cell}
        rows.append([cell, *(" / ".join(found[name, reading] for reading in READINGS) for name in names.values())])
    return table(["cell", *names.values()], rows)


def _uplift_picture(scores: Sequence[Score]) -> str:
    rows = {
        s.cell: {label: s.ratio(who) for who, label in CONTENDERS.items() if who != "planned" or s.plan}
        for s in _of(scores, SETTINGS[0].name, "mean ITL")
    }
    return svg.dots(
        "Goodput as a multiple of AMPD's, session mean ITL", rows, ticks=(0.5, 1, 2, 3, 4, 5, 8), unit="times AMPD"
    )


def _ppd(changes: Sequence[Change], fitted: Sequence[Change]) -> str:
    rows = [[c.layout, c.load, f"{c.ours:+.1f}", f"{c.paper:+.1f}", f"{c.mean:+.1f}"] for c in changes]
    shown = table(["layout", "sessions/s", "ours", "paper", "our mean"], rows)
    return words.PPD.format(table=shown, ours=error(changes), mean=error(changes, "mean"), fitted=error(fitted))


def _planning(timed: Sequence[Timed]) -> str:
    rows = [
        [str(t.gpus), f"{t.paper:.2f}", f"{t.pruned_s:.2f}", f"{t.plan_s:.2f}", f"{t.plan_cpu_s:.2f}", t.layout]
        for t in timed
    ]
    return words.PLANNING.format(
        table=table(["GPUs", "paper, s", "phases and program, s", "whole plan, s", "of it processor", "plan"], rows),
        beaten=sum(t.pruned_s < t.paper for t in timed),
        whole=sum(t.plan_s < t.paper for t in timed),
        sizes=len(timed),
    )


def _planning_picture(timed: Sequence[Timed]) -> str:
    return svg.lines(
        "Planning time",
        {
            "phases and program": [(t.gpus, t.pruned_s) for t in timed],
            "whole plan": [(t.gpus, t.plan_s) for t in timed],
            "AMPD, Figure 7": [(t.gpus, t.paper) for t in timed],
        },
        x_label="GPUs",
        y_label="seconds",
    )


def _table2(ranked: Sequence[Ranked]) -> str:
    rates = sorted({r.rate for r in ranked})
    ways = list(dict.fromkeys((r.objective, r.setting) for r in ranked))
    hits = {
        (*way, rate): sum(r.same for r in ranked if (r.objective, r.setting, r.rate) == (*way, rate))
        for way, rate in product(ways, rates)
    }
    shipped = (SHIPPED[0], SHIPPED[1], min(rates, key=lambda rate: abs(rate - SHIPPED_RATE)))
    of_shipped = [r for r in ranked if (r.objective, r.setting, r.rate) == shipped]
    rows = [[r.cell, r.paper, r.ours, "yes" if r.same else "no"] for r in of_shipped]
    counts = [[*way, *(str(hits[(*way, rate)]) for rate in rates)] for way in ways]
    head = ["objective", "engine", *(f"{rate:g}/s" for rate in rates)]
    return words.TABLE2.format(
        rates=table(head, counts),
        rate=shipped[2],
        hits=hits[shipped],
        cells=len(of_shipped),
        table=table(["cell", "paper", "ours", "equal"], rows),
        simple=sum(trivial(cell) == str(cell.layout) for cell in CELLS),
    )


def _regret(regrets: Sequence[Regret]) -> str:
    rows = [
        [r.service, str(r.layouts), r.planned, f"{r.planned_rate:.2f}", r.best, f"{r.best_rate:.2f}", f"{r.share:.1%}"]
        for r in regrets
    ]
    shares = [r.share for r in regrets]
    return words.REGRET.format(
        table=table(["service", "layouts", "plan", "sessions/s", "best", "sessions/s", "regret"], rows),
        mean=fmean(shares),
        median=median(shares),
        largest=max(shares),
        above=sum(share > 0.1 for share in shares),
        services=len(shares),
        both=sum(r.planned.startswith("B") for r in regrets),
        best_both=sum(r.best.startswith("B") for r in regrets),
    )
