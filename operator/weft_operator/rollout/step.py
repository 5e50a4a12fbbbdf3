"""The next step of a rollout: from the groups as they are to the numbers of workers to ask for now. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from weft_core.durations import parse_duration
from weft_core.plan import PlannedGroup, content_hash
from weft_operator.api.objects import condition_of
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.render.inputs import PlanRecord
from weft_operator.render.router_container import STOP_MARGIN_S
from weft_operator.rollout.advance import RolloutStep, advance
from weft_operator.rollout.canary_analysis import CanaryAnalysis, canary_status
from weft_operator.rollout.groups import GroupState, GroupTarget, RolloutLimits
from weft_operator.rollout.ledger import ledger_json, read_ledger
from weft_operator.rollout.replica_targets import ReplicaTargets, plan_targets, zero_targets
from weft_operator.workers.group_views import DesiredGroup, GroupView

MAKE_ROOM_S = 10.0
"""The scheduler tries a pod again within this time of another one's end."""


@dataclass(frozen=True, slots=True)
class RolloutState:
    """The numbers to ask of the groups now, the ledger to store before, and the groups that are to serve.

    ``kept`` is the text of the ledger, ``wanted`` the groups of the plan, or of the one before where it was given up.
    ``step`` tells all about it, None where nothing is planned and everything is asked for at once. ``canary`` is what
    routers are told of a plan that a share of new sessions tries, ``trial`` what the status shows of one on trial.
    """

    asked: ReplicaTargets
    kept: str
    wanted: tuple[DesiredGroup, ...]
    step: RolloutStep | None = None
    canary: Mapping[str, Any] | None = None
    trial: Mapping[str, Any] | None = None


def next_step(
    wanted: Sequence[DesiredGroup],
    views: Sequence[GroupView],
    record: PlanRecord,
    *,
    revision: str,
    kept: str,
    now: datetime,
    plan: str = "",
    analysis: CanaryAnalysis | None = None,
) -> RolloutState:
    """Return what to ask of the groups now; with planning Off others set the numbers, which are taken at once.

    ``plan`` is the name of the record's revision.
    """
    if record.baseline.scaled_to_zero_at is not None:
        # The ledger stays as it is: what was carried out last is what the service comes back to.
        return RolloutState(zero_targets(wanted, views), kept, tuple(_none_of(wanted)))
    if record.spec.planning.mode == "Off":
        return RolloutState(plan_targets(wanted, views), kept, tuple(wanted))
    ledger, target, limits = read_ledger(kept), targets_of(wanted, revision), limits_of(record.spec)
    # A plan that was taken up again was tried when it was in force first.
    tried = analysis is not None and record.baseline.hold is None
    step = advance(
        [state_of(view) for view in views],
        target,
        ledger,
        limits,
        question=_question(record, limits),
        now=now,
        plan=plan,
        canary=analysis.canary(ledger, target, now=now) if analysis is not None and tried else None,
    )
    step, row = _on_trial(step, record, now=now)
    # A group of the plan before that somebody deleted has no template any more: it cannot be made again.
    known = {view.name for view in views} | {item.name for item in wanted}
    return RolloutState(
        asked=ReplicaTargets(
            replicas={name: replicas for name, replicas in step.replicas.items() if name in known},
            retire=frozenset(step.retire),
        ),
        kept=ledger_json(step.ledger),
        wanted=_serving(step, wanted),
        step=step,
        canary=_routed(step),
        trial=row,
    )


def _question(record: PlanRecord, limits: RolloutLimits) -> str:
    """Name what a plan was made for and what its change may take: a plan that was given up is tried again for another.

    A rollback to an older plan is a new question, whatever became of that plan before.
    """
    hold = record.baseline.hold
    asked = hold.token if hold is not None else ""
    return content_hash([record.request_hash, record.baseline.workload, asked, asdict(limits)], 12)


def _serving(step: RolloutStep, wanted: Sequence[DesiredGroup]) -> tuple[DesiredGroup, ...]:
    """Return the workers that are to serve now: of the plan, of the one before, or of both while one is on trial."""
    if step.refusal is not None:
        return tuple(_wanted_of(step.ledger.base))
    return tuple(wanted) if step.share is None else tuple(_wanted_of(step.share.goal))


def _routed(step: RolloutStep) -> dict[str, Any] | None:
    if step.share is None or step.ledger.trial is None:
        return None
    groups = [
        {"role": one.role, "degree": one.degree, "pool": one.pool, "revision": one.revision}
        for one in step.share.canary
    ]
    return {"percent": step.share.percent, "salt": step.ledger.trial.plan, "groups": groups}


def _on_trial(step: RolloutStep, record: PlanRecord, *, now: datetime) -> tuple[RolloutStep, dict[str, Any] | None]:
    """Return the step of a plan on trial with words and the time of the next look, and what the status shows of it."""
    settings, trial = record.spec.rollout.canary, step.ledger.trial
    if settings is None or trial is None:
        return step, None
    row, words = canary_status(settings, trial, step.share, record.plan, now=now)
    if step.outcome != "Trying":
        return step, row
    look_s = parse_duration(record.spec.planning.interval)
    said = f"{words}; {step.message}" if step.message else words
    return replace(step, message=said, again_s=min(look_s, step.again_s or look_s)), row


def targets_of(wanted: Iterable[DesiredGroup], revision: str) -> list[GroupTarget]:
    """Return the groups of a plan as a transition names them."""
    return [_target_of(item, revision) for item in wanted]


def limits_of(spec: DisaggInferenceServiceSpec) -> RolloutLimits:
    """Return what a plan change of a service may take."""
    rollout, pools = spec.rollout, spec.capacity.pools
    unschedulable_s = parse_duration(rollout.unschedulable_timeout)
    return RolloutLimits(
        gpus=spec.capacity.gpus,
        max_unavailable=rollout.max_unavailable,
        start_s=parse_duration(rollout.start_timeout),
        unschedulable_s=unschedulable_s,
        drain_s=parse_duration(rollout.drain_timeout) + STOP_MARGIN_S,
        # An autoscaler is given its time to add nodes before workers are drained for room.
        make_room_s=unschedulable_s / 2 if spec.capacity.elastic else MAKE_ROOM_S,
        pools={pool.name: pool.gpus for pool in pools if pool.gpus is not None},
        per_hour=spec.planning.budget_per_hour,
        prices={pool.name: pool.price_per_gpu_hour for pool in pools if pool.price_per_gpu_hour is not None},
    )


def state_of(view: GroupView) -> GroupState:
    """Return a group as a transition sees it; a worker that serves with the template before is ready."""
    serving = [row for row in view.staying if row.get("ready") or row.get("outdated")]
    starting = [row for row in view.staying if not (row.get("ready") or row.get("outdated"))]
    asked = view.asked or 0
    times = [str(row["since"]) for row in starting if row.get("since")]
    if len(view.staying) < asked and (since := _not_ready_since(view)):
        times.append(since)
    return GroupState(
        key=view.name,
        role=view.role,
        degree=view.degree,
        pool=view.pool,
        revision=view.revision,
        asked=asked,
        ready=len(serving),
        starting=len(starting),
        draining=len(view.draining),
        unschedulable=sum(bool(row.get("unschedulable")) for row in starting),
        since=min((datetime.fromisoformat(time) for time in times), default=None),
        trouble=next((str(row["trouble"]) for row in starting if row.get("trouble")), ""),
        settled=view.current,
    )


def _not_ready_since(view: GroupView) -> str:
    ready = condition_of(view.manifest, "Ready")
    return str(ready["lastTransitionTime"]) if ready is not None and ready["status"] != "True" else ""


def _none_of(wanted: Iterable[DesiredGroup]) -> Iterable[DesiredGroup]:
    return (replace(item, group=replace(item.group, replicas=0)) for item in wanted)


def _target_of(item: DesiredGroup, revision: str) -> GroupTarget:
    group = item.group
    return GroupTarget(
        key=item.name,
        role=group.role,
        degree=group.degree,
        pool=group.pool,
        revision=revision,
        replicas=group.replicas,
    )


def _wanted_of(plan: Iterable[GroupTarget]) -> Iterable[DesiredGroup]:
    return (DesiredGroup(one.key, PlannedGroup(one.role, one.degree, one.replicas, one.pool)) for one in plan)
