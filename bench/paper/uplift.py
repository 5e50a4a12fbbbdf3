"""Goodput of Weft's rule over AMPD's in the twelve cells, by setting; with the mode that the planner chooses."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.paper.cells import Cell, Length, Setting
from bench.paper.choosing import Choice, best_mode, best_plan, name_of, rung, weft
from bench.paper.goodputs import READINGS, Bench, Carried

from weft_core.slo import Reading
from weft_planner.simulation import AMPD, Layout, PolicyChoice

FIRST_GUESS = 2.0


@dataclass(frozen=True, slots=True)
class Score:
    """One cell, setting and reading: sessions per second of each contender; None where none holds the goal.

    ``chosen`` runs the mode that the planner chose on the published layout, ``planned`` the planner's own layout.
    """

    cell: str
    setting: str
    reading: str
    ampd: Carried | None
    weft: Carried | None
    chosen: Carried | None
    mode: str
    planned: Carried | None = None
    plan: str = ""

    def ratio(self, contender: str) -> float:
        """Return a contender's goodput over AMPD's: infinite where only AMPD's is nothing, NaN where both are."""
        mine: Carried | None = getattr(self, contender)
        if self.ampd is None:
            return math.inf if mine is not None else math.nan
        return mine.rate / self.ampd.rate if mine is not None else 0.0


def scores(job: tuple[Cell, Setting, Length, bool]) -> list[Score]:
    """Return a cell's scores in a setting, under both readings; with the planner's own layout when asked to."""
    cell, setting, length, with_layout = job
    bench = Bench(cell, setting, length)
    return [_score(bench, name, reading, with_layout) for name, reading in READINGS.items()]


def _score(bench: Bench, name: str, reading: Reading, with_layout: bool) -> Score:
    cell, setting = bench.cell, bench.setting

    def carried(layout: Layout, policy: PolicyChoice, guess: float) -> Carried | None:
        return bench.goodput(layout, policy, reading, guess=guess)

    ampd = carried(cell.layout, AMPD, FIRST_GUESS)
    known = ampd.rate if ampd is not None else FIRST_GUESS / 4
    imd = weft("imd", reading)
    mine = carried(cell.layout, imd, 2 * known)
    if mine is not None:
        known = max(known, mine.rate / 2)
    mode = best_mode(cell, setting, reading, rate=rung(known))
    chosen = mine if mode == imd else carried(cell.layout, mode, 2 * known)
    if not with_layout:
        return Score(str(cell), setting.name, name, ampd, mine, chosen, name_of(mode))
    choice: Choice = best_plan(cell, setting, reading, rate=rung(known))
    planned = carried(choice.layout, choice.policy, 2 * known)
    return Score(str(cell), setting.name, name, ampd, mine, chosen, name_of(mode), planned, str(choice))


@dataclass(frozen=True, slots=True)
class Spread:
    """Geometric mean, least and most of ratios; those that are not finite are counted, not averaged."""

    mean: float
    least: float
    most: float
    left_out: int

    def __str__(self) -> str:
        words = f"{self.mean:.2f} ({self.least:.2f} to {self.most:.2f})"
        return words if not self.left_out else f"{words}, {self.left_out} left out"


def spread(ratios: Iterable[float]) -> Spread:
    """Return how ratios spread; a ratio of 0 makes the mean 0."""
    every: Sequence[float] = list(ratios)
    kept = [r for r in every if math.isfinite(r)]
    if not kept:
        return Spread(math.nan, math.nan, math.nan, len(every))
    least = min(kept)
    mean = math.exp(math.fsum(math.log(r) for r in kept) / len(kept)) if least > 0 else 0.0
    return Spread(mean, least, max(kept), len(every) - len(kept))
