"""Fixtures of the tests that need a cluster, and the end of what worlds in memory leave."""

import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from weft_operator_tests.api import RealApi, real_api
from weft_operator_tests.cluster import Kube
from weft_operator_tests.world import end_looks
from weft_router_tests.redis_server import redis_server as redis_server

CRDS = Path(__file__).parents[2] / "crds"


@pytest.fixture(autouse=True)
def no_looks_outlive_a_test() -> Iterator[None]:
    """Leave no thread of a world's measurements to the tests that follow."""
    yield
    end_looks()


@pytest.fixture(scope="session")
def kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    """Give kubectl for the cluster of the tests.

    That is the one $WEFT_TEST_KUBECONFIG names, else the user's own by $KUBE_CONTEXT, else a local cluster named
    ``test``, which is removed afterwards unless it was there before. A current context is never taken by itself.
    """
    config = os.environ.get("WEFT_TEST_KUBECONFIG")
    context = os.environ.get("KUBE_CONTEXT")
    if config:
        yield Kube(Path(config))
    elif context:
        only = ["kubectl", "config", "view", "--minify", "--flatten", f"--context={context}"]
        shown = subprocess.run(only, capture_output=True, text=True, check=False, timeout=30)
        assert shown.returncode == 0, f"KUBE_CONTEXT={context}: {shown.stderr}"
        path = tmp_path_factory.mktemp("kube") / "config"
        path.touch(mode=0o600)
        path.write_text(shown.stdout)
        yield Kube(path)
    else:
        yield from _local()


def _local() -> Iterator[Kube]:
    from weft_e2e.cluster import ClusterConfig, down, up
    from weft_e2e.cluster.config import context_name
    from weft_e2e.cluster.context import made_here

    name = os.environ.get("WEFT_TEST_CLUSTER", "test")
    was_there = context_name(name) in made_here()
    try:
        yield Kube(up(ClusterConfig(name=name)).kubeconfig)
    finally:
        if not was_there and not os.environ.get("WEFT_TEST_KEEP"):
            down(name)


@pytest.fixture(scope="module")
def crds(kube: Kube) -> Iterator[None]:
    """Have today's CRDs in the cluster; those that were not there before are removed after the module.

    They must not stay until the end of the run: Helm installs none over CRDs that it did not make.
    """
    missing = []
    for path in sorted(CRDS.glob("*.yaml")):
        if not kube.exists("crd", path.name.removesuffix(".yaml").partition("_")[2] + ".weft.dev"):
            missing.append(path)
        # Helm's own name, so that a release that is there already can be upgraded afterwards without a conflict.
        kube.run("apply", "--server-side", "--force-conflicts", "--field-manager=helm", "-f", str(path))
    kube.await_definitions(CRDS)
    yield
    for path in missing:
        kube.run("delete", "--timeout=60s", "-f", str(path), timeout=90)


@pytest.fixture
def namespace(kube: Kube) -> Iterator[str]:
    """Give a namespace of the test's own."""
    name = f"operator-{secrets.token_hex(3)}"
    kube.run("create", "namespace", name)
    yield name
    kube.run("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApi]:
    """Give an API server of the tests' own, with a proxy in front of it and nodes and pods that only pretend."""
    from weft_operator_tests.programs import program

    for name in ("kubernetes", "helm"):
        program(name)
    with real_api(tmp_path_factory.mktemp("api")) as running:
        yield running
