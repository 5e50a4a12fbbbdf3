"""Read one group from the API server, with all workers of its role: names and turns are shared with other groups."""

from dataclasses import dataclass

from weft_operator.apiserver import ApiServer
from weft_operator.errors import NotFoundError
from weft_operator.groups.group import group_object
from weft_operator.manifest import COMPONENT_LABEL, SERVICE_LABEL, WORKER_LABEL, GroupKey, Manifest


@dataclass(frozen=True, slots=True)
class ObservedGroup:
    """One group as the API server had it at the beginning of a pass."""

    group: Manifest
    statefulsets: tuple[Manifest, ...]
    """Those of all workers of the role, whosever they are."""
    pods: tuple[Manifest, ...]
    policies: tuple[Manifest, ...] = ()
    """NetworkPolicies of single workers, where a group has workers on several nodes."""


def observe_group(api: ApiServer, key: GroupKey) -> ObservedGroup | None:
    """Return the group and the workers of its role; None when the group is gone."""
    try:
        group = api.get(group_object(key))
    except NotFoundError:
        return None
    spec = group["spec"]
    several = int(spec.get("nodesPerWorker") or 1) > 1
    selector = f"{SERVICE_LABEL}={spec['service']},{COMPONENT_LABEL}={spec['role']}"
    return ObservedGroup(
        group=group,
        statefulsets=tuple(api.list("apps/v1", "StatefulSet", namespace=key.namespace, selector=selector)),
        pods=tuple(api.list("v1", "Pod", namespace=key.namespace, selector=selector)),
        policies=tuple(_policies(api, key.namespace, selector)) if several else (),
    )


def _policies(api: ApiServer, namespace: str, selector: str) -> list[Manifest]:
    return api.list("networking.k8s.io/v1", "NetworkPolicy", namespace=namespace, selector=f"{selector},{WORKER_LABEL}")
