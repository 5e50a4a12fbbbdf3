"""Print the ledger of this pod's engine as JSON: ``python -m weft_mock.read_ledger``."""

import sys

import click

from weft_cli.running import run
from weft_mock.loopback import ask


@click.command()
@click.option("--port", type=int, default=8000, show_default=True, help="The engine's port on 127.0.0.1.")
def read_ledger(*, port: int) -> int:
    """Print the ledger of this pod's engine as JSON; exit status 1 when the engine cannot be reached."""
    return ask(port, "GET", "/mock/ledger")


def main(arguments: list[str] | None = None) -> int:
    """Run as a program and return the exit status."""
    return run(read_ledger, arguments, prog="python -m weft_mock.read_ledger")


if __name__ == "__main__":
    sys.exit(main())
