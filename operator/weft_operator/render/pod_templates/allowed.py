"""Check a pod-template patch against an allow-list of fields, volumes, variables and security contexts.

Only the patch is checked, because everything else in a pod is as Weft rendered it. Fields that a patch may not remove
or replace are in ``protected``. Whatever is not on the allow-list needs a permission that a cluster administrator gives
with ``operator.podTemplates.allow`` (``api.pod_template_permissions``).
"""

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from weft_operator.api.pod_template_permissions import VOLUME_TYPES
from weft_operator.render.pod_templates.protected import RESERVED, RESERVED_LABEL
from weft_operator.render.pod_templates.security import TemplateFault, annotation_faults, security_faults
from weft_operator.render.pod_templates.strategic import MERGE_KEYS, replaces_list

Json = Mapping[str, Any]

FREE_POD_FIELDS = frozenset(
    {
        "affinity",
        "imagePullSecrets",
        "nodeSelector",
        "preemptionPolicy",
        "readinessGates",
        "resourceClaims",
        "resources",
        "runtimeClassName",
        "schedulerName",
        "schedulingGates",
        "tolerations",
        "topologySpreadConstraints",
    }
)
"""Fields of the pod's spec that may have any value; others have a check below, or are not allowed."""

_ROUTER_FIELDS = frozenset({"name", "imagePullPolicy", "resources", "terminationMessagePolicy"})
_ENGINE_FIELDS = _ROUTER_FIELDS | {
    "resizePolicy",
    "stdin",
    "stdinOnce",
    "terminationMessagePath",
    "tty",
    "volumeDevices",
    "workingDir",
}
_ADDED_CONTAINER_FIELDS = _ENGINE_FIELDS | {"args", "command", "image", "restartPolicy", "restartPolicyRules"}
"""Fields that may have any value in the router's container, in the engine's, and in containers that a patch adds."""

VOLUMES = frozenset({"configMap", "downwardAPI", "emptyDir", "ephemeral", "image"})
"""Allowed types of volumes: they give access to nothing outside the namespace and the pod."""
_PROJECTED = frozenset({"configMap", "clusterTrustBundle", "downwardAPI", "secret"})

ROUTER_ENV = re.compile(
    r"^(TZ|LANG|LC_[A-Z]+|MALLOC_ARENA_MAX|(?i:https?_proxy|no_proxy)"
    r"|OTEL_RESOURCE_ATTRIBUTES|OTEL_EXPORTER_OTLP_HEADERS)$"
)
"""Variables of the router that change neither what code it loads nor whom it trusts."""

SHARED_VOLUMES = ("shm",)
"""Weft's volumes that other containers may write to; they may only read the model's."""
WEFT_CONTAINERS = ("router", "weights", "kv-disk")
"""Containers that run Weft's own programs."""
_WEFT_PATHS = ("/etc/weft", "/models", "/kv-cache")
"""Where files of Weft's containers, the model and the files of a KV cache tier are mounted."""


SYSTEM_PRIORITY = "pods of this class preempt all others, even those of the cluster itself"


def is_system_priority(name: Any) -> bool:
    """Return whether a PriorityClass is one of Kubernetes' own, such as system-node-critical."""
    return isinstance(name, str) and name.startswith("system-")


class MalformedError(ValueError):
    """Report a malformed part of a patch; ``field`` is its path inside the patch."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def allow_list_faults(patch: Json, *, weft_volumes: tuple[str, ...]) -> Iterator[TemplateFault]:
    """Yield the fields of a patch that are not on the allow-list; ``weft_volumes`` are the names of Weft's volumes."""
    try:
        yield from _patch_faults(patch, weft_volumes)
    except MalformedError as error:
        yield TemplateFault(error.field, str(error))


def _patch_faults(patch: Json, weft_volumes: tuple[str, ...]) -> Iterator[TemplateFault]:
    if "metadata" in patch:
        yield from _metadata_faults(patch["metadata"])
    for name, value in _map(patch.get("spec")).items():
        at = f"spec.{name}"
        rule = _POD_RULES.get(name)
        if name in ("containers", "initContainers"):
            for item in _items(value, at):
                yield from _container_faults(item, f"{at}[{item.get('name')}]", weft_volumes)
        elif rule is not None:
            yield from rule(value, at)
        elif name not in FREE_POD_FIELDS and not name.startswith("$"):
            yield TemplateFault(at, "is not on the allow-list of a pod's fields")


def _metadata_faults(metadata: Any) -> Iterator[TemplateFault]:
    """Yield changes of the labels and annotations by which the operator finds its pods."""
    if not isinstance(metadata, Mapping) or "$patch" in metadata:
        yield TemplateFault("metadata", "the operator finds its pods by it; name the labels and annotations to add")
        return
    for kind, entries in metadata.items():
        if not isinstance(entries, Mapping) or "$patch" in entries:
            yield TemplateFault(f"metadata.{kind}", "the operator finds its pods by them; name those to add")
            continue
        for name in entries:
            if RESERVED_LABEL.match(name):
                yield TemplateFault(f"metadata.{kind}[{name}]", "the operator finds its pods by it")
        if kind == "annotations":
            yield from annotation_faults(entries, "metadata.annotations")


def secret_names(patch: Json) -> Iterator[tuple[str, str]]:
    """Yield (field, name) of the Secrets that a patch refers to in volumes and variables.

    Raises:
        MalformedError: the patch is malformed.
    """
    spec = _map(patch.get("spec"))
    for volume in _items(spec.get("volumes"), "spec.volumes"):
        at = f"spec.volumes[{volume.get('name')}]"
        yield from _referenced(f"{at}.secret", volume.get("secret"), "secretName")
        for source in _items(_map(volume.get("projected")).get("sources"), f"{at}.projected.sources"):
            yield from _referenced(f"{at}.projected.sources.secret", source.get("secret"), "name")
    for place in ("containers", "initContainers"):
        for item in _items(spec.get(place), f"spec.{place}"):
            at = f"spec.{place}[{item.get('name')}]"
            for variable in _items(item.get("env"), f"{at}.env"):
                value = _map(variable.get("valueFrom")).get("secretKeyRef")
                yield from _referenced(f"{at}.env[{variable.get('name')}]", value, "name")
            for source in _items(item.get("envFrom"), f"{at}.envFrom"):
                yield from _referenced(f"{at}.envFrom", source.get("secretRef"), "name")


def _referenced(field: str, reference: Any, key: str) -> Iterator[tuple[str, str]]:
    name = _map(reference).get(key)
    if name is not None:
        yield field, str(name)


def _map(value: Any) -> Json:
    return value if isinstance(value, Mapping) else {}


def _items(value: Any, at: str) -> Iterator[Json]:
    """Yield the entries of a list, except those with nothing but a directive."""
    if value is None:
        return
    if not isinstance(value, list):
        raise MalformedError(at, "must be a list")
    for position, item in enumerate(value):
        if not isinstance(item, Mapping):
            raise MalformedError(f"{at}[{position}]", "must be an object")
        if set(item) != {"$patch"}:
            yield item


def _container_faults(item: Json, at: str, weft_volumes: tuple[str, ...]) -> Iterator[TemplateFault]:
    name = item.get("name")
    is_weft = name in WEFT_CONTAINERS
    free_fields = _ROUTER_FIELDS if is_weft else _ENGINE_FIELDS if name == "engine" else _ADDED_CONTAINER_FIELDS
    for field, value in item.items():
        at_field = f"{at}.{field}"
        if field in ("env", "volumeMounts") and name in ("engine", *WEFT_CONTAINERS) and _removes_list(value, field):
            yield TemplateFault(at_field, "Weft's own entries would be removed; name those to add or change")
        if field in free_fields:
            continue
        if field == "env":
            yield from _env_faults(value, at_field, name=str(name))
        elif field == "volumeMounts":
            yield from _mount_faults(value, at_field, weft_volumes, name=str(name))
        elif is_weft:
            permission = "routerEnv" if field == "envFrom" else None
            yield TemplateFault(
                at_field, "is set by the operator: only resources, env and imagePullPolicy are yours", permission
            )
        elif field == "securityContext":
            yield from security_faults(value, at_field, pod=False)
        elif field in ("lifecycle", "startupProbe", "livenessProbe", "readinessProbe"):
            yield from _probe_host_faults(value, at_field)
        elif field == "ports":
            yield from _port_faults(value, at_field)
        elif field != "envFrom" and not field.startswith("$"):
            yield TemplateFault(at_field, "is not on the allow-list of a container's fields")


def _removes_list(value: Any, field: str) -> bool:
    """Return whether a patch removes or replaces a whole list."""
    return value is None or (isinstance(value, list) and replaces_list(value, MERGE_KEYS[field]))


def _env_faults(value: Any, at: str, *, name: str) -> Iterator[TemplateFault]:
    for variable in _items(value, at):
        variable_name = str(variable.get("name"))
        at_field = f"{at}[{variable_name}]"
        if name == "engine" and RESERVED.match(variable_name):
            yield TemplateFault(at_field, "it is set by the operator; choose another name")
        sources = {"fieldRef", *(("secretKeyRef",) if variable_name == "OTEL_EXPORTER_OTLP_HEADERS" else ())}
        refused = ROUTER_ENV.match(variable_name) is None or set(_map(variable.get("valueFrom"))) - sources
        if name in WEFT_CONTAINERS and refused:
            yield TemplateFault(at_field, "Weft's program could load other code by it, or trust others", "routerEnv")


def _mount_faults(value: Any, at: str, weft_volumes: tuple[str, ...], *, name: str) -> Iterator[TemplateFault]:
    for mount in _items(value, at):
        path, volume = str(mount.get("mountPath")), mount.get("name")
        at_field = f"{at}[{path}]"
        if name in WEFT_CONTAINERS:
            yield TemplateFault(at_field, "Weft's program could load other code from it", "routerMounts")
        if mount.get("mountPropagation") not in (None, "None"):
            yield TemplateFault(
                f"{at_field}.mountPropagation", "mounts stay within their container", "mountPropagation"
            )
        if volume == "model" and mount.get("readOnly") is not True:
            yield TemplateFault(at_field, "the model may be that of other services, too; set readOnly: true")
        elif volume in weft_volumes and volume not in (*SHARED_VOLUMES, "model"):
            yield TemplateFault(at_field, f"volume {volume} is for Weft's own containers; bring a volume of your own")
        elif name in ("engine", *WEFT_CONTAINERS) and _hides_weft_mount(path):
            yield TemplateFault(at_field, "would hide what Weft mounts there; choose another path")


def _hides_weft_mount(path: str) -> bool:
    """Return whether a mount would hide one of Weft's mounts, or be inside one."""
    target = "/" + posixpath.normpath(f"/{path}").strip("/")
    below = f"{target.rstrip('/')}/"
    return any(target == own or own.startswith(below) or target.startswith(f"{own}/") for own in _WEFT_PATHS) or bool(
        re.match(r"/etc/weft-", target)
    )


def _port_faults(value: Any, at: str) -> Iterator[TemplateFault]:
    for port in _items(value, at):
        if port.get("hostPort") not in (None, 0) or port.get("hostIP"):
            yield TemplateFault(
                f"{at}[{port.get('containerPort')}].hostPort", "ports are those of the pod", "hostPorts"
            )


def _probe_host_faults(value: Any, at: str) -> Iterator[TemplateFault]:
    for field, part in _map(value).items():
        if field == "host":
            yield TemplateFault(f"{at}.host", "the kubelet would probe another host than the pod", "hostProbes")
        yield from _probe_host_faults(part, f"{at}.{field}")


def _volume_faults(value: Any, at: str) -> Iterator[TemplateFault]:
    for volume in _items(value, at):
        name = volume.get("name")
        for kind, source in volume.items():
            at_field = f"{at}[{name}].{kind}"
            if kind == "projected":
                yield from _projected_faults(source, at_field)
            elif kind == "persistentVolumeClaim":
                yield from _claim_faults(source, at_field)
            elif kind in VOLUME_TYPES:
                yield TemplateFault(at_field, "volumes of this type reach beyond the namespace", kind)
            elif kind not in VOLUMES | {"name", "secret"} and not kind.startswith("$"):
                yield TemplateFault(at_field, "is no type of volume on the allow-list")


def _claim_faults(source: Any, at: str) -> Iterator[TemplateFault]:
    """Yield a claim that containers could write to; the volume's readOnly holds for devices and file systems alike."""
    if source is not None and _map(source).get("readOnly") is not True:
        why = "the claim may be another's, the weights of a service, say; set readOnly: true, or use ephemeral"
        yield TemplateFault(f"{at}.readOnly", why, "writableClaims")


def _projected_faults(source: Any, at: str) -> Iterator[TemplateFault]:
    for item in _items(_map(source).get("sources"), f"{at}.sources"):
        for kind in item:
            if kind not in _PROJECTED:
                yield TemplateFault(f"{at}.sources.{kind}", "pods of a service have no rights", "serviceAccountToken")


def _pod_security_faults(value: Any, at: str) -> Iterator[TemplateFault]:
    return security_faults(value, at, pod=True)


def _dns_config_faults(value: Any, at: str) -> Iterator[TemplateFault]:
    for field in _map(value):
        if field != "options":
            yield TemplateFault(f"{at}.{field}", "the router would find other hosts by it", "dns")


def _dns_policy_faults(value: Any, at: str) -> Iterator[TemplateFault]:
    if value not in ("ClusterFirst", "Default"):
        yield TemplateFault(at, "only ClusterFirst and Default are allowed", "dns")


def _host_alias_faults(_value: Any, at: str) -> Iterator[TemplateFault]:
    yield TemplateFault(at, "the router would find other hosts by it", "dns")


def _host_user_faults(value: Any, at: str) -> Iterator[TemplateFault]:
    if value is not False:
        yield TemplateFault(at, "only false is allowed: a user namespace of the pod's own")


def _priority_faults(value: Any, at: str) -> Iterator[TemplateFault]:
    if is_system_priority(value):
        yield TemplateFault(at, SYSTEM_PRIORITY, "systemPriority")


_POD_RULES: Mapping[str, Callable[[Any, str], Iterator[TemplateFault]]] = {
    "dnsConfig": _dns_config_faults,
    "dnsPolicy": _dns_policy_faults,
    "hostAliases": _host_alias_faults,
    "hostUsers": _host_user_faults,
    "priorityClassName": _priority_faults,
    "securityContext": _pod_security_faults,
    "volumes": _volume_faults,
}
