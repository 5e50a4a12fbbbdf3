"""What Jobs that measure say, and such Jobs where no controller runs: a test makes their pods and lets them end."""

import copy
import json
from datetime import UTC, datetime
from typing import Any

from weft_operator.api.objects import Manifest
from weft_operator_tests.api import RealApi
from weft_operator_tests.cluster import wait_for
from weft_operator_tests.samples import PROFILE_JSON

FIT = {"median": 0.04, "p95": 0.1, "points": 40}
JOBS = "apis/batch/v1/jobs"


def told(degree: int, *, step: float = 0.1, transfer: float | None = 0.2, alpha: float = 0.5) -> dict[str, Any]:
    """What a measurement of one degree comes to; the figures are recognisable."""
    row = copy.deepcopy(next(row for row in PROFILE_JSON["degrees"] if row["degree"] == degree))
    row["prefill"][0]["alpha"] = alpha
    row["fit"] = {"prefill": FIT, "step": {**FIT, "p95": step}}
    way = {"source": degree, "destination": degree, "link": "inter-node", "alpha": 0.007, "perToken": 1e-7}
    fit = {} if transfer is None else {"fit": {**FIT, "p95": transfer}}
    return {**PROFILE_JSON, "degrees": [row], "transfers": [{**way, **fit}], "provenance": {"source": "engine"}}


def job_of(api: RealApi, namespace: str, part: str, *, timeout: float) -> Manifest:
    """Wait for a Job with these letters in its name, and return it."""
    found: list[Manifest] = []

    def there() -> bool:
        found[:] = [item for item in api.items(JOBS, namespace) if part in item["metadata"]["name"]]
        return bool(found)

    wait_for(f"a Job {part}", there, timeout=timeout)
    return found[0]


def play_pod(api: RealApi, job: Manifest, *, ip: str = "") -> Manifest:
    """Make the pod of a Job, which nobody schedules; with an address it runs."""
    template = job["spec"]["template"]
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    labels = {**template["metadata"]["labels"], "batch.kubernetes.io/job-name": name}
    pod: Manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{name}-x", "namespace": namespace, "labels": labels},
        "spec": {**template["spec"], "schedulerName": "nobody"},
    }
    api.kube.apply(pod)
    if ip:
        _status(api, pod, {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]})
    return pod


def say(api: RealApi, pod: Manifest, message: str, code: int = 0, *, container: str = "profile") -> None:
    """Let the program of a Job's pod end with these last words."""
    ended = {
        "name": container,
        "image": "x",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": {"exitCode": code, "message": message}},
    }
    _status(api, pod, {"phase": "Failed" if code else "Succeeded", "containerStatuses": [ended]})


def complete(api: RealApi, job: Manifest) -> None:
    """Let a Job be complete, as its controller says."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = [
        {
            "type": kind,
            "status": "True",
            "lastProbeTime": now,
            "lastTransitionTime": now,
            "reason": "CompletionsReached",
        }
        for kind in ("SuccessCriteriaMet", "Complete")
    ]
    status = {"conditions": conditions, "startTime": now, "completionTime": now, "succeeded": 1}
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    patch = json.dumps({"status": status})
    api.kube.run("-n", namespace, "patch", "job", name, "--subresource=status", "--type=merge", "-p", patch)


def bind(api: RealApi, namespace: str, claim: str) -> None:
    """Give a claim a volume, as its controller does."""
    found = api.read(f"api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim}")
    assert found is not None
    spec, metadata = found["spec"], found["metadata"]
    volume = f"{namespace}-{claim}"
    api.kube.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {
                "capacity": {"storage": spec["resources"]["requests"]["storage"]},
                "accessModes": spec["accessModes"],
                "hostPath": {"path": "/none"},
                "claimRef": {"namespace": namespace, "name": claim, "uid": metadata["uid"]},
            },
        }
    )
    bound = {
        "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": volume},
    }
    api.kube.run("-n", namespace, "patch", "pvc", claim, "--type=merge", "-p", json.dumps(bound))
    status = json.dumps({"status": {"phase": "Bound"}})
    api.kube.run("-n", namespace, "patch", "pvc", claim, "--subresource=status", "--type=merge", "-p", status)


def _status(api: RealApi, pod: Manifest, status: Manifest) -> None:
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    patch = json.dumps({"status": status})
    api.kube.run("-n", namespace, "patch", "pod", name, "--subresource=status", "--type=merge", "-p", patch)
