"""The state of the Jobs and pods that download weights. Pure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from weft_core.durations import format_seconds
from weft_operator.api.objects import WEIGHTS_ANNOTATION, Manifest, annotations_of, is_terminating, labels_of, name_of
from weft_operator.kube.observe import Observed
from weft_operator.render.weights import CONTAINER
from weft_operator.weights.download import gigabytes
from weft_operator.weights.progress import Progress

JOB_LABEL = "batch.kubernetes.io/job-name"
"""Label of a Job's pods."""
_QUIET_WAITS = ("", "ContainerCreating", "PodInitializing")


def job_pods(observed: Observed, job: str) -> list[Manifest]:
    """Return the pods of a Job, the newest last."""
    mine = [pod for pod in observed.pods if labels_of(pod).get(JOB_LABEL) == job]
    return sorted(mine, key=lambda pod: str(pod["metadata"].get("creationTimestamp") or ""))


def job_end(job: Manifest) -> tuple[bool, str, datetime | None] | None:
    """Return whether an ended Job succeeded, why it ended and when; None while it runs."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            since = condition.get("lastTransitionTime")
            why = str(condition.get("message") or condition.get("reason") or condition["type"])
            return condition["type"] == "Complete", why, datetime.fromisoformat(since) if since else None
    return None


def termination_message(pods: Sequence[Manifest]) -> str:
    """Return the termination message of the newest pod that has one, "" for none."""
    for pod in reversed(pods):
        for container in _statuses(pod):
            for state in ("state", "lastState"):
                end = (container.get(state) or {}).get("terminated")
                if end is not None and str(end.get("message") or "").strip():
                    return str(end["message"]).strip()
    return ""


def sidecar_failure(pod: Manifest) -> str:
    """Return the termination message of a worker's failed sidecar, "" while it runs."""
    running = any((container.get("state") or {}).get("running") for container in _statuses(pod))
    return "" if running else termination_message([pod])


def describe_download(words: str) -> str:
    """Return the size and version in a download's termination message, "" for none."""
    try:
        body = json.loads(words)
        version = f", version {str(body['version'])[:40]}" if body["version"] else ""
        return f"{gigabytes(int(body['bytes']))}{version}"
    except (ValueError, TypeError, KeyError):
        return ""


def waiting_reason(pods: Iterable[Manifest]) -> str:
    """Return why a pod does not start, "" where no problem is known."""
    for pod in pods:
        if is_terminating(pod):
            continue
        for condition in (pod.get("status") or {}).get("conditions") or ():
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                return f"pod {name_of(pod)} waits for a node: {condition.get('message') or condition.get('reason')}"
        for container in _statuses(pod):
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting.get("reason", "") not in _QUIET_WAITS:
                return f"pod {name_of(pod)} waits: {waiting['reason']} {waiting.get('message', '')}".strip()
    return ""


def has_model(pod: Manifest) -> bool:
    """Return whether a worker's sidecar has the model on the node."""
    return any(bool(container.get("started")) for container in _statuses(pod))


def progress_text(progress: Progress | None) -> str:
    """Return the progress of a download as text."""
    if progress is None:
        return "its progress is not known"
    if not progress.total:
        return "listing the files"
    text = f"{gigabytes(progress.done)} of {gigabytes(progress.total)}"
    if progress.done >= progress.total:
        return f"{text}; verifying"
    if progress.rate < 1:
        return f"{text}, nothing in the last half minute"
    left = (progress.total - progress.done) / progress.rate
    about = f"{left / 60:.0f} min" if left >= 90 else format_seconds(max(1.0, round(left)))
    return f"{text}, {gigabytes(progress.rate)}/s, about {about} left"


def mounted_weights(observed: Observed) -> frozenset[tuple[str, str]]:
    """Return (claim, key of the weights) of all volumes that workers or their templates mount."""
    templates = [item["spec"]["template"] for item in (*observed.owned, *observed.workers) if _is_template(item)]
    pods = [pod for pod in observed.pods if JOB_LABEL not in labels_of(pod)]
    return frozenset(
        (
            str(volume["persistentVolumeClaim"]["claimName"]),
            ((item.get("metadata") or {}).get("annotations") or {}).get(WEIGHTS_ANNOTATION, ""),
        )
        for item in (*templates, *pods)
        for volume in (item.get("spec") or {}).get("volumes") or ()
        if volume.get("persistentVolumeClaim")
    )


def worker_pods(observed: Observed, key: str) -> list[Manifest]:
    """Return the pods of workers that load the weights of a key."""
    return [
        pod
        for pod in observed.pods
        if annotations_of(pod).get(WEIGHTS_ANNOTATION) == key
        and JOB_LABEL not in labels_of(pod)
        and not is_terminating(pod)
    ]


def progress_by_node(pods: Iterable[Manifest], progress: Mapping[str, Progress]) -> list[str]:
    """Return the progress of the download for each waiting worker."""
    return [
        f"{(pod.get('spec') or {}).get('nodeName', 'no node yet')}: {progress_text(progress.get(name_of(pod)))}"
        for pod in pods
    ]


def _is_template(item: Manifest) -> bool:
    return item["kind"] in ("WorkerGroup", "StatefulSet") and bool((item.get("spec") or {}).get("template"))


def _statuses(pod: Manifest) -> list[Manifest]:
    status = pod.get("status") or {}
    found = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return [container for container in found if container.get("name") == CONTAINER]
