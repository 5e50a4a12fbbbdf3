"""Run the planner alone, without the other parts' commands: ``python -m weft_planner solve``."""

import sys

import click

from weft_planner.cli.plan import plan
from weft_planner.cli.running import run
from weft_planner.cli.solve import solve

planner = click.Group(commands=[solve, plan], help="Plan services.")

if __name__ == "__main__":
    sys.exit(run(planner, prog="python -m weft_planner"))
