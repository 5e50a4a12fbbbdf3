"""Errors of the command line; each becomes lines on stderr and an exit status, never a traceback.

ClickException (click; status 1)
├── UsageError (click; status 2)      a command line that makes no sense
├── BadInputError (status 2)          a file that cannot be used: file, field, value, allowed range, fix
└── NotInstalledError (status 1)      the command's part, or a library it needs, is not there
"""

from collections.abc import Iterable
from pathlib import PurePath
from typing import IO

import click

from weft_cli.commands import EXTRAS


class BadInputError(click.ClickException):
    """Report files that nothing can be made from: one line for each fault, with the file's name.

    ``elsewhere`` are (file, fault) of further files.
    """

    exit_code = 2

    def __init__(self, path: str, *faults: str, elsewhere: Iterable[tuple[str, str]] = ()) -> None:
        listed = [*((path, fault) for fault in faults), *elsewhere]
        super().__init__("\n".join(f"{'stdin' if place == '-' else place}: {fault}" for place, fault in listed))

    def show(self, file: IO[str] | None = None) -> None:
        """Write the lines to stderr as they are: programs read them by file name."""
        click.echo(self.message, err=file is None, file=file)


class NotInstalledError(click.ClickException):
    """Report a command of which this installation lacks a part."""

    def __init__(self, command: str, missing: str) -> None:
        extra = EXTRAS.get(command)
        fix = f"pip install 'weft[{extra}]'" if extra else "install weft with the part's extra"
        super().__init__(f"weft {command}: this installation lacks {missing}; {fix}")


def lines_of(error: Exception, path: str) -> list[str]:
    """Return an error's lines without the file's name, which the command line puts before them."""
    if isinstance(error, OSError):
        return [error.strerror or str(error)]
    lines = str(error).splitlines()
    for name in ("stdin" if path == "-" else path, PurePath(path).name):
        lines = [line.removeprefix(name).lstrip(":, ") if line.startswith(name) else line for line in lines]
    return lines
