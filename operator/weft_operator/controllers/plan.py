"""The sub-reconciler of plans: the plan that a service should have now, and the condition Planned."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from weft_operator.api.capacity import Pool
from weft_operator.api.objects import ServiceKey
from weft_operator.controllers.canary_rollback import canary_phase, plan_before_canary
from weft_operator.controllers.context import ReconcileContext
from weft_operator.controllers.plan_request import PlanRequest, build_plan_request
from weft_operator.controllers.plan_result import (
    deferred_by_schedule,
    plan_from_answer,
    plan_not_permitted,
    plan_refused,
    request_with_observed_workload,
    settled_plan,
    with_reason,
)
from weft_operator.controllers.replanning import Replanner
from weft_operator.errors import StalledError
from weft_operator.kube.stored_service import parse_service
from weft_operator.metrics.poller import MetricsPoller
from weft_operator.planning.client import PlannerClient
from weft_operator.planning.request import notes_on, request_hash, with_nodes_and_plan
from weft_operator.render.inputs import PlanRecord
from weft_operator.render.revisions import find_record
from weft_operator.replanning.rollback import Rollback, rollback_to_annotation
from weft_operator.replanning.schedule_changes import ScheduleTransitions, why_deferred
from weft_operator.replanning.state import ReplanningState
from weft_operator.rollout.groups import GroupTarget
from weft_operator.rollout.ledger import CanaryPhase, target_hash
from weft_operator.rollout.replica_targets import desired_groups
from weft_operator.rollout.step import targets_of
from weft_operator.scaling.scale_to_zero import IdleScaler
from weft_operator.scaling.schedules import wants_workers
from weft_operator.status.results import PlanResult
from weft_operator.workers.node_capacity import NodeCapacity


class NodeReader(Protocol):
    """Where the capacity of nodes is read."""

    async def read_capacity(self, pools: Sequence[Pool], key: ServiceKey) -> NodeCapacity | None:
        """Return the GPUs of the pools' nodes and which are free for a service, None when nodes cannot be read."""


class PlanReconciler:
    """The sub-reconciler of plans: planner requests, replanning, rollback, schedules and scale to zero.

    Its only state of services is pending requests and observed metrics.
    """

    def __init__(
        self,
        *,
        nodes: NodeReader,
        planner_client: PlannerClient,
        metrics_poller: MetricsPoller,
        replanning_state: ReplanningState,
        idle_scaler: IdleScaler,
    ) -> None:
        self._nodes = nodes
        self._planner_client = planner_client
        self._metrics_poller = metrics_poller
        self._replanner = Replanner(planner_client=planner_client, replanning_state=replanning_state)
        self._idle_scaler = idle_scaler
        self._schedules = ScheduleTransitions()

    def forget(self, key: ServiceKey) -> None:
        """Drop the state of a service that is gone."""
        self._planner_client.forget(key)
        self._replanner.forget(key)
        self._idle_scaler.forget(key)
        self._schedules.forget(key)

    async def reconcile(self, ctx: ReconcileContext) -> PlanResult:
        """Return the plan that the service should have now, and why.

        Raises:
            ApiError: the API server refused or did not answer.
        """
        kept, fault = ctx.active
        plan = await self._plan(ctx, kept)
        if fault is not None and plan.record is None:
            plan = plan_not_permitted(plan, fault)
        waits = (
            plan.requeue_after,
            self._planner_client.retry_in(ctx.key),
            self._schedules.requeue_after(ctx.key, ctx.now),
        )
        return replace(
            plan,
            requeue_after=min((wait for wait in waits if wait is not None), default=None),
            schedule=self._schedules.shown(ctx.key, ctx.now),
            demand_unknown=self._idle_scaler.demand_unknown(ctx.key),
        )

    async def _plan(self, ctx: ReconcileContext, kept: PlanRecord | None) -> PlanResult:
        key, now, observation = ctx.key, ctx.now, self._metrics_poller.last(ctx.key)
        record = await self._idle_scaler.scale_up_on_demand(key, kept, observation)
        try:
            asked = build_plan_request(parse_service(ctx.service), ctx.observed, now=now, permitted=ctx.permitted)
            self._schedules.enter(key, asked.spec.planning.schedules, now)
            rollback = self._rolled_back(ctx, asked, record)
            record = rollback.record if rollback is not None else None
            phase, record = _after_canary(ctx, asked, record)
            found = settled_plan(asked, record, now=now)
            if found is None and record is not None and (why := self._schedules.waits(key, asked.hash, now)):
                found = deferred_by_schedule(asked, record, why)
            if found is None:
                nodes = await self._capacity(key, asked)
                wanted = request_with_observed_workload(asked, record)
                answer = self._planner_client.ask(key, with_nodes_and_plan(wanted, nodes, record), request_hash(wanted))
                why = why_deferred(asked.spec, record, answer, observation)
                if record is None or not why:
                    return plan_from_answer(asked, answer, record, now=now, notes=notes_on(nodes))
                self._schedules.defer(key, asked.hash, why, now)
                found = deferred_by_schedule(asked, record, why)
        except StalledError as error:
            self._planner_client.forget(key)
            return plan_refused(error.reason, error.message, record)
        if phase == "Failed":
            return found  # metrics of a rollback belong to no plan
        plan = await self._scaled_to_zero(ctx, asked, found)
        if plan.record is None or plan.record.baseline.scaled_to_zero_at is None:
            plan = await self._replanner.reconcile(
                ctx, asked, plan, observation=observation, capacity=lambda: self._capacity(key, asked)
            )
        return plan if rollback is None else with_reason(plan, rollback.reason, rollback.message)

    async def _scaled_to_zero(self, ctx: ReconcileContext, asked: PlanRequest, found: PlanResult) -> PlanResult:
        """Return the plan of a service, scaled to zero while it is idle."""
        if found.record is None or found.planned.status != "True":
            return found
        decision = await self._idle_scaler.scale_if_idle(
            ctx.key,
            asked.spec,
            found.record,
            stays=wants_workers(asked.schedule),
            observation=self._metrics_poller.last(ctx.key),
            pods=ctx.observed.pods,
        )
        return with_reason(replace(found, record=decision.record), decision.reason, decision.message)

    def _rolled_back(self, ctx: ReconcileContext, asked: PlanRequest, record: PlanRecord | None) -> Rollback | None:
        """Return the rollback that an annotation requests, or none; None while the service has no plan."""
        if record is None:
            return None
        return rollback_to_annotation(
            asked.rollback,
            record,
            asked.bounded,
            request_hash=asked.hash,
            find=lambda number: find_record(ctx.revisions, number),
            observation=self._metrics_poller.last(ctx.key),
            now=ctx.now,
        )

    async def _capacity(self, key: ServiceKey, asked: PlanRequest) -> NodeCapacity | None:
        """Return the capacity of the nodes; None where they cannot be read, or an autoscaler adds nodes.

        Raises:
            StalledError: the nodes have fewer GPUs than the budget.
        """
        capacity = asked.spec.capacity
        if capacity.elastic:
            return None
        nodes = await self._nodes.read_capacity(capacity.pools, key)
        if nodes is not None and nodes.total < capacity.gpus:
            names = ", ".join(f"spec.capacity.pools[{name}].nodeSelector" for name in nodes.empty)
            none = f"; no node has the labels of {names}: correct it or label nodes" if names else ""
            raise StalledError(
                "TooFewGpus",
                f"spec.capacity.gpus: {capacity.gpus} GPUs are requested and the nodes of the pools have "
                f"{nodes.total}; lower it to {nodes.total} or less, add nodes, or set spec.capacity.elastic where an "
                f"autoscaler adds them{none}",
            )
        return nodes


def _after_canary(
    ctx: ReconcileContext, asked: PlanRequest, record: PlanRecord | None
) -> tuple[CanaryPhase | None, PlanRecord | None]:
    """Return the phase of the active plan's canary, and the old plan where the rollback is complete."""
    ledger = ctx.ledger
    if record is None or ledger.canary is None:
        return None, record

    def target_of(one: PlanRecord) -> list[GroupTarget]:
        rendering = ctx.rendering(replace(one, spec=asked.spec))
        groups = desired_groups(
            ctx.key.name,
            one.plan.groups,
            (),
            revision=rendering.revision,
            scaled_by_hand=False,
            fixed_roles=rendering.fixed_roles,
        )
        return targets_of(groups, rendering.revision)

    phase = canary_phase(ledger, target_hash(target_of(record)))
    return phase, plan_before_canary(
        record, asked.spec, ledger, request_hash=asked.hash, plans=ctx.revisions, target_of=target_of, now=ctx.now
    )
