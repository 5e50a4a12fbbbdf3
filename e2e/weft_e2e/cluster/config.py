"""What a cluster is asked to be. Pure."""

import re
from dataclasses import asdict, dataclass, fields

from weft_e2e.cluster.addresses import IP_FAMILIES, Addresses, IpFamily, addresses_of
from weft_e2e.cluster.errors import Refused

CONTROL_PLANE = "control-plane"
DEFAULT_HOST_PORT = 16443  # on the machine's loopback; 6443 stays free for a real cluster
CLUSTER_DOMAIN = "cluster.local"
MAX_NODES = 8  # more kubelets than two cores carry well


def check_name(name: str) -> None:
    """Raise Refused unless `name` can be a cluster's, and so the name of a folder and of a control group."""
    # 20 characters keep names of control groups and files readable in listings.
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?", name):
        raise Refused(f"name {name!r}: use 1 to 20 lower-case letters, digits and dashes, with no dash at either end")


@dataclass(frozen=True)
class ClusterConfig:
    """One local cluster: its name, its size, and what its nodes pretend to hold."""

    name: str = "local"
    nodes: int = 2
    gpus: int = 8
    rdma: int = 8
    gpu_type: str = "nvidia-h20"
    api_port: int | None = None  # None: DEFAULT_HOST_PORT, or any free port where that is taken
    ip_family: IpFamily = "ipv4"  # of nodes, pods and Services; the machine reaches the API server by IPv4 in any case

    def __post_init__(self) -> None:
        check_name(self.name)
        if not 1 <= self.nodes <= MAX_NODES:
            raise Refused(f"nodes {self.nodes}: choose 1 to {MAX_NODES}; for more, add fake nodes")
        for field, count in (("gpus", self.gpus), ("rdma", self.rdma)):
            if not 0 <= count <= 64:
                raise Refused(f"{field} {count}: choose 0 to 64 per node")
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", self.gpu_type):
            raise Refused(f"gpu-type {self.gpu_type!r}: must be a Kubernetes label value")
        if self.api_port is not None and not 1024 <= self.api_port <= 65535:
            raise Refused(f"api-port {self.api_port}: choose 1024 to 65535")
        if self.ip_family not in IP_FAMILIES:
            raise Refused(f"ip-family {self.ip_family!r}: choose {', '.join(IP_FAMILIES)}")

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"node-{i}" for i in range(1, self.nodes + 1))

    @property
    def members(self) -> tuple[str, ...]:
        return (CONTROL_PLANE, *self.node_names)

    @property
    def addresses(self) -> Addresses:
        return addresses_of(self.ip_family)

    def to_dict(self) -> dict[str, str | int | None]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: object) -> "ClusterConfig":
        """Build from a state file; raise ValueError when it has other fields (another version wrote it)."""
        known = {field.name for field in fields(cls)}
        if not isinstance(values, dict) or values.keys() != known:
            raise ValueError(f"expected the fields {sorted(known)}, got {values!r}")
        return cls(**values)

    def differences(self, other: "ClusterConfig") -> list[str]:
        """Return the fields in which `other` asks for something else, as "gpus (8, asked 4)"."""
        return [
            f"{field.name} ({getattr(self, field.name)}, asked {getattr(other, field.name)})"
            for field in fields(self)
            if getattr(self, field.name) != getattr(other, field.name)
            and not (field.name == "api_port" and other.api_port is None)
        ]


def node_index(node: str) -> int:
    """Return i of "node-i"."""
    return int(node.removeprefix("node-"))


def context_name(name: str) -> str:
    """Return the kubectl context of the cluster `name`."""
    return f"weft-{name}"
