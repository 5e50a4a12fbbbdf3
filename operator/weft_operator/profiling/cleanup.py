"""The Jobs of a measurement to delete, and why. Pure."""

from collections.abc import Iterator, Sequence

from weft_operator.api.objects import (
    COMPONENT_LABEL,
    PROFILE_COMPONENT,
    Manifest,
    ObjectKey,
    controller_of,
    is_terminating,
    key_of,
    labels_of,
    name_of,
)
from weft_operator.kube.diff import Delete
from weft_operator.kube.observe import Observed
from weft_operator.profiling.job_status import JOB_LABEL, ended, termination_of


def left_over(observed: Observed, names: Sequence[str]) -> Iterator[Delete]:
    """Yield the deletions of running Jobs for another spec, and of readers that are not needed any more.

    ``names`` are the Job that measures now and the one whose engine reads; empty where nothing is measured.
    """
    for job in observed.of_kind("Job"):
        name = name_of(job)
        if labels_of(job).get(COMPONENT_LABEL) != PROFILE_COMPONENT or is_terminating(job):
            continue
        if _over(observed, name):
            continue  # it holds nothing but its log
        if name not in names:
            yield deletion_of(job, "not measured any more")
        elif name != names[0] and _over(observed, names[0]):
            yield deletion_of(job, "its reading is over")


def preempted(observed: Observed, names: Sequence[str]) -> Iterator[Delete]:
    """Yield the deletions of running Jobs: a plan change needs all GPUs of the budget."""
    for name in names:
        job = observed.named("Job", name)
        if job is not None and not ended(job) and not is_terminating(job):
            yield deletion_of(job, "the plan changes")


def abandoned(observed: Observed) -> Iterator[Delete]:
    """Yield the deletions of Jobs whose pods still measure for a service that does not request it any more.

    Jobs are read only for services that ask; a pod names its Job, too.
    """
    seen = set[str]()
    for pod in observed.pods:
        owner, name = controller_of(pod), labels_of(pod).get(JOB_LABEL, "")
        if labels_of(pod).get(COMPONENT_LABEL) != PROFILE_COMPONENT or is_terminating(pod) or name in seen:
            continue
        phase = (pod.get("status") or {}).get("phase")
        if owner is not None and owner.get("kind") == "Job" and phase not in ("Succeeded", "Failed"):
            seen.add(name)
            key = ObjectKey("batch/v1", "Job", pod["metadata"]["namespace"], str(owner["name"]))
            yield Delete(key, uid=str(owner.get("uid", "")), reason="not measured any more")


def deletion_of(job: Manifest, reason: str) -> Delete:
    """Return the deletion of a Job and its pods."""
    return Delete(key_of(job), uid=str(job["metadata"].get("uid", "")), reason=reason)


def _over(observed: Observed, name: str) -> bool:
    job = observed.named("Job", name)
    return job is not None and bool(ended(job) or termination_of(observed, name) is not None)
