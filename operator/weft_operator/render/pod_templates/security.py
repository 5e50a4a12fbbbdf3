"""The security contexts that a patch may set: those of the Pod Security standard ``restricted``, and IPC_LOCK.

IPC_LOCK is allowed in addition because RDMA needs locked memory. It gives no rights over other processes or files, and
the memory counts against the container's limit.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Json = Mapping[str, Any]


class TemplateFault(NamedTuple):
    """A field of a patch that is not on the allow-list, why, and the permission that allows it, if any."""

    field: str
    why: str
    permission: str | None = None


ADDABLE = ("IPC_LOCK", "NET_BIND_SERVICE")
SAFE_SYSCTLS = (
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
)
_PROFILES = ("RuntimeDefault", "Localhost")
_NO_ROOT = "pods of a service do not run as root; give an id of 1 or more"
_CONFINED = "only the profile of the container runtime (RuntimeDefault) or one of the node (Localhost) confines it"
_SET_BY_WEFT = "it must stay as Weft sets it; leave it out"
_LEGACY_PROFILES = {
    "container.apparmor.security.beta.kubernetes.io/": "appArmor",
    "container.seccomp.security.alpha.kubernetes.io/": "seccomp",
    "seccomp.security.alpha.kubernetes.io/": "seccomp",
}
"""Legacy annotations with the meaning of these fields; they still have an effect."""
_RUNTIME_ANNOTATIONS = re.compile(
    r"cdi\.k8s\.io/|io\.kubernetes\.cri|io\.containerd\.|io\.katacontainers\.|org\.systemd\.property\.|run\.oci\."
    r"|dev\.gvisor\.|krun\.|([^/]*\.)?(nri|crio|cri-o)\.io(/|$)|[^/]*\.kubernetes\.cri-o\.io|[^/]*\.io\.kubernetes\.cri-o"
)
"""Annotations that configure containerd, CRI-O, runc, crun, gVisor, Kata and their plug-ins: host devices, hooks,
programs on the node, and the isolation of a pod."""
_INJECTOR_ANNOTATIONS = re.compile(
    r"k8s\.v1\.cni\.cncf\.io/|v1\.multus-cni\.io/|iam\.amazonaws\.com/|vault\.hashicorp\.com/"
    r"|(inject|sidecar|proxy)\.istio\.io/"
)
"""Annotations by which other controllers add networks, credentials and containers to pods."""
_INJECTION_SWITCHES = ("sidecar.istio.io/inject", "vault.hashicorp.com/agent-inject")
"""Those of them that disable an injection when their value is false."""


def security_faults(context: Any, at: str, *, pod: bool) -> Iterator[TemplateFault]:
    """Yield what of a security context of a pod or a container is not on the allow-list."""
    if not isinstance(context, Mapping):
        yield TemplateFault(at, _SET_BY_WEFT, "runAsRoot")
        return
    for name, value in context.items():
        if name == "$patch":
            yield TemplateFault(f"{at}.$patch", _SET_BY_WEFT, "runAsRoot")
            continue
        yield from _field_faults(name, value, f"{at}.{name}", pod=pod)


def annotation_faults(annotations: Mapping[str, Any], at: str) -> Iterator[TemplateFault]:
    """Yield annotations of a pod that choose a profile without confinement, or that runtimes or injectors act on."""
    for name, value in annotations.items():
        for prefix, permission in _LEGACY_PROFILES.items():
            confined = value in ("runtime/default", "docker/default") or str(value).startswith("localhost/")
            if name.startswith(prefix) and not confined:
                yield TemplateFault(f"{at}[{name}]", _CONFINED, permission)
        if _RUNTIME_ANNOTATIONS.match(name):
            yield TemplateFault(
                f"{at}[{name}]", "the container runtime would give devices or rights by it", "runtimeAnnotations"
            )
        if _INJECTOR_ANNOTATIONS.match(name) and not (name in _INJECTION_SWITCHES and value == "false"):
            yield TemplateFault(
                f"{at}[{name}]", "networks, credentials or containers would be added by it", "injectors"
            )


def _field_faults(name: str, value: Any, at: str, *, pod: bool) -> Iterator[TemplateFault]:
    match name:
        case "runAsNonRoot":
            if value is not True:
                yield TemplateFault(at, "pods of a service do not run as root; only true is allowed", "runAsRoot")
        case "runAsUser" | "runAsGroup":
            # Group 0 gives no root rights: OpenShift gives it to all pods, and Pod Security `restricted` allows it.
            group_zero = name == "runAsGroup" and value == 0 and isinstance(value, int) and not isinstance(value, bool)
            if value is not None and not _is_id(value) and not group_zero:
                yield TemplateFault(at, _NO_ROOT, "runAsRoot")
        case "seccompProfile":
            yield from _profile_faults(value, at, "seccomp")
        case "appArmorProfile":
            yield from _profile_faults(value, at, "appArmor")
        case "seLinuxOptions":
            yield TemplateFault(at, "the container runtime chooses the label", "seLinux")
        case "windowsOptions":
            yield TemplateFault(at, "Weft runs on Linux", "windowsOptions")
        case _:
            yield from (_pod_field_faults if pod else _container_field_faults)(name, value, at)


def _pod_field_faults(name: str, value: Any, at: str) -> Iterator[TemplateFault]:
    match name:
        case "fsGroup":
            if not _is_id(value):
                yield TemplateFault(at, _NO_ROOT, "runAsRoot")
        case "supplementalGroups":
            if not isinstance(value, list) or not all(map(_is_id, value)):
                yield TemplateFault(at, _NO_ROOT, "runAsRoot")
        case "fsGroupChangePolicy" | "supplementalGroupsPolicy":
            pass
        case "sysctls":
            for item in value if isinstance(value, list) else [value]:
                key = item.get("name") if isinstance(item, Mapping) else item
                if key not in SAFE_SYSCTLS:
                    yield TemplateFault(f"{at}[{key}]", "only safe kernel parameters are allowed", "sysctls")
        case _:
            yield TemplateFault(at, "is not on the allow-list of a pod's security context")


def _container_field_faults(name: str, value: Any, at: str) -> Iterator[TemplateFault]:
    match name:
        case "privileged" | "allowPrivilegeEscalation":
            if value is not False:
                yield TemplateFault(at, "containers get no rights over the node; only false is allowed", "privileged")
        case "readOnlyRootFilesystem":
            pass
        case "procMount":
            if value != "Default":
                yield TemplateFault(at, "only Default is allowed", "procMount")
        case "capabilities":
            yield from _capability_faults(value, at)
        case _:
            yield TemplateFault(at, "is not on the allow-list of a container's security context")


def _capability_faults(value: Any, at: str) -> Iterator[TemplateFault]:
    if not isinstance(value, Mapping) or set(value) - {"add", "drop"}:
        yield TemplateFault(at, "may have only add and drop", "capabilities")
        return
    for added in value.get("add") or ():
        if str(added).removeprefix("CAP_") not in ADDABLE:
            yield TemplateFault(f"{at}.add[{added}]", f"only {' and '.join(ADDABLE)} may be added", "capabilities")
    if "drop" in value and "ALL" not in (value["drop"] or ()):
        yield TemplateFault(f"{at}.drop", "all are dropped; leave it out", "capabilities")


def _profile_faults(value: Any, at: str, permission: str) -> Iterator[TemplateFault]:
    if not isinstance(value, Mapping) or value.get("type") not in _PROFILES or "$patch" in value:
        yield TemplateFault(at, _CONFINED, permission)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
