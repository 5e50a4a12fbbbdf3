"""Tell the engine of this pod to misbehave: ``python -m weft_mock.fault '{"die_at_token": 5}'``; ``'{}'`` ends it."""

import sys

import click

from weft_cli.running import run
from weft_mock.loopback import ask


@click.command()
@click.argument("faults")
@click.option("--port", type=int, default=8000, show_default=True, help="The engine's port on 127.0.0.1.")
def fault(*, faults: str, port: int) -> int:
    """Tell the engine of this pod to misbehave.

    FAULTS is a JSON object, such as '{"status": 503, "times": 2}'; '{}' clears all. Exit status 1 when the engine
    refuses or cannot be reached.
    """
    return ask(port, "POST", "/mock/faults", body=faults, headers={"Content-Type": "application/json"})


def main(arguments: list[str] | None = None) -> int:
    """Run as a program and return the exit status."""
    return run(fault, arguments, prog="python -m weft_mock.fault")


if __name__ == "__main__":
    sys.exit(main())
