"""Rank every pair of one prefill and one decode group at once, as arrays: exact, and cheap enough to ask many times.

Form A has only as many layouts as candidates squared. Its program finds the same ones (tests prove it on random
instances) and is asked for the layouts of a plan; what is asked a dozen times under changing budgets, or by another
measure than its objective, is asked here.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from weft_core.plan import Objective
from weft_planner.programs.group_options import (
    BALANCE,
    ROUNDING,
    THRIFT,
    GroupOption,
    LayoutPair,
    PlanLimits,
    change,
    keeps_limits,
)
from weft_planner.workload.distributions import Floats


def feasible(layout: LayoutPair, limits: PlanLimits) -> bool:
    """Return whether a layout keeps every limit."""
    kv = layout.decode.replicas * layout.decode.kv_tokens
    return keeps_limits(layout.groups, limits, kv_tokens=kv)


class LayoutPairs:
    """All pairs of the candidates of both roles."""

    def __init__(self, prefill: Sequence[GroupOption], decode: Sequence[GroupOption]) -> None:
        self.prefill, self.decode = tuple(prefill), tuple(decode)

    def best(self, *, limits: PlanLimits, objective: Objective) -> Iterator[LayoutPair]:
        """Yield the layouts that keep every limit, by rising score; for ``cost`` only those within the SLO."""
        shares = self._table([c.share for c in self.prefill], [c.share for c in self.decode])
        worst = np.maximum(*shares)
        latency = worst + BALANCE * (shares[0] + shares[1])
        moved = self._sum(
            [change(c.group, limits) for c in self.prefill], [change(c.group, limits) for c in self.decode]
        )
        if objective == "latency":
            gpus = self._sum([c.gpus for c in self.prefill], [c.gpus for c in self.decode])
            return self.by(latency + THRIFT * gpus + moved, limits=limits)
        score = self._money(limits) / limits.unit + BALANCE * latency + moved
        return self.by(np.where(worst <= 1, score, np.inf), limits=limits)

    def by(self, scores: Floats, *, limits: PlanLimits) -> Iterator[LayoutPair]:
        """Yield the layouts that keep every limit by rising score, a table of prefill by decode candidates.

        An infinite score is none. Limits are checked in order of score, which spares most of the checks.
        """
        gpus = self._sum([c.gpus for c in self.prefill], [c.gpus for c in self.decode])
        possible = gpus <= limits.gpus
        if limits.budget is not None:
            possible &= self._money(limits) <= limits.budget + ROUNDING
        flat = np.where(possible, scores, np.inf).ravel()
        for at in np.argsort(flat, kind="stable"):
            if flat[at] == np.inf:
                return
            row, column = divmod(int(at), len(self.decode))
            layout = LayoutPair(self.prefill[row], self.decode[column])
            if feasible(layout, limits):
                yield layout

    def _money(self, limits: PlanLimits) -> Floats:
        return self._sum(
            [c.gpus * limits.price(c.pool) for c in self.prefill], [c.gpus * limits.price(c.pool) for c in self.decode]
        )

    def _sum(self, prefill: Sequence[float], decode: Sequence[float]) -> Floats:
        rows, columns = self._table(prefill, decode)
        return rows + columns

    @staticmethod
    def _table(prefill: Sequence[float], decode: Sequence[float]) -> tuple[Floats, Floats]:
        return np.array(prefill, np.float64)[:, None], np.array(decode, np.float64)[None, :]
