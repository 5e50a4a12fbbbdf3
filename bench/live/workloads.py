"""The sessions that are held: recorded ones of agents and coding, drawn ones of retrieval and chat.

A seed names the sessions and the distances between their arrivals. At another rate they are the same sessions, closer
together or wider apart, for every contender alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from weft_e2e.agreement.sessions import fitted
from weft_e2e.replay.selection import Limits, recorded_gaps, select
from weft_e2e.replay.sessions import PlannedRound, PlannedSession
from weft_e2e.replay.traces import load
from weft_e2e.replay.workload import fit_workload
from weft_planner.workload.distributions import Floats
from weft_planner.workload.presets import preset
from weft_planner.workload.sessions import Sample, Size, draw
from weft_planner.workload.traffic import Workload

CONTEXT = 16384
"""Longest prompt with its answer, in tokens."""
LIMITS = Limits(
    sessions=10_000, min_rounds=3, max_rounds=5, max_added_tokens=4096, max_decode_tokens=64,
    max_context_tokens=CONTEXT, arrivals_within_s=0.0, gap_scale=0.2, max_gap_s=3.0,
)  # fmt: skip
"""What is taken of a trace: lengths that a small machine can stream, pauses short enough for a row of a minute."""
FITTED = 400
"""Sessions that the planner's workload is fitted to."""
SPARE = 2
"""Drawn sessions, for each that is wanted: how many arrive in a span is chance."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of sessions: a packaged trace or a preset of the planner; ``gaps`` names the trace that fills pauses."""

    name: str
    trace: str = ""
    preset: str = ""
    gaps: str = ""

    @property
    def source(self) -> str:
        """Say where the sessions are from, for the page."""
        return f"trace `{self.trace}`" if self.trace else f"preset `{self.preset}`"


KINDS = {
    kind.name: kind
    for kind in (
        Kind("agents", trace="gaia_whowhen", gaps="claude_code"),
        Kind("coding", trace="claude_code"),
        Kind("retrieval", preset="ampd/dureader"),
        Kind("chat", preset="ppd/mix"),
    )
}

Rounds = tuple[PlannedRound, ...]


def sample_of(kind: Kind, *, rate: float, seed: int, sessions: int, slow: float = 1.0) -> Sample:
    """Return so many sessions that arrive at an empty service, ``rate`` of them a second on average.

    ``slow`` is how many times as long everything takes: pauses and distances between arrivals are multiplied by it.
    """
    chosen = _chosen(kind, seed, sessions)
    apart = np.random.default_rng((seed, 0xA881)).exponential(1.0, sessions)
    return flattened(chosen, arrival=(np.cumsum(apart) - apart[0]) * slow / rate, rate=rate / slow, slow=slow)


def workload_of(kind: Kind) -> Workload:
    """Return the kind as the planner takes it, one session a second: fitted to what is held."""
    chosen = [PlannedSession(f"s{k}", float(k), rounds) for k, rounds in enumerate(_chosen(kind, 0, FITTED))]
    return Workload.model_validate(fit_workload(chosen, name=kind.name, within_s=float(FITTED)).body)


@cache
def _chosen(kind: Kind, seed: int, count: int) -> tuple[Rounds, ...]:
    if kind.preset:
        return _drawn(kind, seed, count)
    pool = recorded_gaps(load(kind.gaps).sessions) if kind.gaps else ()
    known = select(load(kind.trace), replace(LIMITS, seed=seed), gap_pool=pool, gap_pool_name=kind.gaps).sessions
    places = np.random.default_rng((seed, 0x5E55)).integers(len(known), size=count)
    return tuple(known[place].rounds for place in places)


def _drawn(kind: Kind, seed: int, count: int) -> tuple[Rounds, ...]:
    workload = Workload.model_validate({**preset(kind.preset).body, "arrivalRate": 1.0})
    drawn = draw(
        workload, max_model_len=CONTEXT, round_seconds=1.0, seed=seed, rate=1.0, steady=False,
        size=Size(sessions=SPARE * count),
    )  # fmt: skip
    if drawn.sessions < count:
        raise ValueError(f"{kind.name}: seed {seed} draws {drawn.sessions} sessions only; take another")
    ends = np.append(drawn.first_row[1:], drawn.rows)[:count]
    return tuple(
        tuple(
            PlannedRound(
                added_tokens=min(int(drawn.increment[row]), LIMITS.max_added_tokens),
                decode_tokens=min(int(drawn.tokens[row]), LIMITS.max_decode_tokens),
                gap_s=0.0 if row == first else float(drawn.gap[row - 1]),
            )
            for row in range(first, end)
        )
        for first, end in zip(drawn.first_row[:count], ends, strict=True)
    )


def flattened(sessions: Sequence[Rounds], *, arrival: Floats, rate: float, slow: float = 1.0) -> Sample:
    """Return sessions as rows; in a sample a gap follows its round, here it is before it."""
    count = len(sessions)
    lengths = np.array([len(rounds) for rounds in sessions])
    first = np.cumsum(lengths) - lengths
    every = [one for rounds in sessions for one in rounds]
    gaps = [*(one.gap_s * slow for one in every[1:]), 0.0]
    increment = np.array([float(one.added_tokens) for one in every])
    return fitted(
        Sample(
            rate=rate,
            window=float(arrival[-1]) + 1.0,
            arrival=arrival,
            first_row=first,
            session=np.repeat(np.arange(count), lengths),
            history=np.zeros(len(every)),
            increment=increment,
            tokens=np.array([float(one.decode_tokens) for one in every]),
            gap=np.array(gaps),
            reserve=np.zeros(count),
            dropped=0.0,
            past=0.0,
            short_past=False,
            session_class=np.zeros(count, np.int64),
            prefix=np.zeros(count),
        )
    )
