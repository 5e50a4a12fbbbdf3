"""One pass over one service: observe → desired → diff → apply → one status write.

A pass looks at the state of the world, never at what event woke it, so it may run at any time, any number of
times, and be killed at any point.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from weft_operator.api.capacity import Pool
from weft_operator.desired import Rendering, desired_objects
from weft_operator.desired.identity import read_token
from weft_operator.desired.rendering import PlanRecord
from weft_operator.diff import Action, Apply, diff
from weft_operator.errors import ApiError, StalledError, TransientError, WaitingError
from weft_operator.events import Fact, facts
from weft_operator.fleet import Fleet, Worker, choose, live_workers, next_loss, parse_name
from weft_operator.goal import Goal, Question, answered, last_record, parse_service, question, refused, settled
from weft_operator.manifest import (
    COMPONENT_LABEL,
    OPERATOR_LABEL,
    POOL_LABEL,
    WORKER_LABEL,
    Manifest,
    ObjectKey,
    ServiceKey,
    is_terminating,
    labels_of,
)
from weft_operator.observe import Observed
from weft_operator.planning.desk import PlannerDesk
from weft_operator.planning.nodes import Capacity
from weft_operator.planning.request import in_its_place, notes_on
from weft_operator.readiness import coordinator_state, stuck_workers, worker_states
from weft_operator.rollout import stage
from weft_operator.settings import Settings
from weft_operator.status import Result, Verdict, build_status

PRUNABLE = ("StatefulSet", "ConfigMap")
"""Kinds whose objects come and go with plans; all others have one fixed name each."""

FORMER_WAIT_S = 2.0

log = logging.getLogger(__name__)


class Cluster(Protocol):
    """The seam between a pass and the API server."""

    async def observe(self, key: ServiceKey) -> Observed | None:
        """Return everything about a service, None when it is gone."""

    async def read_capacity(self, pools: Sequence[Pool], key: ServiceKey) -> Capacity | None:
        """Return the GPUs of the pools' nodes and which are free for a service, None when that cannot be told."""

    async def carry_out(self, action: Action, *, owner_uid: str) -> Manifest | None:
        """Carry out one action; return the object as it is now, None when it is deleted."""

    async def write_status(self, key: ServiceKey, status: dict[str, Any], *, version: str) -> None:
        """Replace the status if the service still has this resource version."""

    async def post_event(self, key: ServiceKey, uid: str, fact: Fact) -> None:
        """Post an event."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a pass: when to look again (None: at the next event or resync), and what was done."""

    look_again: float | None = None
    actions: int = 0
    gone: bool = False


@dataclass(frozen=True, slots=True)
class _Applied:
    """The actions that were carried out, the objects whose spec they changed, and why one failed, if one did."""

    done: tuple[Action, ...]
    changed: frozenset[ObjectKey]
    failure: Verdict | None


class Reconciler:
    """Runs passes; holds no state of services but the planner's open questions."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        desk: PlannerDesk,
        settings: Settings,
        clock: Callable[[], datetime],
        new_token: Callable[[], bytes],
    ) -> None:
        self._cluster = cluster
        self._desk = desk
        self._settings = settings
        self._clock = clock
        self._new_token = new_token

    async def reconcile(self, key: ServiceKey) -> Outcome:
        """Bring one service nearer to what its spec wants.

        Raises:
            WaitingError: something passes by itself; look again then.
            ApiError: the API server refused or did not answer.
        """
        observed = await self._cluster.observe(key)
        if observed is None or is_terminating(observed.service):
            # Owner references remove what belongs to it; nothing of ours must be finished first.
            self._desk.forget(key)
            return Outcome(gone=True)
        if labels_of(observed.service).get(OPERATOR_LABEL, "") != self._settings.instance:
            return Outcome(gone=True)  # another operator's service
        if observed.former:
            raise WaitingError(
                "FormerObjects",
                f"{observed.former[0]} belongs to a deleted service of the same name and is being removed",
                retry_after=FORMER_WAIT_S,
            )
        goal = await self._goal(key, observed)
        result, actions, fleet = await self._carry_out(key, observed, goal)
        await self._report(key, observed, result, actions, fleet)
        waits = [
            wait for wait in (next_loss(observed.pods, now=self._clock()), self._desk.retry_in(key)) if wait is not None
        ]
        return Outcome(look_again=min(waits) if waits else None, actions=len(actions))

    async def _goal(self, key: ServiceKey, observed: Observed) -> Goal:
        record = last_record(observed)
        try:
            asked = question(parse_service(observed.service), observed)
            found = settled(asked, record)
            if found is None:
                there = await self._capacity(key, asked)
                request = in_its_place(asked.request, there, record)
                found = answered(asked, self._desk.ask(key, request, asked.hash), record, notes=notes_on(there))
        except StalledError as error:
            self._desk.forget(key)
            return refused(error.reason, error.message, record)
        return found

    async def _capacity(self, key: ServiceKey, asked: Question) -> Capacity | None:
        """Return what real nodes have; None where they may not be seen, or an autoscaler adds what is missing.

        Raises:
            StalledError: the nodes have fewer GPUs than the budget.
        """
        capacity = asked.spec.capacity
        if capacity.elastic:
            return None
        there = await self._cluster.read_capacity(capacity.pools, key)
        if there is not None and there.total < capacity.gpus:
            raise StalledError(
                "TooFewGpus",
                f"spec.capacity.gpus: {capacity.gpus} GPUs are asked for and the nodes of the pools have "
                f"{there.total}; lower it to {there.total} or less, add nodes, or set spec.capacity.elastic where an "
                "autoscaler adds them",
            )
        return there

    async def _carry_out(
        self, key: ServiceKey, observed: Observed, goal: Goal
    ) -> tuple[Result, tuple[Action, ...], Fleet | None]:
        generation = _generation(observed.service)
        if goal.record is None:
            return Result(key=key, generation=generation, planned=goal.planned), (), None
        now = self._clock()
        sets = observed.of_kind("StatefulSet")
        stuck = stuck_workers(sets, observed.pods)
        live = live_workers(key.name, sets, observed.pods, now=now, stuck=stuck)
        fleet = choose(goal.record.plan.groups, live, taken=_taken(key, observed))
        staged = stage(
            self._plan_actions(key, observed, goal.record, fleet),
            states=worker_states(key.name, fleet.workers, statefulsets=sets, pods=observed.pods, changed=frozenset()),
            statefulsets=sets,
        )
        applied = await self._apply(staged.actions, observed)
        chosen = {worker.name(key.name) for worker in fleet.workers}
        return (
            Result(
                key=key,
                generation=generation,
                planned=goal.planned,
                record=goal.record,
                workers=worker_states(
                    key.name,
                    fleet.workers,
                    statefulsets=sets,
                    pods=observed.pods,
                    changed=frozenset(item.name for item in applied.changed if item.kind == "StatefulSet"),
                    waiting=staged.waiting,
                ),
                coordinator=coordinator_state(
                    observed.named("Deployment", key.name),
                    [pod for pod in observed.pods if labels_of(pod).get(COMPONENT_LABEL) == "coordinator"],
                    changed=any(item.kind == "Deployment" for item in applied.changed),
                ),
                lost=tuple(item.name for item in fleet.lost),
                leaving=tuple(item.name for item in live if item.name not in chosen and item.lost is None),
                failure=applied.failure,
            ),
            applied.done,
            fleet,
        )

    def _plan_actions(
        self, key: ServiceKey, observed: Observed, record: PlanRecord, fleet: Fleet
    ) -> tuple[Action, ...]:
        rendering = Rendering(key=key, uid=observed.service["metadata"]["uid"], record=record, settings=self._settings)
        secret = observed.named("Secret", f"{key.name}-token")
        token = (read_token(secret) if secret is not None else None) or self._new_token()
        wanted = desired_objects(rendering, fleet.workers, token=token)
        return diff(wanted, observed.owned, prunable=PRUNABLE, keep=_mounted(key, observed))

    async def _apply(self, actions: tuple[Action, ...], observed: Observed) -> _Applied:
        """Carry out the actions in order.

        A refused object does not keep the others back: a bad pod template must not stop the removal of a lost worker.
        Only the token does: templates that carry the hash of a token that was not stored would change every pass.
        """
        done: list[Action] = []
        changed: set[ObjectKey] = set()
        failure: Verdict | None = None
        tokenless = False
        for action in actions:
            if tokenless and isinstance(action, Apply) and action.key.kind in ("StatefulSet", "Deployment"):
                continue
            try:
                now = await self._cluster.carry_out(action, owner_uid=observed.service["metadata"]["uid"])
            except TransientError:
                raise
            except (StalledError, ApiError) as error:
                log.warning("apply_failed", extra={"object": str(action.key), "error": str(error)})
                reason = error.reason if isinstance(error, StalledError) else "ApplyFailed"
                failure = failure or Verdict("False", reason, str(error))
                tokenless = tokenless or action.key.kind == "Secret"
                continue
            verb = "applied" if isinstance(action, Apply) else "deleted"
            log.info(verb, extra={"object": str(action.key), "reason": action.reason})
            done.append(action)
            before = observed.named(action.key.kind, action.key.name)
            if before is None or now is None or _generation(now) != _generation(before):
                changed.add(action.key)  # labels and annotations leave the generation, and pods, as they are
        return _Applied(tuple(done), frozenset(changed), failure)

    async def _report(
        self, key: ServiceKey, observed: Observed, result: Result, actions: tuple[Action, ...], fleet: Fleet | None
    ) -> None:
        before: Mapping[str, Any] = observed.service.get("status") or {}
        after = build_status(result, before, now=_timestamp(self._clock()))
        # Events first: after a crash between the two the same facts are found again and have the same names.
        for fact in facts(before, after, actions=actions, fleet=fleet):
            try:
                await self._cluster.post_event(key, observed.service["metadata"]["uid"], fact)
            except ApiError as error:
                # A quota or a missing right must not keep the status back, which says the same.
                log.warning("event_not_posted", extra={"service": str(key), "reason": fact.reason, "error": str(error)})
        if after != before:
            version = str(observed.service["metadata"].get("resourceVersion", ""))
            await self._cluster.write_status(key, after, version=version)


def _taken(key: ServiceKey, observed: Observed) -> list[Worker]:
    """Return workers that still have pods, with or without a StatefulSet: their names are not free."""
    found = []
    for pod in observed.pods:
        labels = labels_of(pod)
        worker = parse_name(key.name, labels.get(WORKER_LABEL, ""), labels.get(POOL_LABEL, ""))
        if worker is not None:
            found.append(worker)
    return found


def _mounted(key: ServiceKey, observed: Observed) -> frozenset[ObjectKey]:
    """Return the ConfigMaps that living pods or templates still mount."""
    specs: list[Manifest] = [pod.get("spec") or {} for pod in observed.pods]
    specs += [
        item["spec"]["template"].get("spec") or {}
        for kind in ("StatefulSet", "Deployment")
        for item in observed.of_kind(kind)
    ]
    return frozenset(
        ObjectKey("v1", "ConfigMap", key.namespace, volume["configMap"]["name"])
        for spec in specs
        for volume in spec.get("volumes") or ()
        if volume.get("configMap")
    )


def _generation(manifest: Manifest) -> int:
    return int(manifest["metadata"].get("generation", 0))


def _timestamp(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
