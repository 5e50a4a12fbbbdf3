"""Simulate sessions on a layout under the policies that really run; numba is loaded with the first run, not before."""

from weft_planner.simulation.goodput import Goodput, goodput
from weft_planner.simulation.layout import AMPD, Layout, PolicyChoice, SimulationError, SloClass, Worker, layout_of
from weft_planner.simulation.options import Change, Options
from weft_planner.simulation.outcome import Outcome, Timeline
from weft_planner.simulation.run import simulate
from weft_planner.simulation.statistics import READINGS, Percentiles, Summary, attainment, summarise

__all__ = [
    "AMPD",
    "READINGS",
    "Change",
    "Goodput",
    "Layout",
    "Options",
    "Outcome",
    "Percentiles",
    "PolicyChoice",
    "SimulationError",
    "SloClass",
    "Summary",
    "Timeline",
    "Worker",
    "attainment",
    "goodput",
    "layout_of",
    "simulate",
    "summarise",
]
