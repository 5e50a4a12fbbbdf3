"""Name the figures, take medians over rounds and hold Weft's against the better peer's and against fixed limits."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

WEFT = "Weft"
PEERS = ("vllm-router", "sglang-router")


@dataclass(frozen=True, slots=True)
class Figure:
    """A row: its unit, whether more is better, and the aims for Weft.

    ``ratio``: so many times the better peer's, or better (for a cost: at most so many times the cheaper peer's).
    ``limit``: at least, or for a cost at most, this value.
    """

    key: str
    name: str
    unit: str = ""
    more: bool = True
    ratio: float | None = None
    limit: float | None = None
    against: str = ""
    """The peers' figure that the ratio is taken of, where it is another one."""

    @property
    def aimed(self) -> bool:
        return self.ratio is not None or self.limit is not None


FIGURES = (
    Figure("event_us", "router CPU per event of paced streams", "µs", more=False, ratio=0.95),
    Figure("events_core", "events of eager streams per core and second", "1/s", ratio=2.5),
    Figure("rss_mb", "resident memory of a process at 2,000 streams", "MB", more=False, limit=100.0),
    Figure("requests_core", "requests per core and second", "1/s", ratio=1.4),
    Figure("requests", "the same by the clock, router alone on its core", "1/s"),
    Figure("request_us", "router CPU per request", "µs", more=False),
    Figure("unnamed_us", "the same without a session header", "µs", more=False),
    Figure("both_legs", "requests that took both legs", "%", limit=99.0),
    Figure("sessions_core", "rounds of growing sessions per core and second", "1/s"),
    Figure("sessions_both", "such rounds that took both legs", "%"),
    Figure("long_core", "requests with a 65 KB prompt per core and second", "1/s", ratio=1.4),
    Figure("long_us", "router CPU per such request", "µs", more=False),
    Figure("added_p50_ms", "added P50 at 200 requests/s", "ms", more=False, limit=0.3),
    Figure("added_p99_ms", "added P99 at 200 requests/s", "ms", more=False),
    Figure("held", "concurrent streams held by one process", limit=5000.0),
    Figure("held_rss_mb", "resident memory of a process then", "MB", more=False),
)
OWN = (
    Figure("scaling", "two processes against one, a core each", "x", limit=1.8),
    Figure("sharing", "the same, both on the one's core", "x"),
    Figure("decision_us", "a decision over 64 workers inside the live path", "µs", more=False, limit=100.0),
    Figure("wide_us", "router CPU per request in front of 64 workers", "µs", more=False),
    Figure(
        "sidecar_us", "CPU per request, summed over coordinator and both sidecars", "µs", more=False, ratio=1.2,
        against="request_us",
    ),
)  # fmt: skip
STREAMS_ONLY = "streams."
"""What the keys of figures begin with that were measured with streams alone, and no header that names a session."""
# The latency of both legs called directly has none with streams: a prefill call does not stream.
_OF_NAMED_REQUESTS = ("unnamed_us", "held", "held_rss_mb", "added_p50_ms", "added_p99_ms")
STREAM_FIGURES = tuple(
    replace(figure, key=STREAMS_ONLY + figure.key, against=figure.against and STREAMS_ONLY + figure.against)
    for figure in (*FIGURES, OWN[-1])
    if figure.key not in _OF_NAMED_REQUESTS
)
BY_KEY = {figure.key: figure for figure in (*STREAM_FIGURES, *FIGURES, *OWN)}


@dataclass
class Results:
    """Values of every round by figure and contender, and why others are missing."""

    values: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Contenders that could not be started at all."""
    failures: list[str] = field(default_factory=list)
    direct_us: list[tuple[float, float]] = field(default_factory=list)
    busy: dict[str, list[float]] = field(default_factory=dict)

    def add(self, contender: str, found: Mapping[str, float]) -> None:
        """Keep what one round found."""
        for key, value in found.items():
            self.values.setdefault((key, contender), []).append(value)

    def middle(self, key: str, contender: str) -> float:
        """Return the median over rounds, NaN when nothing was measured."""
        values = self.values.get((key, contender))
        return median(values) if values else math.nan

    def better_peer(self, figure: Figure) -> float:
        """Return the better peer's median, NaN when neither has one."""
        known = [value for peer in PEERS if not math.isnan(value := self.middle(figure.against or figure.key, peer))]
        return (max if figure.more else min)(known) if known else math.nan

    def ratio(self, figure: Figure) -> float:
        """Return Weft's median as a multiple of the better peer's."""
        return self.middle(figure.key, WEFT) / self.better_peer(figure)


def met(figure: Figure, results: Results) -> bool | None:
    """Tell whether Weft reaches a figure's aims; None when there is none or nothing was measured to hold it against."""
    value, ratio = results.middle(figure.key, WEFT), results.ratio(figure)
    checks = []
    if figure.limit is not None:
        checks.append((value, figure.limit))
    if figure.ratio is not None:
        checks.append((ratio, figure.ratio))
    if not checks or any(math.isnan(found) for found, _ in checks):
        return None
    return all(found >= aim if figure.more else found <= aim for found, aim in checks)


def missed(results: Results, keys: Sequence[str]) -> list[str]:
    """Return a sentence for every aim of these figures that Weft misses or that could not be held against anything."""
    found = []
    for figure in map(BY_KEY.__getitem__, keys):
        if not figure.aimed or met(figure, results):
            continue
        value, ratio = results.middle(figure.key, WEFT), results.ratio(figure)
        name = f"streams only: {figure.name}" if figure.key.startswith(STREAMS_ONLY) else figure.name
        if math.isnan(value):
            found.append(f"{name}: not measured (aim {aim(figure)})")
        elif figure.ratio is not None and math.isnan(ratio):
            found.append(f"{name}: {shown(value, figure)}, and no peer to hold it against (aim {aim(figure)})")
        else:
            times = "" if figure.ratio is None else f", {ratio:.2f} x the better peer's"
            found.append(f"{name}: {shown(value, figure)}{times} (aim {aim(figure)})")
    return found


def aim(figure: Figure) -> str:
    """Say what Weft is to reach."""
    sign = "≥" if figure.more else "≤"
    words = []
    if figure.ratio is not None:
        words.append(f"{sign} {figure.ratio:g} x")
    if figure.limit is not None:
        words.append(f"{sign} {shown(figure.limit, figure)}")
    return " and ".join(words) or "-"


def shown(value: float, figure: Figure) -> str:
    """Print a value with three digits or as a whole number, and its unit."""
    if math.isnan(value):
        return "-"
    digits = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{digits} {figure.unit}".strip()
