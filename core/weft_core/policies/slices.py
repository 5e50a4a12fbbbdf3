"""Size the slices in which a router sends a local prefill, so that each engine step stays within the ITL SLO.

A stock engine has one fixed chunk length. A router can choose each chunk: it sends longer and longer beginnings of the
prompt, and the engine's prefix cache makes it compute only the new part. That cache stores whole blocks, so slices end
at block boundaries. Each slice costs ``overhead_s``: a round trip and one generated token that is discarded. A slice
that computes for less time than that would waste most of it, so none is shorter. A decoding engine starts its next step
when a slice is done, before the next slice arrives, so slices share at most every other step.

Hand-worked example (test_policy_slices.py): steps of 10 ms + 0.1 ms a token, ITL SLO 50 ms, share 0.9: 350 tokens fit;
from token 100 on, the last block boundary within 350 tokens is at 448: a slice of 348 tokens.
"""

import math
from dataclasses import dataclass

from weft_core.policies.policy import PolicyError
from weft_core.timing import largest_chunk, step_seconds

SLICE_SHARE = 0.9
"""Default share of the ITL SLO for a step with a slice."""
SLICE_OVERHEAD_S = 0.005
"""Default overhead of a slice: one more request from a router to its engine."""


@dataclass(frozen=True, slots=True)
class Slicing:
    """How local prefills are sliced.

    ``share`` of the ITL SLO that a step with a slice may take; ``idle_share``: the same while nothing decodes and only
    a session that joins during the step would wait; ``most`` and ``least`` tokens of a slice; ``block`` tokens of a
    block of the engine's prefix cache; ``overhead_s`` per slice, besides its step.
    """

    share: float = SLICE_SHARE
    most: int = 4096
    least: int = 32
    block: int = 16
    overhead_s: float = 0.0
    idle_share: float = math.inf

    def __post_init__(self) -> None:
        """Refuse parameters with which a prefill would never end."""
        if not (self.share > 0 and self.idle_share > 0 and self.overhead_s >= 0):
            raise PolicyError("slicing: share and idle_share must be above 0, overhead_s at least 0")
        if not 1 <= self.least <= self.most or self.block < 1:
            raise PolicyError("slicing: give 1 <= least <= most tokens and a block of at least 1")

    def limit(self, itl_slo: float, batch: float) -> float:
        """Return how many seconds a step with a slice may take."""
        return (self.share if batch > 0 else self.idle_share) * itl_slo

    def least_tokens(self, pieces: tuple[float, ...]) -> int:
        """Return the shortest slice: the floor, or what an idle engine computes within the overhead."""
        longest = step_seconds(pieces, 0.0, 0.0) + self.overhead_s
        paid = largest_chunk(pieces, 0.0, 0.0, 0.0, longest, self.most) if self.overhead_s > 0 else 0
        return max(self.least, paid)


def next_slice(
    pieces: tuple[float, ...],
    batch: float,
    context: float,
    at: int,
    remaining: int,
    limit: float,
    most: int,
    least: int,
    block: int,
) -> int:
    """Return how many tokens after the first ``at`` go into the next slice, all ``remaining`` when they fit.

    These are as many as keep the mixed step within ``limit`` seconds, ending at a block boundary, and at least
    ``least``, so that a prefill also ends beside a batch whose steps are too slow already.
    """
    bound = min(most, remaining)
    tokens = max(largest_chunk(pieces, batch, context, float(at), limit, bound), min(least, bound))
    if tokens >= remaining:
        return remaining
    end = (at + tokens) // block * block
    if end <= at:
        end += block
    return min(end - at, remaining)
