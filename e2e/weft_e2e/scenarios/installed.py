"""A cluster with Weft on it, shared by all end-to-end tests of a run."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from weft_e2e import cluster, images, kube
from weft_e2e.cluster import Cluster, ClusterConfig
from weft_e2e.cluster.config import context_name
from weft_e2e.cluster.context import made_here, require_named_context
from weft_e2e.cluster.coredns import NAMESPACE as DNS_NAMESPACE
from weft_e2e.demo.install import install_chart
from weft_e2e.demo.settings import RELEASE, SYSTEM_NAMESPACE, Settings
from weft_e2e.kube import Kube, NamedContext
from weft_e2e.waiting import until

NAME_VARIABLE = "WEFT_TEST_CLUSTER"
KEEP_VARIABLE = "WEFT_TEST_KEEP"
CONTEXT_VARIABLE = "KUBE_CONTEXT"

ANY_USER = {"runAsUser": 1000650000, "runAsGroup": 0}
"""A user as OpenShift's range of a namespace has them, and the group that it gives to all."""


@dataclass(frozen=True, slots=True)
class Installed:
    """The cluster; ``local`` is None on the user's own cluster, where nodes cannot be powered off."""

    kube: Kube
    local: Cluster | None

    def wait_whole(self, *, timeout_s: float) -> None:
        """Wait until all nodes and all parts of Weft (on a local cluster, DNS too) are there and ready."""
        missing: list[str] = []

        def whole() -> bool:
            missing[:] = self._missing()
            return not missing

        until(whole, what="a whole cluster", timeout_s=timeout_s, last=lambda: f"not ready: {', '.join(missing)}")

    def _missing(self) -> list[str]:
        """Return what is not ready."""
        nodes = [] if self.local is None else self.local.nodes()
        found = [node.name for node in nodes if not node.ready]
        for namespace in (SYSTEM_NAMESPACE, *([] if self.local is None else [DNS_NAMESPACE])):
            for deployment in kube.items(self.kube, "deployments", namespace=namespace):
                status, wanted = deployment.get("status") or {}, deployment["spec"]["replicas"]
                counts = [status.get(name, 0) for name in ("replicas", "updatedReplicas", "availableReplicas")]
                if counts != [wanted] * 3:
                    found.append(f"{namespace}/{deployment['metadata']['name']}")
        return found


@contextmanager
def installed() -> Iterator[Installed]:
    """Yield a cluster with Weft installed.

    By default a local cluster named ``test`` (or $WEFT_TEST_CLUSTER), removed afterwards unless it was there before
    or $WEFT_TEST_KEEP is set; the chart's pods run there as they would on OpenShift. With $KUBE_CONTEXT the user's
    cluster: images from $REGISTRY and $TAG are installed where there is no release yet.
    """
    context = os.environ.get(CONTEXT_VARIABLE)
    if context:
        require_named_context(context, named=context)
        named = NamedContext(context)
        if not named.helm("list", "-n", SYSTEM_NAMESPACE, "--filter", f"^{RELEASE}$", "--short").stdout.strip():
            settings = Settings(registry=os.environ.get("REGISTRY"), tag=os.environ.get("TAG"))
            _install(named, settings.image_arguments())
        yield Installed(kube=named, local=None)
        return
    with installed_locally(ClusterConfig(name=os.environ.get(NAME_VARIABLE, "test"))) as found:
        yield found


@contextmanager
def installed_locally(config: ClusterConfig) -> Iterator[Installed]:
    """Yield a local cluster with Weft installed, removed afterwards unless it was there or $WEFT_TEST_KEEP is set."""
    was_there = context_name(config.name) in made_here()
    local = cluster.up(config)
    try:
        # As they are published: what is tested is what serves.
        built = images.build(compiled=True)
        local.load(list(built.values()))
        _install(local, [*images.chart_values(built), *_as_on_openshift()])
        yield Installed(kube=local, local=local)
    finally:
        if not was_there and not os.environ.get(KEEP_VARIABLE):
            cluster.down(config.name)


def _as_on_openshift() -> list[str]:
    """Return values with which nothing but the cluster chooses users, and the user that it chooses."""
    values = ["platform.openshift=true"]
    for component in ("operator", "redis.embedded", "prometheus.embedded"):
        values += [f"{component}.securityContext.{field}={value}" for field, value in ANY_USER.items()]
    return [word for value in values for word in ("--set", value)]


def _install(client: Kube, arguments: list[str]) -> None:
    client.kubectl("create", "namespace", SYSTEM_NAMESPACE, check=False)
    install_chart(client, arguments)
