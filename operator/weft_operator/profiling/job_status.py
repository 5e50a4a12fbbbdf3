"""The state of profiling Jobs and their pods. Pure."""

from weft_operator.api.objects import Manifest, labels_of
from weft_operator.kube.observe import Observed
from weft_operator.workers.engine_failures import failure_hint

JOB_LABEL = "batch.kubernetes.io/job-name"
"""Label of a Job's pods."""


def _pods(observed: Observed, job: str) -> list[Manifest]:
    return [pod for pod in observed.pods if labels_of(pod).get(JOB_LABEL) == job]


def termination_of(observed: Observed, job: str) -> tuple[int, str] | None:
    """Return the exit code and termination message of a Job's program, None while it runs."""
    for pod in _pods(observed, job):
        for container in (pod.get("status") or {}).get("containerStatuses") or ():
            end = (container.get("state") or {}).get("terminated")
            if container["name"] == "profile" and end is not None:
                return int(end.get("exitCode", 1)), str(end.get("message") or "")
    return None


def ended(job: Manifest) -> str:
    """Return why a Job ended, "" while it has not."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            return str(condition.get("message") or condition.get("reason") or condition["type"])
    return ""


def address(observed: Observed, job: str) -> str:
    """Return the IP address of a Job's pod, "" while it has none."""
    return next((ip for pod in _pods(observed, job) if (ip := (pod.get("status") or {}).get("podIP"))), "")


def waits_for_node(observed: Observed, job: str) -> str:
    """Return why a Job's pod is unschedulable, "" where it is not."""
    for pod in _pods(observed, job):
        for condition in (pod.get("status") or {}).get("conditions") or ():
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                return str(condition.get("message") or condition.get("reason") or "no node has room")
    return ""


def trouble(observed: Observed, job: str) -> str:
    """Return the problem of a Job's pod, "" where none is known."""
    if waits := waits_for_node(observed, job):
        return f"its pod waits for a node: {waits}"[:300]
    for pod in _pods(observed, job):
        status = pod.get("status") or {}
        for container in status.get("initContainerStatuses") or ():
            end = (container.get("lastState") or {}).get("terminated") or (container.get("state") or {}).get(
                "terminated"
            )
            if container["name"] == "engine" and end is not None and end.get("exitCode"):
                said = failure_hint(str(end.get("message") or ""))
                return f"its engine keeps ending{f': {said}' if said else ''}"
    return ""
