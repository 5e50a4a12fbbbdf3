"""Replan a service whose spec has a plan: decide on drift, and request another plan from the planner."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from weft_operator.api.objects import ServiceKey
from weft_operator.controllers.context import ReconcileContext
from weft_operator.controllers.plan_request import PlanRequest
from weft_operator.controllers.plan_result import plan_from_decision, replan_pending
from weft_operator.errors import StalledError
from weft_operator.metrics.observation import Observation
from weft_operator.planning.client import PlannerClient
from weft_operator.planning.planner_process import Answer, Refused
from weft_operator.planning.request import request_hash, with_nodes_and_plan
from weft_operator.render.inputs import PlanRecord
from weft_operator.replanning.decide import AskPlanner, KeepPlan, ReplanRequest, decide
from weft_operator.replanning.state import ReplanningState
from weft_operator.status.results import PlanResult
from weft_operator.workers.node_capacity import NodeCapacity


class Replanner:
    """Decides on the replanning state of a service, and sends its requests to the planner."""

    def __init__(self, *, planner_client: PlannerClient, replanning_state: ReplanningState) -> None:
        self._planner_client = planner_client
        self._replanning_state = replanning_state

    async def reconcile(
        self,
        ctx: ReconcileContext,
        asked: PlanRequest,
        found: PlanResult,
        *,
        observation: Observation | None,
        capacity: Callable[[], Awaitable[NodeCapacity | None]],
    ) -> PlanResult:
        """Return the plan of a service: ``found`` unless the observed traffic or SLO needs another one.

        A service has at most one pending replan request; while the planner works on it, the active plan stays.
        """
        key = ctx.key
        if found.record is None or found.planned.status != "True":
            # The plan for the spec comes first.
            self._replanning_state.set_pending(key, None)
            return found
        replan_inputs = self._replanning_state.replan_inputs(
            key,
            spec=asked.bounded,
            prior=asked.request["workload"],
            record=found.record,
            observation=observation,
            now=ctx.now,
            approval=asked.approval,
        )
        decision = decide(replan_inputs)
        asking = replan_inputs.replan_request is not None or isinstance(decision, AskPlanner)
        if isinstance(decision, AskPlanner):
            replan_request = decision.replan_request
            answer = await self._answer(key, asked, replan_request, found.record, capacity)
            if answer is not None:
                decision = decide(replace(replan_inputs, replan_request=replan_request, answer=answer))
            if isinstance(decision, AskPlanner):
                self._replanning_state.set_pending(key, replan_request)
                return replan_pending(asked, found.record)
        if asking:
            self._replanning_state.set_pending(key, None)
            self._planner_client.forget(key)  # the next request is for newer metrics
        if isinstance(decision, KeepPlan) and not decision.reason and decision.record == found.record:
            return found
        return plan_from_decision(asked, decision)

    def forget(self, key: ServiceKey) -> None:
        """Drop the state of a service."""
        self._replanning_state.forget(key)

    async def _answer(
        self,
        key: ServiceKey,
        asked: PlanRequest,
        replan_request: ReplanRequest,
        record: PlanRecord,
        capacity: Callable[[], Awaitable[NodeCapacity | None]],
    ) -> Answer | None:
        wanted = {**asked.request, "workload": replan_request.workload}
        try:
            nodes = await capacity()
        except StalledError as error:
            return Refused(error.reason, error.message)  # missing nodes do not invalidate the active plan
        return self._planner_client.ask(key, with_nodes_and_plan(wanted, nodes, record), request_hash(wanted))
