"""Write what was measured as one page in Markdown, with pictures beside it. Pure but for the files."""

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from bench.live import words
from bench.live.aims import Aim, CellResult, aims_of, result_of
from bench.live.cells import CELLS, CHUNK, DEGREE, GPU, MODEL, Cell
from bench.live.contenders import AMPD, DEFAULT, PEERS
from bench.live.record import Record, Row
from bench.live.running import BEHIND, CLOSE, FEW, HOPELESS, LONGEST_S, MORE
from bench.live.search import Goodput, means, rate_of
from bench.live.workloads import LIMITS
from bench.paper import svg
from bench.paper.page import table

SHOWN = 6
"""Curves in one picture."""


def write(record: Record, page: Path) -> list[Aim]:
    """Write the page and, into a folder beside it, its pictures; return the aims."""
    results = [result_of(record, cell) for cell in record.cells]
    aims = aims_of(results)
    pictures = page.parent / "plots"
    pictures.mkdir(parents=True, exist_ok=True)
    (pictures / "goodput.svg").write_text(goodput_picture(results), encoding="utf-8")
    for one in results:
        (pictures / f"{one.cell}.svg").write_text(curves_picture(record, one), encoding="utf-8")
    page.write_text(text(record, results, aims), encoding="utf-8")
    return aims


def text(record: Record, results: Sequence[CellResult], aims: Sequence[Aim]) -> str:
    """Return the page."""
    parts = [
        words.HEAD.format(
            how=record.how,
            machine=record.machine,
            complete="" if record.complete else words.CUT_SHORT,
            summary=_summary(aims),
            ratios=_ratios(record, results),
        ),
        words.METHOD.format(
            model=MODEL,
            gpu=GPU,
            degree=DEGREE,
            chunk=CHUNK,
            seeds=len(record.seeds),
            sessions=_sessions(record),
            rounds=LIMITS.max_rounds,
            added=LIMITS.max_added_tokens,
            decode=LIMITS.max_decode_tokens,
            hopeless=HOPELESS,
            behind=BEHIND,
            longest=LONGEST_S,
            few=FEW,
            further=words.FURTHER.format(close=CLOSE, count=len(record.further), more=MORE) if record.further else "",
            busy=_busy(record),
        ),
    ]
    parts += [_cell(record, one) for one in results]
    parts.append(_agreement(record, results))
    if record.broken:
        lines = "\n".join(f"- `{one}`: {why}" for one, why in record.broken.items())
        parts.append(words.BROKEN.format(broken=lines))
    return "\n".join(parts)


def _summary(aims: Sequence[Aim]) -> str:
    rows = [
        [one.words, f"{one.wanted:g}", "-" if math.isnan(one.found) else f"{one.found:.2f}", one.note, verdict(one)]
        for one in aims
    ]
    return table(["aim", "wanted", "found", "where", ""], rows)


def verdict(aim: Aim) -> str:
    """Say whether an aim is met."""
    if aim.met:
        return "met"
    return "**missed**" if aim.missed else "not measured" if math.isnan(aim.found) else "not bracketed"


def _ratios(record: Record, results: Sequence[CellResult]) -> str:
    rows = []
    for one in results:

        def goodput(name: str | None, one: CellResult = one) -> str:
            if name is None or name not in one.goodputs:
                return "-"
            return f"{one.goodputs[name]}{_mark(record, one.cell, name)}"

        rows.append(
            [
                one.cell,
                goodput(DEFAULT),
                "-" if one.best is None else f"{one.best}, {goodput(one.best)}",
                _or_dash(one.of_best),
                "-" if one.peer is None else f"{one.peer}, {goodput(one.peer)}",
                _or_dash(one.of_peer),
                goodput(AMPD),
                _or_dash(one.of_ampd),
            ]
        )
    head = ["cell", "default", "best other", "default / best", "best peer", "default / peer", "`ampd`", "default / it"]
    return table(head, rows)


def _mark(record: Record, cell: str, name: str) -> str:
    return " †" if record.spoilt(cell, name) else ""


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def _sessions(record: Record) -> str:
    """Return how many sessions a run has, by cell where they differ."""
    counts = {
        cell: max(len(row.met) for row in record.rows if row.cell == cell and row.seed not in record.further)
        for cell in record.cells
    }
    return ", ".join(f"{count} ({cell})" for cell, count in counts.items())


def _busy(record: Record) -> str:
    starved = [row for row in record.rows if row.starved]
    slower = sum(row.slow > 1 for row in record.rows)
    waited = [row.waited_s for row in record.rows if row.waited_s is not None]
    core = f"{1e3 * fmean(waited):.0f} ms on average, {1e3 * max(waited):.0f} ms at most" if waited else "not known"
    lag = max((row.lag_s for row in record.rows), default=0.0)
    return words.BUSY.format(
        rows=len(record.rows), starved=len(starved), slower=slower, waited=core, lag=1e3 * lag
    )  # fmt: skip


def _cell(record: Record, one: CellResult) -> str:
    cell = CELLS[one.cell]
    return words.CELL.format(
        name=one.cell,
        what=f"{cell.kind.name} ({cell.kind.source}), {cell.layout}, TTFT {cell.ttft_s:g} s, "
        f"session-mean ITL {1e3 * cell.itl_s:g} ms{_wrong(cell)}",
        default=record.defaults.get(one.cell, "?"),
        goodputs=_goodputs(record, one),
        curves=_curves(record, one),
        rows=_details(record, one),
        picture=one.cell,
    )


def _wrong(cell: Cell) -> str:
    error = cell.profile_error
    return "" if error == 1 else f"; in the routers' cost profile all work takes {error:g} times as long as it does"


def _goodputs(record: Record, one: CellResult) -> str:
    simulated = record.predicted.get(one.cell, {})
    best = max((found.rate for found in one.goodputs.values() if found.bound != "<"), default=math.nan)
    rows = []
    for name, found in one.goodputs.items():
        expected = simulated.get(name)
        rows.append(
            [
                f"**{name}**" if name == DEFAULT else name,
                f"{found}{_mark(record, one.cell, name)}",
                f"{found.bound} {found.rate / best:.2f}".strip(),
                str(len(found.of_seed)),
                "-" if expected is None else f"{expected:.2f}",
                _off(found, expected),
            ]
        )
    return table(["contender", "goodput, sessions/s", "of the best", "seeds", "simulated", "live / simulated"], rows)


def _off(found: Goodput, expected: float | None) -> str:
    return "-" if not expected else f"{found.bound} {found.rate / expected - 1:+.0%}".strip()


def _curves(record: Record, one: CellResult) -> str:
    """Return each contender's attainment at every rate tried, live and simulated: means over its seeds."""
    runs = [row for name in one.goodputs for row in record.rows_of(one.cell, name)]
    rates = {row.step: row.rate for row in sorted(runs, key=lambda row: row.step)}
    rows = []
    for name in one.goodputs:
        live = record.shares(one.cell, name)
        expected = {
            step: _simulated([row for row in runs if (row.contender, row.step) == (name, step)]) for step in live
        }
        rows.append([name, *(_percent(live[step].values()) if step in live else "" for step in rates)])
        if any(expected.values()):
            rows.append(["simulated", *(_percent(expected.get(step, ())) for step in rates)])
    return table(["contender", *(f"{rate:.2f}/s" for rate in rates.values())], rows)


def _simulated(rows: Sequence[Row]) -> list[float]:
    """Return the simulator's attainment of each seed's last run."""
    return list({row.seed: row.predicted.met for row in rows if row.predicted is not None}.values())


def _percent(shares: Collection[float]) -> str:
    return f"{100 * fmean(shares):.0f} ({len(shares)})" if shares else ""


def _details(record: Record, one: CellResult) -> str:
    """Return what the runs nearest to the goal show, beside attainment: the last rate that held, of each contender."""
    rows = []
    for name, found in one.goodputs.items():
        mine = record.rows_of(one.cell, name)
        near = min({row.step for row in mine}, key=lambda step: abs(_rate(mine, step) - found.rate))
        rows.append([name, f"{_rate(mine, near):.2f}", *_figures([row for row in mine if row.step == near])])
    head = [
        "contender", "at, /s", "late, %", "stalled, %", "TTFT P50, P95, s", "first, later P95, s",
        "ITL P50, P95, ms", "longest gap, s", "local, %", "computed of prompts, %", "history read, %",
        "observed / predicted TTFT: local; remote",
    ]  # fmt: skip
    return table(head, rows)


def _rate(rows: Sequence[Row], step: int) -> float:
    return next(row.rate for row in rows if row.step == step)


def _figures(rows: Sequence[Row]) -> list[str]:
    sessions = sum(len(row.met) for row in rows)

    def mean(name: str) -> float:
        return fmean(getattr(row, name) for row in rows)

    prompts, computed = (sum(row.tokens.get(key, 0) for row in rows) for key in ("prompts", "computed"))
    history = {kind: sum(row.tokens.get(f"history {kind}", 0) for row in rows) for kind in ("read", "cached")}
    history["recomputed"] = sum(row.tokens.get("history recomputed", 0) for row in rows)
    whole = sum(history.values())
    return [
        f"{100 * sum(row.late for row in rows) / sessions:.0f}",
        f"{100 * sum(row.stalled for row in rows) / sessions:.0f}",
        f"{mean('ttft_p50'):.2f}, {mean('ttft_p95'):.2f}",
        f"{mean('ttft_first_p95'):.2f}, {mean('ttft_later_p95'):.2f}",
        f"{1e3 * mean('itl_p50'):.0f}, {1e3 * mean('itl_p95'):.0f}",
        f"{mean('gap_max'):.2f}",
        f"{100 * mean('local'):.0f}",
        f"{100 * computed / prompts:.0f}" if prompts else "-",
        f"{100 * history['read'] / whole:.0f}" if whole else "-",
        "; ".join(_errors(rows, route) for route in ("local", "remote")),
    ]


def _errors(rows: Sequence[Row], route: str) -> str:
    """Return median and P90 of observed over predicted TTFT on a route, means over the runs."""
    known = [row.errors[route] for row in rows if route in row.errors]
    if not known:
        return "-"
    return f"{fmean(median for _, median, _ in known):.2f} (P90 {fmean(tail for *_, tail in known):.2f})"


def _agreement(record: Record, results: Sequence[CellResult]) -> str:
    names = list(dict.fromkeys(name for one in results for name in one.goodputs))
    rows = []
    for name in names:
        mine = [row for row in record.rows if row.contender == name and row.predicted is not None]
        if not mine:
            continue
        shares = [row.share - row.predicted.met for row in mine if row.predicted is not None]
        tails = [row.ttft_p95 / row.predicted.ttft_p95 - 1 for row in mine if row.predicted is not None]
        gaps = [row.itl_mean / row.predicted.itl_mean - 1 for row in mine if row.predicted is not None]
        rows.append(
            [
                name,
                str(len(mine)),
                f"{100 * fmean(shares):+.1f}",
                f"{100 * fmean(map(abs, shares)):.1f}",
                f"{100 * fmean(tails):+.0f}",
                f"{100 * fmean(map(abs, tails)):.0f}",
                f"{100 * fmean(gaps):+.1f}",
            ]
        )
    head = [
        "contender", "runs", "attainment, points", "the same, without sign", "P95 TTFT, %", "the same, without sign",
        "mean ITL, %",
    ]  # fmt: skip
    return words.AGREEMENT.format(table=table(head, rows))


def goodput_picture(results: Sequence[CellResult]) -> str:
    """Return a picture of what matters most: the default, the best other, the best peer and AMPD's rule by cell."""
    rows: dict[str, Mapping[str, float]] = {}
    for one in results:
        found = one.goodputs
        best = max((value.rate for value in found.values()), default=1.0)
        labels = {"default": DEFAULT, "best other of Weft": _best_own(one), "best peer": one.peer, "ampd": AMPD}
        rows[one.cell] = {
            label: found[name].rate / best for label, name in labels.items() if name is not None and name in found
        }
    return svg.dots("Goodput as a share of the cell's best", rows, ticks=(0.25, 0.5, 1), unit="of the best")


def _best_own(one: CellResult) -> str | None:
    return next((name for name in one.goodputs if name not in PEERS and name != DEFAULT), None)


def curves_picture(record: Record, one: CellResult) -> str:
    """Return attainment over the rate for the contenders with most seeds, best first."""
    most = sorted(one.goodputs, key=lambda name: (name != DEFAULT, -len(one.goodputs[name].of_seed)))[:SHOWN]
    lines = {}
    for name in most:
        seeds = sorted(one.goodputs[name].of_seed)
        known = means(record.shares(one.cell, name), seeds)
        lines[name] = [(rate_of(step), share) for step, share in known.items()]
    drawn = {name: line for name, line in lines.items() if line}
    cell: Cell = CELLS[one.cell]
    return svg.shares(
        f"Sessions within the SLO: {cell.name}", drawn, x_label="sessions/s", y_label="share within the SLO", goal=0.9
    )
