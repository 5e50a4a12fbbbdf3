"""What a pod-template patch may hold: an allow-list of fields, volumes, variables and security contexts.

A patch is the only thing of a pod that its author writes, so what is allowed is decided on the patch: whatever it does
not hold stays as Weft rendered it. What it may not take away or replace is in ``protected``. Everything else needs a
permission that a cluster administrator gives by ``operator.podTemplates.allow`` (``permissions``).
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
"""Fields of the pod's spec that may have any value; others have a rule below, or are not allowed."""

_OF_WEFT = frozenset({"name", "imagePullPolicy", "resources", "terminationMessagePolicy"})
_OF_ENGINE = _OF_WEFT | {
    "resizePolicy",
    "stdin",
    "stdinOnce",
    "terminationMessagePath",
    "tty",
    "volumeDevices",
    "workingDir",
}
_OF_OWN = _OF_ENGINE | {"args", "command", "image", "restartPolicy", "restartPolicyRules"}
"""Fields that may have any value in the router's container, in the engine's and in one of the author's own."""

VOLUMES = frozenset({"configMap", "downwardAPI", "emptyDir", "ephemeral", "image"})
"""Types of volumes without a rule of their own: they reach no further than the namespace and the pod."""
_PROJECTED = frozenset({"configMap", "clusterTrustBundle", "downwardAPI", "secret"})

ROUTER_ENV = re.compile(
    r"^(TZ|LANG|LC_[A-Z]+|MALLOC_ARENA_MAX|(?i:https?_proxy|no_proxy)"
    r"|OTEL_RESOURCE_ATTRIBUTES|OTEL_EXPORTER_OTLP_HEADERS)$"
)
"""Variables of the router that change neither what it loads nor whom it trusts."""

SHARED_VOLUMES = ("shm",)
"""Volumes of Weft's that other containers may write to; the model's they may only read."""
WEFT_CONTAINERS = ("router", "weights")
"""Weft's own programs; the engine is the author's choice."""
_PATHS = ("/etc/weft", "/models")
"""Where Weft's containers find their files, and the engine its model."""


SYSTEM_PRIORITY = "pods of this class are kept before all others, those of the cluster itself too"


def is_system_priority(name: Any) -> bool:
    """Tell whether a PriorityClass is for the pods that a cluster cannot do without."""
    return isinstance(name, str) and name.startswith("system-")


class MalformedError(ValueError):
    """Report a part of a patch that no pod could have; ``field`` is its path inside the patch."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def faults(patch: Json, *, weft_volumes: tuple[str, ...]) -> Iterator[TemplateFault]:
    """Yield what of a patch is not on the allow-list; ``weft_volumes`` are the names of Weft's own volumes."""
    try:
        yield from _faults(patch, weft_volumes)
    except MalformedError as error:
        yield TemplateFault(error.field, str(error))


def _faults(patch: Json, weft_volumes: tuple[str, ...]) -> Iterator[TemplateFault]:
    if "metadata" in patch:
        yield from _metadata(patch["metadata"])
    for name, value in _map(patch.get("spec")).items():
        at = f"spec.{name}"
        rule = _POD_RULES.get(name)
        if name in ("containers", "initContainers"):
            for item in _items(value, at):
                yield from _container(item, f"{at}[{item.get('name')}]", weft_volumes)
        elif rule is not None:
            yield from rule(value, at)
        elif name not in FREE_POD_FIELDS and not name.startswith("$"):
            yield TemplateFault(at, "is not on the allow-list of a pod's fields")


def _metadata(metadata: Any) -> Iterator[TemplateFault]:
    """Yield what would take away, or change, the labels and annotations by which pods are found."""
    if not isinstance(metadata, Mapping) or "$patch" in metadata:
        yield TemplateFault("metadata", "the operator finds its pods by it; name the labels and annotations to add")
        return
    for kind, words in metadata.items():
        if not isinstance(words, Mapping) or "$patch" in words:
            yield TemplateFault(f"metadata.{kind}", "the operator finds its pods by them; name those to add")
            continue
        for name in words:
            if RESERVED_LABEL.match(name):
                yield TemplateFault(f"metadata.{kind}[{name}]", "the operator finds its pods by it")
        if kind == "annotations":
            yield from annotation_faults(words, "metadata.annotations")


def secret_names(patch: Json) -> Iterator[tuple[str, str]]:
    """Yield the Secrets that a patch refers to, by field: those of volumes and variables.

    Raises:
        MalformedError: no pod could have what the patch holds.
    """
    spec = _map(patch.get("spec"))
    for volume in _items(spec.get("volumes"), "spec.volumes"):
        at = f"spec.volumes[{volume.get('name')}]"
        yield from _named(f"{at}.secret", volume.get("secret"), "secretName")
        for source in _items(_map(volume.get("projected")).get("sources"), f"{at}.projected.sources"):
            yield from _named(f"{at}.projected.sources.secret", source.get("secret"), "name")
    for place in ("containers", "initContainers"):
        for item in _items(spec.get(place), f"spec.{place}"):
            at = f"spec.{place}[{item.get('name')}]"
            for variable in _items(item.get("env"), f"{at}.env"):
                value = _map(variable.get("valueFrom")).get("secretKeyRef")
                yield from _named(f"{at}.env[{variable.get('name')}]", value, "name")
            for source in _items(item.get("envFrom"), f"{at}.envFrom"):
                yield from _named(f"{at}.envFrom", source.get("secretRef"), "name")


def _named(field: str, reference: Any, key: str) -> Iterator[tuple[str, str]]:
    name = _map(reference).get(key)
    if name is not None:
        yield field, str(name)


def _map(value: Any) -> Json:
    return value if isinstance(value, Mapping) else {}


def _items(value: Any, at: str) -> Iterator[Json]:
    """Yield the entries of a list, but for those that are only a directive."""
    if value is None:
        return
    if not isinstance(value, list):
        raise MalformedError(at, "must be a list")
    for position, item in enumerate(value):
        if not isinstance(item, Mapping):
            raise MalformedError(f"{at}[{position}]", "must be an object")
        if set(item) != {"$patch"}:
            yield item


def _container(item: Json, at: str, weft_volumes: tuple[str, ...]) -> Iterator[TemplateFault]:
    name = item.get("name")
    own = name in WEFT_CONTAINERS
    plain = _OF_WEFT if own else _OF_ENGINE if name == "engine" else _OF_OWN
    for field, value in item.items():
        where = f"{at}.{field}"
        if field in ("env", "volumeMounts") and name in ("engine", *WEFT_CONTAINERS) and _takes_all(value, field):
            yield TemplateFault(where, "Weft's own entries would be taken away; name those to add or change")
        if field in plain:
            continue
        if field == "env":
            yield from _env(value, where, name=str(name))
        elif field == "volumeMounts":
            yield from _mounts(value, where, weft_volumes, name=str(name))
        elif own:
            permission = "routerEnv" if field == "envFrom" else None
            yield TemplateFault(
                where, "is set by the operator: only resources, env and imagePullPolicy are yours", permission
            )
        elif field == "securityContext":
            yield from security_faults(value, where, pod=False)
        elif field in ("lifecycle", "startupProbe", "livenessProbe", "readinessProbe"):
            yield from _other_hosts(value, where)
        elif field == "ports":
            yield from _ports(value, where)
        elif field != "envFrom" and not field.startswith("$"):
            yield TemplateFault(where, "is not on the allow-list of a container's fields")


def _takes_all(value: Any, field: str) -> bool:
    """Tell whether a patch removes or replaces a whole list."""
    return value is None or (isinstance(value, list) and replaces_list(value, MERGE_KEYS[field]))


def _env(value: Any, at: str, *, name: str) -> Iterator[TemplateFault]:
    for variable in _items(value, at):
        variable_name = str(variable.get("name"))
        where = f"{at}[{variable_name}]"
        if name == "engine" and RESERVED.match(variable_name):
            yield TemplateFault(where, "it is set by the operator; choose another name")
        sources = {"fieldRef", *(("secretKeyRef",) if variable_name == "OTEL_EXPORTER_OTLP_HEADERS" else ())}
        taken = ROUTER_ENV.match(variable_name) is None or set(_map(variable.get("valueFrom"))) - sources
        if name in WEFT_CONTAINERS and taken:
            yield TemplateFault(where, "Weft's program could load other code by it, or trust others", "routerEnv")


def _mounts(value: Any, at: str, weft_volumes: tuple[str, ...], *, name: str) -> Iterator[TemplateFault]:
    for mount in _items(value, at):
        path, volume = str(mount.get("mountPath")), mount.get("name")
        where = f"{at}[{path}]"
        if name in WEFT_CONTAINERS:
            yield TemplateFault(where, "Weft's program could load other code from it", "routerMounts")
        if mount.get("mountPropagation") not in (None, "None"):
            yield TemplateFault(f"{where}.mountPropagation", "mounts stay within their container", "mountPropagation")
        if volume == "model" and mount.get("readOnly") is not True:
            yield TemplateFault(where, "the model may be that of other services, too; set readOnly: true")
        elif volume in weft_volumes and volume not in (*SHARED_VOLUMES, "model"):
            yield TemplateFault(where, f"volume {volume} is for Weft's own containers; bring a volume of your own")
        elif name in ("engine", *WEFT_CONTAINERS) and _covers(path):
            yield TemplateFault(where, "would hide what Weft mounts there; choose another path")


def _covers(path: str) -> bool:
    """Tell whether a mount would hide, or lie within, what Weft mounts."""
    there = "/" + posixpath.normpath(f"/{path}").strip("/")
    above = f"{there.rstrip('/')}/"
    return any(there == own or own.startswith(above) or there.startswith(f"{own}/") for own in _PATHS) or bool(
        re.match(r"/etc/weft-", there)
    )


def _ports(value: Any, at: str) -> Iterator[TemplateFault]:
    for port in _items(value, at):
        if port.get("hostPort") not in (None, 0) or port.get("hostIP"):
            yield TemplateFault(
                f"{at}[{port.get('containerPort')}].hostPort", "ports are those of the pod", "hostPorts"
            )


def _other_hosts(value: Any, at: str) -> Iterator[TemplateFault]:
    for field, part in _map(value).items():
        if field == "host":
            yield TemplateFault(f"{at}.host", "the kubelet would ask another host than the pod", "hostProbes")
        yield from _other_hosts(part, f"{at}.{field}")


def _volumes(value: Any, at: str) -> Iterator[TemplateFault]:
    for volume in _items(value, at):
        name = volume.get("name")
        for kind, source in volume.items():
            where = f"{at}[{name}].{kind}"
            if kind == "projected":
                yield from _projected(source, where)
            elif kind == "persistentVolumeClaim":
                yield from _claim(source, where)
            elif kind in VOLUME_TYPES:
                yield TemplateFault(where, "volumes of this type reach beyond the namespace", kind)
            elif kind not in VOLUMES | {"name", "secret"} and not kind.startswith("$"):
                yield TemplateFault(where, "is no type of volume on the allow-list")


def _claim(source: Any, at: str) -> Iterator[TemplateFault]:
    """Yield a claim that containers could write to, as a device or a file system: the volume's readOnly binds both."""
    if source is not None and _map(source).get("readOnly") is not True:
        why = "the claim may be another's, the weights of a service, say; set readOnly: true, or use ephemeral"
        yield TemplateFault(f"{at}.readOnly", why, "writableClaims")


def _projected(source: Any, at: str) -> Iterator[TemplateFault]:
    for item in _items(_map(source).get("sources"), f"{at}.sources"):
        for kind in item:
            if kind not in _PROJECTED:
                yield TemplateFault(f"{at}.sources.{kind}", "pods of a service have no rights", "serviceAccountToken")


def _pod_security(value: Any, at: str) -> Iterator[TemplateFault]:
    return security_faults(value, at, pod=True)


def _dns_config(value: Any, at: str) -> Iterator[TemplateFault]:
    for field in _map(value):
        if field != "options":
            yield TemplateFault(f"{at}.{field}", "the router would find other hosts by it", "dns")


def _dns_policy(value: Any, at: str) -> Iterator[TemplateFault]:
    if value not in ("ClusterFirst", "Default"):
        yield TemplateFault(at, "only ClusterFirst and Default are allowed", "dns")


def _host_aliases(_value: Any, at: str) -> Iterator[TemplateFault]:
    yield TemplateFault(at, "the router would find other hosts by it", "dns")


def _host_users(value: Any, at: str) -> Iterator[TemplateFault]:
    if value is not False:
        yield TemplateFault(at, "only false is allowed: a user namespace of the pod's own")


def _priority(value: Any, at: str) -> Iterator[TemplateFault]:
    if is_system_priority(value):
        yield TemplateFault(at, SYSTEM_PRIORITY, "systemPriority")


_POD_RULES: Mapping[str, Callable[[Any, str], Iterator[TemplateFault]]] = {
    "dnsConfig": _dns_config,
    "dnsPolicy": _dns_policy,
    "hostAliases": _host_aliases,
    "hostUsers": _host_users,
    "priorityClassName": _priority,
    "securityContext": _pod_security,
    "volumes": _volumes,
}
