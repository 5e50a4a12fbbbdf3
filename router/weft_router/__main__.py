"""Run one router process: ``python -m weft_router --role coordinator ...``."""

import sys

from weft_cli.running import run
from weft_router.cli import router

if __name__ == "__main__":
    sys.exit(run(router, prog="weft router"))
