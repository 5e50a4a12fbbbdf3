"""A service whose routers count rounds, and a Prometheus in memory that scrapes them, loses things, and answers.

It answers by the figures of ``metrics.queries`` instead of PromQL; what PromQL itself does is tried against a real
Prometheus in test_metrics_prometheus.py.
"""

import zlib
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from weft_operator.metrics.queries import Windows
from weft_operator.metrics.query_results import QueryResults
from weft_operator.metrics.query_target import QueriedService

LOOKBACK_S = 300.0
STALE = None
"""What a failed scrape leaves."""

Samples = list[tuple[float, float | None]]

ROUNDS_OF_A_SESSION = 4
INDEX = {float(n): n / ROUNDS_OF_A_SESSION for n in range(1, ROUNDS_OF_A_SESSION + 1)} | {float("inf"): 1.0}
LENGTHS = {100.0: 0.0, 200.0: 0.5, 400.0: 0.9, float("inf"): 1.0}


@dataclass
class Router:
    """One pod: from when it counts, how many rounds a second it serves, and which scrapes of it succeed."""

    name: str
    began: float
    rate: float
    restarts: tuple[float, ...] = ()
    """Moments at which it begins anew at 0."""
    seen: Callable[[float], bool] = lambda _at: True
    told: Callable[[float], bool] = lambda _at: True
    """Whether Prometheus tries to scrape it at all; it notices a failed scrape, and nothing where it does not try."""

    def rounds(self, at: float) -> float:
        """Return its counter of rounds."""
        since = max((moment for moment in (self.began, *self.restarts) if moment <= at), default=None)
        return 0.0 if since is None else float(int((at - since) * self.rate))

    def served(self, begin: float, end: float) -> float:
        """Return how many rounds it really served."""
        return max(0.0, end - max(begin, self.began)) * self.rate

    def samples(self, now: float, interval: float) -> Samples:
        """Return what Prometheus holds of its heartbeat: the times that matter, with the counter as the value."""
        found: Samples = []
        at = now - 620.0 + (zlib.crc32(self.name.encode()) % 7) / 7 * interval
        while at <= now:
            if self.told(at) and at >= self.began:
                found.append((at, self.rounds(at) if self.seen(at) else STALE))
            at += interval
        return found


@dataclass
class Prometheus:
    """Answers about a service."""

    routers: list[Router]
    now: float
    windows: Windows
    interval: float = 5.0
    clock_off_s: float = 0.0
    dropped: frozenset[str] = frozenset()
    """Figures whose metric it does not keep."""
    spoilt: Mapping[str, float] = field(default_factory=dict)
    """Figures of which one series holds this value."""
    good: float = 0.95
    """Share of rounds that met the SLO."""
    unserved: float = 0.0
    """First rounds a second that arrived and still run."""
    copies: Mapping[str, int] = field(default_factory=dict)
    """How many jobs scrape a pod; 1 for those that are not named."""

    _held: dict[str, Samples] = field(default_factory=dict, init=False)

    def answers(self) -> QueryResults:
        """Return the answers to all queries."""
        rows = [*self._presence(), *self._counts(), *self._gauges()]
        kept = [row for row in rows if row["metric"]["figure"] not in self.dropped]
        for figure, value in self.spoilt.items():
            hit = next((row for row in kept if row["metric"]["figure"] == figure), None)
            if hit is not None:
                hit["value"] = [self.now, str(value)]
        return QueryResults([self.now + self.clock_off_s, str(self.now + self.clock_off_s)], [kept])

    def subject(
        self,
        *,
        stale_after_s: float = 60.0,
        pods: Mapping[str, float] | None = None,
        ready_since: Mapping[str, float] | None = None,
    ) -> QueriedService:
        """Return what the operator looks at: all routers."""
        known = {router.name: router.began for router in self.routers} if pods is None else pods
        return QueriedService(
            windows=self.windows,
            stale_after_s=stale_after_s,
            pods=known,
            percentile=95,
            unit="round",
            target=0.9,
            ready_since=ready_since or {},
        )

    def truth(self) -> float:
        """Return the sessions a second that really came in the window."""
        whole = self.windows.whole
        return sum(r.served(self.now - whole, self.now) for r in self.routers) / ROUNDS_OF_A_SESSION / whole

    def _presence(self) -> list[dict[str, Any]]:
        found = []
        for router in self.routers:
            samples = self._samples(router)
            steps = [(step, held) for step in self._steps() if (held := _held(samples, step)) is not None]
            newest = _held(samples, self.now) or (steps[-1][1] if steps else None)
            if newest is not None:
                found.append(_row("last", newest[0], pod=router.name))
            inside = [at for at, value in samples if at > self.now - self.windows.whole and value is not None]
            if inside:
                found.append(_row("samples", len(inside), pod=router.name))
            if steps:
                found.append(_row("steps", len(steps), pod=router.name))
                found.append(_row("hole", max(step - held[0] for step, held in steps), pod=router.name))
            before = _held(samples, self.now - self.windows.whole)
            if before is not None:
                found.append(_row("before", before[0], pod=router.name))
            if _held(samples, self.now) is not None:
                found.append(_row("copies", self.copies.get(router.name, 1), pod=router.name))
        return found

    def _samples(self, router: Router) -> Samples:
        if router.name not in self._held:
            self._held[router.name] = router.samples(self.now, self.interval)
        return self._held[router.name]

    def _steps(self) -> list[float]:
        step, begin = self.windows.step, self.now - self.windows.whole
        first = (int(begin // step) + 1) * step
        return [float(at) for at in range(first, int(self.now) + 1, step)]

    def _counts(self) -> list[dict[str, Any]]:
        grown = sum(self.copies.get(r.name, 1) * self._grown(r, self.windows.whole) for r in self.routers)
        fast = sum(self.copies.get(r.name, 1) * self._grown(r, self.windows.fast) for r in self.routers)
        if not any(self._samples(router) for router in self.routers):
            return []
        first = grown / ROUNDS_OF_A_SESSION
        later = grown - first
        found = [_row("rounds", first, phase="first"), _row("rounds", later, phase="later")]
        running = [self.unserved * seconds for seconds in (self.windows.whole, self.windows.fast)]
        found += [_row("arrivals", first + running[0], phase="first"), _row("arrivals", later, phase="later")]
        found.append(_row("arrivals_fast", fast / ROUNDS_OF_A_SESSION + running[1]))
        found += [_row("index", share * grown, le=_le(bound)) for bound, share in INDEX.items()]
        for figure, count in (("first_prompt", first), ("increment", later), ("decode", grown), ("gap", later)):
            found += [_row(figure, share * count, le=_le(bound)) for bound, share in LENGTHS.items()]
            found.append(_row(f"{figure}_sum", 210.0 * count))
        later_fast = fast - fast / ROUNDS_OF_A_SESSION
        for figure, count in (("first_prompt", fast - later_fast), ("increment", later_fast), ("decode", fast)):
            found += [_row(f"{figure}_fast", share * count, le=_le(bound)) for bound, share in LENGTHS.items()]
            found.append(_row(f"{figure}_fast_sum", 210.0 * count))
        found.append(_row("index_sum", 2.5 * grown))
        for objective in ("round", "ttft", "itl"):
            for outcome, share in (("good", self.good), ("bad", 1 - self.good)):
                found.append(_row("slow", share * grown, objective=objective, outcome=outcome, **{"class": "default"}))
        for outcome, share in (("good", self.good), ("bad", 1 - self.good)):
            found.append(_row("fast", share * fast, outcome=outcome, **{"class": "default"}))
        for figure, count in (("ttft_first", first), ("ttft_later", later), ("itl", 100 * grown), ("wait", first)):
            found += [_row(figure, share * count, le=_le(bound / 1000)) for bound, share in LENGTHS.items()]
        return found

    def _gauges(self) -> list[dict[str, Any]]:
        return [_row("queue", 3), _row("sessions_now", 12), _row("kv", 0.4, component="decode")]

    def _grown(self, router: Router, window: int) -> float:
        """Return what ``queries._grown`` returns for one series."""
        samples = self._samples(router)
        inside = [(at, value) for at, value in samples if self.now - window < at <= self.now and value is not None]
        if _held(samples, self.now - window) is None:
            return inside[-1][1] if inside else 0.0
        return _increase(inside, self.now - window, self.now)


def _row(figure: str, value: float, **labels: str) -> dict[str, Any]:
    return {"metric": {"figure": figure, **labels}, "value": [0, str(value)]}


def _le(bound: float) -> str:
    return "+Inf" if bound == float("inf") else str(bound)


def _held(samples: Samples, at: float) -> tuple[float, float] | None:
    """Return the sample that an instant query sees: the newest of five minutes, unless a scrape failed since."""
    place = bisect_right(samples, at, key=lambda sample: sample[0]) - 1
    if place < 0 or samples[place][0] <= at - LOOKBACK_S:
        return None
    moment, value = samples[place]
    return None if value is None else (moment, value)


def _increase(inside: list[tuple[float, float]], begin: float, end: float) -> float:
    """Do as Prometheus' ``increase``: resets added, and extrapolated to the window's ends where samples reach near."""
    if len(inside) < 2:
        return 0.0
    grown = inside[-1][1] - inside[0][1]
    for (_, before), (_, after) in pairwise(inside):
        if after < before:
            grown += before
    span = inside[-1][0] - inside[0][0]
    usual = span / (len(inside) - 1)
    head, tail = inside[0][0] - begin, end - inside[-1][0]
    if grown > 0 and inside[0][1] >= 0:
        head = min(head, span * inside[0][1] / grown)
    head = head if head < 1.1 * usual else usual / 2
    tail = tail if tail < 1.1 * usual else usual / 2
    return grown * (span + head + tail) / span
