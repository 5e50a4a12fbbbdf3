"""The recent metrics of a service, reduced to the figures from which drift and idleness are detected.

Observations without metrics are kept, too: a service is not idle while its metrics are missing.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise
from types import MappingProxyType

from weft_operator.metrics.observation import Observation, ObservedWorkload, Spread

MOST = 240
"""Most samples: one every 8 s over half an hour, every 6 min over a day."""
CONFIDENCE = 1.96
"""Standard errors to either side of a 95 % interval."""

FIGURES = ("rounds", "first_prompt", "increment", "decode")


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean, its number of samples, and its relative standard error."""

    value: float
    count: int
    error: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One observation, reduced; ``rate`` are offered sessions per second, refused ones included."""

    at: datetime
    seen: bool
    rate: Mean | None = None
    fast_rate: float | None = None
    """Lower confidence end of the sessions per second in the fast window, without refused ones."""
    begun: float = 0.0
    """Sessions per second whose first round arrived."""
    figures: Mapping[str, Mean] = field(default_factory=lambda: MappingProxyType({}))
    ttft_s: float | None = None
    """The larger of the TTFTs of first and later rounds at the SLO's percentile."""
    itl_s: float | None = None
    missing_slo: bool = False
    """Whether the SLO was missed in the fast window, beyond chance."""
    quiet_s: float = 0.0
    """Seconds before the observation without any request; 0 if there was one, or without metrics."""


@dataclass(frozen=True, slots=True)
class History:
    """Samples of the last ``keep_s`` seconds, oldest first; the last one is always the newest observation."""

    keep_s: float
    samples: tuple[Sample, ...] = ()
    quiet_since: datetime | None = None
    """Since when there was no request, by observations with overlapping windows; None: there may have been one."""

    def with_(self, sample: Sample) -> "History":
        """Return the history with one more sample; one that is not newer than the last changes nothing."""
        kept = list(self.samples)
        if kept and sample.at <= kept[-1].at:
            return self
        spacing = timedelta(seconds=self.keep_s / MOST)
        if len(kept) > 1 and kept[-1].seen == sample.seen and sample.at - kept[-2].at < spacing:
            kept.pop()
        kept.append(sample)
        # One older sample is kept for the start of the period.
        oldest = sample.at - timedelta(seconds=self.keep_s)
        while len(kept) > 1 and kept[1].at <= oldest:
            kept.pop(0)
        # Availability that changes with every query prevents thinning; a truncated history is never idle.
        return History(self.keep_s, tuple(kept[-2 * MOST :]), self._quiet_since(sample))

    def _quiet_since(self, sample: Sample) -> datetime | None:
        """Return since when it is idle with one more sample; the window of the first idle sample does not count."""
        if not sample.quiet_s:
            return None
        newest = self.newest
        joins = newest is not None and newest.at >= sample.at - timedelta(seconds=sample.quiet_s)
        return self.quiet_since if joins and self.quiet_since is not None else sample.at

    @property
    def newest(self) -> Sample | None:
        """Return the newest sample."""
        return self.samples[-1] if self.samples else None

    def begun_rate(self, at: datetime, lags: Sequence[float]) -> float:
        """Return the rate of sessions that started ``lags`` seconds before a time, the mean of the nearest samples."""
        seen = [sample for sample in self.samples if sample.seen]
        rates = []
        for lag in lags:
            moment = at - timedelta(seconds=lag)
            place = bisect_left(seen, moment, key=lambda sample: sample.at)
            nearest = min(seen[max(0, place - 1) : place + 1], key=lambda sample: abs(sample.at - moment), default=None)
            rates += [nearest.begun] if nearest is not None else []
        return sum(rates) / len(rates) if rates else 0.0

    def evidence(self, excess: Callable[[Sample], float | None], *, window_s: float) -> float:
        """Return the one-sided CUSUM (Page's test) of a figure's excess over a bound.

        ``excess`` returns the log of the ratio of a sample to the bound, less its standard error, None where it is
        unknown. Windows overlap, so each sample counts with the part of its window that is new. Missing metrics reset
        the sum.
        """
        total, before = 0.0, None
        for sample in self.samples:
            beyond = excess(sample) if sample.seen else None
            if beyond is None:
                total, before = 0.0, None
                continue
            if before is not None:
                new = min(1.0, (sample.at - before).total_seconds() / window_s)
                total = max(0.0, total + beyond * new)
            before = sample.at
        return total

    def throughout(self, seconds: float, holds: Callable[[Sample], bool]) -> bool:
        """Return whether every sample of the last ``seconds`` has metrics and meets a condition.

        The samples must cover that time, without a gap of more than a quarter of it.
        """
        newest = self.newest
        if newest is None or not newest.seen or not holds(newest):
            return False
        begin = newest.at - timedelta(seconds=seconds)
        asked = [sample for sample in self.samples if sample.at > begin]
        earlier = [sample for sample in self.samples if sample.at <= begin]
        if not earlier:
            return False
        asked.insert(0, earlier[-1])
        hole = timedelta(seconds=seconds / 4)
        return all(sample.seen and holds(sample) for sample in asked) and all(
            after.at - max(before.at, begin) <= hole for before, after in pairwise(asked)
        )

    def peak_rate(self, seconds: float) -> float | None:
        """Return the highest rate of the last ``seconds``, None without metrics.

        After a rise the rate of the fast window counts, because the whole window still contains the time before.
        """
        newest = self.newest
        if newest is None:
            return None
        begin = newest.at - timedelta(seconds=seconds)
        rates = [s.rate.value for s in self.samples if s.rate is not None and s.at > begin]
        if rates and newest.fast_rate is not None:
            rates.append(newest.fast_rate)
        return max(rates, default=None)


def sample_of(observation: Observation, *, attainment: float, min_samples: int, burn_rate: float) -> Sample:
    """Return the sample of an observation; figures of fewer than ``min_samples`` samples are unknown.

    A figure that is not a number makes the whole observation unusable.
    """
    load, slo = observation.workload, observation.slo
    if not observation.availability.seen or load is None or slo is None or not _numbers(observation):
        return Sample(observation.at, seen=False)
    means = {name: _mean(getattr(load, name), min_samples) for name in FIGURES}
    ttfts = [found.value_s for found in (slo.ttft_first, slo.ttft_later) if found and found.count >= min_samples]
    return Sample(
        at=observation.at,
        seen=True,
        rate=_rate(load, observation.window_s),
        fast_rate=_fast_rate(load, observation.fast_window_s, min_samples),
        begun=load.session_rate,
        figures={name: mean for name, mean in means.items() if mean is not None},
        ttft_s=max(ttfts, default=None),
        itl_s=slo.itl.value_s if slo.itl and slo.itl.count >= min_samples else None,
        missing_slo=surely_above(slo.fast.bad, slo.fast.total, burn_rate * (1 - attainment)),
        quiet_s=observation.window_s if quiet(observation) else 0.0,
    )


def in_their_time(sample: Sample, history: History, *, later: float, planned: float, lags: Sequence[float]) -> Sample:
    """Return a sample whose rounds per session are corrected for a changing rate of sessions.

    ``later`` are the later rounds per second, of sessions that started ``lags`` seconds before. When the rate of
    sessions changes, their later rounds follow with a delay, so rounds per session appear too low or too high. The
    correction only reduces a difference from the ``planned`` rounds.
    """
    raw = sample.figures.get("rounds")
    if raw is None or not lags:
        return sample
    begun = replace(history, samples=(*history.samples, sample)).begun_rate(sample.at, lags)
    low, high = sorted((raw.value, planned))
    value = max(low, min(high, 1 + later / begun)) if begun else planned
    return replace(sample, figures={**sample.figures, "rounds": replace(raw, value=value)})


def quiet_for(since: datetime | None, now: datetime, seconds: float) -> bool:
    """Return whether a service was idle for this time."""
    return since is not None and (now - since).total_seconds() >= seconds


def quiet(observation: Observation) -> bool:
    """Return whether an observation with metrics has no request: no round was served, refused or started."""
    load, waiting = observation.workload, observation.pressure.queue
    return load is not None and not (
        load.sessions or load.session_rate or load.round_rate or load.refused_rate or waiting
    )


def surely_above(bad: int, total: int, share: float) -> bool:
    """Return whether more than ``share`` were bad, with 95 % confidence (Wilson's lower bound)."""
    if total <= 0 or bad <= 0:
        return False
    p, z = bad / total, CONFIDENCE
    middle = p + z * z / (2 * total)
    spread = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    return (middle - spread) / (1 + z * z / total) > share


def _rate(load: ObservedWorkload, window_s: float) -> Mean:
    """Return the offered rate; without a session its error is that of one session."""
    offered = load.session_rate + load.refused_rate
    count = max(load.sessions, round(offered * window_s))
    return Mean(offered, count, 1 / math.sqrt(max(1, count)))


def _fast_rate(load: ObservedWorkload, fast_window_s: float, min_samples: int) -> float | None:
    """Return the lower confidence end of the fast window's rate."""
    count = load.fast_sessions
    if count is None or count < min_samples or fast_window_s <= 0:
        return None
    return max(0.0, count - CONFIDENCE * math.sqrt(count)) / fast_window_s


def _mean(spread: Spread | None, min_samples: int) -> Mean | None:
    if spread is None or spread.count < min_samples or spread.mean <= 0:
        return None
    return Mean(spread.mean, spread.count, spread.sd / spread.mean / math.sqrt(spread.count))


def _numbers(observation: Observation) -> bool:
    load, slo, pressure = observation.workload, observation.slo, observation.pressure
    if load is None or slo is None:
        return False
    figures: list[float | None] = [load.session_rate, load.round_rate, load.refused_rate, float(load.sessions)]
    figures.append(load.fast_sessions)
    for spread in (*(getattr(load, name) for name in FIGURES), *load.fast_lengths.values()):
        if spread is not None:
            figures += [
                spread.mean,
                spread.sd,
                spread.p50,
                spread.p95,
                float(spread.count),
                *spread.edges,
                *spread.weights,
            ]
    figures += [found.value_s for found in (slo.ttft_first, slo.ttft_later, slo.itl) if found is not None]
    figures += [float(count) for tally in (slo.fast, slo.slow) for count in (tally.good, tally.bad)]
    figures += [pressure.queue, *pressure.kv_use.values()]
    return all(figure is None or (math.isfinite(figure) and figure >= 0) for figure in figures)
