"""Fixtures of the end-to-end tests: one cluster with Weft for the run, one namespace for each test."""

import secrets
from collections.abc import Iterator

import pytest

from weft_e2e.engines.process import EngineProcess
from weft_e2e.scenarios.installed import Installed, installed
from weft_e2e_tests.engine_stack import plain_engine


@pytest.fixture(scope="session")
def weft() -> Iterator[Installed]:
    """Give a cluster with Weft installed."""
    with installed() as found:
        yield found


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """Give a real engine without disaggregation, which may still be starting."""
    with plain_engine(tmp_path_factory.mktemp("plain")) as found:
        yield found


@pytest.fixture
def namespace(weft: Installed, request: pytest.FixtureRequest) -> Iterator[str]:
    """Give a namespace of the test's own; it is deleted afterwards, without waiting for the end of that.

    What the test before has hurt has come back by then.
    """
    weft.wait_whole(timeout_s=120)
    words = request.node.name.removeprefix("test_").split("[")[0].replace("_", "-")[:30].rstrip("-")
    name = f"e2e-{words}-{secrets.token_hex(2)}"
    weft.kube.kubectl("create", "namespace", name)
    try:
        yield name
    finally:
        weft.kube.kubectl("delete", "namespace", name, "--wait=false")
