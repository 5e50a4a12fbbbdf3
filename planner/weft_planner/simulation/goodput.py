"""Find the largest arrival rate at which a layout still holds its SLO: the score by which layouts are ranked."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from weft_core.cost import CostProfile
from weft_core.prediction import Estimate
from weft_core.slo import PER_SESSION, Reading
from weft_planner.simulation.layout import Layout, PolicyChoice, SimulationError, SloClass
from weft_planner.simulation.options import Options
from weft_planner.simulation.run import simulate
from weft_planner.simulation.statistics import attainment, estimate
from weft_planner.workload.sessions import Sample

LOWEST = 2.0**-12
HIGHEST = 2.0**12
"""How far from the first guess a rate is looked for: farther than that, the guess is in other units."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """Sessions per second at the attainment target: per seed, and their mean with its interval.

    ``runs`` are all that was simulated: (seed, rate, attainment). A rate of 0: not even the lowest one holds the SLO.
    """

    rate: Estimate
    of_seed: tuple[float, ...]
    target: float
    reading: Reading
    runs: tuple[tuple[int, float, float], ...]


def goodput(
    sample_at: Callable[[float, int], Sample],
    layout: Layout,
    costs: Mapping[str, CostProfile],
    policy: PolicyChoice,
    slo: Sequence[SloClass],
    *,
    guess: float,
    seeds: Sequence[int],
    reading: Reading = PER_SESSION,
    target: float = 0.9,
    tolerance: float = 0.02,
    options: Options = Options(),  # noqa: B008 - frozen, and its defaults are the documentation
) -> Goodput:
    """Bisect the arrival rate for each seed, by factors, until it is known within ``tolerance`` (a share).

    ``sample_at(rate, seed)`` draws the sessions: the same for a seed at every rate, but for the time between arrivals.

    Raises:
        SimulationError: the guess, target or tolerance is out of range.
    """
    if not (math.isfinite(guess) and guess > 0):
        raise SimulationError(f"guess: {guess!r} is not a finite rate above 0 sessions per second")
    if not 0 < target <= 1:
        raise SimulationError(f"target: {target!r} is not a share above 0 and up to 1")
    if not 1e-4 <= tolerance <= 1:
        raise SimulationError(f"tolerance: {tolerance!r} is not between 0.0001 and 1")
    runs: list[tuple[int, float, float]] = []
    found = []
    start = guess
    for seed in seeds:

        def holds(rate: float, seed: int = seed) -> bool:
            outcome = simulate(sample_at(rate, seed), layout, costs, policy, slo, options=options, seed=seed)
            share = attainment(outcome, reading)
            runs.append((seed, rate, share))
            return share >= target

        found.append(_largest(holds, start, guess * LOWEST, guess * HIGHEST, tolerance))
        start = found[-1] or start  # seeds differ by little: begin where the last one ended
    return Goodput(estimate(found), tuple(found), target, reading, tuple(runs))


def _largest(holds: Callable[[float], bool], start: float, least: float, most: float, tolerance: float) -> float:
    """Return the largest rate that holds; first by growing factors from the start, then by halving the factor."""
    factor = 1.25
    if holds(start):
        good, bad = start, start * factor
        while bad < most and holds(bad):
            good, factor = bad, factor**2 if factor < 4 else factor
            bad = good * factor
        if bad >= most:
            return good
    else:
        bad, good = start, start / factor
        while good > least and not holds(good):
            bad, factor = good, factor**2 if factor < 4 else factor
            good = bad / factor
        if good <= least:
            return 0.0
    while bad / good > 1 + tolerance:
        middle = math.sqrt(good * bad)
        if holds(middle):
            good = middle
        else:
            bad = middle
    return good
