"""Run one click command as a program: its exit status, errors as lines, Ctrl-C and closed pipes without tracebacks."""

import os
import sys
from collections.abc import Sequence

import click

INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""


def run(command: click.Command, argv: Sequence[str] | None = None, *, prog: str) -> int:
    """Run a command and return its exit status: what it returns, 0 for nothing, 2 for a wrong command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with command.make_context(prog, arguments) as context:
            status = command.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as end:  # --help, --version
        return end.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo(f"{prog}: interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status if isinstance(status, int) else 0
