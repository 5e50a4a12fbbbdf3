"""Run one router process: ``python -m weft_router --role coordinator ...``."""

import argparse
import sys

from weft_router.cli import add_arguments, run


def main() -> int:
    """Parse the flags and run."""
    parser = argparse.ArgumentParser(prog="weft router")
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
