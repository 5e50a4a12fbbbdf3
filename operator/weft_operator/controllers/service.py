"""One pass over one service: observe → desired → diff → apply → one status write.

A pass looks at the state of the world, never at what event woke it, so it may run at any time, any number of
times, and be killed at any point.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, Protocol

from weft_core.heartbeat import WorkerRecord
from weft_operator.api.capacity import Pool
from weft_operator.api.conditions import ConditionValue
from weft_operator.api.objects import (
    CANARY_ANNOTATION,
    COMPONENT_LABEL,
    OPERATOR_LABEL,
    Manifest,
    ObjectKey,
    ServiceKey,
    annotations_of,
    condition_of,
    is_terminating,
    labels_of,
    timestamp,
)
from weft_operator.api.pod_template_permissions import permitted_in
from weft_operator.api.worker_group import GROUP_KIND
from weft_operator.controllers.desired_state import kept_token, ledger_of, plan_actions, rendering_of
from weft_operator.controllers.goal import PlanResult
from weft_operator.controllers.in_force import plan_before, planned
from weft_operator.controllers.plan import PlanReconciler
from weft_operator.controllers.profiling import standing_of
from weft_operator.controllers.redis_users import NoRedisUsers, RedisUserStore
from weft_operator.errors import ApiError, ForbiddenError, Right, StalledError, TransientError, WaitingError, refusal_of
from weft_operator.kube.diff import Action, Delete, Scale
from weft_operator.kube.events import Event
from weft_operator.kube.leader_election.namespace_claims import Rival, no_rival
from weft_operator.kube.observe import Observed
from weft_operator.metrics.poller import MetricsPoller
from weft_operator.metrics.query_target import target_of
from weft_operator.planning.client import PlannerClient
from weft_operator.profiling.cleanup import abandoned
from weft_operator.profiling.decide import measuring
from weft_operator.render.config_maps import read_transition
from weft_operator.render.identity import held_redis_url
from weft_operator.render.inputs import PlanRecord, Rendering
from weft_operator.render.objects import mounts_of
from weft_operator.render.redis_user import is_own
from weft_operator.render.revisions import revision_name, revision_number
from weft_operator.replanning.schedule_changes import ScheduleTransitions
from weft_operator.replanning.state import ReplanningState
from weft_operator.rollout.canary_analysis import CanaryAnalysis
from weft_operator.rollout.replica_targets import asking_actions, wanted_groups
from weft_operator.rollout.step import stride
from weft_operator.scaling.scale_to_zero import IdleScaler
from weft_operator.settings import Settings
from weft_operator.status.conditions import Result, build_status
from weft_operator.status.engine_conditions import ask_again_s, judges
from weft_operator.status.events import overlap_facts, shared_redis_facts, unwatched_facts
from weft_operator.status.writer import post, tell, tell_held_up
from weft_operator.weights.decide import ModelState
from weft_operator.weights.gate import ReadProgress, held_back, no_progress, read_state
from weft_operator.workers.group_views import leaving_of, lost_of, rows_of, states_of, views_of
from weft_operator.workers.node_capacity import NodeCapacity
from weft_operator.workers.readiness import coordinator_state

REFUSED_S = 60.0
"""Until a measuring object that was refused, by a quota for one, is tried again."""
RIVAL_S = 30.0
"""Until it is asked again whether another operator still looks after a namespace."""
FORMER_WAIT_S = 2.0
FORMER_TOLD_S = 10.0
"""The garbage collector takes a second or two; a service that is older and waits for it still has to say so."""

MAX_NAMED = 5
"""Refused objects that a message names beside the first one."""

log = logging.getLogger(__name__)


class Cluster(Protocol):
    """The seam between a pass and the API server."""

    async def observe(self, key: ServiceKey) -> Observed | None:
        """Return everything about a service, None when it is gone."""

    async def read_service(self, key: ServiceKey) -> Manifest | None:
        """Return a service alone, None when it is gone."""

    async def read_capacity(self, pools: Sequence[Pool], key: ServiceKey) -> NodeCapacity | None:
        """Return the GPUs of the pools' nodes and which are free for a service, None when that cannot be told."""

    async def image_volumes_refusal(self, namespace: str, image: str) -> str:
        """Return why pods may have no image volumes, "" where they may."""

    async def carry_out(self, action: Action, *, owner_uid: str) -> Manifest | None:
        """Carry out one action; return the object as it is now, None when it is deleted."""

    async def write_status(self, key: ServiceKey, status: dict[str, Any], *, version: str) -> None:
        """Replace the status if the service still has this resource version."""

    async def post_event(self, key: ServiceKey, uid: str, fact: Event) -> None:
        """Post an event."""


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """The end of a pass: when to look again (None: at the next event or resync), and what was done."""

    look_again: float | None = None
    actions: int = 0
    gone: bool = False
    settled: bool = True
    """Whether nothing is missing; what is may come without an event, so each resync looks at the others."""


@dataclass(frozen=True, slots=True)
class _Applied:
    """The actions that were carried out, the objects whose spec they changed, and why one failed, if one did."""

    done: tuple[Action, ...]
    changed: frozenset[ObjectKey]
    failure: ConditionValue | None


class ServiceReconciler:
    """Runs passes; holds no state of services but the planner's open questions."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        desk: PlannerClient,
        measurements: MetricsPoller,
        memories: ReplanningState,
        sleeper: IdleScaler,
        heartbeats: Callable[[ServiceKey], Awaitable[Mapping[str, WorkerRecord]]],
        progress: ReadProgress = no_progress,
        users: RedisUserStore | None = None,
        missing_rights: Callable[[], Iterable[Right]] = tuple,
        rival: Rival = no_rival,
        settings: Settings,
        clock: Callable[[], datetime],
        new_token: Callable[[], bytes],
    ) -> None:
        self._cluster = cluster
        self._measurements = measurements
        self._memories = memories
        self._sleeper = sleeper
        self._heartbeats = heartbeats
        self._progress = progress
        self._users = users or NoRedisUsers()
        self._sharing: set[ServiceKey] = set()
        """The services that use the operator's Redis user, of which an event was posted."""
        self._missing_rights = missing_rights
        self._rival = rival
        self._rivals: dict[ServiceKey, str] = {}
        """The operators that look after services in our place, of which an event was posted."""
        self._unwatched: dict[ServiceKey, frozenset[Right]] = {}
        """The rights to watch for the lack of which an event was posted."""
        self._hours = ScheduleTransitions()
        self._settings = settings
        self._clock = clock
        self._new_token = new_token
        self._minted: dict[ServiceKey, bytes] = {}
        """Tokens that no Secret holds yet: all objects of a pass carry the hash of one."""
        self._decider = PlanReconciler(
            machines=cluster,
            desk=desk,
            measurements=measurements,
            memories=memories,
            sleeper=sleeper,
            hours=self._hours,
            rendering=lambda key, seen, record: self._rendering(key, seen, record, self._token(key, seen)),
            clock=clock,
            permitted=lambda namespace: permitted_in(settings.pod_templates_allow, namespace),
        )

    async def reconcile(self, key: ServiceKey) -> ReconcileResult:
        """Bring one service nearer to what its spec wants.

        Raises:
            WaitingError: something passes by itself; look again then.
            ApiError: the API server refused or did not answer; the status says so where a right is missing.
        """
        try:
            return await self._pass(key)
        except ForbiddenError as error:
            if error.right is not None:
                await self._held_up(key, ConditionValue("False", "RightMissing", error.right.lack()))
            raise

    async def _pass(self, key: ServiceKey) -> ReconcileResult:
        observed = await self._cluster.observe(key)
        if observed is None or is_terminating(observed.service):
            # Owner references remove what belongs to it; nothing of ours must be finished first.
            self._forget(key)
            if observed is None:  # until then pods that drain may use Redis
                self._users.drop(key)
            return ReconcileResult(gone=True)
        if labels_of(observed.service).get(OPERATOR_LABEL, "") != self._settings.instance:
            self._forget(key)
            self._users.leave(key)
            return ReconcileResult(gone=True)  # another operator's service
        rival = await self._rival(key.namespace)
        if rival:
            await self._leave_to(rival, key, observed.service)
            return ReconcileResult(look_again=RIVAL_S)
        self._rivals.pop(key, None)
        if observed.former:
            left = f"{observed.former[0]} belongs to a deleted service of the same name and is being removed"
            if _age_s(observed.service, self._clock()) > FORMER_TOLD_S:
                why = f"{left}; where it stays, look at its metadata.finalizers"
                await self._held_up(key, ConditionValue("True", "FormerObjects", why))
            raise WaitingError("FormerObjects", left, retry_after=FORMER_WAIT_S)
        goal = await self._decider.goal(key, observed)
        if goal.record is not None:
            trial = ledger_of(key, observed).trial
            since = None if trial is None else trial.since
            self._measurements.serve(
                key,
                target_of(
                    goal.record.spec,
                    observed.pods,
                    default_url=self._settings.prometheus_url,
                    access=self._settings.prometheus_access,
                    trial_since=since,
                ),
                said=(observed.service.get("status") or {}).get("observed"),
            )
        await self._keep_user(key, observed, goal)
        model, fetched = await self._fetch(key, observed, goal)
        before = self._decider.in_force(key, observed).record
        missing = held_back(goal.record, before, model)
        meanwhile = replace(goal, record=before) if missing else goal
        result, actions = await self._carry_out(key, observed, meanwhile)
        if missing:
            waits_for: Literal["Coming", "Refused"] = "Coming" if model.waits else "Refused"
            result = replace(result, model_missing=waits_for)
            if meanwhile.record is None and goal.record is not None:
                name = revision_name(key.name, goal.record.plan)
                number = revision_number(name, observed.of_kind("ControllerRevision"))
                result = replace(result, record=goal.record, number=number)
        result = replace(result, model=model.verdict)
        measured: tuple[Action, ...] = ()
        measuring_s: float | None = None
        if not missing:
            result, measured, measuring_s = await self._measure(key, observed, result)
        actions = (*fetched, *actions, *measured)
        untold: float | None = None
        asked = {} if goal.record is None else judges(goal.record.spec, paired=goal.record.paired)
        if asked:
            result = replace(result, heartbeats=await self._heartbeats(key))
            proof_s = None if goal.record is None else goal.record.spec.engine.kv_transfer.proof_seconds
            untold = ask_again_s(asked, result.ready, result.heartbeats or {}, proof_s=proof_s)
        ready = await self._report(key, observed, result, actions)
        deadline = None if result.step is None else result.step.again_s
        waits = [
            *self._decider.again_s(key),
            *(wait for wait in (goal.again_s, deadline, untold, measuring_s, model.again_s) if wait is not None),
        ]
        return ReconcileResult(look_again=min(waits) if waits else None, actions=len(actions), settled=ready)

    async def _leave_to(self, rival: str, key: ServiceKey, service: Manifest) -> None:
        """Do nothing for a service that another operator looks after, but say so once."""
        if self._rivals.get(key) != rival:
            await post(self._cluster, key, service, overlap_facts(self._settings.lease, rival))
        self._forget(key)
        self._users.leave(key)
        self._rivals[key] = rival

    def _forget(self, key: ServiceKey) -> None:
        self._measurements.forget(key)
        self._decider.forget(key)
        self._unwatched.pop(key, None)
        self._rivals.pop(key, None)
        self._sharing.discard(key)
        self._minted.pop(key, None)

    async def _carry_out(
        self, key: ServiceKey, observed: Observed, goal: PlanResult
    ) -> tuple[Result, tuple[Action, ...]]:
        generation = _generation(observed.service)
        if goal.record is None:
            return Result(key=key, generation=generation, planned=goal.planned), ()
        kept = read_transition(observed.named("ConfigMap", f"{key.name}-plan"))
        token = self._token(key, observed)
        rendering = self._rendering(key, observed, goal.record, token)
        views = views_of(observed.of_kind(GROUP_KIND))
        wanted = wanted_groups(
            key.name,
            goal.record.plan.groups,
            views,
            revision=rendering.revision,
            scaled_by_hand=goal.record.spec.planning.mode == "Off",
        )
        now = self._clock()
        trying = CanaryAnalysis(
            goal.record.spec,
            goal.record.plan,
            self._measurements.last(key),
            observed.pods,
            said=annotations_of(observed.service).get(CANARY_ANNOTATION, "").strip(),
        )
        plans = observed.of_kind("ControllerRevision")
        name = revision_name(key.name, goal.record.plan)
        going = stride(
            wanted, views, goal.record, revision=rendering.revision, kept=kept, now=now, plan=name, trying=trying
        )
        wanted = going.wanted
        before = plan_before(going, plans)
        rules = None if before is None else before.record.plan
        rendering = replace(rendering, transition=going.kept, canary=going.canary, rules=rules)
        actions = (*plan_actions(rendering, observed, token=token), *asking_actions(key, going.asked, views))
        applied = await self._apply(actions, observed)
        groups = frozenset(item.name for item in applied.changed if item.kind == GROUP_KIND)
        states = states_of(key.name, wanted, views, changed=groups)
        refused = next((view.failure for view in views if view.failure is not None), None)
        return (
            Result(
                key=key,
                generation=generation,
                planned=planned(goal, before),
                record=goal.record,
                in_force=None if before is None else before.record,
                number=before.number if before else revision_number(name, plans),
                workers=states,
                groups=rows_of(wanted, views, states),
                coordinator=coordinator_state(
                    observed.named("Deployment", key.name),
                    [pod for pod in observed.pods if labels_of(pod).get(COMPONENT_LABEL) == "coordinator"],
                    changed=any(item.kind == "Deployment" for item in applied.changed),
                ),
                step=going.step,
                trial=going.trial,
                router=(rendering.settings.router_image, self._settings.router_image),
                lost=() if all(state.ready for state in states) else lost_of(views),
                leaving=leaving_of(wanted, views),
                failure=applied.failure
                or (None if refused is None else ConditionValue("False", *refused))
                or self._user_refused(),
                unheard=self._sleeper.unheard(key),
                schedule=self._hours.shown(key, now),
                observation=self._measurements.shown(key),
                drifts=self._memories.drifts(key, self._measurements.last(key)),
            ),
            applied.done,
        )

    async def _measure(
        self, key: ServiceKey, observed: Observed, result: Result
    ) -> tuple[Result, tuple[Action, ...], float | None]:
        """Go on with measuring the cost profile where that is asked for; also return when to look again."""
        if result.record is None:
            return result, (), None
        measure = result.record.spec.profile.measure
        if measure is None:
            return result, (await self._apply(tuple(abandoned(observed)), observed)).done, None
        token = self._token(key, observed)
        rendering = self._rendering(key, observed, result.record, token)
        mounts = mounts_of(rendering, token=token)
        found = measuring(measure, rendering, observed, mounts, standing=standing_of(result), now=self._clock())
        applied = await self._apply(found.actions, observed)
        if applied.failure is None:
            return replace(result, measuring=found.verdict), applied.done, found.again_s
        # What serves is as it should be, so this is told here alone, and tried again without haste.
        refused = ConditionValue("False", "MeasuringFailed", applied.failure.message)
        return replace(result, measuring=refused), applied.done, REFUSED_S

    async def _fetch(
        self, key: ServiceKey, observed: Observed, goal: PlanResult
    ) -> tuple[ModelState, tuple[Action, ...]]:
        """Go on with bringing the weights to where workers load them; return how it stands and what was done."""
        if goal.record is None:
            return ModelState(), ()
        token = self._token(key, observed)
        now = self._clock()
        state = await read_state(
            self._rendering(key, observed, goal.record, token),
            observed,
            token=token,
            images=self._cluster,
            progress=self._progress,
            now=now,
        )
        applied = await self._apply(state.actions, observed)
        if applied.failure is None:
            return state, applied.done
        verdict = state.verdict if state.ready else ConditionValue("False", "FetchFailed", applied.failure.message)
        return replace(state, verdict=verdict, again_s=REFUSED_S), applied.done

    def _token(self, key: ServiceKey, observed: Observed) -> bytes:
        """Return the internal token; a new one stays the same until it is stored, however often it is asked for."""
        kept = kept_token(key, observed)
        if kept is not None:
            self._minted.pop(key, None)
            return kept
        if key not in self._minted:
            self._minted[key] = self._new_token()
        return self._minted[key]

    def _rendering(self, key: ServiceKey, observed: Observed, record: PlanRecord, token: bytes) -> Rendering:
        shared = self._shares_user(key, observed)
        return rendering_of(key, observed, record, settings=self._settings, token=token, shares_redis_user=shared)

    def _shares_user(self, key: ServiceKey, observed: Observed) -> bool:
        """Tell whether a service's pods use the operator's Redis user.

        While Redis does not answer, all stays as it is: pods must not be restarted for a user that is refused later.
        A user of its own that a service has is never taken away again: the operator's has the rights of all.
        """
        settings = self._settings
        if settings.redis_users != "auto":
            return settings.redis_users == "off"
        if self._users.standing == "Made":
            return False
        held = held_redis_url(observed.named("Secret", f"{key.name}-token"))
        if self._users.standing == "Unknown":
            return held == settings.redis_url
        return held is None or not is_own(held, key, at=settings.redis_url)

    async def _keep_user(self, key: ServiceKey, observed: Observed, goal: PlanResult) -> None:
        """See to it that a service has its Redis user before its pods are told of it, as far as Redis answers."""
        if goal.record is None or self._settings.redis_users == "off":
            return
        token = self._token(key, observed)
        await self._users.keep(key, token)
        sharing = self._shares_user(key, observed)
        if sharing and key not in self._sharing:
            await post(self._cluster, key, observed.service, shared_redis_facts(self._users.refusal))
        (self._sharing.add if sharing else self._sharing.discard)(key)

    def _user_refused(self) -> ConditionValue | None:
        """Return what to say where services must have Redis users of their own and Redis lets none be made."""
        if self._settings.redis_users != "required" or self._users.standing != "Refused":
            return None
        return ConditionValue(
            "False", "RedisUserRefused", f"Redis refuses a user for the service ({self._users.refusal})"
        )

    async def _apply(self, actions: tuple[Action, ...], observed: Observed) -> _Applied:
        """Carry out the actions in order.

        A refused object does not keep the others back: a bad pod template must not stop the removal of a lost worker.
        Only the token does: templates that carry the hash of a token that was not stored would change every pass.
        """
        done: list[Action] = []
        changed: set[ObjectKey] = set()
        refusals: list[tuple[ObjectKey, StalledError | ApiError]] = []
        tokenless = False
        unkept = False
        for action in actions:
            if unkept and isinstance(action, Scale):
                continue  # what a plan change must remember was not stored
            if tokenless and not isinstance(action, Delete) and action.key.kind in (GROUP_KIND, "Deployment"):
                continue
            try:
                now = await self._cluster.carry_out(action, owner_uid=observed.service["metadata"]["uid"])
            except TransientError:
                raise
            except (StalledError, ApiError) as error:
                log.warning("apply_failed", extra={"object": str(action.key), "error": str(error)})
                refusals.append((action.key, error))
                tokenless = tokenless or action.key.kind == "Secret"
                unkept = unkept or action.key.kind == "ConfigMap"
                continue
            log.info("carried_out", extra={"object": str(action.key), "reason": action.reason})
            done.append(action)
            before = observed.named(action.key.kind, action.key.name)
            if before is None or now is None or _generation(now) != _generation(before):
                changed.add(action.key)  # labels and annotations leave the generation, and pods, as they are
        return _Applied(tuple(done), frozenset(changed), _failure_of(refusals))

    async def _tell_unwatched(self, key: ServiceKey, service: Manifest) -> None:
        """Post an event, once, where the operator may not watch what the service is made of."""
        told = self._unwatched.get(key, frozenset())
        now = frozenset(
            right
            for right in self._missing_rights()
            if right.verb == "watch" and right.namespace in ("", key.namespace)
        )
        await post(self._cluster, key, service, unwatched_facts(now - told))
        self._unwatched[key] = now

    async def _held_up(self, key: ServiceKey, why: ConditionValue) -> None:
        await tell_held_up(self._cluster, key, why, instance=self._settings.instance, now=self._clock())

    async def _report(self, key: ServiceKey, observed: Observed, result: Result, actions: tuple[Action, ...]) -> bool:
        """Post what happened and write the status if it changed; return whether the service is ready."""
        before: Mapping[str, Any] = observed.service.get("status") or {}
        after = build_status(result, before, now=timestamp(self._clock()))
        await self._tell_unwatched(key, observed.service)
        await tell(self._cluster, key, observed.service, after, actions=actions)
        ready = condition_of({"status": after}, "Ready")
        return ready is not None and ready.get("status") == "True"


def _failure_of(refusals: Sequence[tuple[ObjectKey, StalledError | ApiError]]) -> ConditionValue | None:
    """Return the first refusal in full, and the kinds and names of the others."""
    if not refusals:
        return None
    (key, error), *others = refusals
    reason, words = refusal_of(error)
    more = ", ".join(str(other) for other, _ in others[:MAX_NAMED])
    left = f" and {len(others) - MAX_NAMED} more" if len(others) > MAX_NAMED else ""
    return ConditionValue("False", reason, f"{key}: {words}{f'; refused as well: {more}{left}' if more else ''}")


def _age_s(service: Manifest, now: datetime) -> float:
    made = service["metadata"].get("creationTimestamp")
    return math.inf if not made else (now - datetime.fromisoformat(made)).total_seconds()


def _generation(manifest: Manifest) -> int:
    return int(manifest["metadata"].get("generation", 0))
