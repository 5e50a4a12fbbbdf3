"""Simulate a scenario at one rate after the other."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from weft_planner.study.figures import Figures, run_figures, summed_up
from weft_planner.study.scenario import Scenario

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class LoadRow:
    """A rate in sessions per second and the figures of its runs."""

    rate: float
    figures: Figures
    events: int


def load_rows(scenario: Scenario, rates: Sequence[float], *, seeds: int, progress: Progress) -> Iterator[LoadRow]:
    """Yield the figures at each rate as soon as its runs are through."""
    slo = scenario.sessions.inputs.request.slo
    total = len(rates) * seeds
    progress("simulating", 0, total)
    for place, rate in enumerate(rates):
        runs, events = [], 0
        for seed in range(seeds):
            outcome = scenario.run(rate, seed)
            runs.append(run_figures(outcome, slo))
            events += outcome.events
            progress("simulating", place * seeds + seed + 1, total)
        yield LoadRow(rate, summed_up(runs), events)
