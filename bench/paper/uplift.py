"""Goodput of Weft's rule over AMPD's in the twelve cells, by setting; with the mode that the planner chooses."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from bench.paper.cells import Cell, Length, Setting
from bench.paper.choosing import best_mode, best_plan, mode_by_default, name_of, rung, weft
from bench.paper.goodputs import READINGS, Bench, Carried

from weft_core.efficiency import Efficiency
from weft_core.prediction import Estimate
from weft_core.slo import Reading
from weft_planner.simulation import AMPD, Layout, PolicyChoice
from weft_planner.simulation.statistics import estimate

FIRST_GUESS = 2.0


@dataclass(frozen=True, slots=True)
class Score:
    """One cell, setting and reading: sessions per second of each contender; None where none holds the goal.

    ``chosen`` runs the mode that the planner chose on the published layout, ``planned`` the planner's own layout, and
    ``default`` the mode of a service that names none, on the published one.
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
    default: Carried | None = None
    default_mode: str = ""

    def ratio(self, contender: str) -> float:
        """Return a contender's goodput over AMPD's: infinite where only AMPD's is nothing, NaN where both are."""
        mine: Carried | None = getattr(self, contender)
        if self.ampd is None:
            return math.inf if mine is not None else math.nan
        return mine.rate / self.ampd.rate if mine is not None else 0.0

    def interval(self, contender: str) -> Estimate | None:
        """Return the mean of the seeds' own ratios with its 95 % interval: seeds are paired."""
        mine: Carried | None = getattr(self, contender)
        if self.ampd is None or mine is None:
            return None
        return estimate([ours / theirs for ours, theirs in zip(mine.of_seed, self.ampd.of_seed, strict=True)])


@dataclass(frozen=True, slots=True)
class ScoringTask:
    """One cell under settings whose engine costs the same: the planner cannot tell them apart and chooses once.

    ``lengths`` are the settings'. ``plan_too``: score the planner's own layout in the first setting.
    """

    cell: Cell
    settings: tuple[Setting, ...]
    lengths: tuple[Length, ...]
    plan_too: bool = False


def scoring_tasks(
    cells: Sequence[Cell], settings: Sequence[Setting], *, main: Length, others: Length, plan_too: bool
) -> list[ScoringTask]:
    """Return what to score, the longest work first: the first setting is run at length ``main``."""
    alike: dict[Efficiency, list[Setting]] = {}
    for setting in settings:
        alike.setdefault(setting.efficiency, []).append(setting)
    first = settings[0]
    lengths = {setting: main if setting is first else others for setting in settings}
    return [
        ScoringTask(cell, tuple(group), tuple(lengths[one] for one in group), plan_too and first in group)
        for group in alike.values()
        for cell in cells
    ]


def scores(task: ScoringTask) -> list[Score]:
    """Return a cell's scores in its settings, under both readings."""
    benches = [Bench(task.cell, *one) for one in zip(task.settings, task.lengths, strict=True)]
    return [
        score for name, reading in READINGS.items() for score in _scores(benches, name, reading, plan_too=task.plan_too)
    ]


def _scores(benches: Sequence[Bench], name: str, reading: Reading, *, plan_too: bool) -> Iterator[Score]:
    mode: PolicyChoice | None = None
    for bench in benches:
        cell, setting = bench.cell, bench.setting

        def carried(layout: Layout, policy: PolicyChoice, guess: float, bench: Bench = bench) -> Carried | None:
            return bench.goodput(layout, policy, reading, guess=guess)

        ampd = carried(cell.layout, AMPD, FIRST_GUESS)
        known = ampd.rate if ampd is not None else FIRST_GUESS / 4
        imd = weft("imd", reading)
        mine = carried(cell.layout, imd, 2 * known)
        if mine is not None:
            known = max(known, mine.rate / 2)
        if mode is None:
            mode = best_mode(cell, setting, reading, rate=rung(known))
        chosen = carried(cell.layout, mode, 2 * known)
        planned, plan, default, default_mode = None, "", None, ""
        if plan_too and bench is benches[0]:
            choice = best_plan(cell, setting, reading, rate=rung(known))
            planned, plan = carried(choice.layout, choice.policy, 2 * known), str(choice)
            default_mode = mode_by_default(cell, setting, reading)
            default = carried(cell.layout, weft(default_mode, reading), 2 * known)
        yield Score(
            str(cell), setting.name, name, ampd, mine, chosen, name_of(mode), planned, plan, default, default_mode
        )


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
