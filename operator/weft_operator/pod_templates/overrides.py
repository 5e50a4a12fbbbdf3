"""A service's own changes to its pods: strategic merge patches, in the order of ``spec.podTemplates``."""

from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.api.templates import PodTemplatePatch
from weft_operator.manifest import Manifest
from weft_operator.pod_templates.protected import protected_fault
from weft_operator.pod_templates.strategic import merged

COORDINATOR = "coordinator"


def overridden(
    spec: DisaggInferenceServiceSpec, template: Manifest, *, component: str, pool: str | None = None
) -> Manifest:
    """Return a pod template with the service's patches for its component and pool merged into it."""
    for item in spec.pod_templates:
        if _is_for(item, component, pool):
            template = merged(template, item.patch)
    return template


def protected_field(spec: DisaggInferenceServiceSpec) -> str | None:
    """Return which patch touches what it may not, with the field and the fix; None when all may be applied."""
    devices = frozenset(
        name
        for pool in spec.capacity.pools
        for name in (pool.resource, pool.rdma.resource if pool.rdma is not None else None)
        if name is not None
    )
    for position, item in enumerate(spec.pod_templates):
        fault = protected_fault(dict(item.patch), devices, coordinator=item.component == COORDINATOR)
        if fault is not None:
            return f"spec.podTemplates[{position}].patch.{fault}"
    return None


def _is_for(item: PodTemplatePatch, component: str, pool: str | None) -> bool:
    chosen = item.component == component if item.component is not None else component != COORDINATOR
    return chosen and (item.pool is None or item.pool == pool)
