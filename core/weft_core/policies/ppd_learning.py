"""Keep PPD's table up to date with what rounds really took, a cell at a time.

A cell starts from the offline table. Each finished later round adds its TTFT and its time per output token to the mean
of the side where it was prefilled; the means forget with ``memory`` rounds. What was observed outweighs the table as
far as both sides were: the weight is n / (n + prior), n the rounds of the side with fewer. A rule that always takes one
side would never learn of the other, so the caller sends a small share of the rounds the other way.

Hand-worked example (test_policy_ppd_learning.py): prior 10, ten rounds each way, TTFT 2 s remote and 1 s local, where
the table says it falls by 0.9: (0.9 + 0.5) / 2 = 0.7.
"""

import math
from collections.abc import Callable, Sequence

from weft_core.policies.ppd_cells import CELLS
from weft_core.policies.routing.ppd import TPOT_RISE, TTFT_FALL

REMOTE = 0
LOCAL = 1
Change = Callable[[float, float], float]


class PpdLearning:
    """The table of one service as far as this router knows it."""

    def __init__(self, params: Sequence[float], *, prior: float = 30.0, memory: float = 300.0) -> None:
        """Begin with the offline table, which is worth ``prior`` rounds of each side."""
        self._table = tuple(params)
        self._params = list(params)
        self._prior = prior
        self._keep = 1.0 - 1.0 / memory
        # Per cell and side: effective rounds, mean TTFT, effective rounds with a TPOT, mean TPOT.
        self._seen = [[[0.0, 0.0, 0.0, 0.0] for _ in (REMOTE, LOCAL)] for _ in range(CELLS)]

    @property
    def table(self) -> tuple[float, ...]:
        """Return the vector with the offline table that it began with."""
        return self._table

    @property
    def params(self) -> tuple[float, ...]:
        """Return the policy's parameter vector with the table as it is now."""
        return tuple(self._params)

    def note(self, cell: int, *, local: bool, ttft_s: float, tpot_s: float = math.nan) -> None:
        """Add a finished later round; a figure that is not finite and above 0 says nothing."""
        side = self._seen[cell][LOCAL if local else REMOTE]
        for at, value in ((0, ttft_s), (2, tpot_s)):
            if not 0 < value < math.inf:
                continue
            side[at] = side[at] * self._keep + 1.0
            side[at + 1] += (value - side[at + 1]) / side[at]
        remote, near = self._seen[cell]
        self._params[TTFT_FALL + cell] = self._blend(
            self._table[TTFT_FALL + cell], remote[:2], near[:2], lambda x0, x1: 1.0 - x1 / x0, (-10.0, 1.0)
        )
        self._params[TPOT_RISE + cell] = self._blend(
            self._table[TPOT_RISE + cell], remote[2:], near[2:], lambda x0, x1: x1 / x0 - 1.0, (-1.0, 100.0)
        )

    def _blend(
        self, table: float, remote: Sequence[float], local: Sequence[float], change: Change, bounds: tuple[float, float]
    ) -> float:
        rounds = min(remote[0], local[0])
        if rounds <= 0:
            return table
        weight = rounds / (rounds + self._prior)
        low, high = bounds
        return (1 - weight) * table + weight * min(max(change(remote[1], local[1]), low), high)
