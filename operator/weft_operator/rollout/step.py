"""The next step of a service's rollout, from its groups, its plan and the stored ledger. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from weft_core.durations import parse_duration
from weft_core.parallelism import degree_to_json
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
"""The scheduler retries a pending pod within this time after another pod ended."""


@dataclass(frozen=True, slots=True)
class RolloutState:
    """The replicas to write now, the ledger to store before, and the groups that are to serve.

    ``ledger_text`` is the ledger as stored, ``wanted`` the groups of the plan, or of the old plan after a rollback.
    ``step`` is None where replicas are set at once, without steps. ``canary`` is the routers' configuration of a
    canary, ``canary_status`` the status of one.
    """

    targets: ReplicaTargets
    ledger_text: str
    wanted: tuple[DesiredGroup, ...]
    step: RolloutStep | None = None
    canary: Mapping[str, Any] | None = None
    canary_status: Mapping[str, Any] | None = None


def next_step(
    wanted: Sequence[DesiredGroup],
    views: Sequence[GroupView],
    record: PlanRecord,
    *,
    revision: str,
    ledger_text: str,
    now: datetime,
    plan: str = "",
    analysis: CanaryAnalysis | None = None,
) -> RolloutState:
    """Return the next step; with planning Off others set the replicas, which are applied at once.

    ``plan`` is the name of the record's revision.
    """
    if record.baseline.scaled_to_zero_at is not None:
        # The ledger stays as it is: the service scales up to its last plan.
        return RolloutState(zero_targets(wanted, views), ledger_text, tuple(_none_of(wanted)))
    if record.spec.planning.mode == "Off":
        return RolloutState(plan_targets(wanted, views), ledger_text, tuple(wanted))
    ledger, target, limits = read_ledger(ledger_text), targets_of(wanted, revision), limits_of(record.spec)
    # A plan that a rollback brought back had its canary when it was first rolled out.
    needs_canary = analysis is not None and record.baseline.hold is None
    step = advance(
        [state_of(view) for view in views],
        target,
        ledger,
        limits,
        inputs_hash=_inputs_hash(record, limits),
        now=now,
        plan=plan,
        canary_request=analysis.request(ledger, target, now=now) if analysis is not None and needs_canary else None,
    )
    step, row = _with_canary_status(step, record, now=now)
    # A group of the old plan that was deleted has no template any more, so it cannot be created again.
    known = {view.name for view in views} | {item.name for item in wanted}
    return RolloutState(
        targets=ReplicaTargets(
            replicas={name: replicas for name, replicas in step.replicas.items() if name in known},
            retire=frozenset(step.retire),
        ),
        ledger_text=ledger_json(step.ledger),
        wanted=_serving(step, wanted),
        step=step,
        canary=_router_canary(step),
        canary_status=row,
    )


def _inputs_hash(record: PlanRecord, limits: RolloutLimits) -> str:
    """Return the hash of a plan's inputs and its rollout's limits: an aborted rollout is retried only for another one.

    A rollback that a person asked for has a hash of its own, so an earlier failure of that plan does not stop it.
    """
    hold = record.baseline.hold
    rollback = hold.token if hold is not None else ""
    return content_hash([record.request_hash, record.baseline.workload, rollback, asdict(limits)], 12)


def _serving(step: RolloutStep, wanted: Sequence[DesiredGroup]) -> tuple[DesiredGroup, ...]:
    """Return the workers that are to serve now: of the plan, of the old one, or of both during a canary."""
    if step.refusal is not None:
        return tuple(_wanted_of(step.ledger.base))
    return tuple(wanted) if step.share is None else tuple(_wanted_of(step.share.goal))


def _router_canary(step: RolloutStep) -> dict[str, Any] | None:
    """Return the canary as routers read it; None where all sessions go to the same plan."""
    if step.share is None or step.ledger.canary is None:
        return None
    groups = [
        {"role": one.role, "degree": degree_to_json(one.degree), "pool": one.pool, "revision": one.revision}
        for one in step.share.canary
    ]
    return {"percent": step.share.percent, "salt": step.ledger.canary.plan, "groups": groups}


def _with_canary_status(
    step: RolloutStep, record: PlanRecord, *, now: datetime
) -> tuple[RolloutStep, dict[str, Any] | None]:
    """Return a canary's step with its message and the time of the next analysis, and ``status.canary``."""
    settings, canary = record.spec.rollout.canary, step.ledger.canary
    if settings is None or canary is None:
        return step, None
    row, words = canary_status(settings, canary, step.share, record.plan, now=now)
    if step.outcome != "Canary":
        return step, row
    interval_s = parse_duration(record.spec.planning.interval)
    message = f"{words}; {step.message}" if step.message else words
    return replace(step, message=message, requeue_after=min(interval_s, step.requeue_after or interval_s)), row


def targets_of(wanted: Iterable[DesiredGroup], revision: str) -> list[GroupTarget]:
    """Return the groups of a plan as rollout targets."""
    return [_target_of(item, revision) for item in wanted]


def limits_of(spec: DisaggInferenceServiceSpec) -> RolloutLimits:
    """Return the limits of a service's rollouts."""
    rollout, pools = spec.rollout, spec.capacity.pools
    unschedulable_s = parse_duration(rollout.unschedulable_timeout)
    return RolloutLimits(
        gpus=spec.capacity.gpus,
        max_unavailable=rollout.max_unavailable,
        start_s=parse_duration(rollout.start_timeout),
        unschedulable_s=unschedulable_s,
        drain_s=parse_duration(rollout.drain_timeout) + STOP_MARGIN_S,
        # An autoscaler has time to add nodes before workers are drained to free GPUs.
        make_room_s=unschedulable_s / 2 if spec.capacity.elastic else MAKE_ROOM_S,
        pools={pool.name: pool.gpus for pool in pools if pool.gpus is not None},
        per_hour=spec.planning.budget_per_hour,
        prices={pool.name: pool.price_per_gpu_hour for pool in pools if pool.price_per_gpu_hour is not None},
    )


def state_of(view: GroupView) -> GroupState:
    """Return a group's state; a worker that serves with an older template counts as ready.

    One that has not confirmed its role yet does not.
    """
    serving = [row for row in view.staying if _serves(row)]
    starting = [row for row in view.staying if not _serves(row)]
    asked = view.asked or 0
    times = [str(row["since"]) for row in starting if row.get("since")]
    # Before its controller has acted, the group's condition is about the workers that there were.
    if view.current and len(view.staying) < asked and (since := _not_ready_since(view)):
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
        switching=sum(bool(row.get("switching")) for row in starting),
        draining=len(view.draining),
        unschedulable=sum(bool(row.get("unschedulable")) for row in starting),
        since=min((datetime.fromisoformat(time) for time in times), default=None),
        trouble=next((str(row["trouble"]) for row in starting if row.get("trouble")), ""),
        settled=view.current,
    )


def _serves(row: Mapping[str, Any]) -> bool:
    return bool(row.get("ready") or row.get("outdated")) and not row.get("switching")


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
