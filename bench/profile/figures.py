"""Errors of a profile on shapes that it has not seen, and intervals by drawing sessions again. Pure."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from weft_core.cost import CostProfile
from weft_planner.profiling.measurements import GridCell, Measurements
from weft_planner.profiling.validation import predict_cell

DRAWS = 2000
NAMES = {
    ("prefill", "there"): "T_pre",
    ("step", "there"): "T_dec",
    ("transfer", "there"): "T_kv there",
    ("transfer", "back"): "T_kv back",
}
AIMS = {"T_pre": (0.10, 0.30), "T_dec": (0.10, 0.30)}
"""Median and P95 of the error: what the fit is to reach on this machine."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors of one function over held-out shapes."""

    name: str
    shapes: int
    median: float
    p95: float

    @property
    def met(self) -> bool | None:
        """Tell whether the aims are met; None where there are none."""
        aim = AIMS.get(self.name)
        return None if aim is None else self.median <= aim[0] and self.p95 <= aim[1]


def errors(profile: CostProfile, held_out: Measurements) -> list[Errors]:
    """Return how far predictions are from the median timing of each shape, for each function and way."""
    timings: dict[GridCell, list[float]] = {}
    for row in held_out.rows:
        timings.setdefault(row.cell, []).append(row.seconds)
    found: dict[str, list[float]] = {}
    for cell, seconds in timings.items():
        guess = predict_cell(profile, cell)
        if guess is not None:
            found.setdefault(NAMES[cell.function, cell.way], []).append(abs(guess / median(seconds) - 1))
    return [
        Errors(name, len(found[name]), median(found[name]), float(np.quantile(found[name], 0.95)))
        for name in NAMES.values()
        if name in found
    ]


def interval(
    groups: Mapping[str, Sequence[float]], figure: Callable[[Sequence[float]], float], *, seed: int = 0
) -> tuple[float, float]:
    """Return the 95 % interval of a figure over all values, by drawing whole groups (sessions) again."""
    dice = random.Random(seed)  # noqa: S311 - nothing secret
    names = sorted(groups)
    drawn = sorted(
        figure([value for name in dice.choices(names, k=len(names)) for value in groups[name]]) for _ in range(DRAWS)
    )
    return drawn[DRAWS // 40], drawn[-DRAWS // 40]


def p95(values: Sequence[float]) -> float:
    """Return the 95th percentile."""
    return float(np.quantile(values, 0.95))


def mean(values: Sequence[float]) -> float:
    """Return the mean."""
    return fmean(values)
