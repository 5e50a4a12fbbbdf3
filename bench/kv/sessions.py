"""Sessions of coding agents with the pauses that were recorded, as they come over half an hour."""

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


@cache
def recorded() -> tuple[Rounds, ...]:
    """Return the rounds of every recorded session that fits the limits."""
    return tuple(one.rounds for one in select(load(TRACE), LIMITS).sessions)


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


def after_long_pauses(outcome: Outcome) -> Floats:
    """Return the TTFT of every counted round whose session paused for long before it, in seconds."""
    sample = outcome.sample
    before = np.roll(sample.gap, 1)
    before[sample.first_row] = 0.0
    found: Floats = outcome.ttft[outcome.counted & (before > LONG_PAUSE_S)]
    return found


def returning(idle_s: float, within_s: float) -> float:
    """Return which share of the pauses that last so long ends within so many seconds more."""
    pauses = [one.gap_s for rounds in recorded() for one in rounds[1:] if one.gap_s > idle_s]
    return sum(pause <= idle_s + within_s for pause in pauses) / len(pauses)
