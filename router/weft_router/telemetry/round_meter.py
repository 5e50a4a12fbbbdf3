"""Count one round with few steps: everything that depends on its phase, route and class is looked up once.

A streamed round costs about 3 us altogether; each chunk of tokens a quarter of one. An answer in one piece counts as a
stream whose tokens after the first all had the same gap.
"""

from collections.abc import Mapping
from typing import Protocol

from weft_core.slo import Slo
from weft_router.telemetry.instruments import DEFAULT, Buckets, Value
from weft_router.telemetry.metrics import Metrics
from weft_router.telemetry.session_latency import SessionLatency

SETTLE_S = 0.25
"""How old what a live stream says of itself may be, but for its gap counts; windows forget half a second at a time."""


class SampleSink(Protocol):
    """A further receiver of gaps: a worker's window of recent gaps."""

    def add(self, now: float, total: float, count: int = 1) -> None:
        """Record ``count`` samples that sum up to ``total``."""

    def add_run(self, now: float, total: float, count: int) -> None:
        """Record ``count`` equal samples, one after the other, that ended now."""


class TokenClock:
    """The gaps between the tokens of one answer, from its first token on; times are the caller's monotonic clock."""

    __slots__ = (
        "_buckets",
        "_due",
        "_known",
        "_latency",
        "_missed",
        "_slo",
        "_told",
        "_trace",
        "_window",
        "began",
        "last",
        "met",
        "tokens",
    )  # fmt: skip

    def __init__(
        self, now: float, tokens: int, buckets: Buckets, slo_s: float, latency: SessionLatency | None,
        window: SampleSink | None, trace: str, met: bool,
    ) -> None:  # fmt: skip
        self._buckets = buckets
        self._slo = slo_s
        self._latency = latency
        self._window = window
        self._trace = trace
        self._due = now + SETTLE_S
        self._told = now
        self._known = 1
        self._missed = 0
        self.began = now
        self.last = now
        self.tokens = tokens
        self.met = met
        """Whether the first token came in time."""
        if tokens > 1:
            buckets.buckets[0].count += tokens - 1

    def event(self, now: float, tokens: int = 1) -> None:
        """Record that ``tokens`` tokens came together: each has an equal share of the gap."""
        gap = now - self.last
        self.last = now
        self.tokens += tokens
        self._buckets.of(gap / tokens).count += tokens
        if gap > self._slo:
            self._late(gap, tokens)
        if now >= self._due:
            self.settle()

    def whole(self, now: float, tokens: int) -> None:
        """Record the ``tokens`` tokens of an answer in one piece, which ended now: each gap is their mean."""
        gaps, seconds = tokens - self.tokens, now - self.began
        if gaps <= 0:
            return
        share = seconds / gaps
        self.last = now
        self.tokens = self._known = tokens
        self._told = now
        self._buckets.of(share).count += gaps
        self._buckets.total += seconds
        if share > self._slo:
            self._buckets.of(share).show(self._trace, share, now)
        if self._latency is not None:
            self._latency.seconds += seconds
            self._latency.gaps += gaps
            self._latency.over += gaps if share > self._slo else 0
        if self._window is not None:
            self._window.add_run(now, seconds, gaps)

    def settle(self) -> None:
        """Record the gaps since the last report in session, worker and histogram."""
        last = self.last
        self._due = last + SETTLE_S
        tokens = self.tokens - self._known
        if tokens:
            seconds = last - self._told
            self._told = last
            self._known = self.tokens
            self._buckets.total += seconds
            if self._latency is not None:
                self._latency.seconds += seconds
                self._latency.gaps += tokens
                self._latency.over += self._missed
                self._missed = 0
            if self._window is not None:
                self._window.add(last, seconds, tokens)

    def mean(self, tokens: int = 0) -> float | None:
        """Return the mean gap in seconds, over ``tokens`` tokens when the engine counted them; None without gaps."""
        gaps = (tokens or self.tokens) - 1
        return (self.last - self.began) / gaps if gaps > 0 else None

    def _late(self, gap: float, tokens: int) -> None:
        self._missed += 1
        share = gap / tokens
        self._buckets.of(share).show(self._trace, share, self.last)


class RoundSeries:
    """The metrics of the rounds of one phase, route and class."""

    __slots__ = (
        "_decode", "_gap", "_history", "_increment", "_index", "_itl", "_itl_slo", "_rounds", "_slo_itl", "_slo_round",
        "_slo_ttft", "_ttft", "_ttft_slo",
    )  # fmt: skip

    def __init__(self, metrics: Metrics, phase: str, route: str, class_: str, slo: Slo) -> None:
        self._ttft_slo = slo.ttft_s
        self._itl_slo = slo.itl_s
        self._ttft = metrics.ttft.labels(phase, route, class_)
        self._itl = metrics.itl.labels(route, class_)
        self._slo_ttft = _outcomes(metrics, "ttft", class_)
        self._slo_itl = _outcomes(metrics, "itl", class_)
        self._slo_round = _outcomes(metrics, "round", class_)
        self._rounds = metrics.rounds.labels(phase, class_)
        self._index = metrics.round_index.labels(class_)
        self._history = metrics.round_history.labels(class_) if phase == "later" else None
        self._increment = metrics.increment_tokens.labels(phase, class_)
        self._decode = metrics.decode_tokens.labels(class_)
        self._gap = metrics.round_gap.labels(class_)

    def first_token(
        self, now: float, ttft_s: float, *,
        tokens: int = 1, trace: str = "", latency: SessionLatency | None = None, window: SampleSink | None = None,
    ) -> TokenClock:  # fmt: skip
        """Record the TTFT of an answer and start its clock; ``now`` is when its first token came."""
        self._ttft.mark(ttft_s, trace, now)
        met = ttft_s <= self._ttft_slo
        self._slo_ttft[met].value += 1
        if latency is not None:
            latency.answers += 1
            if not met:
                latency.late += 1
        return TokenClock(now, tokens, self._itl, self._itl_slo, latency, window, trace, met)

    def finished(
        self, *, index: int, history: int, increment: int, decode: int,
        gap_s: float | None = None, clock: TokenClock | None = None,
    ) -> None:  # fmt: skip
        """Record a round that ended well: its lengths in tokens, and with a clock whether its SLO was met.

        ``index`` is 1 for a session's first round; ``gap_s`` the session's pause before this one, where it is known.
        """
        self._rounds.value += 1
        self._index.observe(index)
        self._increment.observe(increment)
        self._decode.observe(decode)
        if self._history is not None:
            self._history.observe(history)
        if gap_s is not None:
            self._gap.observe(gap_s)
        if clock is not None:
            clock.settle()
            mean = clock.mean(decode)
            met = clock.met
            if mean is not None:
                within = mean <= self._itl_slo
                self._slo_itl[within].value += 1
                met = met and within
            self._slo_round[met].value += 1


class RoundMeter:
    """The series of all rounds of a process."""

    def __init__(self, metrics: Metrics, slos: Mapping[str, Slo]) -> None:
        """Hold rounds against the SLOs of their classes; class ``default`` has to be among them."""
        self._metrics = metrics
        self._series: dict[str, dict[str, dict[str, RoundSeries]]] = {}
        """By class, phase and route."""
        self._arrivals: dict[tuple[str, str], Value] = {}
        self._to_decode = metrics.kv_bytes.labels("prefill_to_decode")
        self._to_prefill = metrics.kv_bytes.labels("decode_to_prefill")
        self._read = metrics.history.labels("read")
        self._cached = metrics.history.labels("cached")
        self._recomputed = metrics.history.labels("recomputed")
        self.reload(slos)

    def reload(self, slos: Mapping[str, Slo]) -> None:
        """Hold rounds against other SLOs from now on."""
        self._slos = slos
        self._series.clear()
        for class_, slo in slos.items():
            self._metrics.slo_target.labels(class_).set(slo.attainment)

    def of(self, phase: str, route: str, class_: str = DEFAULT) -> RoundSeries:
        """Return the series of a phase (``first``, ``later``), a route (``local``, ``remote``) and a class."""
        by_phase = self._series.get(class_)
        if by_phase is None:
            by_phase = self._series[class_] = {"first": {}, "later": {}}
        by_route = by_phase[phase]
        found = by_route.get(route)
        if found is None:
            slo = self._slos.get(class_) or self._slos[DEFAULT]
            found = by_route[route] = RoundSeries(self._metrics, phase, route, class_, slo)
        return found

    def arrived(self, phase: str, class_: str) -> None:
        """Count a round that is served here, when it begins: demand must show while long rounds still run."""
        key = phase, class_
        found = self._arrivals.get(key)
        if found is None:
            found = self._arrivals[key] = self._metrics.arrivals.labels(phase, class_)
        found.value += 1

    def moved(
        self, *, to_decode: float = 0.0, to_prefill: float = 0.0, read: int = 0, cached: int = 0, recomputed: int = 0,
        reason: str = "",
    ) -> None:  # fmt: skip
        """Record the bytes of KV that went each way, and what became of a round's history tokens.

        ``reason`` is why some were recomputed.
        """
        self._to_decode.value += to_decode
        self._to_prefill.value += to_prefill
        self._read.value += read
        self._cached.value += cached
        if recomputed:
            self._recomputed.value += recomputed
            self._metrics.recomputed.labels(reason).value += recomputed

    def session_ended(self, class_: str, rounds: int, latency: SessionLatency | None = None) -> None:
        """Record a session that was closed or forgotten; it met its SLO by every TTFT and by its mean gap."""
        self._metrics.session_rounds.labels(class_).observe(rounds)
        if latency is not None and latency.answers:
            slo = self._slos.get(class_) or self._slos[DEFAULT]
            good = not latency.late and latency.seconds <= slo.itl_s * latency.gaps
            self._metrics.slo_sessions.labels("good" if good else "bad", class_).inc()


def _outcomes(metrics: Metrics, objective: str, class_: str) -> tuple[Value, Value]:
    return metrics.slo.labels(objective, "bad", class_), metrics.slo.labels(objective, "good", class_)
