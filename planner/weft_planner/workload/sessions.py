"""Draw sessions from a workload, in steady state from time 0 on.

The sample holds every session that may be alive in the observed window, also those that began before it,
so that a simulation need not fill an empty system first. The same seed gives the same sessions to every
layout and at every rate: a higher rate brings the same sessions closer together (paired comparisons).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from weft_planner.workload.distributions import Constant, Distribution, Floats, Lognormal, Stream
from weft_planner.workload.traffic import ClassTraffic, Workload

Ints = NDArray[np.int64]

ROUNDS_IN_WINDOW = 8000
"""Some 340 rounds lie beyond the P95 after the warm-up, enough to know it within a few percent in about 10 ms."""
WARM_UP = 0.15
"""Share of the window that only settles queues: sessions begin in steady state, queues do not."""
UNSEEN = 0.003
"""Share of the sessions alive at time 0 that may be missing, because they began before the sample's past."""
LONGEST_PAST = 40
"""Mean lifetimes that the past spans at most, however long the longest sessions are."""
LARGEST_SAMPLE = 400_000
"""Rounds drawn before time 0 at most, a second's work per ten layouts; beyond, only the latest sessions are drawn."""
_PILOT = 4096
_ROUNDING = 1 / 6
"""Mean variance that rounding a number of rounds up or down at random adds."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much to observe: a number of rounds or of sessions (both on average), or seconds; one of them."""

    rounds: float | None = None
    sessions: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuse none, several, or a size that is not above 0."""
        given = [x for x in (self.rounds, self.sessions, self.seconds) if x is not None]
        if len(given) != 1 or not 0 < given[0] < math.inf:
            raise ValueError("size: give one of rounds, sessions and seconds, above 0")

    def window(self, *, rate: float, rounds: float) -> float:
        """Return the observed seconds at a rate (sessions per second) and mean rounds per session."""
        if self.seconds is not None:
            return self.seconds
        return (self.sessions if self.sessions is not None else (self.rounds or 0.0) / rounds) / rate


@dataclass(frozen=True, slots=True)
class Sample:
    """Sessions flattened into rows, one row per round, a session's rows in a run; times in seconds, lengths in tokens.

    ``window`` is the observed time from 0 on; ``dropped`` the share of rounds that would outgrow the context limit;
    ``past`` how long before time 0 arrivals begin, ``short_past`` that this is less than sessions may live.
    Per session: ``session_class`` is its place in the workload's classes (0 where there are none), ``prefix`` the
    leading tokens of its first prompt that every session of the class shares; the first ``increment`` counts them,
    so a worker that holds them cached computes ``increment - prefix``, at least one token. A session whose first row
    has a history is the rest of one: its rounds before are over, and its decode worker holds their KV.
    """

    rate: float
    window: float
    arrival: Floats
    first_row: Ints
    session: Ints
    history: Floats
    increment: Floats
    tokens: Floats
    gap: Floats
    reserve: Floats
    dropped: float
    past: float
    short_past: bool
    session_class: Ints
    prefix: Floats

    @property
    def rows(self) -> int:
        """Return how many rounds the sample holds."""
        return len(self.session)

    @property
    def sessions(self) -> int:
        """Return how many sessions the sample holds."""
        return len(self.arrival)

    @property
    def whole(self) -> NDArray[np.bool_]:
        """Return for every session whether the sample has it from its first round on."""
        first: NDArray[np.bool_] = self.history[self.first_row] == 0
        return first

    def per_session(self, of_rows: Floats) -> float:
        """Return the mean over sessions of a figure summed over each session's rounds."""
        return float(of_rows.sum() / self.sessions)

    def starts(self, round_seconds: Floats) -> Floats:
        """Return when each round begins when rounds, gaps included, take these times."""
        before = np.cumsum(round_seconds) - round_seconds
        return self.arrival[self.session] + before - before[self.first_row][self.session]

    def since(self, time: float, *, round_seconds: float) -> "Sample":
        """Return the rounds that begin at or after ``time``, by a guess of one round's seconds, gap excluded.

        Of a session under way then the rest is left. A run of that is in steady state after a few rounds, and spares
        the rounds before, of which there are many where sessions are long. Where no round is left, all are.
        """
        starts = self.starts(self.gap + round_seconds)
        lengths = np.add.reduceat((starts >= time).astype(np.int64), self.first_row)
        some = np.flatnonzero(lengths)
        if len(some) == 0:
            return self
        firsts = np.append(self.first_row[1:], self.rows) - lengths
        whole = firsts == self.first_row
        begins = np.where(whole, self.arrival, starts[np.minimum(firsts, self.rows - 1)])
        order = some[np.argsort(begins[some], kind="stable")]
        lengths = lengths[order]
        rows = _runs(firsts[order], lengths)
        return replace(
            self,
            arrival=begins[order],
            first_row=np.cumsum(lengths) - lengths,
            session=np.repeat(np.arange(len(order)), lengths),
            history=self.history[rows],
            increment=self.increment[rows],
            tokens=self.tokens[rows],
            gap=self.gap[rows],
            reserve=self.reserve[order],
            past=-time,
            session_class=self.session_class[order],
            prefix=np.where(whole, self.prefix, 0.0)[order],
        )


def draw(
    workload: Workload,
    *,
    max_model_len: int,
    round_seconds: float,
    seed: int,
    rate: float | None = None,
    size: Size | None = None,
    steady: bool = True,
) -> Sample:
    """Draw the sessions of one observation window; ``round_seconds`` is a guess of one round's time, gap excluded.

    A first prompt longer than ``max_model_len`` is cut; later rounds that would exceed it end their session.
    ``rate`` replaces the workload's: the same seed gives the same sessions, arrivals closer or wider. Without
    ``steady`` the system is empty at time 0.
    """
    rate = workload.arrival_rate if rate is None else rate
    mix = workload.mix
    window = (size or Size(rounds=ROUNDS_IN_WINDOW)).window(rate=rate, rounds=workload.mean_rounds)
    wanted = _lifetimes_back(mix, round_seconds) if steady else 0.0
    past = min(wanted, LARGEST_SAMPLE / (rate * workload.mean_rounds))
    before, after = workload.arrivals.arrivals.positions(seed, 0, back=past * rate, ahead=window * rate)
    if len(before) + len(after) == 0:  # nothing happens in so short a window: observe one session
        after = np.zeros(1)
    early, late = _half(mix, seed, 1, len(before)).reversed(), _half(mix, seed, 2, len(after))
    return _sample(
        early.followed_by(late),
        arrival=np.concatenate((-before[::-1], after)) / rate,
        mix=mix,
        max_model_len=max_model_len,
        rate=rate,
        window=window,
        past=past,
        short_past=past < wanted,
    )


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Sessions without their arrivals: class and rounds per session; lengths and gaps per round."""

    session_class: Ints
    rounds: Ints
    prompt: Floats
    tokens: Floats
    gap: Floats

    def reversed(self) -> "_Drawn":
        """Return the sessions in the opposite order, each session's rounds in their own."""
        rows = _runs((np.cumsum(self.rounds) - self.rounds)[::-1], self.rounds[::-1])
        return _Drawn(self.session_class[::-1], self.rounds[::-1], self.prompt[rows], self.tokens[rows], self.gap[rows])

    def followed_by(self, other: "_Drawn") -> "_Drawn":
        """Return both, one after the other."""
        return _Drawn(
            np.concatenate((self.session_class, other.session_class)),
            np.concatenate((self.rounds, other.rounds)),
            np.concatenate((self.prompt, other.prompt)),
            np.concatenate((self.tokens, other.tokens)),
            np.concatenate((self.gap, other.gap)),
        )


def _half(mix: Sequence[ClassTraffic], seed: int, half: int, sessions: int) -> _Drawn:
    """Draw sessions so that the first k do not depend on how many there are: each figure has its own sequence."""
    shares = np.cumsum([item.share for item in mix])
    shares[-1] = 1.0
    member = np.searchsorted(shares, Stream(seed, half, 0).uniform(sessions), side="right").astype(np.int64)
    rounds = np.ones(sessions, dtype=np.int64)
    for k, item in enumerate(mix):
        mine = member == k
        rounds[mine] = _rounds(item.rounds, Stream(seed, half, 1, k), int(mine.sum()))
    total = int(rounds.sum())
    prompt, tokens, gap = np.empty(total), np.empty(total), np.empty(total)
    row_class = np.repeat(member, rounds)
    first_row = np.cumsum(rounds) - rounds
    for k, item in enumerate(mix):
        mine, size = row_class == k, int((row_class == k).sum())
        prompt[mine] = _tokens(item.increment.sample(Stream(seed, half, 2, k), size))
        tokens[mine] = _tokens(item.decode.sample(Stream(seed, half, 3, k), size))
        gap[mine] = item.gap.sample(Stream(seed, half, 4, k), size)
        firsts = first_row[member == k]
        prompt[firsts] = _tokens(item.first_prompt.sample(Stream(seed, half, 5, k), len(firsts)))
    return _Drawn(member, rounds, prompt, tokens, gap)


def _rounds(of: Distribution, stream: Stream, size: int) -> Ints:
    """Draw whole numbers of at least 1 with the distribution's mean: stochastic rounding keeps it."""
    extra: Distribution = of
    if isinstance(of, Lognormal):
        deviation = math.sqrt(max(0.0, (of.variation * of.mean) ** 2 - _ROUNDING))
        over = of.mean - 1
        extra = Lognormal(over, deviation / over) if over > 0 and deviation > 0 else Constant(over)
        drawn = extra.sample(stream, size)
    else:
        drawn = np.maximum(0.0, of.sample(stream, size) - 1)
    return 1 + np.floor(drawn + stream.uniform(size)).astype(np.int64)


def _sample(
    drawn: _Drawn,
    *,
    arrival: Floats,
    mix: Sequence[ClassTraffic],
    max_model_len: int,
    rate: float,
    window: float,
    past: float,
    short_past: bool,
) -> Sample:
    sessions = len(arrival)
    prompt, tokens = drawn.prompt, drawn.tokens
    first_row = np.cumsum(drawn.rounds) - drawn.rounds
    session = np.repeat(np.arange(sessions), drawn.rounds)
    prefixes = np.array([math.floor(item.prefix) for item in mix], dtype=np.float64)[drawn.session_class]
    prompt[first_row] = np.clip(np.maximum(prompt[first_row], prefixes + 1), 1, max(1, max_model_len - 1))
    tokens[first_row] = np.clip(tokens[first_row], 1, np.maximum(1, max_model_len - prompt[first_row]))
    context = _running_total(prompt + tokens, first_row, session)
    kept = context <= max_model_len
    first_row = np.searchsorted(session[kept], np.arange(sessions))  # the first round of a session is always kept
    last_row = np.append(first_row[1:], int(kept.sum())) - 1
    return Sample(
        rate=rate,
        window=window,
        arrival=arrival,
        first_row=first_row,
        session=session[kept],
        history=(context - prompt - tokens)[kept],
        increment=prompt[kept],
        tokens=tokens[kept],
        gap=drawn.gap[kept],
        reserve=context[kept][last_row],
        dropped=1 - float(kept.mean()),
        past=past,
        short_past=short_past,
        session_class=drawn.session_class,
        prefix=np.minimum(prefixes, prompt[kept][first_row] - 1),
    )


@lru_cache(maxsize=64)
def _lifetimes_back(mix: tuple[ClassTraffic, ...], round_seconds: float) -> float:
    """Return how far back sessions must be drawn, seconds, so that hardly any that is alive at time 0 is missing.

    Of the sessions alive at time 0 the share that began more than T ago is E[(L - T)+] / E[L], L their lifetime.
    """
    drawn = _half(mix, 0, 3, _PILOT)
    first_row = np.cumsum(drawn.rounds) - drawn.rounds
    lives = np.sort(np.add.reduceat(drawn.gap + round_seconds, first_row))
    beyond = np.cumsum(lives[::-1])[::-1] - lives * np.arange(_PILOT, 0, -1)  # sum over L of max(0, L - lives[i])
    mean = float(lives.mean())
    enough = np.flatnonzero(beyond <= UNSEEN * lives.sum())
    return min(float(lives[enough[0]]), LONGEST_PAST * mean)


def _runs(starts: Ints, lengths: Ints) -> Ints:
    """Return the rows of runs of consecutive rows, one run after the other."""
    inside = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(starts, lengths) + inside


def _tokens(lengths: Floats) -> Floats:
    return np.maximum(1.0, np.rint(lengths))


def _running_total(lengths: Floats, first_row: Ints, session: Ints) -> Floats:
    total = np.cumsum(lengths)
    before = total[first_row] - lengths[first_row]
    return total - before[session]
