"""The group of commands: it finds them by entry points, loads only the called one, and says what is not installed."""

from importlib.metadata import EntryPoint, entry_points

import click
import pytest

import weft_cli as cli
import weft_cli.completion
from weft_cli.commands import known_help
from weft_cli_tests.processes import python

HEAVY = ("numpy", "numba", "yaml", "rich", "kubernetes", "kopf", "aiohttp", "pyscipopt", "pydantic", "matplotlib")
POINTS = sorted(entry_points(group=cli.GROUP), key=lambda point: point.name)


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_the_help_of_weft_says_what_the_command_says(point: EntryPoint) -> None:
    command = point.load()
    assert isinstance(command, click.Command)
    assert command.name == point.name
    assert known_help()[point.name] == command.get_short_help_str(limit=200)


def test_the_help_loads_no_command_and_nothing_heavy() -> None:
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


def test_a_command_loads_only_its_own_part() -> None:
    """The router's image has no solver."""
    code = (
        "import sys, weft_cli, weft_planner.cli.plan; "
        "print([name for name in ('pyscipopt', 'numpy', 'yaml') if name in sys.modules])"
    )
    shown = python(code)
    assert (shown.returncode, shown.stdout) == (0, "[]\n"), shown.stderr


def install(monkeypatch: pytest.MonkeyPatch, *points: tuple[str, str]) -> None:
    found = [EntryPoint(name, value, cli.GROUP) for name, value in points]
    monkeypatch.setattr(cli, "entry_points", lambda **_: found)


PLAN = ("plan", "weft_planner.cli.plan:plan")
"""A command that is installed, and two whose packages are not: one of Weft's own, one of another package."""
ROUTER = ("router", "weft_no_such_part.cli:router")
FLY = ("fly", "weft_no_such_part.cli:fly")


def test_the_help_lists_commands_of_other_packages_and_says_which_are_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, PLAN, ROUTER, FLY)
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "or a gateway. (not installed)" in " ".join(shown.split())
    assert shown.rstrip().endswith("fly  (not installed)")
    assert "cluster" not in shown


def test_an_unknown_command_lists_the_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, PLAN, FLY)
    assert cli.main(["flan"]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "unknown command 'flan'; did you mean 'plan'? the commands are plan, fly" in shown
    assert cli.main(["operate"]) == 2
    assert "unknown command 'operate'; the commands are plan, fly" in " ".join(capsys.readouterr().err.split())


def test_a_command_that_is_not_installed_says_so_when_called(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, ROUTER, FLY)
    assert cli.main(["fly"]) == 1
    shown = capsys.readouterr().err
    assert "weft fly: this installation lacks it (No module named 'weft_no_such_part')" in shown
    assert shown.endswith("; install weft with the part's extra\n")
    assert cli.main(["router"]) == 1
    assert capsys.readouterr().err.endswith("; pip install 'weft[router]'\n")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def without(_: str) -> None:
        raise ModuleNotFoundError("No module named 'rich'", name="rich")

    monkeypatch.setattr(weft_cli.completion, "get_completion_class", without)
    assert cli.main(["completion", "bash"]) == 1
    assert "weft completion: this installation lacks rich; " in capsys.readouterr().err


def test_version_and_no_command() -> None:
    assert cli.main(["--version"]) == 0
    assert cli.main([]) == 2
