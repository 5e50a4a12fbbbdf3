"""Print and write what was measured as one page in Markdown."""

import math
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bench.router.figures import (
    BY_KEY,
    FIGURES,
    OWN,
    STREAM_FIGURES,
    STREAMS_ONLY,
    WEFT,
    Figure,
    Results,
    aim,
    met,
    missed,
    shown,
)

HEAD = """# The router against its peers

`make bench-router` writes this page. {how}
Machine: {machine}.

P/D mode throughout: every request is a prefill call, then a decode call (sglang-router sends both at once). One router
at a time on one core, a compiled mock engine ({engines}) and a compiled client on another; medians of {rounds}
rounds in which the routers take turns, least and most in brackets. Every answer is checked; one that is wrong, missing
or cut short would void the row. "Per core and second" divides by the processor time that the router used.
"""
LOADS = """## What was sent

* Streams only: every load of the first table as in the second, but answers are streamed and no header names a session,
  as agents send them.
* Requests: 64 connections in a closed loop, 400 characters and 16 tokens each, every one of a new session that a header
  names. Without the header, a router that keeps sessions has to recognise them by their messages. 65 KB prompts: 32
  connections.
* Growing sessions: the same in four rounds, each with all that was said before. Weft runs later rounds where the
  history is, in one leg, unless its engines hand KV back from decode to prefill; the peers always take both.
* Added latency: 200 requests per second at random times, against the same client that calls the prefill and the decode
  engine itself, one after the other, from the other core. Direct: {direct}.
* Eager streams: 64 at once, 1,000 events each, eight events a write. Paced streams: 200 with 50 events a second each.
* Held streams: an event a second each, all of them open at once and seen through to their ends.
* The peers run with `round_robin`, their cheapest policy, and without API keys.
"""


def text(
    results: Results, keys: Sequence[str], *, contenders: Sequence[str], how: str, engines: str, rounds: int
) -> str:
    """Return the whole page of these figures and contenders; without Weft among them there are no aims."""
    parts = [HEAD.format(how=how, machine=machine(), engines=engines, rounds=rounds)]
    judged = WEFT in contenders
    for title, figures in (
        ("Streams only, and no session header", STREAM_FIGURES),
        ("Sessions named by a header", FIGURES),
    ):
        if rows := [figure for figure in figures if figure.key in keys]:
            parts.append(f"## {title}\n")
            head = ["figure", *contenders, *(["Weft to the better peer", "aim"] if judged else [])]
            parts.append(table(head, [_row(figure, results, contenders, judged=judged) for figure in rows]))
    own = [figure for figure in OWN if figure.key in keys and judged]
    if own:
        parts.append("## Weft's other forms\n")
        head = ["figure", "Weft", "to the better peer", "aim"]
        parts.append(table(head, [_row(figure, results, [WEFT], judged=True) for figure in own]))
    if any(figure.key == "scaling" for figure in own):
        parts.append(_scaling())
    if any(figure.key == "sidecar_us" for figure in own):
        parts.append("Sidecars: three processes on the router's core, with a Redis (not counted) on the other.\n")
    parts += [f"{name} is not available: {why}\n" for name, why in results.missing.items()]
    parts += [f"Failed: {why}\n" for why in results.failures]
    if judged:
        misses = missed(results, keys)
        parts.append("## Aims missed\n\n" + ("".join(f"* {one}\n" for one in misses) or "None.\n"))
    parts.append(LOADS.format(direct=_direct(results)))
    return "\n".join(parts)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def _row(figure: Figure, results: Results, contenders: Sequence[str], *, judged: bool) -> list[str]:
    name = f"{figure.name}, {figure.unit}" if figure.unit else figure.name
    cells = [name, *(_cell(figure, results, contender) for contender in contenders)]
    if not judged:
        return cells
    ratio = results.ratio(figure)
    held = aim(figure) + ("" if not figure.aimed or met(figure, results) else " MISSED")
    return [*cells, "-" if math.isnan(ratio) else f"{ratio:.2f} x", held]


def _cell(figure: Figure, results: Results, contender: str) -> str:
    if contender in results.missing:
        return "not available"
    values = results.values.get((figure.key, contender), [])
    bare = Figure(figure.key, figure.name)
    middle = shown(results.middle(figure.key, contender), bare)
    if len(values) < 2 or min(values) == max(values):
        return middle
    return f"{middle} ({shown(min(values), bare)} to {shown(max(values), bare)})"


def _scaling() -> str:
    if (os.cpu_count() or 1) >= 4:
        return "Two processes: a core each, the load on two others; requests by the clock.\n"
    return (
        "Two processes: a core each, but this machine has no others for the load, which runs on both cores then, and "
        "does so beside one process, too. So the clock tells nothing; the figure is twice the ratio of their requests "
        "per processor second: what two cost each other, and what the load costs either. Two on one core, the load on "
        "the other, have half a core's caches each.\n"
    )


def _direct(results: Results) -> str:
    if not results.direct_us:
        return "not measured"
    p50, p99 = (median(pair[i] for pair in results.direct_us) for i in (0, 1))
    return f"P50 {p50:,.0f} µs, P99 {p99:,.0f} µs"


def machine() -> str:
    """Name the machine in words."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = [line for line in info.read_text(encoding="utf-8").splitlines() if line.startswith("model name")]
        name = found[0].split(":", 1)[1].strip() if found else name
    load = os.getloadavg()[0]
    python = f"Python {platform.python_version()}"
    if sys.base_prefix != "/usr":  # the images have the distribution's
        python += ", not the distribution's, which is built with a profile and faster"
    return f"{os.cpu_count()} cores of {name}, load {load:.1f} at the end, {python}"


def keys_of(measures: Sequence[str]) -> list[str]:
    """Return the figures that these measures give, in the order of the page."""
    given = {key for name in measures for key in GIVES[name]}
    given |= {STREAMS_ONLY + key for key in given}
    return [key for key in BY_KEY if key in given]


GIVES: dict[str, tuple[str, ...]] = {
    "memory": ("rss_mb",),
    "requests": ("requests_core", "requests", "request_us", "unnamed_us", "both_legs"),
    "sessions": ("sessions_core", "sessions_both"),
    "long": ("long_core", "long_us"),
    "latency": ("added_p50_ms", "added_p99_ms"),
    "events": ("events_core",),
    "paced": ("event_us",),
    "streams": ("held", "held_rss_mb"),
    "processes": ("scaling", "sharing"),
    "decisions": ("decision_us", "wide_us"),
    "sidecars": ("sidecar_us",),
}
