"""List many services at once, so that a resync of unchanged services costs the API server little.

A thousand services read one by one take about 19,000 requests, in batches of fifty 1,250. The result may be seconds old
when a pass uses it, so a pass that has to write observes its service again.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

from weft_operator.api.objects import (
    COMPONENT_LABEL,
    SERVICE_LABEL,
    WORKER_LABEL,
    GroupKey,
    Manifest,
    PassKey,
    ServiceKey,
    labels_of,
    name_of,
)
from weft_operator.api.service import GROUP, KIND, VERSION
from weft_operator.api.worker_group import GROUP_KIND
from weft_operator.kube.client import KubeClient
from weft_operator.kube.observe import Observed, list_owned, of_service
from weft_operator.kube.observe_group import ObservedGroup, list_companions
from weft_operator.render.companions import COMPANION_KINDS, NETWORK_POLICY, CompanionKind, companion_kinds
from weft_operator.workers.groups import component_of

BATCH_SIZE = 50
"""Services in one batch: about a thousand objects, 5 MB of JSON."""

Snapshot = Observed | ObservedGroup


def batches(keys: Iterable[PassKey]) -> Iterator[tuple[PassKey, ...]]:
    """Yield batches of keys of one namespace and at most BATCH_SIZE services each, groups with their service."""
    part: list[PassKey] = []
    services = 0
    for key in sorted(keys, key=lambda one: (one.namespace, one.name)):
        is_service = isinstance(key, ServiceKey)
        if part and (part[0].namespace != key.namespace or (is_service and services == BATCH_SIZE)):
            yield tuple(part)
            part, services = [], 0
        part.append(key)
        services += is_service
    if part:
        yield tuple(part)


def observe_many(api: KubeClient, namespace: str, names: Collection[str]) -> Mapping[PassKey, Snapshot]:
    """Return the existing ones of some services of a namespace, with all their groups.

    Raises:
        ApiError: the API server refused or did not answer.
    """
    existing = [item for item in api.list(f"{GROUP}/{VERSION}", KIND, namespace=namespace) if name_of(item) in names]
    if not existing:
        return {}
    selector = f"{SERVICE_LABEL} in ({','.join(sorted(names))})"
    owned = _by_service(list_owned(api, namespace, selector))
    pods = _by_service(api.list("v1", "Pod", namespace=namespace, selector=selector))
    # NetworkPolicies are among the owned objects; other kinds are rare, and listed only if a group uses them.
    kinds = {kind for items in owned.values() for kind in _companion_kinds(items)} - {NETWORK_POLICY}
    companions = _by_service(list_companions(api, namespace, selector, sorted(kinds)))
    found: dict[PassKey, Snapshot] = {}
    for service in existing:
        key = ServiceKey(namespace, name_of(service))
        found[key] = of_service(api, key, service, owned[key.name], pods[key.name])
        for item in owned[key.name]:
            if item["kind"] == GROUP_KIND:
                others = [*owned[key.name], *companions[key.name]]
                found[GroupKey(namespace, name_of(item))] = _of_group(item, others, pods[key.name])
    return found


def _companion_kinds(owned: Iterable[Manifest]) -> Iterator[CompanionKind]:
    items = list(owned)
    sets = [item for item in items if item["kind"] == "StatefulSet"]
    for group in (item for item in items if item["kind"] == GROUP_KIND):
        yield from companion_kinds(group["spec"], sets)


def _by_service(items: Iterable[Manifest]) -> defaultdict[str, list[Manifest]]:
    found = defaultdict(list)
    for item in items:
        # A third of the size, and needed only by a pass that writes, which observes again.
        item["metadata"].pop("managedFields", None)
        found[labels_of(item).get(SERVICE_LABEL, "")].append(item)
    return found


def _of_group(group: Manifest, owned: Iterable[Manifest], pods: Iterable[Manifest]) -> ObservedGroup:
    component = component_of(group["spec"].get("role"))
    return ObservedGroup(
        group=group,
        statefulsets=tuple(
            item
            for item in owned
            if item["kind"] == "StatefulSet" and labels_of(item).get(COMPONENT_LABEL) == component
        ),
        pods=tuple(pod for pod in pods if labels_of(pod).get(COMPONENT_LABEL) == component),
        companions=tuple(
            item
            for item in owned
            if item["kind"] in COMPANION_KINDS
            and WORKER_LABEL in labels_of(item)
            and labels_of(item).get(COMPONENT_LABEL) == component
        ),
    )
