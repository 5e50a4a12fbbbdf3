"""Check pods against OpenShift's SecurityContextConstraints ``restricted-v2``, its default for all pods."""

from collections.abc import Iterator, Mapping
from typing import Any

from weft_e2e.checks.failed import CheckFailed

VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
ADDED = {"NET_BIND_SERVICE"}
"""Capabilities that may be added."""
HOST = ("hostNetwork", "hostPID", "hostIPC")

Spec = Mapping[str, Any]


def check_restricted_v2(name: str, pod: Spec) -> None:
    """Require that ``restricted-v2`` admits a pod's spec as it is written, whatever range the namespace has.

    The admission plug-in assigns user, group of volumes, SELinux level and seccomp profile where a pod leaves them out.
    What a pod asks for itself has to lie in the namespace's range, which no manifest can know.
    """
    found = list(_violations(pod))
    if found:
        raise CheckFailed(f"{name}: restricted-v2 refuses it: {'; '.join(found)}")


def _violations(pod: Spec) -> Iterator[str]:
    for field in HOST:
        if pod.get(field):
            yield f"{field} is set"
    for volume in pod.get("volumes") or ():
        for kind in sorted(set(volume) - {"name"} - VOLUMES):
            yield f"volume {volume['name']} is of type {kind}"
    context: Spec = pod.get("securityContext") or {}
    if "fsGroup" in context:
        yield "securityContext.fsGroup is fixed"
    yield from _of_both("pod", context)
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for container in pod.get(kind) or ():
            yield from _of_container(container)


def _of_both(where: str, context: Spec) -> Iterator[str]:
    for field in ("runAsUser", "seLinuxOptions"):
        if field in context:
            yield f"{where}: securityContext.{field} is fixed"
    if context.get("runAsNonRoot") is False:
        yield f"{where}: securityContext.runAsNonRoot is false"
    if context.get("seccompProfile", {"type": "RuntimeDefault"}) != {"type": "RuntimeDefault"}:
        yield f"{where}: securityContext.seccompProfile is not RuntimeDefault"


def _of_container(container: Spec) -> Iterator[str]:
    name: str = container["name"]
    context: Spec = container.get("securityContext") or {}
    yield from _of_both(name, context)
    if context.get("privileged"):
        yield f"{name}: securityContext.privileged is set"
    if context.get("allowPrivilegeEscalation") is not False:
        yield f"{name}: securityContext.allowPrivilegeEscalation is not false"
    capabilities: Spec = context.get("capabilities") or {}
    if "ALL" not in (capabilities.get("drop") or ()):
        yield f"{name}: securityContext.capabilities.drop lacks ALL"
    for added in sorted(set(capabilities.get("add") or ()) - ADDED):
        yield f"{name}: securityContext.capabilities.add has {added}"
    for port in container.get("ports") or ():
        if port.get("hostPort"):
            yield f"{name}: hostPort {port['hostPort']}"
