"""See on a cluster when the roles of workers are assigned and confirmed, event by event."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kubernetes.client import CoreV1Api, CustomObjectsApi
from kubernetes.client.exceptions import ApiException
from kubernetes.config import new_client_from_config_dict
from kubernetes.watch import Watch
from urllib3.exceptions import HTTPError

from weft_core.layouts import WORKER_ROLES, WorkerRole
from weft_e2e.scenarios.role_changes import RoleChange
from weft_e2e.service import Service
from weft_operator.api.objects import ROLE_LABEL, WORKER_LABEL

WATCH_S = 3
"""Seconds of one watch; the next one begins with all objects."""
PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Assigned:
    """A role that the label of a pod says and that the group's status does not confirm yet."""

    at: float
    """When it was seen (``time.monotonic``)."""
    before: WorkerRole
    after: WorkerRole


@dataclass(slots=True)
class RoleWatch:
    """What was seen of a service's workers so far. Seconds of changes are from the pod's label to the status."""

    changes: list[RoleChange] = field(default_factory=list)
    confirmed: dict[WorkerRole, int] = field(default_factory=dict)
    """Workers that serve, by the role that they have confirmed, over all groups."""
    _labels: dict[str, WorkerRole] = field(default_factory=dict)
    _assigned: dict[str, Assigned] = field(default_factory=dict)
    _groups: dict[str, Mapping[str, int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take_pod(self, pod: Mapping[str, Any], at: float) -> None:
        """Take in a pod as it is now."""
        labels = pod["metadata"].get("labels") or {}
        name, role = labels.get(WORKER_LABEL), _role(labels.get(ROLE_LABEL))
        if name is None or role is None or "deletionTimestamp" in pod["metadata"]:
            return
        with self._lock:
            before = self._labels.get(name, role)
            self._labels[name] = role
            if before != role:
                self._assigned[name] = Assigned(at, before, role)

    def take_group(self, group: Mapping[str, Any], at: float) -> None:
        """Take in a WorkerGroup as it is now."""
        status = group.get("status") or {}
        with self._lock:
            self._groups[group["metadata"]["name"]] = status.get("roles") or {}
            self.confirmed = {
                role: count
                for role in WORKER_ROLES
                if (count := sum(roles.get(role, 0) for roles in self._groups.values()))
            }
            for row in status.get("workers") or ():
                found = self._assigned.get(row["name"])
                if found is not None and row.get("role") == found.after and not row.get("switching"):
                    del self._assigned[row["name"]]
                    self.changes.append(RoleChange(row["name"], found.before, found.after, at - found.at))


def _role(word: str | None) -> WorkerRole | None:
    return next((role for role in WORKER_ROLES if role == word), None)


@contextmanager
def watching_roles(service: Service) -> Iterator[RoleWatch]:
    """Watch the pods and groups of a service for as long as the block runs."""
    shown = service.kube.kubectl("config", "view", "--minify", "--flatten", "-o", "json").stdout
    api = new_client_from_config_dict(json.loads(shown))  # type: ignore[no-untyped-call]
    seen, ended = RoleWatch(), threading.Event()
    core, custom = CoreV1Api(api), CustomObjectsApi(api)
    kinds = (
        (seen.take_pod, core.list_namespaced_pod, (service.namespace,)),
        (
            seen.take_group,
            custom.list_namespaced_custom_object,
            ("weft.dev", "v1alpha1", service.namespace, "workergroups"),
        ),
    )
    threads = [
        threading.Thread(target=_watch, args=(take, listed, words, service.selector, ended), daemon=True)
        for take, listed, words in kinds
    ]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        ended.set()
        for thread in threads:
            thread.join(2 * WATCH_S)


def _watch(
    take: Callable[[Mapping[str, Any], float], None],
    listed: Callable[..., Any],
    words: tuple[str, ...],
    selector: str,
    ended: threading.Event,
) -> None:
    while not ended.is_set():
        try:
            events: Any = Watch().stream(  # type: ignore[no-untyped-call]
                listed, *words, label_selector=selector, timeout_seconds=WATCH_S
            )
            for event in events:
                if event["type"] in ("ADDED", "MODIFIED"):
                    take(event["raw_object"], time.monotonic())
        except (ApiException, HTTPError):
            ended.wait(PAUSE_S)  # an API server that is busy; the next watch begins with all objects
