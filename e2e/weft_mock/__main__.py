"""Run one engine: ``python -m weft_mock --model …``, the same as ``weft mock-engine``."""

import sys

from weft_cli.running import run
from weft_mock.cli import mock_engine

if __name__ == "__main__":
    sys.exit(run(mock_engine, prog="weft mock-engine"))
