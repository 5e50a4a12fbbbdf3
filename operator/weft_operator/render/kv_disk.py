"""What KV cache tiers take of a worker's pod: memory, and a volume with the sidecar that makes room on it. Pure.

Engines delete no file of their tier. The sidecar deletes what was unused for longest once a worker's folder is larger
than the tier, and the folders of former pods on a claim or a path.
"""

from collections.abc import Mapping

from weft_core.quantities import bytes_of, size_text
from weft_operator.api.kv_cache import DiskTier
from weft_operator.api.objects import Manifest
from weft_operator.render.engines.container import PodTiers
from weft_operator.render.engines.kv_tiers import FOLDER
from weft_operator.render.inputs import Rendering
from weft_operator.render.router_container import from_field
from weft_operator.render.security_context import USER, container_security, engine_user

CONTAINER = "kv-disk"
VOLUME = "kv-disk"
_PORT = "8082"
MOUNT: Manifest = {"name": VOLUME, "mountPath": FOLDER}
_UNUSED_S = 86_400
"""How long the folder of a pod stays that no longer runs: it may start again meanwhile."""
_RESOURCES: Manifest = {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}


def disk_of(rendering: Rendering, tiers: PodTiers) -> DiskTier | None:
    """Return the tier of files that a pod has, None where it has none."""
    cache = rendering.spec.kv_cache
    return cache.disk if cache is not None and tiers.folder else None


def disk_volume(disk: DiskTier) -> Manifest:
    """Return the volume of a pod's files."""
    if disk.claim is not None:
        return {"name": VOLUME, "persistentVolumeClaim": {"claimName": disk.claim}}
    if disk.path is not None:
        return {"name": VOLUME, "hostPath": {"path": disk.path, "type": "Directory"}}
    spec: Manifest = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": str(disk.size)}},
        **({"storageClassName": disk.storage_class_name} if disk.storage_class_name else {}),
    }
    return {"name": VOLUME, "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}


def disk_sidecar(rendering: Rendering, disk: DiskTier, tiers: PodTiers) -> Manifest:
    """Return the sidecar that makes room; it runs as the engine's user, whose files it deletes."""
    user = engine_user(rendering.spec.engine, openshift=rendering.settings.openshift)
    return {
        "name": CONTAINER,
        "image": rendering.settings.router_image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "weft_router.kv_disk"],
        "args": [f"--folder={tiers.folder}", f"--bytes={bytes_of(disk.size)}", f"--unused-seconds={_UNUSED_S}"],
        "env": [from_field("POD_NAME", "metadata.name"), report_port()],
        "resources": _RESOURCES,
        "securityContext": container_security(user),
        "volumeMounts": [MOUNT],
        "restartPolicy": "Always",
    }


def report_port() -> Manifest:
    """Return the variable with the port where the sidecar reports to the router's, on loopback.

    Sidecars of older images, which services keep, do not know the variable, and would refuse an argument.
    """
    return {"name": "WEFT_KV_DISK_PORT", "value": _PORT}


def volume_group(rendering: Rendering, disk: DiskTier | None) -> Manifest:
    """Return the fields of a pod's security context by which its engine may write to a volume: a new one is root's.

    Folders of nodes keep their owners, and on OpenShift the SecurityContextConstraints give the group.
    """
    if disk is None or disk.path is not None or rendering.settings.openshift:
        return {}
    user = engine_user(rendering.spec.engine, openshift=False)
    return {"fsGroup": USER if user is None else user, "fsGroupChangePolicy": "OnRootMismatch"}


def shared_memory(rendering: Rendering, tiers: PodTiers) -> str:
    """Return the size of /dev/shm: that of the spec, and what tiers have there."""
    given = rendering.spec.engine.shared_memory
    return str(given) if not tiers.shared_memory else size_text(bytes_of(given) + tiers.shared_memory)


def with_tier_memory(
    requests: Mapping[str, str], limits: Mapping[str, str], tiers: PodTiers
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return requests and limits with the memory of tiers on top; a limit without a request is the request, too."""
    if not tiers.memory:
        return requests, limits
    limit = limits.get("memory")
    request = requests.get("memory", limit)
    with_request = {**requests, "memory": size_text(tiers.memory + (0 if request is None else bytes_of(request)))}
    if limit is None:
        return with_request, limits
    return with_request, {**limits, "memory": size_text(tiers.memory + bytes_of(limit))}
