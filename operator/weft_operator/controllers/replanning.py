"""Take one service whose spec is planned through a decision about drift, the planner's answer included."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime

from weft_operator.api.objects import ServiceKey
from weft_operator.controllers.goal import PlanRequest, PlanResult, decided, replanning
from weft_operator.errors import StalledError
from weft_operator.metrics.observation import Observation
from weft_operator.planning.client import PlannerClient
from weft_operator.planning.planner_process import Answer, Refused
from weft_operator.planning.request import in_its_place, request_hash
from weft_operator.render.inputs import PlanRecord
from weft_operator.replanning.decide import AskPlanner, KeepPlan, ReplanRequest, decide
from weft_operator.replanning.state import ReplanningState
from weft_operator.workers.node_capacity import NodeCapacity


class Replanner:
    """Decides with what is remembered of a service, and puts its questions to the desk."""

    def __init__(self, *, desk: PlannerClient, memories: ReplanningState, clock: Callable[[], datetime]) -> None:
        self._desk = desk
        self._memories = memories
        self._clock = clock

    async def goal(
        self,
        key: ServiceKey,
        asked: PlanRequest,
        found: PlanResult,
        *,
        observation: Observation | None,
        capacity: Callable[[], Awaitable[NodeCapacity | None]],
    ) -> PlanResult:
        """Return the goal of a service: ``found`` unless what was seen asks for something else.

        The planner is asked at most one question for a service; while it works, the plan in force stays.
        """
        if found.record is None or found.planned.status != "True":
            # The spec itself comes first.
            self._memories.hold(key, None)
            return found
        situation = self._memories.situation(
            key,
            spec=asked.bounded,
            prior=asked.request["workload"],
            record=found.record,
            observation=observation,
            now=self._clock(),
            approval=asked.approval,
        )
        decision = decide(situation)
        asking = situation.inquiry is not None or isinstance(decision, AskPlanner)
        if isinstance(decision, AskPlanner):
            inquiry = decision.inquiry
            answer = await self._answer(key, asked, inquiry, found.record, capacity)
            if answer is not None:
                decision = decide(replace(situation, inquiry=inquiry, answer=answer))
            if isinstance(decision, AskPlanner):
                self._memories.hold(key, inquiry)
                return replanning(asked, found.record)
        if asking:
            self._memories.hold(key, None)
            self._desk.forget(key)  # what is seen by the next time is another question
        if isinstance(decision, KeepPlan) and not decision.reason and decision.record == found.record:
            return found
        return decided(asked, decision)

    def forget(self, key: ServiceKey) -> None:
        """Drop what is remembered of a service."""
        self._memories.forget(key)

    async def _answer(
        self,
        key: ServiceKey,
        asked: PlanRequest,
        inquiry: ReplanRequest,
        record: PlanRecord,
        capacity: Callable[[], Awaitable[NodeCapacity | None]],
    ) -> Answer | None:
        wanted = {**asked.request, "workload": inquiry.workload}
        try:
            there = await capacity()
        except StalledError as error:
            return Refused(error.reason, error.message)  # nodes that come and go take no plan back
        return self._desk.ask(key, in_its_place(wanted, there, record), request_hash(wanted))
