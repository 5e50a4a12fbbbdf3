"""One pass over one service: observe → plan → weights → rollout → workers → profile → status.

The sub-reconcilers run in this order over one ``ReconcileContext``. Each returns its actions and its result; only
``apply_actions`` carries out actions, and only ``record_status`` writes the status. A pass is level-triggered: it reads
the observed state, never the event that started it, so it may run at any time and be killed at any point.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

from weft_core.heartbeat import WorkerRecord
from weft_operator.api.capacity import Pool
from weft_operator.api.conditions import ConditionValue
from weft_operator.api.objects import (
    OPERATOR_LABEL,
    Manifest,
    ServiceKey,
    condition_of,
    is_terminating,
    labels_of,
    timestamp,
)
from weft_operator.api.service_token import read_token
from weft_operator.controllers.apply import Applied, apply_actions
from weft_operator.controllers.context import ReconcileContext
from weft_operator.controllers.kv_tiers import with_tiers
from weft_operator.controllers.plan import PlanReconciler
from weft_operator.controllers.profiling import plan_profiling, profiling_result
from weft_operator.controllers.redis_access import RedisAccess
from weft_operator.controllers.redis_users import NoRedisUsers, RedisUserStore
from weft_operator.controllers.result import RIVAL_S, ReconcileResult
from weft_operator.controllers.rollout import next_rollout, with_rollout
from weft_operator.controllers.weights import plan_weights, weights_result
from weft_operator.controllers.workers import worker_actions, workers_result
from weft_operator.errors import ForbiddenError, Right, WaitingError
from weft_operator.kube.diff import Action
from weft_operator.kube.events import Event
from weft_operator.kube.leader_election.namespace_claims import FindOtherOperator, no_other_operator
from weft_operator.kube.observe import Observed
from weft_operator.metrics.poller import MetricsPoller
from weft_operator.metrics.query_target import target_of
from weft_operator.planning.client import PlannerClient
from weft_operator.render.inputs import PlanRecord
from weft_operator.render.revisions import revision_name, revision_number
from weft_operator.replanning.state import ReplanningState
from weft_operator.scaling.scale_to_zero import IdleScaler
from weft_operator.settings import Settings
from weft_operator.status.conditions import build_status
from weft_operator.status.engine_conditions import engine_checks, next_check_s
from weft_operator.status.events import missing_watch_events, overlap_events
from weft_operator.status.results import MetricsResult, RolloutResult, ServiceResult
from weft_operator.status.writer import record_blocked, record_events, record_status
from weft_operator.weights.gate import ReadProgress, no_progress
from weft_operator.workers.node_capacity import NodeCapacity

DELETION_POLL_S = 2.0
DELETION_REPORT_S = 10.0
"""The garbage collector takes a second or two; a service that waits longer says so in its status."""


class Cluster(Protocol):
    """The seam between a pass and the API server."""

    async def observe(self, key: ServiceKey) -> Observed | None:
        """Return everything about a service, None when it is gone."""

    async def read_service(self, key: ServiceKey) -> Manifest | None:
        """Return a service alone, None when it is gone."""

    async def read_capacity(self, pools: Sequence[Pool], key: ServiceKey) -> NodeCapacity | None:
        """Return the GPUs of the pools' nodes and which are free for a service, None when nodes cannot be read."""

    async def read_node_memory(self, pools: Sequence[Pool]) -> Mapping[str, int]:
        """Return the allocatable memory of the largest node of each pool, in bytes, as far as it is known."""

    async def image_volumes_refusal(self, namespace: str, image: str) -> str:
        """Return why pods may have no image volumes, "" where they may."""

    async def carry_out(self, action: Action, *, owner_uid: str) -> Manifest | None:
        """Carry out one action; return the object as it is now, None when it is deleted."""

    async def write_status(self, key: ServiceKey, status: dict[str, Any], *, version: str) -> None:
        """Replace the status if the service still has this resource version."""

    async def post_event(self, key: ServiceKey, uid: str, event: Event) -> None:
        """Post an event."""


class ServiceReconciler:
    """Reconciles services; apart from observed metrics its state is a cache of the cluster's."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        planner_client: PlannerClient,
        metrics_poller: MetricsPoller,
        replanning_state: ReplanningState,
        idle_scaler: IdleScaler,
        heartbeats: Callable[[ServiceKey], Awaitable[Mapping[str, WorkerRecord]]],
        progress: ReadProgress = no_progress,
        users: RedisUserStore | None = None,
        missing_rights: Callable[[], Iterable[Right]] = tuple,
        other_operator: FindOtherOperator = no_other_operator,
        settings: Settings,
        clock: Callable[[], datetime],
        new_token: Callable[[], bytes],
    ) -> None:
        self._cluster = cluster
        self._metrics_poller = metrics_poller
        self._replanning_state = replanning_state
        self._heartbeats = heartbeats
        self._progress = progress
        self._redis = RedisAccess(users or NoRedisUsers(), settings=settings, cluster=cluster)
        self._missing_rights = missing_rights
        self._find_other_operator = other_operator
        self._other_operators: dict[ServiceKey, str] = {}
        """Services that another operator reconciles, with that operator; an Event was posted."""
        self._unwatched: dict[ServiceKey, frozenset[Right]] = {}
        """The missing rights to watch of which an Event was posted."""
        self._settings = settings
        self._clock = clock
        self._new_token = new_token
        self._minted: dict[ServiceKey, bytes] = {}
        """Tokens that no Secret holds yet: all objects of a pass carry the hash of one."""
        self._plan = PlanReconciler(
            nodes=cluster,
            planner_client=planner_client,
            metrics_poller=metrics_poller,
            replanning_state=replanning_state,
            idle_scaler=idle_scaler,
        )

    async def reconcile(self, key: ServiceKey) -> ReconcileResult:
        """Reconcile one service once.

        Raises:
            WaitingError: the service waits for something that ends by itself; reconcile again then.
            ApiError: the API server refused or did not answer; the status says so where a right is missing.
        """
        try:
            observed = await self._observe(key)
            return observed if isinstance(observed, ReconcileResult) else await self._pass(observed)
        except ForbiddenError as error:
            if error.right is not None:
                await self._record_blocked(key, ConditionValue("False", "RightMissing", error.right.lack()))
            raise

    async def _observe(self, key: ServiceKey) -> ReconcileContext | ReconcileResult:
        """Return the context of a pass, or its result where the service is gone or another operator's."""
        observed = await self._cluster.observe(key)
        if observed is None or is_terminating(observed.service):
            # The garbage collector deletes its objects by their owner references; no finalizer is needed.
            self._forget(key)
            if observed is None:  # draining pods may still use Redis
                self._redis.delete(key)
            return ReconcileResult(gone=True)
        if labels_of(observed.service).get(OPERATOR_LABEL, "") != self._settings.instance:
            self._forget(key)
            self._redis.release(key)
            return ReconcileResult(gone=True)  # another operator's service
        other_operator = await self._find_other_operator(key.namespace)
        if other_operator:
            await self._leave_to_other_operator(other_operator, key, observed.service)
            return ReconcileResult(requeue_after=RIVAL_S)
        self._other_operators.pop(key, None)
        now = self._clock()
        if observed.former:
            left = f"{observed.former[0]} belongs to a deleted service of the same name and is being removed"
            if _age_s(observed.service, now) > DELETION_REPORT_S:
                why = f"{left}; if it stays, look at its metadata.finalizers"
                await self._record_blocked(key, ConditionValue("True", "WaitingForDeletion", why))
            raise WaitingError("WaitingForDeletion", left, retry_after=DELETION_POLL_S)
        return ReconcileContext(
            key=key,
            observed=observed,
            now=now,
            token=self._token(key, observed),
            settings=self._settings,
            shares_redis_user=self._redis.is_shared(key, observed),
        )

    async def _pass(self, ctx: ReconcileContext) -> ReconcileResult:
        plan = await self._plan.reconcile(ctx)
        self._poll_metrics(ctx, plan.record)
        await self._redis.reconcile(ctx, plan.record)

        state = await plan_weights(ctx, plan.record, images=self._cluster, progress=self._progress)
        applied = await self._apply(ctx, state.actions)
        weights, weights_s = weights_result(state, applied, record=plan.record, active=ctx.active.record)
        done, waits = applied.done, [plan.requeue_after, weights_s]

        result = ServiceResult(ctx.key, ctx.generation, plan, weights)
        record = ctx.active.record if weights.missing else plan.record
        if record is not None:
            rollout = next_rollout(ctx, record, observation=self._metrics_poller.last(ctx.key))
            applied = await self._apply(ctx, worker_actions(ctx, rollout))
            result = replace(
                result,
                plan=with_rollout(plan, record, rollout.result),
                rollout=rollout.result,
                workers=workers_result(ctx, rollout, applied, refusal=self._redis.refusal()),
                metrics=self._metrics(ctx.key),
            )
            done += applied.done
            waits.append(None if rollout.state.step is None else rollout.state.step.requeue_after)
            if not weights.missing:
                step = plan_profiling(ctx, record, result)
                applied = await self._apply(ctx, step.actions)
                profile, profile_s = profiling_result(step, applied)
                result = replace(result, profile=profile)
                done += applied.done
                waits.append(profile_s)
        elif plan.record is not None:
            number = revision_number(revision_name(ctx.key.name, plan.record.plan), ctx.revisions)
            result = replace(result, rollout=RolloutResult(number=number))

        result, heartbeats_s = await self._with_heartbeats(result, plan.record)
        result, tiers_s = await with_tiers(ctx, result, nodes=self._cluster, heartbeats=self._heartbeats)
        ready = await self._record_status(ctx, result, done)
        requeue_after = min((wait for wait in (*waits, heartbeats_s, tiers_s) if wait is not None), default=None)
        return ReconcileResult(requeue_after=requeue_after, actions=len(done), settled=ready)

    async def _apply(self, ctx: ReconcileContext, actions: Sequence[Action]) -> Applied:
        uid = ctx.service["metadata"]["uid"]
        return await apply_actions(self._cluster, actions, owner_uid=uid, existing=ctx.observed.owned)

    def _poll_metrics(self, ctx: ReconcileContext, record: PlanRecord | None) -> None:
        if record is None:
            return
        canary = ctx.ledger.canary
        target = target_of(
            record.spec,
            ctx.observed.pods,
            default_url=self._settings.prometheus_url,
            access=self._settings.prometheus_access,
            canary_since=None if canary is None else canary.since,
        )
        self._metrics_poller.poll(ctx.key, target, reported=(ctx.service.get("status") or {}).get("observed"))

    def _metrics(self, key: ServiceKey) -> MetricsResult:
        drifts = self._replanning_state.drifts(key, self._metrics_poller.last(key))
        return MetricsResult(self._metrics_poller.shown(key), drifts)

    async def _with_heartbeats(
        self, result: ServiceResult, record: PlanRecord | None
    ) -> tuple[ServiceResult, float | None]:
        """Return the result with heartbeats where a condition needs them, and when to read them again."""
        checks = {} if record is None else engine_checks(record.spec, paired=record.paired)
        if record is None or not checks:
            return result, None
        heartbeats = await self._heartbeats(result.key)
        wait = next_check_s(
            checks, result.workers.ready, heartbeats, proof_s=record.spec.engine.kv_transfer.proof_seconds
        )
        return replace(result, workers=replace(result.workers, heartbeats=heartbeats)), wait

    async def _record_status(self, ctx: ReconcileContext, result: ServiceResult, actions: Sequence[Action]) -> bool:
        """Post Events and write the status if it changed; return whether the service is ready."""
        before: Mapping[str, Any] = ctx.service.get("status") or {}
        after = build_status(result, before, now=timestamp(ctx.now))
        await self._record_unwatched(ctx.key, ctx.service)
        await record_status(self._cluster, ctx.key, ctx.service, after, actions=actions)
        ready = condition_of({"status": after}, "Ready")
        return ready is not None and ready.get("status") == "True"

    async def _record_unwatched(self, key: ServiceKey, service: Manifest) -> None:
        """Post an Event, once, where the operator may not watch kinds of the service's objects."""
        known = self._unwatched.get(key, frozenset())
        missing = frozenset(
            right
            for right in self._missing_rights()
            if right.verb == "watch" and right.namespace in ("", key.namespace)
        )
        await record_events(self._cluster, key, service, missing_watch_events(missing - known))
        self._unwatched[key] = missing

    async def _record_blocked(self, key: ServiceKey, why: ConditionValue) -> None:
        await record_blocked(self._cluster, key, why, instance=self._settings.instance, now=self._clock())

    async def _leave_to_other_operator(self, other_operator: str, key: ServiceKey, service: Manifest) -> None:
        """Stop reconciling a service that another operator reconciles, and post an Event once."""
        if self._other_operators.get(key) != other_operator:
            await record_events(self._cluster, key, service, overlap_events(self._settings.lease, other_operator))
        self._forget(key)
        self._redis.release(key)
        self._other_operators[key] = other_operator

    def _forget(self, key: ServiceKey) -> None:
        self._metrics_poller.forget(key)
        self._plan.forget(key)
        self._redis.forget(key)
        self._unwatched.pop(key, None)
        self._other_operators.pop(key, None)
        self._minted.pop(key, None)

    def _token(self, key: ServiceKey, observed: Observed) -> bytes:
        """Return the internal token; a new one stays the same until a Secret holds it."""
        secret = observed.named("Secret", f"{key.name}-token")
        stored = read_token(secret) if secret is not None else None
        if stored is not None:
            self._minted.pop(key, None)
            return stored
        if key not in self._minted:
            self._minted[key] = self._new_token()
        return self._minted[key]


def _age_s(service: Manifest, now: datetime) -> float:
    made = service["metadata"].get("creationTimestamp")
    return math.inf if not made else (now - datetime.fromisoformat(made)).total_seconds()
