"""The addresses of a cluster's nodes, pods and Services, in each family of addresses. Pure."""

from dataclasses import dataclass
from typing import Literal, get_args

from weft_core.authority import http_url

IpFamily = Literal["ipv4", "ipv6", "dual"]
IP_FAMILIES: tuple[IpFamily, ...] = get_args(IpFamily)
API_PORT = 6443  # inside the cluster
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class AddressFamily:
    """The addresses of one family; those of node i are made from ``node`` and ``pods``."""

    control_plane: str
    node_prefix: int
    node: str
    pods: str
    services: str
    api_service: str
    dns: str
    everywhere: str
    flags: tuple[str, ...] = ()
    """How `ip` adds an address of a node."""

    def node_ip(self, index: int) -> str:
        """Return the address of node ``index``, counted from 1."""
        return self.node.format(10 + index)

    def pod_cidr(self, index: int) -> str:
        """Return the addresses of the pods on node ``index``."""
        return self.pods.format(index)

    @property
    def control_plane_on_link(self) -> str:
        """Return the control plane's address with the length of the nodes' network."""
        return f"{self.control_plane}/{self.node_prefix}"

    def node_on_link(self, index: int) -> str:
        """Return a node's address with the length of the nodes' network."""
        return f"{self.node_ip(index)}/{self.node_prefix}"


IPV4 = AddressFamily(
    control_plane="172.30.0.1",
    node_prefix=24,
    node="172.30.0.{}",
    pods="10.244.{}.0/24",
    services="10.96.0.0/16",
    api_service="10.96.0.1",
    dns="10.96.0.10",
    everywhere="0.0.0.0/0",
)
# Unique local addresses (RFC 4193); they never leave the cluster's own network namespaces.
IPV6 = AddressFamily(
    control_plane="fd00:30::1",
    node_prefix=64,
    node="fd00:30::{}",
    pods="fd00:244:{}::/64",
    services="fd00:96::/112",  # the API server takes at most 20 bits for Services
    api_service="fd00:96::1",
    dns="fd00:96::a",
    everywhere="::/0",
    flags=("nodad",),  # nobody else has these addresses; until the kernel had made sure, nothing could use them
)


@dataclass(frozen=True)
class Addresses:
    """The families that a cluster has; the first one is that of Services which ask for one address."""

    families: tuple[AddressFamily, ...]

    @property
    def control_plane(self) -> str:
        """Return where nodes reach the API server."""
        return self.families[0].control_plane

    @property
    def api_url(self) -> str:
        """Return the URL of the API server inside the cluster."""
        return http_url(self.control_plane, API_PORT).replace("http:", "https:", 1)

    @property
    def dns(self) -> str:
        """Return the address of cluster DNS."""
        return self.families[0].dns

    @property
    def services(self) -> str:
        """Return the ranges of Services, joined as Kubernetes' programs take them."""
        return ",".join(family.services for family in self.families)

    def node_ips(self, index: int) -> str:
        """Return the addresses of a node, joined as the kubelet takes them."""
        return ",".join(family.node_ip(index) for family in self.families)


_ADDRESSES: dict[str, Addresses] = {
    "ipv4": Addresses((IPV4,)),
    "ipv6": Addresses((IPV6,)),
    "dual": Addresses((IPV4, IPV6)),
}


def addresses_of(ip_family: IpFamily) -> Addresses:
    """Return the addresses of a cluster with these families."""
    return _ADDRESSES[ip_family]
