"""A command as a program: its exit status, Ctrl-C and closed pipes."""

import os
import subprocess
import sys

import click
import pytest

from weft_cli.running import INTERRUPTED, run


def exit_status(command: click.Command, *words: str) -> int:
    return run(command, words, prog="weft")


def test_what_a_command_returns_is_the_exit_status() -> None:
    @click.command()
    @click.option("--status", type=int)
    def end(status: int | None) -> int | None:
        return status

    assert [exit_status(end), exit_status(end, "--status", "1"), exit_status(end, "--status", "x")] == [0, 1, 2]


@pytest.mark.parametrize("raised", [KeyboardInterrupt, click.Abort])
def test_an_interrupt_ends_with_130_and_one_line(
    raised: type[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    def stop() -> None:
        raise raised

    assert exit_status(stop) == INTERRUPTED
    assert capsys.readouterr().err == "weft: interrupted\n"


def test_a_reader_that_closes_the_pipe_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    code = "import sys; from weft_cli import main; sys.exit(main(['completion', 'fish']))"
    try:
        shown = subprocess.run(
            [sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    finally:
        os.close(writer)
    assert (shown.returncode, shown.stderr) == (0, "")
