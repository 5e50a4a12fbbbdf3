"""Deliver the roles of workers to their pods, and see which workers have confirmed theirs. Pure.

The role is decided once, in the template of the worker's StatefulSet. From there it is written to the label of its
pods, which the kubelet hands to the sidecar as a file. The heartbeat confirms it. A pass that is killed between these
writes is continued by the next one from what it finds.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from weft_core.heartbeat import WorkerRecord
from weft_operator.api.objects import ROLE_LABEL, WORKER_LABEL, Manifest, is_terminating, key_of, labels_of, name_of
from weft_operator.kube.diff import Relabel
from weft_operator.kube.events import Event
from weft_operator.workers.fleet import Worker
from weft_operator.workers.groups import WorkerGroupView
from weft_operator.workers.readiness import is_outdated

SWITCH_POLL_S = 0.5
"""How often heartbeats are read once a worker changes its role; a heartbeat is written every second."""
SHORT_SWITCH_S = 10.0
"""How long a change of role takes that hands over few sessions, if any."""
LONG_SWITCH_POLL_S = 5.0
"""How often heartbeats are read while a change of role takes longer."""


def role_labels(
    group: WorkerGroupView, workers: Iterable[Worker], *, statefulsets: Sequence[Manifest], pods: Sequence[Manifest]
) -> tuple[Relabel, ...]:
    """Return the labels to write on pods; ``statefulsets`` are the wanted ones.

    A pod with an older template restarts soon and gets the label then: its engine may not serve the new role.
    """
    if group.fixed:
        return ()
    sets = {name_of(item): item for item in statefulsets}
    roles = {group.name_of(worker): worker.role for worker in workers}
    found = []
    for pod in sorted(pods, key=name_of):
        labels = labels_of(pod)
        role = roles.get(labels.get(WORKER_LABEL, ""))
        if role is None or labels.get(ROLE_LABEL) == role or is_terminating(pod):
            continue
        if is_outdated(pod, sets[labels[WORKER_LABEL]]):
            continue
        found.append(
            Relabel(
                key_of({"apiVersion": "v1", "kind": "Pod", **pod}),
                {ROLE_LABEL: role},
                uid=str(pod["metadata"].get("uid", "")),
                reason=f"role {labels.get(ROLE_LABEL, '(none)')} -> {role}",
                replaces=str(pod["metadata"].get("resourceVersion", "")),
            )
        )
    return tuple(found)


def role_events(group: WorkerGroupView, actions: Iterable[object]) -> tuple[Event, ...]:
    """Return the Events of workers whose role is changed, one for each pod."""
    return tuple(
        Event(
            type="Normal",
            reason="RoleChanged",
            message=f"pod {action.key.name} of {group.key.name} changes its {action.reason}",
            origin=f"{action.uid} {action.replaces}",
        )
        for action in actions
        if isinstance(action, Relabel)
    )


def switching_workers(
    service: str,
    workers: Iterable[Worker],
    *,
    pods: Sequence[Manifest],
    records: Mapping[str, WorkerRecord],
    rows: Sequence[Mapping[str, Any]],
) -> frozenset[str]:
    """Return the workers that have not confirmed their role yet.

    The heartbeat tells. Without one, as where Redis does not answer, a worker that was changing its role, by the
    group's status (``rows``), still is; any other has the role that it started with.
    """
    before = {str(row["name"]): row for row in rows}
    labels: dict[str, set[str]] = {}
    for pod in pods:
        if not is_terminating(pod):
            labels.setdefault(labels_of(pod).get(WORKER_LABEL, ""), set()).add(labels_of(pod).get(ROLE_LABEL, ""))
    found = set()
    for worker in workers:
        if worker.fixed:
            continue
        name = worker.name(service)
        record, row = records.get(name), before.get(name, {})
        if labels.get(name, {worker.role}) != {worker.role}:
            found.add(name)
        elif record is not None:
            found |= {name} if record.role != worker.role else set()
        elif row.get("switching") or row.get("role", worker.role) != worker.role:
            found.add(name)
    return frozenset(found)


def switch_poll_s(switching: Iterable[str], *, rows: Sequence[Mapping[str, Any]], now: datetime) -> float | None:
    """Return in how many seconds to read the heartbeats of these workers; None without workers.

    ``rows`` are the workers in the group's status; they say since when each changes its role.
    """
    since = {str(row["name"]): row.get("since") for row in rows if row.get("switching")}
    recent = now - timedelta(seconds=SHORT_SWITCH_S)
    waits = [
        LONG_SWITCH_POLL_S if (began := since.get(name)) and datetime.fromisoformat(began) < recent else SWITCH_POLL_S
        for name in switching
    ]
    return min(waits, default=None)
