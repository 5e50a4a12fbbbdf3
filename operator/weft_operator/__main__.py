"""Run the operator without the weft program: ``python -m weft_operator``."""

import sys

from weft_cli.running import run
from weft_operator.controllers.cli import operator

if __name__ == "__main__":
    sys.exit(run(operator, prog="weft operator"))
