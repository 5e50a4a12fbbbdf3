"""Draw the report's plots as SVG text."""

import functools
import io
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter

from weft_core.plan import Plan
from weft_core.slo import Slo
from weft_e2e.demo.measures import sessions_of
from weft_e2e.demo.scene import ReplanTimeline
from weft_e2e.metrics import KvFlow
from weft_e2e.replay.records import RoundRecord

INK, QUIET, RULE = "#1f2933", "#66727f", "#dfe4ea"
REMOTE, LOCAL, FAILED = "#2f6fb7", "#e08a1e", "#c62f3b"
FIRST, LATER = "#0f8b8d", "#7a4fb5"
_ROUTE_COLOURS = {"remote": REMOTE, "local": LOCAL}
# One figure unit is one CSS inch; the page scales the picture to its column.
_STYLE: Any = {  # matplotlib types each key by itself
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "svg.fonttype": "path",  # the same picture on machines without this font
    "svg.hashsalt": "weft",
    "axes.edgecolor": RULE,
    "axes.labelcolor": QUIET,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#eef1f4",
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}


P = ParamSpec("P")


def _styled(draw: Callable[P, Figure]) -> Callable[P, str]:
    """Run a drawing function under this module's style and return its picture as SVG."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> str:
        with mpl.rc_context(_STYLE):
            buffer = io.StringIO()
            draw(*args, **kwargs).savefig(
                buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
            )
        text = buffer.getvalue()
        return text[text.index("<svg") :]

    return drawn


@_styled
def ttft_curve(records: Sequence[RoundRecord], *, slo: Slo, plan: Plan) -> Figure:
    """Draw the share of rounds whose first token came within a time: first and later rounds, SLO and prediction."""
    figure, axes = _figure(5.6, 3.3)
    for phase, colour in (("first", FIRST), ("later", LATER)):
        values = [r.ttft_s for r in records if r.phase == phase and r.ttft_s is not None]
        _curve(axes, values, colour=colour, label=f"{phase} rounds ({len(values)})")
    _marks(figure, axes, slo_at=slo.ttft_s, plan_at=plan.predicted.ttft_p95_s, percentile=slo.percentile)
    axes.set_xlabel("time to first token, s (log scale)")
    _log_seconds(axes)
    return figure


@_styled
def compared_curve(records: Sequence[RoundRecord], baseline: Sequence[RoundRecord], *, slo: Slo) -> Figure:
    """Draw the share of later rounds whose first token came within a time: the service's routing and the baseline."""
    figure, axes = _figure(5.6, 3.3)
    for of, colour, label in ((records, LOCAL, "Weft"), (baseline, REMOTE, "always remote")):
        values = [r.ttft_s for r in of if r.phase == "later" and r.ttft_s is not None]
        _curve(axes, values, colour=colour, label=f"{label} ({len(values)})")
    _marks(figure, axes, slo_at=slo.ttft_s, plan_at=float("inf"), percentile=slo.percentile)
    axes.set_xlabel("time to first token, s (log scale)")
    _log_seconds(axes)
    return figure


@_styled
def itl_curve(records: Sequence[RoundRecord], *, slo: Slo, plan: Plan) -> Figure:
    """Draw the share of gaps between tokens within a time, and of rounds by their mean gap."""
    figure, axes = _figure(5.6, 3.3)
    gaps = [g * 1e3 for r in records for g in r.gaps_s]
    round_means = [1e3 * sum(r.gaps_s) / len(r.gaps_s) for r in records if r.gaps_s]
    _curve(axes, gaps, colour=QUIET, label=f"every gap ({len(gaps):,})")
    _curve(axes, round_means, colour=LATER, label=f"round means ({len(round_means)})")
    _marks(figure, axes, slo_at=slo.itl_s * 1e3, plan_at=plan.predicted.itl_p95_s * 1e3, percentile=slo.percentile)
    axes.set_xlabel("inter-token latency, ms")
    axes.set_xlim(0, max(1.5 * slo.itl_s * 1e3, 1.05 * max(round_means, default=1.0)))
    return figure


@_styled
def timeline(records: Sequence[RoundRecord]) -> Figure:
    """Draw every session as a row: waiting for the first token pale, streaming in the colour of the prefill's route."""
    sessions = sessions_of(records)
    figure, axes = _figure(11.6, 0.9 + 0.17 * len(sessions))
    for row, rounds in enumerate(sessions.values()):
        sent = [r for r in rounds if r.outcome != "not_sent"]
        if sent:
            end = max(r.sent_s + r.total_s for r in sent)
            axes.plot([sent[0].sent_s, end], [row, row], color=RULE, linewidth=1, zorder=1)
        for record in sent:
            colour = _ROUTE_COLOURS.get(record.route or "", QUIET) if record.ok else FAILED
            wait = record.ttft_s if record.ttft_s is not None else record.total_s
            axes.barh(row, wait, left=record.sent_s, height=0.72, color=colour, alpha=0.38, zorder=2)
            rest = record.total_s - wait
            axes.barh(row, rest, left=record.sent_s + wait, height=0.72, color=colour, zorder=2)
    axes.set_ylim(len(sessions) - 0.4, -0.6)
    axes.set_yticks([])
    axes.grid(visible=False, axis="y")
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds since the replay began; one row per session")
    routes = {r.route for r in records if r.ok}
    keys: list[Patch] = [
        Patch(color=c, label=f"{n} prefill, streaming") for n, c in _ROUTE_COLOURS.items() if n in routes
    ]
    keys.append(Patch(color=QUIET, alpha=0.38, label="pale: waiting for the first token"))
    if any(not r.ok for r in records):
        keys.append(Patch(color=FAILED, label="failed"))
    figure.legend(handles=keys, loc="outside upper left", ncols=4)
    return figure


@_styled
def workers(scenes: Sequence[ReplanTimeline]) -> Figure:
    """Draw every worker as a row: starting pale, ready, draining; with the sessions it held where they changed."""
    names = list(dict.fromkeys(w.name for scene in scenes for w in scene.workers))
    figure, axes = _figure(11.6, 1.1 + 0.34 * len(names))
    ends = [*(scene.at_s for scene in scenes[1:]), scenes[-1].at_s + 1.0]
    for row, name in enumerate(names):
        held: int | None = None
        for scene, end in zip(scenes, ends, strict=True):
            worker = next((w for w in scene.workers if w.name == name), None)
            if worker is None:
                continue
            colour = FAILED if worker.state == "draining" else FIRST if worker.role == "prefill" else LATER
            pale = 0.3 if worker.state == "starting" else 0.85
            axes.barh(row, end - scene.at_s, left=scene.at_s, height=0.72, color=colour, alpha=pale, linewidth=0)
            if worker.sessions is not None and worker.sessions != held:
                held = worker.sessions
                axes.text(scene.at_s, row, f" {held}", va="center", fontsize=7, color="white")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("seconds since the traffic changed; in the rows of decode workers, the sessions that they hold")
    keys = [
        Patch(color=FIRST, label="prefill"),
        Patch(color=LATER, label="decode"),
        Patch(color=FAILED, label="draining"),
    ]
    keys.append(Patch(color=QUIET, alpha=0.3, label="pale: starting"))
    figure.legend(handles=keys, loc="outside upper left", ncols=4)
    return figure


@_styled
def kv_bars(kv: KvFlow) -> Figure:
    """Draw the KV bytes moved each way and what became of the history tokens of later rounds."""
    figure = Figure(figsize=(5.6, 2.6), layout="constrained")
    top, bottom = figure.subplots(2, 1, height_ratios=(2, 3))
    moved = (("prefill to decode", kv.prefill_to_decode_bytes), ("decode to prefill", kv.decode_to_prefill_bytes))
    _bars(
        top,
        [(n, v / 1e9) for n, v in moved],
        colours=(REMOTE, FIRST),
        form="{:,.1f} GB",
        title="KV moved between workers",
    )
    tokens = (
        ("read", kv.history_read_tokens),
        ("cached", kv.history_cached_tokens),
        ("recomputed", kv.history_recomputed_tokens),
    )
    _bars(
        bottom,
        tokens,
        colours=(FIRST, QUIET, FAILED),
        form="{:,.0f} tokens",
        title="History tokens of later rounds",
    )
    return figure


@_styled
def ttft_by_tokens(records: Sequence[RoundRecord], *, slo: Slo) -> Figure:
    """Draw each round's time to first token against the tokens it added, by route."""
    figure, axes = _figure(5.6, 2.6)
    for route, colour in _ROUTE_COLOURS.items():
        points = [(r.added_tokens, r.ttft_s) for r in records if r.ok and r.route == route and r.ttft_s is not None]
        if points:
            axes.scatter(
                [x for x, _y in points],
                [y for _x, y in points],
                s=14,
                color=colour,
                alpha=0.75,
                linewidths=0,
                label=route,
            )
    axes.axhline(slo.ttft_s, color=FAILED, linestyle="--", linewidth=1.2)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda v, _pos: f"{v:,.0f}")
    _plain_log(axes.yaxis)
    axes.set_xlabel("tokens the round added")
    axes.set_ylabel("time to first token, s")
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside upper left", ncols=2)
    return figure


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _curve(axes: Axes, values: Sequence[float], *, colour: str, label: str) -> None:
    if not values:
        return
    ordered = sorted(values)
    shares = [100 * (k + 1) / len(ordered) for k in range(len(ordered))]
    # A curve of many thousand gaps needs no more points than the picture has pixels.
    step = max(1, len(ordered) // 800)
    xs, ys = ordered[::step], shares[::step]
    if xs[-1] != ordered[-1] or ys[-1] != 100:
        xs, ys = [*xs, ordered[-1]], [*ys, 100.0]
    axes.step(xs, ys, where="post", color=colour, linewidth=1.8, label=label)


def _marks(figure: Figure, axes: Axes, *, slo_at: float, plan_at: float, percentile: float) -> None:
    axes.axvline(slo_at, color=FAILED, linestyle="--", linewidth=1.2)
    handles, _labels = axes.get_legend_handles_labels()
    handles.append(Line2D([], [], color=FAILED, linestyle="--", linewidth=1.2, label="SLO"))
    if plan_at != float("inf"):
        axes.plot(
            [plan_at], [percentile], marker="D", color=INK, markersize=5, linestyle="none", zorder=5, clip_on=False
        )
        label = f"plan's P{percentile:g}"
        handles.append(Line2D([], [], color=INK, marker="D", markersize=5, linestyle="none", label=label))
    axes.set_ylim(0, 101)
    axes.set_ylabel("share within, %")
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), columnspacing=1.3, handlelength=1.7)


def _log_seconds(axes: Axes) -> None:
    axes.set_xscale("log")
    _plain_log(axes.xaxis)


def _plain_log(axis: Axis) -> None:
    """Mark a logarithmic axis of seconds at 1, 2 and 5, in plain numbers."""
    axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axis.set_major_formatter(lambda v, _pos: f"{v:g}")
    axis.set_minor_formatter(NullFormatter())


def _bars(axes: Axes, rows: Sequence[tuple[str, float]], *, colours: Sequence[str], form: str, title: str) -> None:
    largest = max((v for _n, v in rows), default=0.0) or 1.0
    for k, ((_name, value), colour) in enumerate(zip(rows, colours, strict=True)):
        axes.barh(k, value, height=0.6, color=colour)
        axes.text(value + 0.015 * largest, k, form.format(value), va="center", fontsize=8.5)
    axes.set_yticks(range(len(rows)), [name for name, _v in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.35 * largest)
    axes.set_title(title, fontsize=9, loc="left", color=QUIET)
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
