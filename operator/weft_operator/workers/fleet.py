"""The workers of a service: their names, and which of them are lost.

A name is not reused while an object still has it. So the replacement of a pod that hangs on a dead node gets the next
free index and does not wait for the node (docs/decisions/0003).
"""

import contextlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from weft_core.layouts import WORKER_ROLES
from weft_core.parallelism import Degree, parse_degree
from weft_core.plan import PlannedGroup, Role, WorkerRole
from weft_operator.api.objects import (
    DRAIN_ANNOTATION,
    POOL_LABEL,
    ROLE_LABEL,
    WORKER_LABEL,
    Manifest,
    annotations_of,
    condition_of,
    is_terminating,
    labels_of,
    name_of,
)

LINGER_S = 10.0
"""A pod that still exists this long after its grace period has no kubelet to end it."""

STUCK = "its pod is broken and has an old template, which prevents the update to the new one"

LETTER: Mapping[WorkerRole | None, str] = {"prefill": "p", "decode": "d", "both": "b", None: "w"}
"""The letter of a worker's kind: its role, where that is in its name; None where the role can change."""
_ROLE: Mapping[str, Role] = {"p": "prefill", "d": "decode"}
_SUFFIX = re.compile(r"-([pdw])(\d+|-(?=[a-z])(?:tp\d+)?(?:pp\d+)?(?:dp\d+)?(?:ep)?)-(\d+)$")


@dataclass(frozen=True, slots=True, order=True)
class Worker:
    """One model replica of a service: its role now, degree, index, and pool.

    A worker of a ``fixed`` role has it in its name. The index counts the workers whose names are otherwise the same.
    """

    role: WorkerRole
    degree: Degree
    index: int
    pool: str
    fixed: bool = True

    def name(self, service: str) -> str:
        """Return the name of the worker's StatefulSet: demo-w4-0; of a fixed role demo-p4-0, demo-d-dp16ep-0."""
        return f"{service}-{kind_name(self.role if self.fixed else None, self.degree)}-{self.index}"


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A worker with a StatefulSet; ``lost`` says why it must be replaced, None when it need not be."""

    worker: Worker
    name: str
    uid: str
    terminating: bool
    lost: str | None
    node: str
    created: str = ""
    """Creation time of its StatefulSet, as the API server writes it."""
    serving: bool = True
    """Whether its pods are ready, one on each of its nodes."""
    drain_requested: bool = False
    """Whether a person drains it (``weft drain``)."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The workers to have, and those whose loss is the reason for a new one."""

    workers: tuple[Worker, ...]
    lost: tuple[LiveWorker, ...]


def kind_name(role: WorkerRole | None, degree: Degree) -> str:
    """Return the part of workers' names that says what they are: p4, d-dp16ep; w4 where the role (None) can change."""
    return f"{LETTER[role]}{degree}" if isinstance(degree, int) else f"{LETTER[role]}-{degree}"


def first_workers(groups: Iterable[PlannedGroup], *, fixed_roles: bool = True) -> tuple[Worker, ...]:
    """Return the workers of a plan without existing ones; indices are per name, whatever the pool."""
    used: dict[str, int] = {}
    found = []
    for group in sorted(groups, key=lambda one: (one.role, one.degree, one.pool)):
        kind = kind_name(group.role if fixed_roles else None, group.degree)
        for _ in range(group.replicas):
            index = used[kind] = used.get(kind, -1) + 1
            found.append(Worker(group.role, group.degree, index, group.pool, fixed=fixed_roles))
    return tuple(sorted(found))


def role_of(statefulset: Mapping[str, Any]) -> WorkerRole:
    """Return the role that is assigned to a worker, in its pod template; decode where it is in none."""
    found = (statefulset["spec"]["template"].get("metadata") or {}).get("labels") or {}
    return next((role for role in WORKER_ROLES if role == found.get(ROLE_LABEL)), "decode")


def parse_name(service: str, name: str, pool: str, role: WorkerRole = "decode") -> Worker | None:
    """Return the worker of a StatefulSet's name; None for any other name. ``role`` is used where no name says it."""
    if not name.startswith(f"{service}-"):
        return None
    match = _SUFFIX.fullmatch(name[len(service) :])
    if match is None:
        return None
    letter, degree, index = match.groups()
    with contextlib.suppress(ValueError):
        return Worker(
            role=_ROLE.get(letter, role),
            degree=parse_degree(degree.removeprefix("-")),
            index=int(index),
            pool=pool,
            fixed=letter in _ROLE,
        )
    return None


def live_workers(
    service: str,
    statefulsets: Iterable[Manifest],
    pods: Sequence[Manifest],
    *,
    now: datetime,
    stuck: Collection[str] = (),
) -> tuple[LiveWorker, ...]:
    """Return the workers that have a StatefulSet, lost ones marked; ``stuck`` names those that cannot be updated."""
    of_worker: dict[str, list[Manifest]] = {}
    for pod in pods:
        of_worker.setdefault(labels_of(pod).get(WORKER_LABEL, ""), []).append(pod)
    found = []
    for item in statefulsets:
        worker = parse_name(service, name_of(item), labels_of(item).get(POOL_LABEL, ""), role_of(item))
        if worker is None:
            continue
        # The pods of a worker on several nodes, the leader first.
        mine = sorted(of_worker.get(name_of(item), []), key=name_of)
        reasons = [reason for pod in mine if (reason := loss_of(pod, now=now))]
        if name_of(item) in stuck:
            reasons.append(STUCK)
        found.append(
            LiveWorker(
                worker=worker,
                name=name_of(item),
                uid=str(item["metadata"].get("uid", "")),
                terminating=is_terminating(item),
                lost=reasons[0] if reasons else None,
                node=next((str(node) for pod in mine if (node := pod.get("spec", {}).get("nodeName"))), ""),
                created=str(item["metadata"].get("creationTimestamp", "")),
                serving=sum((condition_of(pod, "Ready") or {}).get("status") == "True" for pod in mine)
                >= max(1, int((item.get("spec") or {}).get("replicas", 1))),
                drain_requested=any(annotations_of(pod).get(DRAIN_ANNOTATION) for pod in mine),
            )
        )
    return tuple(sorted(found, key=lambda live: live.worker))


def loss_of(pod: Mapping[str, Any], *, now: datetime) -> str | None:
    """Return why a pod is lost, None while it may still stop or recover by itself."""
    if not is_terminating(pod):
        return None
    disruption = condition_of(pod, "DisruptionTarget")
    if disruption and disruption.get("status") == "True" and disruption.get("reason") == "DeletionByTaintManager":
        return "its node is tainted or does not answer"
    if _overdue(pod, now) > LINGER_S:
        return "its pod did not stop within the grace period"
    return None


def next_loss(pods: Iterable[Manifest], *, now: datetime) -> float | None:
    """Return in how many seconds the next terminating pod will count as lost; None when none is terminating."""
    waits = [LINGER_S - _overdue(pod, now) for pod in pods if is_terminating(pod) and loss_of(pod, now=now) is None]
    return max(0.0, min(waits)) if waits else None


def _overdue(pod: Mapping[str, Any], now: datetime) -> float:
    # deletionTimestamp is the end of the grace period.
    return (now - datetime.fromisoformat(pod["metadata"]["deletionTimestamp"])).total_seconds()
