"""Find the goodput of a layout and a policy under several readings of the SLO at once, on one grid of rates."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from bench.paper.cells import Cell, Length, Setting, costs_of, sample_at

from weft_core.prediction import Estimate
from weft_core.slo import Reading
from weft_planner.simulation import Layout, PolicyChoice, simulate
from weft_planner.simulation.statistics import attainment, estimate

GOAL = 0.9
MEAN = Reading("session", "mean")
P95 = Reading("session", "p95")
READINGS: Mapping[str, Reading] = {"mean ITL": MEAN, "P95 gap": P95}
PER_OCTAVE = 16
"""Rates tried lie this close, 4.4 % apart; goodput is interpolated between them."""
STRIDE = PER_OCTAVE // 2
AROUND = 2
"""Steps to either side of the crossing that are looked at, too: where attainment falls slowly, it goes up and down."""
OCTAVES = 10
LEAST_FALL = 0.005
"""By so much attainment falls from step to step at least, where one seed's goodput is told from its attainment."""


@dataclass(frozen=True, slots=True)
class Carried:
    """Sessions per second of which the goal's share meets the SLO: with all seeds pooled, and per seed."""

    rate: float
    of_seed: tuple[float, ...]

    @property
    def interval(self) -> Estimate:
        """Return the mean over seeds with its interval."""
        return estimate(self.of_seed)


def search(share: Callable[[int], Sequence[float]], start: int) -> Carried | None:
    """Return where the share that meets the SLO falls to the goal, given each seed's share by step of the grid.

    None: it is below the goal at all rates. Steps are halves of an octave, the same for everybody, until the crossing
    is between two; then the shares around it are taken as falling (the nearest shares that do).
    """

    def mean(step: int) -> float:
        values = share(step)
        return math.fsum(values) / len(values)

    stride = STRIDE
    start = low = high = round(start / stride) * stride
    if mean(start) >= GOAL:
        while mean(high) >= GOAL:
            low, high = high, high + stride
            if high > start + OCTAVES * PER_OCTAVE:
                return None
    else:
        while mean(low) < GOAL:
            low, high = low - stride, low
            if low < start - OCTAVES * PER_OCTAVE:
                return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if mean(middle) >= GOAL else (low, middle)
    steps = range(low - AROUND, high + AROUND + 1)
    points = falling([(float(step), mean(step)) for step in steps])
    found = crossing(points)
    fall = max((points[0][1] - points[-1][1]) / len(steps), LEAST_FALL)
    halfway = (mean(low) + mean(high)) / 2
    return Carried(
        rate_of(found),
        tuple(
            rate_of(found + ((below + above) / 2 - halfway) / fall)
            for below, above in zip(share(low), share(high), strict=True)
        ),
    )


def falling(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return points whose values never rise: neighbours that do are replaced by their mean (isotonic regression)."""
    pooled: list[tuple[float, float, int]] = []
    for at, value in points:
        pooled.append((at, value, 1))
        while len(pooled) > 1 and pooled[-1][1] > pooled[-2][1]:
            (x, y, n), (u, v, m) = pooled.pop(), pooled.pop()
            pooled.append(((n * x + m * u) / (n + m), (n * y + m * v) / (n + m), n + m))
    return [(at, value) for at, value, _ in pooled]


def crossing(points: Sequence[tuple[float, float]]) -> float:
    """Return where falling values pass the goal, by straight lines; the end nearest to it when they do not."""
    for (x, y), (u, v) in pairwise(points):
        if y >= GOAL > v:
            return x + (u - x) * (y - GOAL) / (y - v)
    return points[0][0] if points[0][1] < GOAL else points[-1][0]


def rate_of(step: float) -> float:
    """Return the rate of a step of the grid, sessions per second."""
    return float(2.0 ** (step / PER_OCTAVE))


def step_of(rate: float) -> int:
    """Return the step of the grid nearest to a rate."""
    return round(math.log2(rate) * PER_OCTAVE)


@dataclass
class Bench:
    """One cell in one setting: every run is made once, whichever reading asks for it."""

    cell: Cell
    setting: Setting
    length: Length

    def __post_init__(self) -> None:
        self._costs = costs_of(self.cell, self.setting)
        self._shares: dict[tuple[str, int], dict[Reading, list[float]]] = {}
        self.runs = 0

    def shares(self, layout: Layout, policy: PolicyChoice, step: int) -> dict[Reading, list[float]]:
        """Return each seed's share of sessions that meet the SLO at a rate, under every reading."""
        key = (f"{layout.kind} {layout} {policy} {sorted(policy.params.items())}", step)
        options = self.setting.options
        if policy.route == "colocated":  # as the planner takes it, and as vLLM runs: slices within the ITL SLO
            options = replace(options, chunked=True)
        if key not in self._shares:
            found: dict[Reading, list[float]] = {reading: [] for reading in READINGS.values()}
            for seed in self.length.seeds:
                sample = sample_at(self.cell, self.length, rate_of(step), seed)
                outcome = simulate(sample, layout, self._costs, policy, (self.cell.slo,), options=options, seed=seed)
                self.runs += 1
                for reading, values in found.items():
                    values.append(attainment(outcome, reading))
            self._shares[key] = found
        return self._shares[key]

    def goodput(self, layout: Layout, policy: PolicyChoice, reading: Reading, *, guess: float) -> Carried | None:
        """Return a layout's goodput under a policy, which reads the ITL as the SLO does where it reads it at all."""
        return search(lambda step: self.shares(layout, policy, step)[reading], step_of(guess))
