"""Run the operator without the weft program: ``python -m weft_operator``."""

import argparse
import sys

from weft_operator import cli

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="weft")
    cli.register(parser.add_subparsers(required=True))
    arguments = parser.parse_args(["operator", *sys.argv[1:]])
    sys.exit(arguments.run(arguments))
