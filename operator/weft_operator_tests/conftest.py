"""Fixtures of the tests that need a cluster."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from weft_operator_tests.cluster import Kube

CRDS = Path(__file__).parents[2] / "crds"


@pytest.fixture(scope="session")
def kube() -> Kube:
    """Give kubectl for the cluster that WEFT_TEST_KUBECONFIG names, and refuse to guess one."""
    config = os.environ.get("WEFT_TEST_KUBECONFIG")
    if not config:
        pytest.fail("WEFT_TEST_KUBECONFIG is not set: name the kubeconfig of a cluster for tests, or use make test")
    return Kube(Path(config))


@pytest.fixture(scope="session")
def crds(kube: Kube) -> Iterator[None]:
    """Have the CRDs in the cluster; those that were not there before are removed afterwards."""
    missing = []
    for path in sorted(CRDS.glob("*.yaml")):
        if not kube.exists("crd", path.name.removesuffix(".yaml").partition("_")[2] + ".weft.dev"):
            kube.run("apply", "--server-side", "-f", str(path))
            missing.append(path)
    kube.run("wait", "--for=condition=Established", "--timeout=30s", "-f", str(CRDS))
    yield
    for path in missing:
        kube.run("delete", "--wait=false", "-f", str(path))


@pytest.fixture
def namespace(kube: Kube) -> Iterator[str]:
    """Give a namespace of the test's own."""
    name = f"operator-{secrets.token_hex(3)}"
    kube.run("create", "namespace", name)
    yield name
    kube.run("delete", "namespace", name, "--wait=false")
