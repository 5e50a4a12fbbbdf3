"""All or nothing without a gang scheduler: a worker of which only some pods found a node gives these back.

Such a worker serves nothing and keeps GPUs from others; two of them can hold each half of what either needs, for ever.
After ``rollout.unschedulableTimeout`` its StatefulSet is scaled to 0, and back again after a pause. Of a role one is
released at a time, the newest first, so that another can take what it gave back; pauses differ by worker, so that those
of different roles and services do not meet again. Nothing is remembered but a time on the StatefulSet. Pure.
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

TURN_S = 30.0
"""After one worker of a role gave its nodes back, the others have so long to take them."""


@dataclass(frozen=True, slots=True)
class GangRelease:
    """Workers that hold no node now: since when each, which of them are new, and when the next look is due."""

    at: Mapping[str, datetime]
    status_events: tuple[Event, ...] = ()
    again_s: float | None = None


def plan_release(
    group: WorkerGroupView, statefulsets: Iterable[Manifest], pods: Sequence[Manifest], *, now: datetime
) -> GangRelease:
    """Return the workers of a group that are to have no pods now."""
    timeout = group.spec.unschedulable_timeout
    if timeout is None or group.spec.nodes_per_worker == 1:
        return GangRelease({})
    patience_s = parse_duration(timeout)
    at: dict[str, datetime] = {}
    waits: list[float] = []
    due: list[tuple[Manifest, Sequence[Manifest]]] = []
    for item in statefulsets:
        if is_terminating(item):
            continue
        before = release_time(item)
        if before is not None and before <= now:
            left = (before - now).total_seconds() + _pause_s(item, before, patience_s)
            if left > 0:
                at[name_of(item)] = before
                waits.append(left)
            continue
        mine = [pod for pod in pods if labels_of(pod).get(WORKER_LABEL) == name_of(item) and not is_terminating(pod)]
        since = _partial_since(mine)
        if since is None:
            continue
        left = (since - now).total_seconds() + patience_s
        if left > 0:
            waits.append(left)
        else:
            due.append((item, mine))
    turn = max(((time - now).total_seconds() + TURN_S for time in at.values()), default=0.0)
    if not due:
        return GangRelease(at, again_s=min(waits, default=None))
    if turn > 0:
        return GangRelease(at, again_s=min([*waits, turn]))
    newest, its_pods = max(due, key=lambda one: (str(one[0]["metadata"].get("creationTimestamp", "")), name_of(one[0])))
    at[name_of(newest)] = now
    waits.append(TURN_S if len(due) > 1 else _pause_s(newest, now, patience_s))
    return GangRelease(at, (_fact(newest, its_pods, timeout),), min(waits))


def release_time(item: Mapping[str, Manifest]) -> datetime | None:
    """Return when a worker gave its nodes back, None where it did not, or where somebody wrote what is no time."""
    text = annotations_of(item).get(RELEASED_ANNOTATION)
    try:
        found = datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    return found if found is None or found.tzinfo is not None else None


def _pause_s(item: Manifest, at: datetime, patience_s: float) -> float:
    """Return how long a worker stays without nodes: once to twice the timeout, another length each time."""
    told = hashlib.sha256(f"{item['metadata'].get('uid', '')} {at.isoformat()}".encode()).digest()
    return patience_s * (1 + told[0] / 256)


def _partial_since(pods: Sequence[Manifest]) -> datetime | None:
    """Return since when some pods of a worker find no node while others have one; None where that is not so.

    The time in which none had a node does not count: it kept no GPU from anybody, and nodes may come one by one.
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


def _fact(item: Manifest, pods: Sequence[Manifest], timeout: str) -> Event:
    bound = sum(bool((pod.get("spec") or {}).get("nodeName")) for pod in pods)
    return Event(
        type="Warning",
        reason="WorkerReleased",
        message=f"worker {name_of(item)} found nodes for {bound} of its {item['spec'].get('replicas')} pods within "
        f"{timeout} (spec.rollout.unschedulableTimeout): it gives these back and tries again later; add nodes, or set "
        "spec.scheduling.gang where a gang scheduler is installed",
        origin=",".join(sorted(str(pod["metadata"].get("uid", "")) for pod in pods)),
    )
