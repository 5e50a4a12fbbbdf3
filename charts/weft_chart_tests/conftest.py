"""Fixtures that render the chart with Helm."""

import subprocess
from collections.abc import Callable

import pytest
import yaml

from weft_chart_tests.rendering import CHART, NAMESPACE, REGISTRY, Helm, Render, Rendered, arguments, steady
from weft_e2e.cluster.toolchain import tool_path


@pytest.fixture(scope="session")
def helm() -> Helm:
    """Return a function that runs Helm and returns what it said."""
    program = str(tool_path("helm"))

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([program, *words], capture_output=True, text=True, timeout=60, check=False)

    return run


@pytest.fixture(scope="session")
def render(helm: Helm) -> Render:
    """Return a function that renders the chart with values, with a registry unless told otherwise."""
    known: dict[tuple[str, ...], Rendered] = {}

    def run(*values: str, registry: bool = True) -> Rendered:
        words = [*([REGISTRY] if registry else []), *values]
        if tuple(words) not in known:
            done = helm("template", "weft", str(CHART), "--namespace", NAMESPACE, *arguments(words))
            assert done.returncode == 0, done.stderr
            text = steady(done.stdout)
            objects = tuple(item for item in yaml.safe_load_all(text) if item)
            known[tuple(words)] = Rendered(text=text, objects=objects)
        return known[tuple(words)]

    return run


@pytest.fixture(scope="session")
def refusal(helm: Helm) -> Callable[..., str]:
    """Return a function that renders the chart with bad values and returns the error."""

    def run(*values: str) -> str:
        done = helm("template", "weft", str(CHART), "--namespace", NAMESPACE, *arguments(values))
        assert done.returncode != 0, f"accepted: {values}"
        return done.stderr

    return run
