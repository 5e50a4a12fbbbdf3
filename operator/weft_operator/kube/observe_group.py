"""Read one worker group with all workers of its component, which share indices and the order of restarts."""

from collections.abc import Iterable
from dataclasses import dataclass

from weft_operator.api.objects import COMPONENT_LABEL, SERVICE_LABEL, WORKER_LABEL, GroupKey, Manifest
from weft_operator.errors import ForbiddenError, NotFoundError
from weft_operator.kube.client import KubeClient
from weft_operator.render.companions import CompanionKind, companion_kinds
from weft_operator.workers.groups import component_of, group_object


@dataclass(frozen=True, slots=True)
class ObservedGroup:
    """One group as the API server had it at the start of a pass."""

    group: Manifest
    statefulsets: tuple[Manifest, ...]
    """StatefulSets of all workers of the component, of any group."""
    pods: tuple[Manifest, ...]
    companions: tuple[Manifest, ...] = ()
    """Objects of single workers on several nodes other than StatefulSets."""


def observe_group(api: KubeClient, key: GroupKey) -> ObservedGroup | None:
    """Return the group and the workers of its component; None when the group is gone."""
    try:
        group = api.get(group_object(key))
    except NotFoundError:
        return None
    spec = group["spec"]
    selector = f"{SERVICE_LABEL}={spec['service']},{COMPONENT_LABEL}={component_of(spec.get('role'))}"
    statefulsets = api.list("apps/v1", "StatefulSet", namespace=key.namespace, selector=selector)
    return ObservedGroup(
        group=group,
        statefulsets=tuple(statefulsets),
        pods=tuple(api.list("v1", "Pod", namespace=key.namespace, selector=selector)),
        companions=tuple(list_companions(api, key.namespace, selector, companion_kinds(spec, statefulsets))),
    )


def list_companions(api: KubeClient, namespace: str, selector: str, kinds: Iterable[CompanionKind]) -> list[Manifest]:
    """Return the objects of some kinds that belong to single workers.

    A kind that is not installed, or that the operator may not list, has none here. Creating such an object then fails,
    and the worker's status reports it.
    """
    found: list[Manifest] = []
    for api_version, kind in kinds:
        try:
            found += api.list(api_version, kind, namespace=namespace, selector=f"{selector},{WORKER_LABEL}")
        except NotFoundError:
            continue
        except ForbiddenError:
            if kind == "NetworkPolicy":
                raise
    return found
