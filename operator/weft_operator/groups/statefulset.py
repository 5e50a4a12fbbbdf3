"""One StatefulSet per worker, made from the group's template: its pods are the nodes that the worker spans."""

from typing import Any

from weft_core.plan import content_hash
from weft_operator.api.worker_group import GROUP_KIND
from weft_operator.fleet import Worker
from weft_operator.groups.group import GROUP_API, Group
from weft_operator.manifest import (
    COMPONENT_LABEL,
    DEGREE_LABEL,
    POOL_LABEL,
    SERVICE_LABEL,
    TEMPLATE_HASH_ANNOTATION,
    WORKER_LABEL,
    Manifest,
)

WORKER_VARIABLE = "WEFT_WORKER"
"""The environment variable that holds a worker's name; empty in the group's template."""


def statefulset(group: Group, worker: Worker) -> Manifest:
    """Return the StatefulSet of one worker of a group."""
    spec, name = group.spec, group.name_of(worker)
    template = worker_template(group, name)
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {
            **_metadata(group, name),
            "annotations": {TEMPLATE_HASH_ANNOTATION: content_hash(template, 16)},
        },
        "spec": {
            "replicas": spec.nodes_per_worker,
            "serviceName": f"{spec.service}-{spec.role}",
            # In order they would wait for ever: the first pod is ready only when the engines of all nodes have met.
            "podManagementPolicy": "Parallel",
            "revisionHistoryLimit": 2,
            "selector": {"matchLabels": {SERVICE_LABEL: spec.service, COMPONENT_LABEL: spec.role, WORKER_LABEL: name}},
            # One node of several cannot run another template than the rest: the operator restarts them together.
            "updateStrategy": {"type": "RollingUpdate" if spec.nodes_per_worker == 1 else "OnDelete"},
            "template": template,
        },
    }


def opened(group: Group, worker: Worker) -> tuple[Manifest, ...]:
    """Return the NetworkPolicy that lets the pods of a worker on several nodes reach each other at every port.

    Ranks connect to each other at ports of the kernel's choice. None where nothing keeps pods apart: a policy that
    chooses a pod also closes it to whom it does not name.
    """
    if group.spec.nodes_per_worker == 1 or not group.spec.isolated:
        return ()
    name = group.name_of(worker)
    pods = {"podSelector": {"matchLabels": {SERVICE_LABEL: group.spec.service, WORKER_LABEL: name}}}
    return (
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": _metadata(group, name),
            "spec": {**pods, "policyTypes": ["Ingress"], "ingress": [{"from": [pods]}]},
        },
    )


def _metadata(group: Group, name: str) -> Manifest:
    spec = group.spec
    return {
        "name": name,
        "namespace": group.key.namespace,
        "labels": {
            "app.kubernetes.io/name": "weft",
            "app.kubernetes.io/instance": spec.service,
            COMPONENT_LABEL: spec.role,
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


def worker_template(group: Group, name: str) -> dict[str, Any]:
    """Return the group's template with the worker's name in it; what is the same in both is shared, not copied."""
    template = group.spec.template
    metadata, pod = template["metadata"], template["spec"]
    containers = {
        field: [_named(container, name) for container in pod[field]]
        for field in ("initContainers", "containers")
        if pod.get(field)
    }
    return {
        **template,
        "metadata": {**metadata, "labels": {**metadata["labels"], WORKER_LABEL: name}},
        "spec": {**pod, **containers},
    }


def _named(container: Manifest, name: str) -> Manifest:
    if not container.get("env"):
        return container
    env = [{**item, "value": name} if item["name"] == WORKER_VARIABLE else item for item in container["env"]]
    return {**container, "env": env}
