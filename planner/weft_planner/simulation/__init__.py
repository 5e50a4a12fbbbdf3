"""Simulate sessions on a layout under the policies that really run; numba is loaded with the first run, not before."""

from weft_planner.simulation.layout import AMPD, Layout, PolicyChoice, SimulationError, SloClass, Worker, layout_of
from weft_planner.simulation.options import Change, Options
from weft_planner.simulation.outcome import Outcome, Timeline
from weft_planner.simulation.run import simulate

__all__ = [
    "AMPD",
    "Change",
    "Layout",
    "Options",
    "Outcome",
    "PolicyChoice",
    "SimulationError",
    "SloClass",
    "Timeline",
    "Worker",
    "layout_of",
    "simulate",
]
