"""The forms of a result, and how faults of files are printed."""

import json
from collections.abc import Callable

import click
import pytest
import yaml

from weft_cli.errors import BadInputError, lines_of
from weft_cli.output import emit, output_option
from weft_cli.running import run

BODY = {"gpus": 8, "note": "für alle", "groups": [{"role": "prefill"}]}


@click.command()
@output_option
def show(output: str) -> None:
    emit(output, BODY, lambda: "GPUS  8")


@pytest.mark.parametrize(
    ("words", "read"),
    [([], str), (["-o", "table"], str), (["--output", "json"], json.loads), (["-o", "yaml"], yaml.safe_load)],
)
def test_a_result_is_a_table_unless_a_program_asks(
    words: list[str], read: Callable[[str], object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(show, words, prog="weft") == 0
    shown = capsys.readouterr().out
    assert read(shown) == ("GPUS  8\n" if read is str else BODY)
    assert shown.endswith("\n")
    assert not shown.endswith("\n\n")


def test_each_fault_of_a_file_is_a_line_with_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    def refuse() -> None:
        raise BadInputError("-", "spec.a: wrong", "spec.b: wrong", elsewhere=[("gpus.yaml", "gpus: missing")])

    assert run(refuse, [], prog="weft") == 2
    assert capsys.readouterr().err == "stdin: spec.a: wrong\nstdin: spec.b: wrong\ngpus.yaml: gpus: missing\n"


@pytest.mark.parametrize(
    ("error", "path", "lines"),
    [
        (FileNotFoundError(2, "No such file or directory", "a/x.csv"), "a/x.csv", ["No such file or directory"]),
        (OSError("device gone"), "x.csv", ["device gone"]),
        (ValueError("x.csv: row 3: no number\nrow 4: no number"), "a/x.csv", ["row 3: no number", "row 4: no number"]),
        (ValueError("a/x.csv, row 3: no number"), "a/x.csv", ["row 3: no number"]),
        (ValueError("stdin: row 3: no number"), "-", ["row 3: no number"]),
        (ValueError("row 3: x.csv is no number"), "x.csv", ["row 3: x.csv is no number"]),
    ],
)
def test_an_errors_lines_come_without_the_files_name(error: Exception, path: str, lines: list[str]) -> None:
    assert lines_of(error, path) == lines
