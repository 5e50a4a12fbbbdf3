"""The fields that a pod-template patch may not change: those for pairing, draining, isolation and device counts.

A patch is merged into a skeleton in which every protected field has a placeholder. However the patch changes a field
(by a value, null, or a directive on a parent), the placeholder differs afterwards, and the field is reported.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from weft_operator.api.engine_flags import RESERVED_ENV
from weft_operator.render.pod_templates.strategic import MERGE_KEYS, PatchError, merge_patch

Json = dict[str, Any]

_PLACEHOLDER = "<set by the operator>"

POD_FIELDS: Mapping[str, str] = {
    "serviceAccountName": "pods of a service have no rights",
    "automountServiceAccountToken": "pods of a service have no rights",
    "restartPolicy": "workers are restarted by their StatefulSet",
    "terminationGracePeriodSeconds": "it follows from spec.rollout.drainTimeout",
    "hostname": "it is the worker's name",
    "subdomain": "it is the Service of the worker's role",
    "nodeName": "select nodes with spec.capacity.pools.nodeSelector",
    "hostNetwork": "engines listen on loopback, which would be the node's",
    "hostPID": "the internal token could be read from the node",
    "hostIPC": "shared memory would be the node's",
    "shareProcessNamespace": "the engine could read the sidecar's token",
    "activeDeadlineSeconds": "workers run until they are drained",
}
"""Fields of the pod's spec, with the reason or what to use instead."""

CONTAINER_FIELDS: Mapping[str, Mapping[str, str]] = {
    "engine": {
        "image": "use spec.engine.image",
        "command": "it follows from spec.engine.type",
        "args": "use spec.engine.args",
        "ports": "the network policy and the router know them",
        "lifecycle": "its hook lets live rounds finish",
        "startupProbe": "probes ask the sidecar, because the engine listens on loopback",
        "livenessProbe": "probes ask the sidecar, because the engine listens on loopback",
        "readinessProbe": "the sidecar reports whether a worker is ready",
    },
    "router": {
        "image": "it is the operator's setting WEFT_ROUTER_IMAGE",
        "command": "it follows from the pod's role",
        "args": "they follow from the pod's role",
        "ports": "the network policy and Services know them",
        "lifecycle": "its hook drains by session",
        "startupProbe": "it reports whether a worker serves",
        "livenessProbe": "it reports whether a worker serves",
        "readinessProbe": "it reports whether a worker serves",
        "restartPolicy": "Always makes it a sidecar that outlives the engine",
        "securityContext": "the sidecar needs no rights",
    },
}
"""Protected fields of the operator's containers, with the reason; their other fields may be patched."""

VOLUMES = (
    "config",
    "live",
    "role",
    "token",
    "tmp",
    "shm",
    "model",
    "engine-proof",
    "api-keys",
    "jwks",
    "tls",
    "redis",
    "weights-tmp",
    "kv-disk",
)
"""Volumes of the operator."""
SECRET_VOLUMES = ("token", "engine-proof")
"""Volumes with tokens of the operator, which no other container may mount."""
MOUNTS = (
    "/etc/weft",
    "/etc/weft-live",
    "/etc/weft-pod",
    "/etc/weft-token",
    "/etc/weft-engine",
    "/etc/weft-api-keys",
    "/etc/weft-jwks",
    "/etc/weft-tls",
    "/kv-cache",
)
"""Where the operator's containers find their files."""
RESERVED = re.compile(RESERVED_ENV)
RESERVED_LABEL = re.compile(r"^(app\.kubernetes\.io/(name|instance|component|managed-by)$|weft\.dev/)")
_COUNTED = "the plan counts devices, and these would be more"


def protected_fault(
    patch: Json, devices: frozenset[str], claims: frozenset[str] = frozenset(), *, coordinator: bool
) -> str | None:
    """Return what is wrong with a patch, as a field inside it and the reason; None when it may be applied.

    ``devices`` are the resource names of the pools' devices, ``claims`` their resource claim templates.
    """
    skeleton = _skeleton(devices, coordinator=coordinator)
    try:
        after = merge_patch(skeleton, patch)
    except PatchError as error:
        return str(error)
    fault = _malformed(after)
    if fault is not None:
        return fault
    for name in patch:
        if name not in ("metadata", "spec"):
            return f"{name}: a pod template has only metadata and spec; put it under one of them"
    before, after_values = (
        dict(_protected_values(skeleton, devices, claims)),
        dict(_protected_values(after, devices, claims)),
    )
    for field, (value, why) in before.items():
        if after_values.get(field, (None, ""))[0] != value:
            return f"{field}: is set by the operator and may not be patched; {why}"
    for field, (_, why) in after_values.items():
        if field not in before:
            return f"{field}: is for the operator alone and may not be added; {why}"
    return _missing_image_fault(after, coordinator=coordinator)


def _malformed(template: Json) -> str | None:
    """Return which part of a patched pod has the wrong type, such as a map for a list."""
    for name in ("metadata", "spec"):
        if not isinstance(template.get(name) or {}, Mapping):
            return f"{name}: must be an object"
    spec = template.get("spec") or {}
    lists: list[tuple[str, Any, tuple[str, ...]]] = [
        ("spec", spec, ("volumes", "containers", "initContainers", "resourceClaims"))
    ]
    for place in ("containers", "initContainers"):
        items = spec.get(place)
        if isinstance(items, list):
            lists += [
                (f"spec.{place}[{item.get('name')}]", item, ("env", "volumeMounts"))
                for item in items
                if isinstance(item, Mapping)
            ]
    for at, part, fields in lists:
        for field in fields:
            if not _named_objects(part.get(field), MERGE_KEYS[field]):
                return f"{at}.{field}: must be a list of objects with {MERGE_KEYS[field]}"
    for kind in ("labels", "annotations"):
        if not isinstance((template.get("metadata") or {}).get(kind) or {}, Mapping):
            return f"metadata.{kind}: must be an object"
    return None


def _named_objects(value: Any, key: str) -> bool:
    return value is None or (
        isinstance(value, list) and all(isinstance(item, Mapping) and isinstance(item.get(key), str) for item in value)
    )


def _skeleton(devices: frozenset[str], *, coordinator: bool) -> Json:
    mounts = [{"mountPath": path, "name": _PLACEHOLDER} for path in MOUNTS]

    def container(name: str, resources: Json) -> Json:
        return {
            "name": name,
            **dict.fromkeys(CONTAINER_FIELDS[name], _PLACEHOLDER),
            **resources,
            "volumeMounts": list(mounts),
        }

    amounts = dict.fromkeys(sorted(devices), _PLACEHOLDER)
    engine = container("engine", {"resources": {"limits": dict(amounts), "requests": dict(amounts)}})
    router = container("router", {})
    spec = {
        **dict.fromkeys(POD_FIELDS, _PLACEHOLDER),
        "containers": [router] if coordinator else [engine],
        "initContainers": [] if coordinator else [router],
        "volumes": [{"name": name, _PLACEHOLDER: True} for name in VOLUMES],
    }
    return {"metadata": {"labels": {}, "annotations": {}}, "spec": spec}


def _protected_values(
    template: Json, devices: frozenset[str], claims: frozenset[str]
) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Yield every protected field with its value and the reason."""
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    for name in sorted(set(metadata) - {"labels", "annotations"}):
        yield f"metadata.{name}", (metadata[name], "only labels and annotations can be added")
    for kind in ("labels", "annotations"):
        for name, value in (metadata.get(kind) or {}).items():
            if RESERVED_LABEL.match(name):
                yield f"metadata.{kind}[{name}]", (value, "the operator finds its pods by it")
    for name, why in POD_FIELDS.items():
        yield f"spec.{name}", (spec.get(name), why)
    yield from _device_values("spec", spec, devices)
    for claim in spec.get("resourceClaims") or ():
        if claim.get("resourceClaimTemplateName") in claims:
            yield f"spec.resourceClaims[{claim.get('name')}]", (True, _COUNTED)
    for volume in spec.get("volumes") or ():
        if volume.get("name") in VOLUMES:
            yield f"spec.volumes[{volume['name']}]", (volume, "the operator's containers mount it")
    for place in ("containers", "initContainers"):
        for item in spec.get(place) or ():
            at = f"spec.{place}[{item.get('name')}]"
            is_weft = item.get("name") in CONTAINER_FIELDS
            yield from _container_values(at, item) if is_weft else _device_values(at, item, devices)
            for mount in item.get("volumeMounts") or ():
                if mount.get("name") in SECRET_VOLUMES:
                    words = mount, "its token is for the operator's own containers"
                    yield f"{at}.volumeMounts[{mount.get('mountPath')}]", words


def _device_values(at: str, container: Json, devices: frozenset[str]) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Yield the plan's devices that a pod, or a container other than the operator's, requests."""
    for kind in ("limits", "requests"):
        for name in sorted(devices & set(_amounts(container, kind))):
            yield (
                f"{at}.resources.{kind}[{name}]",
                (True, _COUNTED),
            )


def _container_values(at: str, container: Json) -> Iterator[tuple[str, tuple[Any, str]]]:
    fields = CONTAINER_FIELDS[container["name"]]
    for name, why in fields.items():
        yield f"{at}.{name}", (container.get(name), why)
    for variable in container.get("env") or ():
        if RESERVED.match(str(variable.get("name", ""))):
            yield f"{at}.env[{variable['name']}]", (variable, "choose another name")
    for mount in container.get("volumeMounts") or ():
        if mount.get("mountPath") in MOUNTS:
            yield f"{at}.volumeMounts[{mount['mountPath']}]", (mount, "the operator's files are there")
    for kind in ("limits", "requests"):
        for name, amount in _amounts(container, kind).items():
            if amount == _PLACEHOLDER or "/" in name:
                yield f"{at}.resources.{kind}[{name}]", (amount, "devices follow from the plan and its pools")


def _amounts(container: Json, kind: str) -> Mapping[str, Any]:
    resources = container.get("resources")
    amounts = resources.get(kind) if isinstance(resources, Mapping) else None
    return amounts if isinstance(amounts, Mapping) else {}


def _missing_image_fault(template: Json, *, coordinator: bool) -> str | None:
    """Return the fault of a new container without an image: usually a misspelt name of one of the operator's."""
    known = ("router",) if coordinator else ("engine", "router")
    for place in ("containers", "initContainers"):
        for item in template["spec"].get(place) or ():
            if item["name"] not in known and not item.get("image"):
                return (
                    f"spec.{place}[{item['name']}]: has no image and is none of {', '.join(known)}; "
                    "correct the name, or give a container of your own an image"
                )
    return None
