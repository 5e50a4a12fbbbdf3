"""Gang scheduling without a gang scheduler: a worker of which only some pods are scheduled releases their nodes.

A partly scheduled worker serves nothing and holds GPUs; two of them can block each other forever. After
``rollout.unschedulableTimeout`` its StatefulSet is scaled to 0, and back after a pause. One worker of a role is
released at a time, the newest first, so that another one can take its nodes. Pauses differ by worker, so that workers
of different roles and services do not collide again. The only state is a time on the StatefulSet. Pure.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from weft_core.durations import parse_duration
from weft_operator.api.objects import (
    RELEASED_ANNOTATION,
    WORKER_LABEL,
    Manifest,
    annotations_of,
    condition_of,
    is_terminating,
    labels_of,
    name_of,
)
from weft_operator.kube.events import Event
from weft_operator.workers.groups import WorkerGroupView

RELEASE_INTERVAL_S = 30.0
"""Time for the other workers of a role to take released nodes before the next one is released."""


@dataclass(frozen=True, slots=True)
class GangRelease:
    """The released workers with the time of their release, Events for new ones, and when to check again."""

    at: Mapping[str, datetime]
    events: tuple[Event, ...] = ()
    requeue_after: float | None = None


def plan_release(
    group: WorkerGroupView, statefulsets: Iterable[Manifest], pods: Sequence[Manifest], *, now: datetime
) -> GangRelease:
    """Return the workers of a group that are to have no pods now, and why.

    ``statefulsets`` are those of the workers that stay.
    """
    timeout = group.spec.unschedulable_timeout
    if timeout is None or group.spec.nodes_per_worker == 1:
        return GangRelease({})
    timeout_s = parse_duration(timeout)
    at: dict[str, datetime] = {}
    waits: list[float] = []
    due: list[tuple[Manifest, Sequence[Manifest]]] = []
    for item in statefulsets:
        before = release_time(item)
        if before is not None and before <= now:
            left = (before - now).total_seconds() + _pause_s(item, before, timeout_s)
            if left > 0:
                at[name_of(item)] = before
                waits.append(left)
            continue
        mine = [pod for pod in pods if labels_of(pod).get(WORKER_LABEL) == name_of(item) and not is_terminating(pod)]
        since = _partial_since(mine)
        if since is None:
            continue
        left = (since - now).total_seconds() + timeout_s
        if left > 0:
            waits.append(left)
        else:
            due.append((item, mine))
    next_release_s = max(((time - now).total_seconds() + RELEASE_INTERVAL_S for time in at.values()), default=0.0)
    if not due:
        return GangRelease(at, requeue_after=min(waits, default=None))
    if next_release_s > 0:
        return GangRelease(at, requeue_after=min([*waits, next_release_s]))
    newest, its_pods = max(due, key=lambda one: (str(one[0]["metadata"].get("creationTimestamp", "")), name_of(one[0])))
    at[name_of(newest)] = now
    waits.append(RELEASE_INTERVAL_S if len(due) > 1 else _pause_s(newest, now, timeout_s))
    return GangRelease(at, (_release_event(newest, its_pods, timeout),), min(waits))


def release_time(item: Mapping[str, Manifest]) -> datetime | None:
    """Return when a worker released its nodes; None where it did not or the annotation is not a time."""
    text = annotations_of(item).get(RELEASED_ANNOTATION)
    try:
        found = datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    return found if found is None or found.tzinfo is not None else None


def _pause_s(item: Manifest, at: datetime, timeout_s: float) -> float:
    """Return how long a worker stays released: one to two timeouts, pseudo-random by worker and time."""
    digest = hashlib.sha256(f"{item['metadata'].get('uid', '')} {at.isoformat()}".encode()).digest()
    return timeout_s * (1 + digest[0] / 256)


def _partial_since(pods: Sequence[Manifest]) -> datetime | None:
    """Return since when a worker is partly scheduled, None where it is not.

    The time in which no pod had a node does not count: the worker then held no GPU.
    """
    bound, waiting = [], []
    for pod in pods:
        scheduled = condition_of(pod, "PodScheduled") or {}
        time = scheduled.get("lastTransitionTime")
        since = datetime.fromisoformat(str(time)) if time else None
        if (pod.get("spec") or {}).get("nodeName"):
            bound.append(since)
        elif scheduled.get("status") == "False" and since is not None:
            waiting.append(since)
    if not bound or not waiting:
        return None
    return max(min(waiting), min((since for since in bound if since is not None), default=min(waiting)))


def _release_event(item: Manifest, pods: Sequence[Manifest], timeout: str) -> Event:
    bound = sum(bool((pod.get("spec") or {}).get("nodeName")) for pod in pods)
    return Event(
        type="Warning",
        reason="WorkerReleased",
        message=f"worker {name_of(item)} found nodes for {bound} of its {item['spec'].get('replicas')} pods within "
        f"{timeout} (spec.rollout.unschedulableTimeout): it releases them and tries again later; add nodes, or set "
        "spec.scheduling.gang where a gang scheduler is installed",
        origin=",".join(sorted(str(pod["metadata"].get("uid", "")) for pod in pods)),
    )
