"""One pass over one worker group: observe → plan → apply → one status write; level-triggered."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Protocol
from weakref import WeakValueDictionary

from weft_core.heartbeat import WorkerRecord
from weft_operator.api.objects import (
    OPERATOR_LABEL,
    GroupKey,
    Manifest,
    ServiceKey,
    is_terminating,
    labels_of,
    timestamp,
)
from weft_operator.controllers.apply import apply_actions
from weft_operator.controllers.result import RIVAL_S, ReconcileResult
from weft_operator.errors import ApiError
from weft_operator.kube.diff import Action
from weft_operator.kube.events import Event
from weft_operator.kube.leader_election.namespace_claims import FindOtherOperator, no_other_operator
from weft_operator.kube.observe_group import ObservedGroup
from weft_operator.render.companions import refusal
from weft_operator.rollout.group_plan import GroupPlan, plan_group
from weft_operator.rollout.node_restarts import restart_events
from weft_operator.rollout.role_switches import role_events
from weft_operator.status.events import query_of_death_events, worker_events
from weft_operator.status.worker_group import group_status, places_of
from weft_operator.workers.fleet import next_loss
from weft_operator.workers.groups import WorkerGroupView, parse_group
from weft_operator.workers.readiness import worker_states

FIGURES_S = 10.0
"""Longest age of session figures in a status; they change all the time."""

log = logging.getLogger(__name__)

ReadHeartbeats = Callable[[ServiceKey], Awaitable[Mapping[str, WorkerRecord]]]
"""Reads the newest heartbeat of each worker of a service, by name; none when they cannot be read."""


class GroupCluster(Protocol):
    """The seam between a pass over a group and the API server."""

    async def observe_group(self, key: GroupKey) -> ObservedGroup | None:
        """Return a group with the workers of its component, None when it is gone."""

    async def carry_out(self, action: Action, *, owner_uid: str) -> Manifest | None:
        """Carry out one action; return the object as it is now, None when it is deleted."""

    async def write_group_status(self, key: GroupKey, status: dict[str, Any], *, version: str) -> None:
        """Replace the status if the group still has this resource version."""

    async def post_event(self, key: ServiceKey, uid: str, event: Event) -> None:
        """Post an event about a service."""


class _ServiceLock:
    """Serializes the passes over the groups of one service, and counts them."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.passes = 0


class WorkerGroupReconciler:
    """Reconciles worker groups; its only state is when figures were written and which Events were posted."""

    def __init__(
        self,
        *,
        cluster: GroupCluster,
        heartbeats: ReadHeartbeats,
        instance: str,
        other_operator: FindOtherOperator = no_other_operator,
        clock: Callable[[], datetime],
    ) -> None:
        self._cluster = cluster
        self._heartbeats = heartbeats
        self._instance = instance
        self._find_other_operator = other_operator
        self._clock = clock
        self._shown: dict[GroupKey, datetime] = {}
        self._deaths: dict[GroupKey, frozenset[str]] = {}
        """Quarantined requests of which an Event was posted."""
        self._service: dict[GroupKey, ServiceKey] = {}
        # The groups of a service share the indices of workers and the order of restarts.
        self._locks: WeakValueDictionary[ServiceKey, _ServiceLock] = WeakValueDictionary()

    async def reconcile(self, key: GroupKey) -> ReconcileResult:
        """Reconcile one group once.

        Raises:
            ApiError: the API server refused or did not answer.
            StalledError: the group's spec cannot be used.
        """
        found = None
        service = self._service.get(key)
        if service is None:
            found = await self._cluster.observe_group(key)
            if found is None or not self._is_ours(found.group):
                return ReconcileResult(gone=True)
            service = self._service[key] = parse_group(found.group).service
        lock = self._locks.setdefault(service, _ServiceLock())
        before = lock.passes
        async with lock.lock:
            if lock.passes != before:
                found = None  # a pass over another group changed objects in between
            try:
                found = found or await self._cluster.observe_group(key)
                if found is None or not self._is_ours(found.group):
                    self._shown.pop(key, None)
                    self._deaths.pop(key, None)
                    self._service.pop(key, None)
                    return ReconcileResult(gone=True)
                if await self._find_other_operator(key.namespace):
                    return ReconcileResult(requeue_after=RIVAL_S)  # the service's Event names the other operator
                return await self._pass(key, parse_group(found.group), found)
            finally:
                lock.passes += 1

    def _is_ours(self, group: Manifest) -> bool:
        return not is_terminating(group) and labels_of(group).get(OPERATOR_LABEL, "") == self._instance

    async def _pass(self, key: GroupKey, group: WorkerGroupView, found: ObservedGroup) -> ReconcileResult:
        now = self._clock()
        records = await self._heartbeats(group.service)
        plan = plan_group(
            group,
            statefulsets=found.statefulsets,
            pods=found.pods,
            records=records,
            now=now,
            companions=found.companions,
            rows=(found.group.get("status") or {}).get("workers") or (),
        )
        existing = (*found.statefulsets, *found.companions)
        applied = await apply_actions(self._cluster, plan.actions, owner_uid=group.uid, existing=existing)
        changed = frozenset(key.name for key in applied.changed) - plan.same_template
        failure = refusal(*applied.refusals[0]) if applied.refusals else None
        settled = await self._report(key, group, found, plan, changed, failure, records)
        waits = [wait for wait in (next_loss(found.pods, now=now), plan.requeue_after) if wait is not None]
        return ReconcileResult(requeue_after=min(waits, default=None), actions=len(plan.actions), settled=settled)

    async def _report(
        self,
        key: GroupKey,
        group: WorkerGroupView,
        found: ObservedGroup,
        plan: GroupPlan,
        changed: frozenset[str],
        failure: tuple[str, str] | None,
        records: Mapping[str, WorkerRecord],
    ) -> bool:
        """Write the status if it changed; return whether all workers serve and none drains."""
        now = self._clock()
        shown = self._shown.get(key)
        before = found.group.get("status") or {}
        after = group_status(
            group,
            before,
            states=worker_states(
                group.spec.service,
                plan.fleet.workers,
                statefulsets=found.statefulsets,
                pods=found.pods,
                changed=changed,
                waiting=plan.waiting,
                switching=plan.switching,
            ),
            leaving=plan.leaving,
            places=places_of(found.statefulsets, found.pods),
            records=records,
            failure=failure,
            figures_due=shown is None or (now - shown).total_seconds() >= FIGURES_S,
            now=timestamp(now),
        )
        # Events first: after a crash between the two the same Events are found again and have the same names.
        deaths = query_of_death_events(
            records, map(group.name_of, plan.fleet.workers), self._deaths.get(key, frozenset())
        )
        self._deaths[key] = frozenset(entry for record in records.values() for entry in record.quarantined)
        known = (*worker_events(plan.actions, plan.fleet), *restart_events(plan.restarts), *plan.release_events)
        known = (*known, *role_events(group, plan.actions))
        for event in (*known, *deaths):
            try:
                await self._cluster.post_event(group.service, group.owner_uid, event)
            except ApiError as error:
                log.warning("event_not_posted", extra={"group": str(key), "reason": event.reason, "error": str(error)})
        if after != before:
            version = str(found.group["metadata"].get("resourceVersion", ""))
            await self._cluster.write_group_status(key, after, version=version)
            self._shown[key] = now
        reasons = {item["type"]: item["reason"] for item in after["conditions"]}
        return reasons == {"Ready": "AllReady", "Progressing": "UpToDate"}
