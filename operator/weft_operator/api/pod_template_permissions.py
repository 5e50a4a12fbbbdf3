"""What a cluster administrator may let services do beyond the allow-list of pod templates, everywhere or somewhere."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

VOLUME_TYPES = (
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "csi",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "glusterfs",
    "hostPath",
    "iscsi",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
)
"""Types of volumes that reach beyond the namespace; each is a permission of its own."""

PERMISSIONS: Mapping[str, str] = MappingProxyType(
    {
        **{name: f"volumes of type {name}" for name in VOLUME_TYPES},
        "hostPath": "volumes of type hostPath, any path of a node as `cache.node.path`, and `spec.kvCache.disk.path`",
        "appArmor": "another AppArmor profile than that of the container runtime",
        "capabilities": "capabilities beside IPC_LOCK and NET_BIND_SERVICE, and fewer dropped ones than all",
        "dns": "name servers, search domains and host aliases of the pods, by which the router would find Redis",
        "hostPorts": "ports of the node",
        "hostProbes": "probes and hooks that the kubelet sends to another host than the pod",
        "injectors": "annotations by which others add networks, credentials or containers to pods: those of Multus, "
        "`iam.amazonaws.com/`, `vault.hashicorp.com/` and Istio",
        "mountPropagation": "mounts that the node sees, too",
        "privileged": "privileged containers and privilege escalation",
        "procMount": "an unmasked /proc",
        "routerEnv": "any variable of the router's container, by which it would load other code or trust other hosts",
        "routerMounts": "volumes of the author's in the router's container",
        "runAsRoot": "user 0, group 0 and images that run as root",
        "runtimeAnnotations": "annotations by which container runtimes inject devices (`cdi.k8s.io/`, `nri.io/`), run "
        "hooks or isolate pods (containerd, CRI-O, runc, crun, gVisor, Kata)",
        "seLinux": "SELinux options",
        "seccomp": "another seccomp profile than that of the container runtime",
        "secrets": "Secrets without the label weft.dev/use",
        "serviceAccountToken": "tokens of the service's ServiceAccount, and certificates of the pod",
        "sysctls": "kernel parameters that are not safe",
        "systemPriority": "PriorityClasses whose name begins with `system-`, in fields as in patches",
        "windowsOptions": "options of Windows containers",
        "writableClaims": "PersistentVolumeClaims without `readOnly: true`, also those of other services' weights, "
        "and `spec.kvCache.disk.claim`",
    }
)
"""By name, what each of them lets a service do."""


@dataclass(frozen=True, slots=True)
class Permission:
    """One permission; in all namespaces where it names none."""

    name: str
    namespaces: tuple[str, ...] = ()


def permissions_from_json(text: str) -> tuple[Permission, ...]:
    """Read a list of names, or of objects with name and namespaces.

    Raises:
        ValueError: it is nothing of the kind; the message says what is wrong with it.
    """
    found = json.loads(text or "[]")
    if not isinstance(found, list):
        raise ValueError("give a JSON list")
    return tuple(_permission(item) for item in found)


def permitted_in(permissions: Collection[Permission], namespace: str) -> frozenset[str]:
    """Return the names of what services of a namespace may do."""
    return frozenset(item.name for item in permissions if not item.namespaces or namespace in item.namespaces)


def _permission(item: Any) -> Permission:
    body = {"name": item} if isinstance(item, str) else item
    if not isinstance(body, dict) or set(body) - {"name", "namespaces"} or body.get("name") not in PERMISSIONS:
        raise ValueError(f"{item!r} is none of {', '.join(sorted(PERMISSIONS))}, with or without namespaces")
    namespaces = body.get("namespaces", [])
    if not isinstance(namespaces, list) or not all(isinstance(name, str) and name for name in namespaces):
        raise ValueError(f"{item!r}: namespaces must be a list of names")
    if "namespaces" in body and not namespaces:
        raise ValueError(f"{item!r}: names no namespace; leave namespaces out for all of them")
    return Permission(body["name"], tuple(namespaces))
