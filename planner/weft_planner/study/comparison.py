"""Put policies to the test on the same sessions, seed by seed, so that differences are theirs and not the arrivals'."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weft_core.prediction import Estimate
from weft_planner.simulation.goodput import Goodput
from weft_planner.simulation.layout import PolicyChoice
from weft_planner.simulation.statistics import Summary, estimate
from weft_planner.stages import Progress
from weft_planner.study.load import load_rows
from weft_planner.study.scenario import Scenario


@dataclass(frozen=True, slots=True)
class PolicyComparison:
    """A policy's summary; ``against`` is its attainment less the first policy's, ``ratio`` its goodput by the first's.

    Both are None for the first policy; goodput is None where it was not asked for.
    """

    name: str
    policy: PolicyChoice
    summary: Summary
    attained: tuple[float, ...]
    against: Estimate | None
    goodput: Goodput | None
    ratio: Estimate | None


def compare_policies(
    scenarios: Sequence[tuple[str, Scenario]], *, rate: float, seeds: int, with_goodput: bool, progress: Progress
) -> Iterator[PolicyComparison]:
    """Yield each policy's figures as soon as its runs are through; differences and ratios are paired by seed."""
    first: PolicyComparison | None = None
    for name, scenario in scenarios:
        (row,) = load_rows(scenario, [rate], seeds=seeds, progress=progress, what=name)
        found = scenario.goodput(guess=rate, seeds=seeds, progress=progress, what=name) if with_goodput else None
        result = PolicyComparison(
            name=name,
            policy=scenario.candidate.policy,
            summary=row.summary,
            attained=row.attained,
            against=None if first is None else _difference(row.attained, first.attained),
            goodput=found,
            ratio=None if first is None else _ratio(found, first.goodput),
        )
        first = first or result
        yield result


def _difference(shares: Sequence[float], first: Sequence[float]) -> Estimate:
    return estimate([a - b for a, b in zip(shares, first, strict=True)])


def _ratio(found: Goodput | None, first: Goodput | None) -> Estimate | None:
    """Return the mean ratio of goodputs, None where the first policy has none at some seed."""
    if found is None or first is None or not all(first.of_seed):
        return None
    return estimate([a / b for a, b in zip(found.of_seed, first.of_seed, strict=True)])
