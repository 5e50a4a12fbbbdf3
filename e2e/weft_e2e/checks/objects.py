"""Check the state of the cluster: readiness, children that must stay, and nothing left behind."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from weft_core.layouts import WORKER_ROLES
from weft_core.plan import plan_from_json
from weft_e2e import kube
from weft_e2e.checks.failed import CheckFailed
from weft_e2e.kube import Kube
from weft_e2e.service import SETTLED, Service, component_of, condition_words, current_conditions, settled
from weft_e2e.waiting import WaitedTooLong, until

# Kinds the operator makes, and pods that their controllers make.
CHILD_KINDS = (
    "workergroups,statefulsets,deployments,replicasets,pods,services,configmaps,secrets,serviceaccounts,"
    "poddisruptionbudgets,endpointslices"
)
# What every namespace has of itself.
_GIVEN = {("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default")}


def check_ready(service: Service, *, timeout_s: float = 0.0, without: Collection[str] = ()) -> None:
    """Require, within a time, the newest spec to be planned, rolled out and served by as many Ready pods as planned.

    Status and pods must agree in one reading, which is what is repeated: after a disturbance the status still says
    Ready for as long as the operator has not looked. ``without`` are uids of pods that may not be among the Ready
    ones: what was hurt must have been replaced. A container that was restarted is a failure at once.
    """
    lacking = ""

    def ready() -> bool:
        nonlocal lacking
        lacking = _lacking(service, without)
        return not lacking

    try:
        until(ready, what="readiness", timeout_s=timeout_s, every_s=1.0)
    except WaitedTooLong:
        raise CheckFailed(f"{service.namespace}/{service.name} after {timeout_s:g} s: {lacking}") from None


def _lacking(service: Service, without: Collection[str]) -> str:
    """Return the first thing that keeps a service from being ready in every sense, nothing when it is."""
    obj = service.object()
    pods = service.pods()
    restarted = {
        f"{p['metadata']['name']}/{c['name']}": c["restartCount"]
        for p in pods
        for kind in ("containerStatuses", "initContainerStatuses")
        for c in p["status"].get(kind, [])
        if c["restartCount"]
    }
    if restarted:
        raise CheckFailed(f"containers were restarted: {restarted}")
    now = current_conditions(obj)
    if not settled(now):
        wrong = [name for name, status in SETTLED.items() if name not in now or now[name].status != status]
        return f"{', '.join(f'{name} is not {SETTLED[name]}' for name in wrong)}: {condition_words(obj)}"
    plan = plan_from_json(obj["status"]["plan"])
    for role in WORKER_ROLES:
        planned = sum(g.replicas for g in plan.groups if g.role == role)
        ready = [p["metadata"] for p in pods if component_of(p) == role and kube.pod_ready(p)]
        names = ", ".join(m["name"] for m in ready) or "none"
        if len(ready) != planned:
            return f"{planned} {role} workers are planned, Ready pods are: {names}"
        if old := [m["name"] for m in ready if m["uid"] in without]:
            return f"{role} pods that should have been replaced are Ready: {', '.join(old)}"
    return ""


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
        "workergroups,statefulsets,deployments,services,configmaps,secrets,serviceaccounts,poddisruptionbudgets",
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
    check_same(child_specs(service), before)


def check_same(now: Mapping[str, str], before: Mapping[str, str]) -> None:
    """Require children (``child_specs``) to be as they were."""
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
