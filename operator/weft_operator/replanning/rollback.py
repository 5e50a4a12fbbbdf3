"""Rollback to an older plan, by an annotation or after a failed canary. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from weft_core.layouts import duties_of, named_workers
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.metrics.history import History
from weft_operator.metrics.observation import Observation
from weft_operator.render.engines.adapters import has_fixed_roles
from weft_operator.render.inputs import PlanRecord
from weft_operator.render.plan_baseline import Hold, PlanBaseline
from weft_operator.render.plan_summary import plan_summary
from weft_operator.replanning.comparison import too_small, within_bounds
from weft_operator.replanning.drift import detect_drifts

TRAFFIC = frozenset({"Rate", "Rounds", "Lengths"})
"""Kinds of drift that end a hold; a missed SLO does not, because a rollback accepts the older plan's SLO."""


@dataclass(frozen=True, slots=True)
class Rollback:
    """The record after the requested rollback; ``reason`` and message say why it was not done."""

    record: PlanRecord
    reason: str = ""
    message: str = ""


def rollback_to_annotation(
    token: str,
    record: PlanRecord,
    spec: DisaggInferenceServiceSpec,
    *,
    request_hash: str,
    find: Callable[[int], PlanRecord | None],
    observation: Observation | None,
    now: datetime,
) -> Rollback:
    """Roll back as the annotation weft.dev/rollback-to requests, once; its value is the number of a stored revision.

    ``token`` is the annotation's value, "" for none; its removal ends the hold. ``request_hash`` is that of the current
    spec, for which the older plan is active from now on.
    """
    baseline = record.baseline
    if baseline.hold is not None and baseline.hold.token and token != baseline.hold.token:
        record = replace(record, baseline=replace(baseline, hold=None))
    if token in ("", baseline.rolled_back):
        return Rollback(record)
    to = find(int(token)) if token.isdecimal() else None
    if to is None:
        return Rollback(
            record,
            "RollbackRevisionNotFound",
            f"the annotation weft.dev/rollback-to names {token[:64]!r}, and no revision of that number is kept; "
            "nothing was changed: see `weft rollout history`, or remove the annotation",
        )
    fault = unusable(spec, to)
    if fault:
        return Rollback(
            record,
            "RollbackRefused",
            f"revision {token}, {plan_summary(to.plan)}, cannot run: {fault}; nothing was changed: "
            "choose another revision, change the spec back, or remove the annotation weft.dev/rollback-to",
        )
    pressure = observation.pressure if observation is not None and observation.availability.seen else None
    full = "" if pressure is None else too_small(record, to.plan, {"": to.profile, **to.profiles}, pressure)
    if full:
        return Rollback(
            record,
            "SessionsDoNotFit",
            f"revision {token}, {plan_summary(to.plan)}, waits: it is too small for the live sessions: {full}",
        )
    cause = f"revision {token} was requested in place of {plan_summary(record.plan)}"
    return Rollback(roll_back(record, to, spec, request_hash=request_hash, cause=cause, now=now, token=token))


def roll_back(
    record: PlanRecord,
    to: PlanRecord,
    spec: DisaggInferenceServiceSpec,
    *,
    request_hash: str,
    cause: str,
    now: datetime,
    token: str = "",
) -> PlanRecord:
    """Return the record with an older plan, held while the traffic is within the validity of the plan it replaces.

    Without the hold, replanning would find the newer plan again. ``token`` is the annotation's value where a person
    requested the rollback.
    """
    before = record.baseline
    validity = before.hold.validity if before.hold is not None else record.plan.validity
    return PlanRecord(
        spec=spec,
        plan=to.plan,
        profile=to.profile,
        request_hash=request_hash,
        profiles=to.profiles,
        baseline=PlanBaseline(
            workload=to.baseline.workload,
            changed_at=now,
            judged_at=now,
            approved=before.approved,
            rolled_back=token or before.rolled_back,
            hold=Hold(cause=cause, token=token, validity=validity),
        ),
    )


def still_held(record: PlanRecord, spec: DisaggInferenceServiceSpec, history: History, seen: Observation) -> bool:
    """Return whether a held plan stays: the traffic is still that of the plan that it replaced."""
    hold = record.baseline.hold
    if hold is None:
        return False
    drifts = detect_drifts(
        replace(record.plan, validity=hold.validity),
        spec.slo,
        spec.planning,
        history=history,
        observation=seen,
        changed_at=record.baseline.changed_at,
    )
    return not any(drift.kind in TRAFFIC for drift in drifts)


def unusable(spec: DisaggInferenceServiceSpec, to: PlanRecord) -> str:
    """Return why a plan cannot run for a spec any more, "" when it can."""
    for field, then, today in (
        ("spec.model.name", to.spec.model.name, spec.model.name),
        ("spec.engine.type", to.spec.engine.type, spec.engine.type),
    ):
        if then != today:
            return f"it was made for {field} {then}, and it is {today} now"
    layouts = spec.planning.layouts
    if layouts is not None and to.plan.layout not in layouts:
        return f"its layout is {to.plan.layout} and spec.planning.layouts has {', '.join(layouts)}"
    if has_fixed_roles(spec) and any(group.role == "both" for group in to.plan.groups):
        return "it has workers with both roles, and the engine or pods of this spec have one each"
    pools: Mapping[str, Any] = {pool.name: pool for pool in spec.capacity.pools}
    for group in to.plan.groups:
        pool = pools.get(group.pool)
        if pool is None:
            return f"it uses pool {group.pool} and spec.capacity.pools has {', '.join(sorted(pools))}"
        if pool.named_degrees is not None and group.degree not in pool.named_degrees:
            return (
                f"it uses degree {group.degree} and spec.capacity.pools[{group.pool}] allows "
                f"{', '.join(map(str, pool.named_degrees))}"
            )
        if not set(duties_of(group.role)) <= set(pool.roles):
            return f"it has {named_workers(group.role)} in pool {group.pool}, whose roles are {', '.join(pool.roles)}"
    return within_bounds(spec, to.plan)
