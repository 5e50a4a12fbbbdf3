"""Restart a worker on several nodes as a whole: an engine that lost one of its nodes cannot go on with its successor.

A pod ends all that ran beside it: when it is deleted (a drain of its node, a person), when its engine ended, when it
was recreated, and when it is of an old template. Engines that come round by themselves are left alone: one that ended
before its worker had begun to serve is awaited by the others, and those that ended with it restart together.
Nothing is remembered; the times in the pods tell. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from weft_operator.api.objects import WORKER_LABEL, Manifest, condition_of, is_terminating, key_of, labels_of, name_of
from weft_operator.kube.diff import Delete
from weft_operator.kube.events import Event
from weft_operator.workers.readiness import is_current

SETTLE_S = 10.0
"""Where a worker that served lost an engine, the others may end by themselves for so long."""
JOIN_S = 300.0
"""Where one has yet to serve, an engine that restarted is given so long to join the others."""
DEAD_GRACE_S = 5
"""How long the sidecars of a worker without an engine have to end."""
TOGETHER_S = 1.0
"""Pods of one worker that were made within so long were made together: timestamps are whole seconds."""
_NEVER = datetime.max.replace(tzinfo=UTC)
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Restart:
    """A worker that is restarted: which of its pods are deleted, and why; ``at_once`` where its engine is dead."""

    worker: str
    pods: tuple[Manifest, ...]
    why: str
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class BrokenWorker:
    """When a worker is restarted because an engine was lost: at ``due``, unless it serves by then."""

    due: datetime
    why: str


def restarts(
    statefulsets: Iterable[Manifest], pods: Sequence[Manifest], *, now: datetime
) -> tuple[tuple[Restart, ...], float | None]:
    """Return the workers on several nodes to restart now, and in how many seconds to look again (None: no need)."""
    found: list[Restart] = []
    waits: list[float] = []
    for item in statefulsets:
        nodes = int(item["spec"].get("replicas", 1))
        if nodes <= 1 or is_terminating(item):
            continue
        mine = sorted((pod for pod in pods if labels_of(pod).get(WORKER_LABEL) == name_of(item)), key=name_of)
        due = _restart(item, mine)
        if due is not None:
            found.append(due)
            continue
        torn = torn_at([pod for pod in mine if not is_terminating(pod)], nodes=nodes)
        if torn is not None and torn.due <= now:
            alive = tuple(pod for pod in mine if not is_terminating(pod))
            found.append(Restart(name_of(item), alive, torn.why, at_once=True))
        elif torn is not None:
            waits.append((torn.due - now).total_seconds())
    return tuple(found), min(waits, default=None)


def deletions(restart: Restart) -> Iterator[Delete]:
    """Yield the deletions that a restart is made of."""
    for pod in restart.pods:
        # Without its engine a worker has nothing to drain.
        yield Delete(
            key_of({"apiVersion": "v1", "kind": "Pod", **pod}),
            uid=str(pod["metadata"].get("uid", "")),
            reason=f"its worker restarts, because {restart.why}",
            grace_s=DEAD_GRACE_S if restart.at_once else None,
        )


def restart_events(found: Iterable[Restart]) -> tuple[Event, ...]:
    """Return what is said of restarts; one that goes over several passes is said once."""
    return tuple(
        Event(
            type="Warning" if one.at_once else "Normal",
            reason="WorkerRestarted",
            message=f"worker {one.worker} restarts on all its nodes, because {one.why}",
            origin=",".join(sorted(str(pod["metadata"].get("uid", "")) for pod in one.pods)),
        )
        for one in found
    )


def _restart(item: Manifest, pods: Sequence[Manifest]) -> Restart | None:
    """Return what a pod that leaves, or an old template, takes along; these drain as they go."""
    alive = [pod for pod in pods if not is_terminating(pod)]
    for going in (pod for pod in pods if is_terminating(pod)):
        # Its successor may be there already, and those of the others: they are of another life.
        beside = tuple(pod for pod in alive if _created(pod) <= _asked_to_go(going))
        if beside:
            return Restart(name_of(item), beside, f"pod {name_of(going)} leaves")
    newest = (item.get("status") or {}).get("updateRevision")
    if newest and is_current(item):
        old = [pod for pod in alive if labels_of(pod).get("controller-revision-hash") != newest]
        if old:
            return Restart(name_of(item), tuple(alive), "its template changed")
    return None


def torn_at(pods: Sequence[Manifest], *, nodes: int) -> BrokenWorker | None:
    """Return when a worker with these living pods is restarted, None while its engines may be of one life.

    They are not when one of them runs since before another one ended, or was made. ``pods`` are in the order of their
    nodes, the leader first.
    """
    lives = [_Life.of(pod) for pod in pods]
    if len(pods) < nodes or not lives:
        return None  # its StatefulSet is about to make what is missing
    leader = lives[0]
    newest = max(lives, key=lambda life: life.since)
    behind = [life for life in lives if life is not newest and life.began < newest.since and not _twins(life, newest)]
    if not behind:
        return None
    if leader.ready_at is not None and leader.ready_at >= newest.since:
        return None  # it came to serve with the successor
    served = leader.ready_at is not None or leader.fell
    wait = SETTLE_S if served else JOIN_S
    return BrokenWorker(datetime.fromtimestamp(newest.since.timestamp() + wait, UTC), newest.words)


def _twins(life: "_Life", newest: "_Life") -> bool:
    """Tell whether an engine, the first of its pod, has no predecessor that the other could have begun with.

    Then it began with the other, whatever the clocks of their nodes say; when pods were made, one clock tells.
    """
    return newest.first and (newest.made - life.made).total_seconds() <= TOGETHER_S


@dataclass(frozen=True, slots=True)
class _Life:
    """One node's engine: since when there is none before it, since when it runs, and what its pod says of readiness."""

    since: datetime
    """When its predecessor ended, or its pod was made."""
    began: datetime
    """When it began; never where it does not run."""
    made: datetime
    """When its pod was made."""
    first: bool
    """Whether it is the first in its pod."""
    words: str
    ready_at: datetime | None
    """Since when its pod is ready; None where it is not."""
    fell: bool
    """Its pod was ready with this engine or the one before, and is no more."""

    @classmethod
    def of(cls, pod: Manifest) -> "_Life":
        engine = _engine(pod)
        state, last = engine.get("state") or {}, (engine.get("lastState") or {}).get("terminated") or {}
        ended = state.get("terminated") or last
        began = _time((state.get("running") or {}).get("startedAt")) or _NEVER
        finished = _time(ended.get("finishedAt"))
        ready = condition_of(pod, "Ready") or {}
        changed = _time(ready.get("lastTransitionTime"))
        is_ready = ready.get("status") == "True"
        earliest = _time(ended.get("startedAt")) or began
        name = name_of(pod)
        return cls(
            since=finished or _created(pod),
            began=began,
            made=_created(pod),
            first=finished is None,
            words=f"the engine of pod {name} ended" if finished else f"pod {name} was made anew",
            ready_at=changed if is_ready else None,
            fell=not is_ready and changed is not None and changed > earliest,
        )


def _engine(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((item for item in statuses if item.get("name") == "engine"), {})


def _created(pod: Manifest) -> datetime:
    return _time(pod["metadata"].get("creationTimestamp")) or _LONG_AGO


def _asked_to_go(pod: Manifest) -> datetime:
    """Return when a pod's deletion was asked for: the API server writes when its grace will have passed."""
    metadata = pod["metadata"]
    ends = _time(metadata["deletionTimestamp"]) or _LONG_AGO
    return datetime.fromtimestamp(ends.timestamp() - float(metadata.get("deletionGracePeriodSeconds") or 0), UTC)


def _time(text: object) -> datetime | None:
    return datetime.fromisoformat(str(text)) if text else None
