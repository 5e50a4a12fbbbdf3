"""Restart a worker on several nodes as a whole: its engines cannot continue with a replacement of one of them.

A worker on one node whose role can change is restarted for a new template alone: its StatefulSet leaves that to the
operator, because a template with another role must restart nothing.

All pods of a worker restart when one of them is deleted (by a node drain or a person), is recreated, lost its engine,
or has an old template. Engines that recover by themselves are left alone: before the worker serves, the others wait
for an engine that restarts, and engines that ended together restart together. All state is in the pods' times. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from weft_operator.api.objects import WORKER_LABEL, Manifest, condition_of, is_terminating, key_of, labels_of, name_of
from weft_operator.kube.diff import Delete
from weft_operator.kube.events import Event
from weft_operator.workers.readiness import is_current, is_outdated

SETTLE_S = 10.0
"""How long the other engines of a worker that served may take to end by themselves after one ended."""
JOIN_S = 300.0
"""How long an engine that restarted before its worker served may take to join the others."""
DEAD_GRACE_S = 5
"""How long the sidecars of a worker without an engine have to end."""
SAME_START_S = 1.0
"""Pods of a worker created within this time were created together: timestamps are whole seconds."""
_NEVER = datetime.max.replace(tzinfo=UTC)
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Restart:
    """A worker to restart: the pods to delete, and why; ``at_once`` without grace, because its engine is dead."""

    worker: str
    pods: tuple[Manifest, ...]
    why: str
    at_once: bool = False
    several_nodes: bool = True


@dataclass(frozen=True, slots=True)
class BrokenWorker:
    """A worker that lost an engine: it is restarted at ``due``, unless it serves by then."""

    due: datetime
    why: str


def restarts(
    statefulsets: Iterable[Manifest], pods: Sequence[Manifest], *, now: datetime
) -> tuple[tuple[Restart, ...], float | None]:
    """Return the workers to restart now, and in how many seconds to check again (None: no need).

    ``statefulsets`` are those of the workers that stay.
    """
    found: list[Restart] = []
    waits: list[float] = []
    for item in statefulsets:
        nodes = int(item["spec"].get("replicas", 1))
        if (item["spec"].get("updateStrategy") or {}).get("type") != "OnDelete":
            continue
        mine = sorted((pod for pod in pods if labels_of(pod).get(WORKER_LABEL) == name_of(item)), key=name_of)
        if nodes <= 1:
            old = _outdated(item, [pod for pod in mine if not is_terminating(pod)])
            found += [] if old is None else [replace(old, several_nodes=False)]
            continue
        due = _restart(item, mine)
        if due is not None:
            found.append(due)
            continue
        broken = find_broken_worker([pod for pod in mine if not is_terminating(pod)], nodes=nodes)
        if broken is not None and broken.due <= now:
            alive = tuple(pod for pod in mine if not is_terminating(pod))
            found.append(Restart(name_of(item), alive, broken.why, at_once=True))
        elif broken is not None:
            waits.append((broken.due - now).total_seconds())
    return tuple(found), min(waits, default=None)


def deletions(restart: Restart) -> Iterator[Delete]:
    """Yield the deletions of a restart's pods."""
    for pod in restart.pods:
        # Without its engine a worker has nothing to drain.
        yield Delete(
            key_of({"apiVersion": "v1", "kind": "Pod", **pod}),
            uid=str(pod["metadata"].get("uid", "")),
            reason=f"its worker restarts, because {restart.why}",
            grace_s=DEAD_GRACE_S if restart.at_once else None,
        )


def restart_events(found: Iterable[Restart]) -> tuple[Event, ...]:
    """Return the Events of restarts; their origin is the same in all passes over one restart."""
    return tuple(
        Event(
            type="Warning" if one.at_once else "Normal",
            reason="WorkerRestarted",
            message=f"worker {one.worker} restarts{' on all its nodes' * one.several_nodes}, because {one.why}",
            origin=",".join(sorted(str(pod["metadata"].get("uid", "")) for pod in one.pods)),
        )
        for one in found
    )


def _restart(item: Manifest, pods: Sequence[Manifest]) -> Restart | None:
    """Return the restart because of a pod that terminates or an old template; its pods drain."""
    alive = [pod for pod in pods if not is_terminating(pod)]
    for going in (pod for pod in pods if is_terminating(pod)):
        # Pods created after its deletion belong to the restarted worker already.
        beside = tuple(pod for pod in alive if _created(pod) <= _deleted_at(going))
        if beside:
            return Restart(name_of(item), beside, f"pod {name_of(going)} terminates")
    return _outdated(item, alive)


def _outdated(item: Manifest, alive: Sequence[Manifest]) -> Restart | None:
    """Return the restart because of an old template; the pods drain."""
    known = is_current(item) and (item.get("status") or {}).get("updateRevision")
    if known and any(is_outdated(pod, item) for pod in alive):
        return Restart(name_of(item), tuple(alive), "its template changed")
    return None


def find_broken_worker(pods: Sequence[Manifest], *, nodes: int) -> BrokenWorker | None:
    """Return when to restart a worker with these running pods, None while its engines may have started together.

    They have not when one of them runs since before another one ended or its pod was created. ``pods`` are in the
    order of their node index, the leader first. ``nodes`` is at least 1.
    """
    runs = [_EngineRun.of(pod) for pod in pods]
    if len(pods) < nodes:
        return None  # its StatefulSet creates the missing pods
    leader = runs[0]
    newest = max(runs, key=lambda run: run.since)
    behind = [
        run for run in runs if run is not newest and run.started < newest.since and not _started_together(run, newest)
    ]
    if not behind:
        return None
    if leader.ready_at is not None and leader.ready_at >= newest.since:
        return None  # it became ready with the newest engine
    served = leader.ready_at is not None or leader.lost_readiness
    wait = SETTLE_S if served else JOIN_S
    return BrokenWorker(datetime.fromtimestamp(newest.since.timestamp() + wait, UTC), newest.words)


def _started_together(run: "_EngineRun", newest: "_EngineRun") -> bool:
    """Return whether two engines started together although their nodes' clocks may say otherwise.

    They did if the newest is the first engine of its pod, and both pods were created together by one clock, the API
    server's.
    """
    return newest.first and (newest.created - run.created).total_seconds() <= SAME_START_S


@dataclass(frozen=True, slots=True)
class _EngineRun:
    """The current run of one node's engine, from its container's and its pod's status."""

    since: datetime
    """When the engine before ended, or the pod was created."""
    started: datetime
    """When it started; never where it does not run."""
    created: datetime
    """When its pod was created."""
    first: bool
    """Whether it is the first in its pod."""
    words: str
    ready_at: datetime | None
    """Since when its pod is ready; None where it is not."""
    lost_readiness: bool
    """Whether its pod was ready with this engine or the one before, and no longer is."""

    @classmethod
    def of(cls, pod: Manifest) -> "_EngineRun":
        engine = _engine(pod)
        state, last = engine.get("state") or {}, (engine.get("lastState") or {}).get("terminated") or {}
        ended = state.get("terminated") or last
        started = _time((state.get("running") or {}).get("startedAt")) or _NEVER
        finished = _time(ended.get("finishedAt"))
        ready = condition_of(pod, "Ready") or {}
        changed = _time(ready.get("lastTransitionTime"))
        is_ready = ready.get("status") == "True"
        earliest = _time(ended.get("startedAt")) or started
        name = name_of(pod)
        return cls(
            since=finished or _created(pod),
            started=started,
            created=_created(pod),
            first=finished is None,
            words=f"the engine of pod {name} ended" if finished else f"pod {name} was recreated",
            ready_at=changed if is_ready else None,
            lost_readiness=not is_ready and changed is not None and changed > earliest,
        )


def _engine(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((item for item in statuses if item.get("name") == "engine"), {})


def _created(pod: Manifest) -> datetime:
    return _time(pod["metadata"].get("creationTimestamp")) or _LONG_AGO


def _deleted_at(pod: Manifest) -> datetime:
    """Return when a pod's deletion was requested: deletionTimestamp less the grace period."""
    metadata = pod["metadata"]
    ends = _time(metadata["deletionTimestamp"]) or _LONG_AGO
    return datetime.fromtimestamp(ends.timestamp() - float(metadata.get("deletionGracePeriodSeconds") or 0), UTC)


def _time(text: object) -> datetime | None:
    return datetime.fromisoformat(str(text)) if text else None
