"""Run the planner alone, without the other parts' commands: ``python -m weft_planner solve``."""

import argparse
import sys

from weft_planner.cli import plan, solve


def main() -> int:
    """Run ``solve`` or ``plan`` and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m weft_planner")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    solve.register(subparsers)
    plan.register(subparsers)
    args = parser.parse_args()
    return int(args.run(args))


if __name__ == "__main__":
    sys.exit(main())
