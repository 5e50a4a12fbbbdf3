"""What gateways need of a cluster: the release with Weft's own, and the kinds that other projects define."""

from collections.abc import Iterator
from contextlib import contextmanager

from weft_e2e.cluster.toolchain import build_all, manifests_of
from weft_e2e.demo.settings import CHART, RELEASE, SYSTEM_NAMESPACE, repository_root
from weft_e2e.kube import Kube

_DEFINITIONS = {"gateway-api": "httproutes", "inference-extension": "inference.networking.k8s.io_inferencepools"}
"""The projects that define HTTPRoute and InferencePool, and the names of the files with them."""


@contextmanager
def release_restored(client: Kube) -> Iterator[None]:
    """Let the block change the release; it is as it was afterwards."""
    was = release_revision(client)
    try:
        yield
    finally:
        if release_revision(client) != was:
            client.helm("rollback", RELEASE, was, "-n", SYSTEM_NAMESPACE, "--wait", timeout=270)


def release_revision(client: Kube) -> str:
    """Return the number of the release that is installed."""
    listed = client.helm("history", RELEASE, "-n", SYSTEM_NAMESPACE, "--max", "1").stdout.splitlines()
    return listed[-1].split()[0]


def change_release(client: Kube, *words: str) -> None:
    """Upgrade the release by some words of Helm's command line, and wait until its pods are ready."""
    chart = str(repository_root() / CHART)
    client.helm("upgrade", RELEASE, chart, "-n", SYSTEM_NAMESPACE, *words, "--wait", timeout=270)


@contextmanager
def gateway_kinds(client: Kube) -> Iterator[None]:
    """Define HTTPRoute and InferencePool for the block, as their projects do; they are downloaded the first time."""
    build_all(lambda _: None, frozenset(_DEFINITIONS))
    files = [str(path) for name, part in _DEFINITIONS.items() for path in manifests_of(name) if part in path.name]
    if len(files) != len(_DEFINITIONS):
        raise LookupError(f"one file for each of {', '.join(_DEFINITIONS)} was expected: {', '.join(files) or 'none'}")
    listed = [word for file in files for word in ("-f", file)]
    client.kubectl("apply", "--server-side", *listed)
    try:
        client.kubectl("wait", "--for=condition=Established", "--timeout=60s", *listed, timeout=90)
        yield
    finally:
        client.kubectl("delete", "--ignore-not-found", "--wait=false", *listed)
