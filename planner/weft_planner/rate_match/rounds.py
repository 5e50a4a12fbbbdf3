"""What requests look like to a server: lengths and gaps of the rounds of a workload."""

from dataclasses import dataclass

import numpy as np

from weft_planner.workload.distributions import Floats
from weft_planner.workload.sessions import Sample

MOST_ROUNDS = 4000
"""Rounds that a curve is drawn from: P95 within a few percent in about 20 ms per degree."""


@dataclass(frozen=True, slots=True, eq=False)
class RoundShape:
    """What requests look like: tokens of history, prompt and answer of each round, and the idle seconds after it."""

    history: Floats
    increment: Floats
    tokens: Floats
    gap: Floats
    arrivals: Floats
    """Distances between arrivals at one round per second."""

    @property
    def output_tokens(self) -> float:
        """Return the mean length of an answer."""
        return float(self.tokens.mean())

    @property
    def input_tokens(self) -> float:
        """Return the mean length of a whole prompt, history included."""
        return float((self.history + self.increment).mean())

    @property
    def decode_context(self) -> float:
        """Return the tokens that a sequence holds while it is decoded, on average over its steps."""
        held = self.history + self.increment + self.tokens / 2
        return float((held * self.tokens).sum() / self.tokens.sum())

    @property
    def idle_context(self) -> float:
        """Return the tokens that a session holds between its rounds, on average over that time."""
        held, gap = self.history + self.increment + self.tokens, self.gap
        return float((held * gap).sum() / gap.sum()) if gap.sum() > 0 else 0.0


def rounds_of(sample: Sample, *, seed: int) -> RoundShape:
    """Take the rounds of a sample, as evenly spread as they are many, and Poisson arrivals for them."""
    chosen = np.linspace(0, sample.rows - 1, min(sample.rows, MOST_ROUNDS)).astype(np.int64)
    last = np.append(sample.first_row[1:], sample.rows) - 1
    gap = sample.gap.copy()
    gap[last] = 0.0  # a session's last round keeps no KV
    return RoundShape(
        history=sample.history[chosen],
        increment=sample.increment[chosen],
        tokens=sample.tokens[chosen],
        gap=gap[chosen],
        arrivals=np.random.default_rng((seed, 4)).exponential(size=len(chosen)),
    )
