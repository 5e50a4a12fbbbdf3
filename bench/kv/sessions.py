"""Sessions of coding agents with the pauses that were recorded, as they come over half an hour."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from bench.live.workloads import Rounds, flattened

from weft_e2e.replay.selection import Limits, select
from weft_e2e.replay.traces import load
from weft_planner.simulation import Outcome
from weft_planner.workload.distributions import Floats
from weft_planner.workload.sessions import Sample

TRACE = "claude_code"
CONTEXT = 65536
LIMITS = Limits(
    sessions=10_000, min_rounds=3, max_rounds=40, max_added_tokens=16384, max_decode_tokens=1024,
    max_context_tokens=CONTEXT, arrivals_within_s=0.0, gap_scale=1.0, max_gap_s=1800.0,
)  # fmt: skip
LONG_PAUSE_S = 120.0
"""A pause that a handle's time, 2 minutes, does not cover."""
MOST = 10_000
"""Sessions that ``paced`` draws: more than ever arrive."""
ROUND_S = 5.0
"""What ``paced`` takes a round to last, without the pause before it."""


@cache
def recorded(limits: Limits = LIMITS) -> tuple[Rounds, ...]:
    """Return the rounds of every recorded session that fits the limits."""
    return tuple(one.rounds for one in select(load(TRACE), limits).sessions)


def sample_of(*, rate: float, seed: int, minutes: float) -> Sample:
    """Return sessions that arrive as a Poisson process for so long, drawn with replacement.

    A seed has the same sessions at each rate, closer together or wider apart.
    """
    known = recorded()
    count = max(1, round(rate * minutes * 60))
    rng = np.random.default_rng((seed, 0x4B56))
    apart = rng.exponential(1.0, count)
    chosen = [known[place] for place in rng.integers(len(known), size=count)]
    return flattened(chosen, arrival=(np.cumsum(apart) - apart[0]) / rate, rate=rate)


def paced(known: Sequence[Rounds], *, rate: float, seed: int, minutes: float, speed: float) -> Sample:
    """Return sessions for a run of so many minutes, in which everything is ``speed`` times as fast.

    They arrive as a Poisson process, and those that would last longer than the run are cut to the rounds that begin
    in it. A seed has the same sessions at each rate, in the same order.
    """
    rng = np.random.default_rng((seed, 0x4C56))
    places = rng.integers(len(known), size=MOST)
    arrival = np.cumsum(rng.exponential(1.0, MOST)) / rate
    count = max(1, int(np.searchsorted(arrival, 60 * minutes)))
    chosen = [
        cut(known[place], begins_s=float(at), ends_s=60 * minutes)
        for place, at in zip(places[:count], arrival[:count], strict=True)
    ]
    found = flattened(chosen, arrival=arrival[:count] / speed, rate=rate * speed, slow=1 / speed)
    return replace(found, window=60 * minutes / speed)


def cut(rounds: Rounds, *, begins_s: float, ends_s: float) -> Rounds:
    """Return the rounds of a session that begin before a time, if each lasts ROUND_S; the first one is always kept."""
    at, found = begins_s, list(rounds[:1])
    for one in rounds[1:]:
        at += ROUND_S + one.gap_s
        if at >= ends_s:
            break
        found.append(one)
    return tuple(found)


def after_long_pauses(outcome: Outcome, speed: float = 1.0) -> Floats:
    """Return the TTFT of every counted round whose session paused for long before it, in seconds.

    ``speed`` is how many times as fast as recorded everything went.
    """
    sample = outcome.sample
    before = np.roll(sample.gap, 1)
    before[sample.first_row] = 0.0
    found: Floats = outcome.ttft[outcome.counted & (before > LONG_PAUSE_S / speed)]
    return found


def returning(idle_s: float, within_s: float) -> float:
    """Return which share of the pauses that last so long ends within so many seconds more."""
    pauses = [one.gap_s for rounds in recorded() for one in rounds[1:] if one.gap_s > idle_s]
    return sum(pause <= idle_s + within_s for pause in pauses) / len(pauses)
