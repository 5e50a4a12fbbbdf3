"""One StatefulSet per worker, made from the group's template: its pods are the nodes that the worker spans."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from weft_core.plan import WorkerRole, content_hash
from weft_operator.api.objects import (
    COMPONENT_LABEL,
    DEGREE_LABEL,
    POOL_LABEL,
    RELEASED_ANNOTATION,
    ROLE_LABEL,
    SERVICE_LABEL,
    TEMPLATE_HASH_ANNOTATION,
    WORKER_LABEL,
    Manifest,
)
from weft_operator.api.worker_group import GROUP_KIND
from weft_operator.render.compute_domain import add_claim
from weft_operator.render.gang import add_gang, workload_labels
from weft_operator.render.worker_placement import add_placement
from weft_operator.workers.fleet import Worker
from weft_operator.workers.groups import GROUP_API, WorkerGroupView

WORKER_VARIABLE = "WEFT_WORKER"
"""The environment variable that holds a worker's name; empty in the group's template."""


def statefulset(group: WorkerGroupView, worker: Worker, *, released: datetime | None = None) -> Manifest:
    """Return the StatefulSet of one worker of a group, with 0 replicas where it released its nodes."""
    spec, name = group.spec, group.name_of(worker)
    template = worker_template(group, name)
    metadata = worker_metadata(group, name)
    annotations = {TEMPLATE_HASH_ANNOTATION: content_hash(template, 16)}
    if not group.fixed:
        template = _with_role(template, worker.role, annotations)
    if released is not None:
        annotations[RELEASED_ANNOTATION] = released.isoformat()
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {
            **metadata,
            "labels": {**metadata["labels"], ROLE_LABEL: worker.role, **workload_labels(spec.gang)},
            "annotations": annotations,
        },
        "spec": {
            "replicas": spec.nodes_per_worker if released is None else 0,
            "serviceName": f"{spec.service}-{group.component}",
            # In order they would wait forever: the first pod is ready only when the engines of all nodes have met.
            "podManagementPolicy": "Parallel",
            "revisionHistoryLimit": 2,
            "selector": {
                "matchLabels": {SERVICE_LABEL: spec.service, COMPONENT_LABEL: group.component, WORKER_LABEL: name}
            },
            # One node of several cannot run another template than the rest: the operator restarts them together. And
            # a template that differs in its role alone restarts nothing.
            "updateStrategy": {"type": "RollingUpdate" if spec.nodes_per_worker == 1 and group.fixed else "OnDelete"},
            "template": template,
        },
    }


def worker_metadata(group: WorkerGroupView, name: str) -> Manifest:
    """Return the metadata of an object of one worker, owned by its group."""
    spec = group.spec
    return {
        "name": name,
        "namespace": group.key.namespace,
        "labels": {
            "app.kubernetes.io/name": "weft",
            "app.kubernetes.io/instance": spec.service,
            COMPONENT_LABEL: group.component,
            "app.kubernetes.io/managed-by": "weft",
            SERVICE_LABEL: spec.service,
            WORKER_LABEL: name,
            DEGREE_LABEL: str(spec.degree),
            POOL_LABEL: spec.pool,
        },
        "ownerReferences": [
            {
                "apiVersion": GROUP_API,
                "kind": GROUP_KIND,
                "name": group.key.name,
                "uid": group.uid,
                "controller": True,
            }
        ],
    }


def worker_template(group: WorkerGroupView, name: str) -> dict[str, Any]:
    """Return the group's template with the worker's name and what connects its own pods.

    What is the same in both is shared, not copied.
    """
    template = group.spec.template
    metadata, pod = template["metadata"], template["spec"]
    containers = {
        field: [_named(container, name) for container in pod[field]]
        for field in ("initContainers", "containers")
        if pod.get(field)
    }
    named = {
        **template,
        "metadata": {**metadata, "labels": {**metadata["labels"], WORKER_LABEL: name}},
        "spec": add_claim(group.spec, name, add_placement(group.spec, name, {**pod, **containers})),
    }
    return add_gang(group.spec.gang, named, pod_group=name if group.spec.nodes_per_worker > 1 else "")


def without_role(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod template without the worker's role, which changes no pod's containers."""
    metadata = template.get("metadata") or {}
    labels = {name: value for name, value in (metadata.get("labels") or {}).items() if name != ROLE_LABEL}
    return {**template, "metadata": {**metadata, "labels": labels}}


def _with_role(template: Manifest, role: WorkerRole, annotations: Mapping[str, str]) -> Manifest:
    """Return a template with the worker's role, and with the hash of the rest, by which outdated pods are known."""
    metadata = template["metadata"]
    return {
        **template,
        "metadata": {
            **metadata,
            "labels": {**metadata["labels"], ROLE_LABEL: role},
            "annotations": {**(metadata.get("annotations") or {}), **annotations},
        },
    }


def _named(container: Manifest, name: str) -> Manifest:
    if not container.get("env"):
        return container
    env = [{**item, "value": name} if item["name"] == WORKER_VARIABLE else item for item in container["env"]]
    return {**container, "env": env}
