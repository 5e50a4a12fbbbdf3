"""Decide what a service should look like now: ask the planner, replan, try, undo, rest; the shell around ``goal``."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from weft_operator.api.capacity import Pool
from weft_operator.api.objects import ServiceKey
from weft_operator.controllers.canary_rollback import returned, trial_state
from weft_operator.controllers.desired_state import ledger_of
from weft_operator.controllers.goal import (
    PlanRequest,
    PlanResult,
    answered,
    at_edge,
    barred,
    question,
    refused,
    request_for,
    settled,
    told,
)
from weft_operator.controllers.permitted_specs import ActivePlan, plan_in_force
from weft_operator.controllers.replanning import Replanner
from weft_operator.errors import StalledError
from weft_operator.kube.observe import Observed
from weft_operator.kube.stored_service import parse_service
from weft_operator.metrics.poller import MetricsPoller
from weft_operator.planning.client import PlannerClient
from weft_operator.planning.request import in_its_place, notes_on, request_hash
from weft_operator.render.inputs import PlanRecord, Rendering
from weft_operator.render.revisions import find_record
from weft_operator.replanning.rollback import Rollback, undo
from weft_operator.replanning.schedule_changes import ScheduleTransitions, speaks_against
from weft_operator.replanning.state import ReplanningState
from weft_operator.rollout.ledger import CanaryPhase, target_hash
from weft_operator.rollout.replica_targets import wanted_groups
from weft_operator.rollout.step import targets_of
from weft_operator.scaling.scale_to_zero import IdleScaler
from weft_operator.scaling.schedules import wants_workers
from weft_operator.workers.node_capacity import NodeCapacity


class NodeReader(Protocol):
    """Where it is seen what nodes have."""

    async def read_capacity(self, pools: Sequence[Pool], key: ServiceKey) -> NodeCapacity | None:
        """Return the GPUs of the pools' nodes and which are free for a service, None when that cannot be told."""


class PlanReconciler:
    """Finds the goals of services; holds no state of them but open questions and what was seen."""

    def __init__(
        self,
        *,
        machines: NodeReader,
        desk: PlannerClient,
        measurements: MetricsPoller,
        memories: ReplanningState,
        sleeper: IdleScaler,
        hours: ScheduleTransitions,
        rendering: Callable[[ServiceKey, Observed, PlanRecord], Rendering],
        clock: Callable[[], datetime],
        permitted: Callable[[str], Collection[str]] = lambda _namespace: (),
    ) -> None:
        """Create it; ``permitted`` gives a namespace's permissions beyond the allow-list of pod templates."""
        self._permitted = permitted
        self._machines = machines
        self._desk = desk
        self._measurements = measurements
        self._replanner = Replanner(desk=desk, memories=memories, clock=clock)
        self._sleeper = sleeper
        self._hours = hours
        self._rendering = rendering
        self._clock = clock

    def forget(self, key: ServiceKey) -> None:
        """Drop a service that is gone."""
        self._desk.forget(key)
        self._replanner.forget(key)
        self._sleeper.forget(key)
        self._hours.forget(key)

    def again_s(self, key: ServiceKey) -> list[float]:
        """Return in how many seconds a service's goal may be another one although nothing happens."""
        waits = (self._desk.retry_in(key), self._hours.again_s(key, self._clock()))
        return [wait for wait in waits if wait is not None]

    def in_force(self, key: ServiceKey, observed: Observed) -> ActivePlan:
        """Return a service's plan in force, as far as the spec that it was made from is still allowed."""
        return plan_in_force(observed, self._permitted(key.namespace))

    async def goal(self, key: ServiceKey, observed: Observed) -> PlanResult:
        """Return what a service should look like now, and why.

        Raises:
            ApiError: the API server refused or did not answer.
        """
        kept, fault = self.in_force(key, observed)
        goal = await self._goal(key, observed, kept)
        return goal if fault is None or goal.record is not None else barred(goal, fault)

    async def _goal(self, key: ServiceKey, observed: Observed, kept: PlanRecord | None) -> PlanResult:
        seen, now = self._measurements.last(key), self._clock()
        record = await self._sleeper.stirred(key, kept, seen)
        try:
            permitted = self._permitted(key.namespace)
            asked = question(parse_service(observed.service), observed, now=now, permitted=permitted)
            self._hours.enter(key, asked.spec.planning.schedules, now)
            undoing = self._undone(key, asked, record, observed)
            record = undoing.record if undoing is not None else None
            state, record = self._tried(key, asked, record, observed)
            found = settled(asked, record, now=now)
            if found is None and record is not None and (why := self._hours.waits(key, asked.hash, now)):
                found = at_edge(asked, record, why)
            if found is None:
                there = await self._capacity(key, asked)
                wanted = request_for(asked, record)
                answer = self._desk.ask(key, in_its_place(wanted, there, record), request_hash(wanted))
                why = speaks_against(asked.spec, record, answer, seen)
                if record is None or not why:
                    return answered(asked, answer, record, now=now, notes=notes_on(there))
                self._hours.hold(key, asked.hash, why, now)
                found = at_edge(asked, record, why)
        except StalledError as error:
            self._desk.forget(key)
            return refused(error.reason, error.message, record)
        if state == "Failed":
            return found  # all workers are on their way back; what is seen meanwhile is of no plan
        goal = await self._at_rest(key, asked, found, observed)
        if goal.record is None or goal.record.standing.asleep_at is None:
            goal = await self._replanner.goal(
                key, asked, goal, observation=seen, capacity=lambda: self._capacity(key, asked)
            )
        return goal if undoing is None else told(goal, undoing.reason, undoing.message)

    async def _at_rest(self, key: ServiceKey, asked: PlanRequest, found: PlanResult, observed: Observed) -> PlanResult:
        """Return the goal of a planned service, without workers where nobody asks anything."""
        if found.record is None or found.planned.status != "True":
            return found
        seen = self._measurements.last(key)
        rest = await self._sleeper.rest(
            key,
            asked.spec,
            found.record,
            stays=wants_workers(asked.schedule),
            seen=seen,
            pods=observed.pods,
        )
        return told(replace(found, record=rest.record), rest.reason, rest.message)

    def _tried(
        self, key: ServiceKey, asked: PlanRequest, record: PlanRecord | None, observed: Observed
    ) -> tuple[CanaryPhase | None, PlanRecord | None]:
        """Return how the trial of the plan in force stands, and the plan before where it failed and all is back."""
        ledger = ledger_of(key, observed)
        if record is None or ledger.trial is None:
            return None, record

        def name_of(one: PlanRecord) -> str:
            revision = self._rendering(key, observed, replace(one, spec=asked.spec)).revision
            groups = wanted_groups(key.name, one.plan.groups, (), revision=revision, scaled_by_hand=False)
            return target_hash(targets_of(groups, revision))

        plans = observed.of_kind("ControllerRevision")
        state = trial_state(ledger, name_of(record))
        now = self._clock()
        return state, returned(
            record, asked.spec, ledger, request_hash=asked.hash, plans=plans, name_of=name_of, now=now
        )

    def _undone(
        self, key: ServiceKey, asked: PlanRequest, record: PlanRecord | None, observed: Observed
    ) -> Rollback | None:
        """Take up an older plan where the service is annotated so; None while there is no plan at all."""
        if record is None:
            return None
        plans = observed.of_kind("ControllerRevision")
        return undo(
            asked.rollback,
            record,
            asked.bounded,
            request_hash=asked.hash,
            find=lambda number: find_record(plans, number),
            seen=self._measurements.last(key),
            now=self._clock(),
        )

    async def _capacity(self, key: ServiceKey, asked: PlanRequest) -> NodeCapacity | None:
        """Return what real nodes have; None where they may not be seen, or an autoscaler adds what is missing.

        Raises:
            StalledError: the nodes have fewer GPUs than the budget.
        """
        capacity = asked.spec.capacity
        if capacity.elastic:
            return None
        there = await self._machines.read_capacity(capacity.pools, key)
        if there is not None and there.total < capacity.gpus:
            names = ", ".join(f"spec.capacity.pools[{name}].nodeSelector" for name in there.empty)
            none = f"; no node has the labels of {names}: correct it or label nodes" if names else ""
            raise StalledError(
                "TooFewGpus",
                f"spec.capacity.gpus: {capacity.gpus} GPUs are asked for and the nodes of the pools have "
                f"{there.total}; lower it to {there.total} or less, add nodes, or set spec.capacity.elastic where an "
                f"autoscaler adds them{none}",
            )
        return there
