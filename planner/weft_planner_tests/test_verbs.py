"""The ``weft`` program itself: it finds its verbs, loads only the called one, completes, and says how it ended."""

import os
import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points

import click
import pytest

import weft_cli as cli
from weft_cli.completion import for_kubectl
from weft_cli.running import INTERRUPTED, run
from weft_cli.verbs import known_help

HEAVY = ("numpy", "numba", "yaml", "rich", "kubernetes", "kopf", "aiohttp", "pyscipopt", "pydantic", "matplotlib")
POINTS = sorted(entry_points(group=cli.GROUP), key=lambda point: point.name)


def ended(command: click.Command, *words: str) -> int:
    return run(command, words, prog="weft")


def python(code: str, *, variables: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, env=variables
    )


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_the_help_of_weft_says_what_the_verb_says(point: EntryPoint) -> None:
    command = point.load()
    assert isinstance(command, click.Command)
    assert command.name == point.name
    assert known_help()[point.name] == command.get_short_help_str(limit=200)


def test_the_help_loads_no_verb_and_nothing_heavy(capsys: pytest.CaptureFixture[str]) -> None:
    modules = [point.module for point in POINTS]
    code = (
        "import sys; from weft_cli import main; status = main(['--help']); "
        f"print([name for name in sys.modules if name in {modules + list(HEAVY)!r}]); sys.exit(status)"
    )
    shown = python(code)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.endswith("[]\n")
    for point in POINTS:
        assert f"  {point.name} " in shown.stdout


def test_a_verb_of_another_package_is_listed_and_one_not_installed_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    points = [
        EntryPoint("plan", "weft_planner.cli.plan:plan", cli.GROUP),
        EntryPoint("router", "weft_no_such_part.cli:router", cli.GROUP),
        EntryPoint("fly", "weft_no_such_part.cli:fly", cli.GROUP),
    ]
    monkeypatch.setattr(cli, "entry_points", lambda **_: points)
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "all of them in one process. (not installed)" in " ".join(shown.split())
    assert shown.rstrip().endswith("fly  (not installed)")
    assert "cluster" not in shown


def test_version_and_no_verb() -> None:
    assert cli.main(["--version"]) == 0
    assert cli.main([]) == 2


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
def test_words_are_completed(words: str, number: str, expected: str) -> None:
    shown = python(
        "from weft_cli import main; main()",
        variables={"_WEFT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": number},
    )
    assert f"plain,{expected}" in shown.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "expected", "last"),
    [
        (["pl"], "plan\tPlan a service's workers", ":4"),
        (["rollout", "pro"], "promote\tEnd the trial", ":4"),
        (["plan", "-o", ""], "yaml", ":4"),
        (["explain", "PlanG"], "PlanGivenUp", ":4"),
        (["plan", "-f", ""], ":0", ":0"),
        ([], "status\tShow whether", ":4"),
    ],
)
def test_words_of_the_plugin_are_completed_for_kubectl(
    words: list[str], expected: str, last: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert for_kubectl(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(expected) for line in lines), lines
    assert lines[-1] == last
    assert not any(line.startswith(":") for line in lines[:-1])


def test_what_a_verb_returns_is_the_exit_status() -> None:
    @click.command()
    @click.option("--status", type=int)
    def end(status: int | None) -> int | None:
        return status

    assert [ended(end), ended(end, "--status", "1"), ended(end, "--status", "x")] == [0, 1, 2]


def test_an_interrupt_ends_with_130_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    def stop() -> None:
        raise KeyboardInterrupt

    assert ended(stop) == INTERRUPTED
    assert capsys.readouterr().err == "weft: interrupted\n"


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
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


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import weft_cli.completion as verb

    def without(_: str) -> None:
        raise ModuleNotFoundError("No module named 'rich'", name="rich")

    monkeypatch.setattr(verb, "get_completion_class", without)
    assert cli.main(["completion", "bash"]) == 1
    assert (
        "weft completion: this installation lacks rich; install weft with the part's extra" in capsys.readouterr().err
    )
