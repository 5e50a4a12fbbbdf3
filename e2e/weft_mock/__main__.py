"""Run one engine: ``python -m weft_mock --model …``, the same as ``weft mock-engine``."""

import sys

from weft_mock.cli import mock_engine
from weft_planner.cli.running import run

if __name__ == "__main__":
    sys.exit(run(mock_engine, prog="weft mock-engine"))
