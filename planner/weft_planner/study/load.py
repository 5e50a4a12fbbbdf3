"""Simulate a scenario at one rate after the other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from weft_planner.evaluation.threads import in_threads
from weft_planner.evaluation.trials import remarks
from weft_planner.simulation.loading import load_simulator
from weft_planner.simulation.statistics import Summary, attainment, summarise
from weft_planner.stages import Progress
from weft_planner.study.scenario import Scenario


@dataclass(frozen=True, slots=True)
class LoadRow:
    """A rate in sessions per second, the summary of its runs, the attained share of each, what to know of them."""

    rate: float
    summary: Summary
    attained: tuple[float, ...]
    remarks: tuple[str, ...] = ()


def load_rows(
    scenario: Scenario, rates: Sequence[float], *, seeds: int, progress: Progress, what: str = "simulating"
) -> Iterator[LoadRow]:
    """Yield the summary at each rate as soon as its runs are through."""
    load_simulator(progress)
    total = len(rates) * seeds
    progress(what, 0, total)
    runs = [(rate, seed) for rate in rates for seed in range(seeds)]
    done = enumerate(in_threads(lambda run: scenario.run(*run), runs), 1)
    for rate in rates:
        outcomes = []
        for at, outcome in islice(done, seeds):
            outcomes.append(outcome)
            progress(what, at, total)
        reading = scenario.reading
        attained = tuple(attainment(outcome, reading) for outcome in outcomes)
        yield LoadRow(rate, summarise(outcomes, reading), attained, remarks(outcomes))
