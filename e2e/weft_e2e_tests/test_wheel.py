"""``pip install 'weft[planner]'`` of a built wheel in an empty environment brings `weft plan` and `weft local`."""

import json
import tomllib
from pathlib import Path

import pytest

from weft_e2e_tests.wheel_environments import ROOT, Environment, build_wheel, install

pytestmark = pytest.mark.component

COLD_S = 180.0
"""For a first plan, which compiles the simulator, on a machine that does other things beside."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def planner(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Give an environment with the extra that people plan with."""
    return install(wheel, tmp_path_factory.mktemp("planner") / "venv", extras=["planner"])


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Give an environment without any extra."""
    return install(wheel, tmp_path_factory.mktemp("bare") / "venv", extras=[])


def test_it_says_its_version(bare: Environment) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

    shown = bare.run("weft", "--version")

    assert (shown.returncode, shown.stdout) == (0, f"weft {version}\n"), shown.stderr


def test_the_environment_has_the_extra_and_nothing_of_the_checkout(planner: Environment) -> None:
    code = (
        "import importlib.util as u, weft_core, weft_e2e\n"
        "print(weft_core.__file__, weft_e2e.__file__)\n"
        "print([m for m in ('kopf', 'kubernetes', 'pytest', 'weft_e2e_tests', 'hatchling') if u.find_spec(m)])\n"
    )

    shown = planner.run("python", "-c", code)

    places, others = shown.stdout.splitlines()
    assert all(place.startswith(str(planner.folder)) for place in places.split()), places
    assert others == "[]"


def test_a_service_is_planned_and_every_field_checked(planner: Environment) -> None:
    example = planner.site / "weft_e2e/examples/llama-3.1-70b.yaml"

    shown = planner.run("weft", "plan", "-f", str(example), timeout_s=COLD_S)

    assert shown.returncode == 0, shown.stderr
    assert "prefill" in shown.stdout
    assert "were checked" not in shown.stderr

    wrong = planner.home / "wrong.yaml"
    wrong.write_text(example.read_text().replace("maxModelLen", "maxModelLength"))
    refused = planner.run("weft", "plan", "-f", str(wrong), timeout_s=COLD_S)
    assert refused.returncode == 2
    assert "maxModelLength" in refused.stderr


def test_the_demos_service_runs_without_a_file_and_its_sessions_are_replayed(planner: Environment) -> None:
    args = ("--replay", "gaia_whowhen", "--sessions", "2", "--time-scale", "0.05")

    shown = planner.run("weft", "local", *args, timeout_s=COLD_S)

    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "SLO attainment" in shown.stdout
    out = planner.home / "out/local"
    assert "Weft demo report" in (out / "report.html").read_text()
    assert json.loads((out / "figures.json").read_text())["problems"] == []


@pytest.mark.parametrize("command", ["plan", "local"])
def test_without_the_extra_it_is_named(bare: Environment, command: str) -> None:
    example = bare.site / "weft_e2e/examples/llama-3.1-8b.yaml"

    shown = bare.run("weft", command, "-f", str(example))

    assert shown.returncode == 1
    assert "pip install 'weft[planner]'" in shown.stderr
    assert len(shown.stderr.splitlines()) == 1


@pytest.mark.parametrize(("command", "extra"), [("operator", "operator"), ("router --role standalone", "router")])
def test_other_parts_name_their_extra(bare: Environment, command: str, extra: str) -> None:
    shown = bare.run("weft", *command.split())

    assert shown.returncode == 1
    assert f"pip install 'weft[{extra}]'" in shown.stderr
