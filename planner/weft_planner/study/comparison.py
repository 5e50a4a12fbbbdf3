"""Put policies to the test on the same sessions, seed by seed, so that differences are theirs and not the arrivals'."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from weft_core.prediction import Estimate
from weft_planner.simulation.layout import PolicyChoice
from weft_planner.study.figures import Figures, estimate, run_figures, summed_up
from weft_planner.study.goodput import goodput
from weft_planner.study.scenario import Scenario

Progress = Callable[[str, int, int], None]
GOODPUT_STEPS = 9
"""Runs of one search for goodput, about: for the estimate of what is left."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A policy's figures; ``against`` is its attainment less the first policy's, ``ratio`` its goodput by the first's.

    Both are None for the first policy; goodput is None where it was not asked for.
    """

    name: str
    policy: PolicyChoice
    figures: Figures
    against: Estimate | None
    goodput: Estimate | None
    ratio: Estimate | None


def compared(
    scenarios: Sequence[tuple[str, Scenario]], *, rate: float, seeds: int, with_goodput: bool, progress: Progress
) -> Iterator[Compared]:
    """Yield each policy's figures as soon as its runs are through; differences and ratios are paired by seed."""
    steps = seeds * (1 + (GOODPUT_STEPS if with_goodput else 0))
    total = len(scenarios) * steps
    first: tuple[Figures, list[float]] | None = None
    progress("comparing", 0, total)
    for place, (name, scenario) in enumerate(scenarios):
        slo = scenario.sessions.inputs.request.slo
        runs = []
        for seed in range(seeds):
            runs.append(run_figures(scenario.run(rate, seed), slo))
            progress("comparing", place * steps + seed + 1, total)
        rates: list[float] = []
        for seed in range(seeds) if with_goodput else ():
            rates.append(_goodput(scenario, seed=seed, start=rate))
            progress("comparing", place * steps + seeds + (seed + 1) * GOODPUT_STEPS, total)
        found = summed_up(runs)
        yield Compared(
            name=name,
            policy=scenario.contestant.policy,
            figures=found,
            against=None if first is None else _difference(found, first[0]),
            goodput=estimate(rates) if rates else None,
            ratio=None if first is None or not rates else _ratio(rates, first[1]),
        )
        first = first or (found, rates)


def _goodput(scenario: Scenario, *, seed: int, start: float) -> float:
    slo = scenario.sessions.inputs.request.slo
    return goodput(lambda rate: run_figures(scenario.run(rate, seed), slo).attainment, goal=slo.attainment, start=start)


def _difference(found: Figures, first: Figures) -> Estimate:
    return estimate([a.attainment - b.attainment for a, b in zip(found.runs, first.runs, strict=True)], signed=True)


def _ratio(rates: Sequence[float], first: Sequence[float]) -> Estimate | None:
    """Return the mean ratio of goodputs, None where the first policy has none."""
    return estimate([a / b for a, b in zip(rates, first, strict=True)]) if all(first) else None
