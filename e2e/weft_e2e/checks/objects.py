"""Check the state of the cluster: readiness, children that must stay, and nothing left behind."""

import json
from collections.abc import Mapping
from typing import Any

from weft_e2e import kube
from weft_e2e.checks.failed import CheckFailed
from weft_e2e.kube import Kube
from weft_e2e.service import Service, condition_words, current_conditions
from weft_e2e.waiting import WaitedTooLong, until

# Kinds the operator makes, and pods that their controllers make.
CHILD_KINDS = (
    "statefulsets,deployments,replicasets,pods,services,configmaps,secrets,serviceaccounts,"
    "poddisruptionbudgets,endpointslices"
)
# What every namespace has of itself.
_GIVEN = {("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default")}


def check_ready(service: Service) -> None:
    """Require Ready and Planned for the newest spec, a plan, and as many Ready worker pods as it plans."""
    obj = service.object()
    now = current_conditions(obj)
    for name in ("Planned", "Ready"):
        if name not in now or not now[name].true:
            raise CheckFailed(f"{service.namespace}/{service.name}: {name} is not True: {condition_words(obj)}")
    for role in ("prefill", "decode"):
        planned = sum(g.replicas for g in service.plan().groups if g.role == role)
        ready = [p["metadata"]["name"] for p in service.pods(role) if kube.pod_ready(p)]
        if len(ready) != planned:
            raise CheckFailed(f"{planned} {role} workers are planned, Ready pods are: {', '.join(ready) or 'none'}")
    restarted = {
        f"{p['metadata']['name']}/{c['name']}": c["restartCount"]
        for p in service.pods()
        for c in p["status"].get("containerStatuses", [])
        if c["restartCount"]
    }
    if restarted:
        raise CheckFailed(f"containers were restarted: {restarted}")


def check_pods_untouched(service: Service, uids: Mapping[str, str]) -> None:
    """Require the worker pods to be the very same as before."""
    now = service.worker_uids()
    if now != dict(uids):
        gone = sorted(set(uids.items()) - set(now.items()))
        new = sorted(set(now.items()) - set(uids.items()))
        raise CheckFailed(f"worker pods changed: gone {[n for n, _ in gone]}, new {[n for n, _ in new]}")


def child_specs(service: Service) -> dict[str, str]:
    """Return kind/name to the canonical spec and data of every child that the operator itself writes."""
    found = kube.items(
        service.kube,
        "statefulsets,deployments,services,configmaps,secrets,serviceaccounts,poddisruptionbudgets",
        namespace=service.namespace,
        selector=service.selector,
    )
    return {
        f"{o['kind']}/{o['metadata']['name']}": json.dumps(
            {"uid": o["metadata"]["uid"], "spec": o.get("spec"), "data": o.get("data")}, sort_keys=True
        )
        for o in found
    }


def check_unchanged(service: Service, before: Mapping[str, str]) -> None:
    """Require every child to be as it was: same objects, same specs, same data."""
    now = child_specs(service)
    changed = sorted(k for k in {*now, *before} if now.get(k) != before.get(k))
    if changed:
        raise CheckFailed(f"children changed: {', '.join(changed)}")


def check_nothing_left(client: Kube, namespace: str, *, timeout_s: float = 60.0) -> None:
    """Require the namespace to become empty of everything the operator or its controllers make."""
    left: list[str] = []

    def empty() -> bool:
        left[:] = [
            f"{o['kind']}/{o['metadata']['name']}"
            for o in kube.items(client, CHILD_KINDS, namespace=namespace)
            if not _given(o)
        ]
        return not left

    try:
        until(
            empty, what=f"an empty namespace {namespace}", timeout_s=timeout_s, last=lambda: f"left: {', '.join(left)}"
        )
    except WaitedTooLong as late:
        raise CheckFailed(str(late)) from None


def _given(obj: Mapping[str, Any]) -> bool:
    return (obj["kind"], obj["metadata"]["name"]) in _GIVEN
