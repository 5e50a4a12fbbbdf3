"""A real Kubernetes on one Linux machine: containerd, kubelets and a control plane in namespaces of their own."""

from weft_e2e.cluster.config import ClusterConfig
from weft_e2e.cluster.errors import ClusterError, CommandError, NotRunning, Refused, SetupError, StartError
from weft_e2e.cluster.handle import Cluster, down, up

__all__ = [
    "Cluster",
    "ClusterConfig",
    "ClusterError",
    "CommandError",
    "NotRunning",
    "Refused",
    "SetupError",
    "StartError",
    "down",
    "up",
]
