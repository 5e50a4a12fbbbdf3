"""NetworkPolicies that are enforced: kube-router's firewall on every node, beside the plain network of the cluster."""

import json
import os

from weft_e2e.cluster import members, state, toolchain
from weft_e2e.cluster.config import ClusterConfig, node_index
from weft_e2e.cluster.lifecycle import Progress, node_pids, silent
from weft_e2e.cluster.packages import SYSTEM_PATH
from weft_e2e.cluster.paths import ClusterPaths
from weft_e2e.cluster.specs import MemberService, MemberSpec
from weft_e2e.cluster.toolchain import tool_path

NAME = "kube-router"
_HEALTH_PORT = 20244


def enforce(paths: ClusterPaths, progress: Progress = silent) -> None:
    """Run the firewall on every node that is on, building it where it is missing; a node loses it with its power.

    Rules follow within half a second after an object has changed. Running it again changes nothing.
    """
    toolchain.build_all(progress, only=frozenset({NAME}))
    with state.locked(paths):
        config = state.require(paths).config
        for node in node_pids(paths, config):
            _add(config, paths, node)


def firewall_service(config: ClusterConfig, paths: ClusterPaths, node: str) -> MemberService:
    """Return the program of one node; its rules are in the node's own network namespace."""
    return MemberService(
        NAME,
        [
            str(tool_path(NAME)),
            f"--kubeconfig={paths.root / 'admin.kubeconfig'}",
            f"--hostname-override={node}",
            "--run-firewall=true",
            "--run-router=false",
            "--run-service-proxy=false",
            "--run-loadbalancer=false",
            *family_flags(config),
            "--metrics-port=0",
            f"--health-port={_HEALTH_PORT + node_index(node)}",
        ],
        env={"NODE_NAME": node, "PATH": f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"},
    )


def family_flags(config: ClusterConfig) -> list[str]:
    """Return the firewall's flags for the cluster's addresses."""
    ipv4, ipv6 = config.ip_family != "ipv6", config.ip_family != "ipv4"
    return [
        f"--service-cluster-ip-range={config.addresses.services}",
        f"--enable-ipv4={str(ipv4).lower()}",
        f"--enable-ipv6={str(ipv6).lower()}",
    ]


def _add(config: ClusterConfig, paths: ClusterPaths, node: str) -> None:
    values = json.loads((paths.member(node) / "init-spec.json").read_text())
    services = [MemberService(**item) for item in values.pop("services")]
    if any(service.name == NAME for service in services):
        return
    services.append(firewall_service(config, paths, node))
    members.signal_reload(paths, node, MemberSpec(**values, services=services))
