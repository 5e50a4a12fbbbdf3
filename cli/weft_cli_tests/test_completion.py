"""Completion: scripts for shells, and the program that kubectl asks."""

import pytest

import weft_cli as cli
from weft_cli.completion import for_kubectl
from weft_cli_tests.processes import python


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_names_the_program(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    shown = capsys.readouterr().out
    assert "_WEFT_COMPLETE" in shown
    assert "weft" in shown


def test_an_unknown_shell_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "tcsh"]) == 2
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "number", "expected"),
    [("weft pl", "1", "plan"), ("weft plan --obj", "2", "--objective"), ("weft plan -o ", "3", "yaml")],
)
def test_words_are_completed_for_a_shell(words: str, number: str, expected: str) -> None:
    shown = python(
        "from weft_cli import main; main()",
        variables={"_WEFT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": number},
    )
    assert f"plain,{expected}" in shown.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "expected", "last"),
    [
        (["pl"], "plan\tPlan a service's workers", ":4"),
        (["rollout", "pro"], "promote\tEnd the canary", ":4"),
        (["plan", "-o", ""], "yaml", ":4"),
        (["explain", "RolloutA"], "RolloutAborted", ":4"),
        (["plan", "-f", ""], ":0", ":0"),
        ([], "status\tShow a service", ":4"),
    ],
)
def test_words_are_completed_for_kubectl(
    words: list[str], expected: str, last: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert for_kubectl(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(expected) for line in lines), lines
    assert lines[-1] == last
    assert not any(line.startswith(":") for line in lines[:-1])
