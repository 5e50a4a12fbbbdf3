"""Draw sessions from a workload's means: Poisson arrivals, lognormal lengths, in steady state from time 0 on.

The sample holds every session that may be alive in the observed window, also those that began before it,
so that a simulation need not fill an empty system first. The same seed gives the same sessions to every
layout, which makes layouts comparable at a small sample.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft_planner.workload import Workload

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

VARIATION = 0.6
"""Coefficient of variation of rounds, lengths and gaps: wide enough for agents, and the study's choice."""
ROUNDS_IN_WINDOW = 8000
"""Some 340 rounds lie beyond the P95 after the warm-up, enough to know it within a few percent in about 10 ms."""
WARM_UP = 0.15
"""Share of the window that only settles queues: sessions begin in steady state, queues do not."""
PAST_LIFETIMES = 4
"""Sessions older than four mean lifetimes are too rare (0.3 percent of all) to matter at time 0."""
LARGEST_SAMPLE = 400_000
"""Rounds drawn before time 0 at most, a second's work per ten layouts; beyond, only the latest sessions are drawn."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Sessions flattened into rows, one row per round, a session's rows in a run; times in seconds, lengths in tokens.

    ``window`` is the observed time from 0 on; ``dropped`` the share of rounds that would outgrow the context limit;
    ``past`` how long before time 0 arrivals begin, ``short_past`` that this is less than sessions may live.
    Per session: ``session_class`` is its place in the workload's classes (0 where there are none), ``prefix`` the
    leading tokens of its first prompt that every session of the class shares; the first ``increment`` counts them,
    so a worker that holds them cached computes ``increment - prefix``, at least one token.
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

    def per_session(self, of_rows: Floats) -> float:
        """Return the mean over sessions of a figure summed over each session's rounds."""
        return float(of_rows.sum() / self.sessions)

    def lifetimes(self, round_seconds: Floats) -> Floats:
        """Return how long each session lives when its rounds, gaps included, take these times."""
        return np.add.reduceat(round_seconds, self.first_row)

    def starts(self, round_seconds: Floats) -> Floats:
        """Return when each round begins when rounds, gaps included, take these times."""
        before = np.cumsum(round_seconds) - round_seconds
        return self.arrival[self.session] + before - before[self.first_row][self.session]


def draw(workload: Workload, *, max_model_len: int, round_seconds: float, seed: int) -> Sample:
    """Draw the sessions of one observation window; ``round_seconds`` is a guess of one round's time, gap excluded.

    A first prompt longer than ``max_model_len`` is cut; later rounds that would exceed it end their session.
    """
    rng = np.random.default_rng(seed)
    rate = workload.arrival_rate
    window = ROUNDS_IN_WINDOW / (rate * workload.rounds)
    lifetime = workload.rounds * (round_seconds + workload.gap)
    wanted = PAST_LIFETIMES * lifetime
    past = min(wanted, LARGEST_SAMPLE / (rate * workload.rounds))
    sessions = max(1, int(rng.poisson(rate * (past + window))))
    arrival = np.sort(rng.uniform(-past, window, sessions))
    extra = _lognormal(rng, workload.rounds - 1, sessions)
    rounds = 1 + np.floor(extra + rng.uniform(size=sessions)).astype(np.int64)  # stochastic rounding keeps the mean
    total = int(rounds.sum())
    first_row = np.cumsum(rounds) - rounds
    session = np.repeat(np.arange(sessions), rounds)
    prompt = _tokens(_lognormal(rng, workload.increment, total))
    prompt[first_row] = _tokens(_lognormal(rng, workload.first_prompt, sessions))
    tokens = _tokens(_lognormal(rng, workload.decode, total))
    gap = _lognormal(rng, workload.gap, total)
    prompt[first_row] = np.clip(prompt[first_row], 1, max(1, max_model_len - 1))
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
        gap=gap[kept],
        reserve=context[kept][last_row],
        dropped=1 - float(kept.mean()),
        past=past,
        short_past=past < wanted,
        session_class=np.zeros(sessions, dtype=np.int64),
        prefix=np.zeros(sessions),
    )


def _lognormal(rng: np.random.Generator, mean: float, size: int) -> Floats:
    if mean <= 0:
        return np.zeros(size)
    variance = math.log1p(VARIATION**2)
    return rng.lognormal(math.log(mean) - variance / 2, math.sqrt(variance), size)


def _tokens(lengths: Floats) -> Floats:
    return np.maximum(1.0, np.rint(lengths))


def _running_total(lengths: Floats, first_row: Ints, session: Ints) -> Floats:
    total = np.cumsum(lengths)
    before = total[first_row] - lengths[first_row]
    return total - before[session]
