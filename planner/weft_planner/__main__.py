"""Run the planner alone, without the other parts' commands: ``python -m weft_planner solve``."""

import sys

import click

from weft_cli.running import run
from weft_planner.cli.plan import plan
from weft_planner.cli.profile import profile
from weft_planner.cli.solve import solve

planner = click.Group(commands=[solve, plan, profile], help="Plan services and measure what they run on.")

if __name__ == "__main__":
    sys.exit(run(planner, prog="python -m weft_planner"))
