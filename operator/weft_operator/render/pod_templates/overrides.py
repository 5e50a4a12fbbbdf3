"""Apply and check ``spec.podTemplates``: strategic merge patches of pod templates, in their order."""

from collections.abc import Collection
from typing import Any

from weft_operator.api.objects import Manifest
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.api.templates import PodTemplatePatch
from weft_operator.render.pod_templates.allowed import (
    SYSTEM_PRIORITY,
    allow_list_faults,
    is_system_priority,
    secret_names,
)
from weft_operator.render.pod_templates.protected import CONTAINER_FIELDS, VOLUMES, protected_fault
from weft_operator.render.pod_templates.strategic import merge_patch

COORDINATOR = "coordinator"


def with_pod_templates(
    spec: DisaggInferenceServiceSpec, template: Manifest, *, component: str, pool: str | None = None
) -> Manifest:
    """Return a pod template with the service's patches for its component and pool merged into it."""
    for item in spec.pod_templates:
        if _is_for(item, component, pool):
            template = merge_patch(template, item.patch)
    return _restrict_added_containers(template)


def pod_template_fault(spec: DisaggInferenceServiceSpec, permitted: Collection[str] = ()) -> str | None:
    """Return the first field that a patch may not change, with the reason and the fix; None when all are allowed.

    ``permitted`` are the permissions of the service's namespace.
    """
    devices = frozenset(
        name
        for pool in spec.capacity.pools
        for name in (pool.resource, pool.rdma.resource if pool.rdma is not None else None)
        if name is not None
    )
    claims = frozenset(claim.template for pool in spec.capacity.pools for claim in pool.resource_claims or ())
    for position, item in enumerate(spec.pod_templates):
        coordinator = item.component == COORDINATOR
        fault = protected_fault(dict(item.patch), devices, claims, coordinator=coordinator)
        if fault is None:
            fault = _allow_list_fault(item, permitted)
        if fault is not None:
            return f"spec.podTemplates[{position}].patch.{fault}"
    return None if "systemPriority" in permitted else _system_priority(spec)


def secrets_of(spec: DisaggInferenceServiceSpec) -> list[tuple[str, str]]:
    """Return (field, name) of the Secrets that the patches refer to.

    Raises:
        MalformedError: a patch is malformed; ``pod_template_fault`` names the field.
    """
    return [
        (f"spec.podTemplates[{position}].patch.{field}", name)
        for position, item in enumerate(spec.pod_templates)
        for field, name in secret_names(item.patch)
    ]


def _allow_list_fault(item: PodTemplatePatch, permitted: Collection[str]) -> str | None:
    for fault in allow_list_faults(item.patch, weft_volumes=VOLUMES):
        if fault.permission is None:
            return f"{fault.field}: {fault.why}"
        if fault.permission not in permitted:
            return _permission_message(fault.field, fault.why, fault.permission)
    return None


def _system_priority(spec: DisaggInferenceServiceSpec) -> str | None:
    """Return which field gives pods a system PriorityClass."""
    classes = {
        "spec.coordinator.priorityClassName": spec.coordinator.priority_class_name,
        **{
            f"spec.capacity.pools[{pool.name}].priorityClassName": pool.priority_class_name
            for pool in spec.capacity.pools
        },
    }
    for field, name in classes.items():
        if is_system_priority(name):
            return _permission_message(field, SYSTEM_PRIORITY, "systemPriority")
    return None


def _permission_message(field: str, why: str, permission: str) -> str:
    return (
        f"{field}: {why}; remove it, or let a cluster administrator add {permission} to "
        "operator.podTemplates.allow in the values of Weft's chart"
    )


def _restrict_added_containers(template: Manifest) -> Manifest:
    """Return a template whose added containers, by default, drop all capabilities and forbid privilege escalation."""
    spec = {
        place: [item if item.get("name") in CONTAINER_FIELDS else _restricted(item) for item in items]
        for place in ("initContainers", "containers")
        if (items := template["spec"].get(place)) is not None
    }
    return {**template, "spec": {**template["spec"], **spec}}


def _restricted(container: Manifest) -> Manifest:
    requested: dict[str, Any] = container.get("securityContext") or {}
    capabilities: dict[str, Any] = requested.get("capabilities") or {}
    administers = {"SYS_ADMIN", "CAP_SYS_ADMIN"} & set(capabilities.get("add") or ())
    escalates = {} if requested.get("privileged") or administers else {"allowPrivilegeEscalation": False}
    return {
        **container,
        "securityContext": {**escalates, **requested, "capabilities": {"drop": ["ALL"], **capabilities}},
    }


def _is_for(item: PodTemplatePatch, component: str, pool: str | None) -> bool:
    chosen = item.component == component if item.component is not None else component != COORDINATOR
    return chosen and (item.pool is None or item.pool == pool)
