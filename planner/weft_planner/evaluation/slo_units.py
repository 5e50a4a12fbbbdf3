"""List what a reading of the SLO counts in a simulated run, to tell how far each session or round is from it."""

from dataclasses import dataclass

import numpy as np

from weft_core.slo import Reading
from weft_planner.simulation.outcome import Outcome
from weft_planner.simulation.statistics import P95_SHARE
from weft_planner.workload.distributions import Floats


@dataclass(frozen=True, slots=True)
class SloUnits:
    """The counted units (sessions or rounds) of one run: largest TTFT, ITL figure, and their thresholds; seconds.

    With statistic p95 the ITL figure is the share of gaps over the SLO and its threshold 5 %.
    """

    ttft: Floats
    itl: Floats
    ttft_slo: Floats
    itl_slo: Floats


def units_of(outcome: Outcome, reading: Reading) -> SloUnits:
    """Return what a reading counts in one run."""
    unit, statistic = reading.unit, reading.itl
    sample = outcome.sample
    kept = outcome.counted
    session = sample.session[kept]
    classes = sample.session_class[session]
    ttft_of = np.array([c.ttft_s for c in outcome.slo])
    itl_of = np.array([c.itl_s for c in outcome.slo])
    ttft, gaps = outcome.ttft[kept], outcome.gaps[kept].astype(np.float64)
    figure = {"mean": outcome.itl_mean, "p95": outcome.itl_over, "max": outcome.itl_max}[statistic][kept]
    if unit == "session" and len(session):
        first = np.flatnonzero(np.append(True, session[1:] != session[:-1]))
        classes = classes[first]
        ttft = np.maximum.reduceat(ttft, first)
        if statistic == "max":
            figure = np.maximum.reduceat(figure, first)
        else:
            figure = np.add.reduceat(figure * gaps, first) / np.maximum(np.add.reduceat(gaps, first), 1)
    threshold = np.full(len(classes), P95_SHARE) if statistic == "p95" else itl_of[classes]
    return SloUnits(ttft=ttft, itl=figure, ttft_slo=ttft_of[classes], itl_slo=threshold)
