"""The cluster as an object, for the demo and for tests."""

import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from weft_e2e.cluster import fake_nodes, forward, images, kubectl, lifecycle, policies, state, status
from weft_e2e.cluster.config import ClusterConfig, context_name
from weft_e2e.cluster.errors import NotRunning
from weft_e2e.cluster.lifecycle import Progress, silent
from weft_e2e.cluster.paths import ClusterPaths
from weft_e2e.cluster.status import NodeStatus


@dataclass(frozen=True)
class Cluster:
    """A local cluster by its name; every method asks the machine, nothing is remembered."""

    name: str

    @property
    def paths(self) -> ClusterPaths:
        return ClusterPaths.of(self.name)

    @property
    def kubeconfig(self) -> Path:
        return self.paths.kubeconfig

    @property
    def context(self) -> str:
        return context_name(self.name)

    @property
    def api_url(self) -> str:
        return f"https://127.0.0.1:{state.require(self.paths).api_port}"

    @property
    def config(self) -> ClusterConfig:
        return state.require(self.paths).config

    def kubectl(
        self,
        *args: str,
        input: str | None = None,  # noqa: A002  # the name that subprocess.run gives it
        timeout: float = 60.0,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl; with `check`, a failure is a CommandError with kubectl's words. `timeout` in seconds."""
        return kubectl.run(kubectl.kubectl_argv(*args), self.kubeconfig, stdin=input, timeout=timeout, check=check)

    def helm(self, *args: str, timeout: float = 120.0, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run helm as `kubectl` runs kubectl."""
        return kubectl.run(kubectl.helm_argv(*args), self.kubeconfig, timeout=timeout, check=check)

    def load(self, sources: Sequence[str], progress: Progress = silent) -> None:
        """Bring images (buildah's, or archive files) to every node whose power is on."""
        paths = self.paths
        pids = lifecycle.node_pids(paths, state.require(paths).config)
        if not pids:
            raise NotRunning(f"no node of cluster {self.name!r} is on")
        images.load(pids, sources, progress)

    def power_off(self, node: str) -> None:
        """Cut the power of a node; Kubernetes notices about 20 s later."""
        lifecycle.power_off(self.name, node)

    def power_on(self, node: str) -> None:
        """Switch a node on again and wait until it is Ready."""
        lifecycle.power_on(self.name, node)

    def fake_nodes(self, count: int, progress: Progress = silent) -> None:
        """Make the number of KWOK nodes `count`; the program is built where it is missing."""
        fake_nodes.scale(self.paths, count, progress)

    def enforce_policies(self, progress: Progress = silent) -> None:
        """Have NetworkPolicies enforced on every node that is on; the program is built where it is missing."""
        policies.enforce(self.paths, progress)

    def in_network(self, *argv: str) -> list[str]:
        """Return the command that runs a program of this machine in the network of the control plane, as root."""
        return forward.in_network(self.paths, *argv)

    def forward_to(self, address: str, port: int) -> AbstractContextManager[str]:
        """Return a context manager that yields "http://127.0.0.1:PORT" for an address as the control plane sees it."""
        return forward.forward_to(self.paths, address, port)

    def nodes(self) -> tuple[NodeStatus, ...]:
        return status.read(self.paths).nodes

    def host_forward(
        self, service_namespace: str, service: str, port: int, local_port: int = 0
    ) -> AbstractContextManager[str]:
        """Return a context manager that yields "http://127.0.0.1:PORT" for `port` of a Service with an address."""
        return forward.host_forward(self.paths, service_namespace, service, port, local_port)


def up(config: ClusterConfig, progress: Progress = silent) -> Cluster:
    """Start the cluster, or make sure that it runs as asked; see lifecycle.up."""
    lifecycle.up(config, progress)
    return Cluster(config.name)


def down(name: str) -> bool:
    """End the cluster and remove all of it; return whether there was anything."""
    return lifecycle.down(name)
