"""Decide what a service should look like now: the newest plan, or the last good one while there is no newer."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from weft_core.cost import CostProfileError
from weft_core.profile_json import profile_from_json
from weft_operator.api.conditions import ConditionValue
from weft_operator.api.cost_profile import CostProfileSpec
from weft_operator.api.objects import APPROVE_ANNOTATION, ROLLBACK_ANNOTATION, annotations_of
from weft_operator.api.quantities import resources_fault
from weft_operator.api.scaling import Schedule
from weft_operator.api.service import DisaggInferenceService, DisaggInferenceServiceSpec
from weft_operator.api.spec_size import size_fault
from weft_operator.controllers.permitted_specs import check_permitted
from weft_operator.errors import StalledError
from weft_operator.kube.observe import Observed
from weft_operator.kube.stored_service import _first
from weft_operator.planning.planner_process import Answer, Planned, Refused
from weft_operator.planning.request import Request, planner_request, request_hash
from weft_operator.profiling.measured_profiles import measured_profiles
from weft_operator.render.inputs import PlanRecord
from weft_operator.render.plan_baseline import PlanBaseline
from weft_operator.render.plan_summary import plan_summary
from weft_operator.replanning.comparison import same_workers
from weft_operator.replanning.decide import ChangePlan, KeepPlan, approve, propose, stale, waits
from weft_operator.replanning.workload import taken_up
from weft_operator.scaling.schedules import bounded, in_force, unknown_zone
from weft_operator.status.reasons.planned import PLANNED
from weft_planner.request.error import RequestError
from weft_planner.request.service import in_manifest, in_spec

_FIELD = re.compile(r"([a-z]\w*)[\w.\[\]]*: ")


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What the planner is to be asked for a spec.

    ``bounded`` is the spec with the bounds of the ``schedule`` in force: what the planner is asked for and held to.
    ``approval`` and ``rollback`` are what the service is annotated with: a proposal's hash, a revision's number.
    """

    spec: DisaggInferenceServiceSpec
    bounded: DisaggInferenceServiceSpec
    request: Request
    hash: str
    schedule: Schedule | None = None
    approval: str = ""
    rollback: str = ""


@dataclass(frozen=True, slots=True)
class PlanResult:
    """What to render (None: nothing yet), and the condition Planned that tells why.

    ``again_s``: seconds after which to look again although nothing happens.
    """

    record: PlanRecord | None
    planned: ConditionValue
    again_s: float | None = None


def question(
    service: DisaggInferenceService, observed: Observed, *, now: datetime, permitted: Collection[str] = ()
) -> PlanRequest:
    """Return what the planner must be asked, with the bounds of the hour.

    ``permitted`` are the permissions of the service's namespace beyond the allow-list of pod templates.

    Raises:
        StalledError: the spec refers to something that is not there or cannot be used.
    """
    spec = service.spec
    strange = size_fault(observed.service["spec"]) or unknown_zone(spec.planning.schedules) or resources_fault(spec)
    if strange:
        raise StalledError("InvalidSpec", strange)
    schedule = in_force(spec.planning.schedules, now)
    within = bounded(spec, schedule)
    check_permitted(spec, observed, permitted, unmarked=observed.unmarked)
    _references(spec, observed, service.metadata.namespace)
    profiles = _profiles(spec, observed, service.metadata.namespace)
    trace = _trace(spec, observed, service.metadata.namespace)
    try:
        request = planner_request(within, profiles=profiles, trace=trace)
    except RequestError as error:
        raise StalledError("InvalidSpec", str(error)) from error
    said = annotations_of(observed.service)
    return PlanRequest(
        spec=spec,
        bounded=within,
        request=request,
        hash=request_hash(request),
        schedule=schedule,
        approval=said.get(APPROVE_ANNOTATION, "").strip(),
        rollback=said.get(ROLLBACK_ANNOTATION, "").strip(),
    )


def _references(spec: DisaggInferenceServiceSpec, observed: Observed, namespace: str) -> None:
    """Refuse a spec that refers to what is not there.

    Raises:
        StalledError: SecretNotFound or JwksNotFound, naming the field.
    """
    hub = spec.model.source.hugging_face if spec.model.source is not None else None
    for field, ref, found in (
        ("spec.coordinator.auth.apiKeySecretRef", spec.coordinator.auth.api_key_secret_ref, observed.api_key_found),
        (
            "spec.model.source.huggingFace.tokenSecretRef",
            hub.token_secret_ref if hub is not None else None,
            observed.model_token_found,
        ),
    ):
        if ref is not None and not found:
            raise StalledError(
                "SecretNotFound",
                f"{field}: there is no Secret {ref.name} with a non-empty key {ref.key} in namespace "
                f"{namespace}; create it or correct the reference",
            )
    s3 = spec.model.source.s3 if spec.model.source is not None else None
    if s3 is not None and s3.credentials_secret_ref is not None and not observed.model_keys_found:
        raise StalledError(
            "SecretNotFound",
            f"spec.model.source.s3.credentialsSecretRef: there is no Secret {s3.credentials_secret_ref.name} with "
            f"non-empty keys AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in namespace {namespace}; create it or "
            "correct the reference",
        )
    tls, jwt = spec.coordinator.tls, spec.coordinator.auth.jwt
    if tls is not None and not observed.certificate_found:
        raise StalledError(
            "SecretNotFound",
            f"spec.coordinator.tls.secretRef: there is no Secret {tls.secret_ref.name} with non-empty keys tls.crt and "
            f"tls.key in namespace {namespace}; create it or correct the reference",
        )
    keys = jwt.jwks_config_map_ref if jwt is not None else None
    if keys is not None and not observed.jwks_found:
        raise StalledError(
            "JwksNotFound",
            f"spec.coordinator.auth.jwt.jwksConfigMapRef: there is no ConfigMap {keys.name} with a non-empty key "
            f"{keys.key} in namespace {namespace}; create it or correct the reference",
        )


def _profiles(spec: DisaggInferenceServiceSpec, observed: Observed, namespace: str) -> list[dict[str, Any]]:
    """Return the cost profiles that spec.profile refers to, in its order; none when it is analytic."""
    given = spec.profile
    measured = measured_profiles(spec, observed)
    if measured:
        return [_profile_json(name, body) for name, body in measured.items()]
    field, refs = (
        ("spec.profile.ref", [given.ref]) if given.ref is not None else ("spec.profile.refs", given.refs or [])
    )
    found = []
    for ref in refs:
        profile = observed.profiles.get(ref.name)
        if profile is None:
            raise StalledError(
                "ProfileNotFound",
                f"{field}: there is no CostProfile {ref.name} in namespace {namespace}; "
                "create it, correct the name, or use spec.profile.analytic",
            )
        found.append(_profile_json(ref.name, profile.get("spec") or {}))
    return found


def _trace(spec: DisaggInferenceServiceSpec, observed: Observed, namespace: str) -> dict[str, str] | None:
    """Return the data that spec.workload.traceConfigMap names, None when it names none."""
    ref = spec.workload.trace_config_map
    if ref is None:
        return None
    for field, encoding in (("data", "text"), ("binaryData", "base64")):
        data = ((observed.trace or {}).get(field) or {}).get(ref.key)
        if data:
            return {"name": f"ConfigMap {ref.name}, {ref.key}", "data": data, "encoding": encoding}
    raise StalledError(
        "TraceNotFound",
        f"spec.workload.traceConfigMap: there is no ConfigMap {ref.name} with a non-empty key {ref.key} in namespace "
        f"{namespace}; create it or correct the reference",
    )


def _profile_json(name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON form of a referenced profile, defaults filled in and figures checked."""
    try:
        spec = CostProfileSpec.model_validate(body, extra="ignore").model_dump(
            mode="json", by_alias=True, exclude_none=True
        )
        profile_from_json(spec)
    except ValidationError as error:
        where, message = _first(error)
        raise StalledError("ProfileInvalid", f"CostProfile {name}: spec.{where}: {message}") from error
    except CostProfileError as error:
        raise StalledError("ProfileInvalid", f"CostProfile {name}: spec.{error}") from error
    return spec


def settled(asked: PlanRequest, record: PlanRecord | None, *, now: datetime) -> PlanResult | None:
    """Return the goal when the plan in force answers the question, None when the planner must be asked."""
    if record is None:
        return None
    standing, mode = record.standing, asked.spec.planning.mode
    if record.request_hash == asked.hash:
        if standing.proposal is not None and standing.proposal.request_hash != asked.hash:
            record = replace(record, standing=replace(standing, proposal=None))  # for a spec that was taken back
        return _carried(asked, record, "")
    if mode == "Off":
        return _carried(asked, record, "; kept although the spec has changed, because spec.planning.mode is Off")
    if standing.proposal is not None and standing.proposal.request_hash == asked.hash and mode != "Auto":
        return _proposed(asked, record, now)
    return None


def request_for(asked: PlanRequest, record: PlanRecord | None) -> Request:
    """Return what to ask for a changed spec; where its workload is the same as before, what was observed stays it.

    Otherwise a change of the SLO would bring back the plan for traffic that is known to be another.
    """
    kept = _observed(asked, record)
    return asked.request if kept is None else {**asked.request, "workload": kept}


def at_edge(asked: PlanRequest, record: PlanRecord, why: str) -> PlanResult:
    """Return the goal while the plan for other hours waits: the plan in force stays."""
    hours = f"schedule {asked.schedule.name} is" if asked.schedule is not None else "no schedule is"
    words = f"{plan_summary(record.plan)} stays although {hours} in force now: {why}"
    return PlanResult(replace(record, spec=asked.spec), ConditionValue("True", "ScheduleHeld", words))


def _observed(asked: PlanRequest, record: PlanRecord | None) -> dict[str, Any] | None:
    if record is None or record.standing.workload is None or record.spec.workload != asked.spec.workload:
        return None
    return taken_up(record.standing.workload, asked.request["workload"])


def answered(
    asked: PlanRequest, answer: Answer | None, record: PlanRecord | None, *, now: datetime, notes: Sequence[str] = ()
) -> PlanResult:
    """Return the goal for the planner's answer; without a new plan the last good one stays in force.

    ``notes`` say what the operator could not tell the planner. Where a person decides, other workers are only proposed.
    """
    if answer is None:
        kept = f"; {plan_summary(record.plan)} stays in force meanwhile" if record is not None else ""
        return PlanResult(record, ConditionValue("Unknown", "Planning", f"the planner is at work{kept}"))
    if isinstance(answer, Refused):
        return refused(answer.reason, _of_spec(answer.message), record)
    told = replace(answer, plan=replace(answer.plan, notes=(*answer.plan.notes, *notes)))
    person = asked.spec.planning.mode in ("Advisory", "Manual")
    if record is not None and person and not same_workers(record.plan, told.plan):
        workload = _observed(asked, record)
        offered = propose(
            record,
            told,
            request_hash=asked.hash,
            cause="the spec changed" if not asked.spec.profile.measure else "the spec or the measured costs changed",
            now=now,
            workload=workload,
        )
        return _proposed(asked, offered, now)
    return _carried(asked, _record(asked, told, record, now), "")


def _of_spec(message: str) -> str:
    """Return a refusal with fields named as in the spec: the planner speaks of its request."""
    found = _FIELD.match(message)
    if found is not None and found[1] == "profile":
        return message  # of what a CostProfile holds
    return in_manifest(in_spec(message) if found is not None else message)


def _proposed(asked: PlanRequest, record: PlanRecord, now: datetime) -> PlanResult:
    """Return the goal of a spec whose plan waits for a person: everything stays as it was for the spec before."""
    proposal = record.standing.proposal
    if proposal is not None and asked.approval == proposal.hash and asked.spec.planning.mode == "Manual":
        return _carried(asked, approve(record, asked.spec, now=now), "")
    reason, message = waits(record, asked.spec.planning.mode)
    if asked.spec.planning.mode == "Manual" and asked.approval not in ("", record.standing.approved):
        reason, message = "ApprovalStale", stale(record, asked.approval)
    return PlanResult(record, ConditionValue("False", reason, message))


def refused(reason: str, message: str, record: PlanRecord | None) -> PlanResult:
    """Return the goal when there can be no new plan: the last good one, and why."""
    known = reason if reason in PLANNED else "Infeasible"
    text = message if known == reason else f"{reason}: {message}"
    kept = f"; workers of {plan_summary(record.plan)} stay as they are" if record is not None else ""
    return PlanResult(record, ConditionValue("False", known, f"{text}{kept}"))


def barred(goal: PlanResult, fault: StalledError) -> PlanResult:
    """Return a goal without a plan that also says why nothing is made of the plan in force."""
    status, reason, message = goal.planned.status, goal.planned.reason, goal.planned.message
    why = f"the plan in force: {fault.message}; nothing is made of it, and pods stay as they are"
    if status != "False":
        return replace(goal, planned=ConditionValue(status, reason, f"{message}; {why}"))
    return replace(
        goal, planned=ConditionValue("False", fault.reason, f"{why}; of the newest spec {reason}: {message}")
    )


def replanning(asked: PlanRequest, record: PlanRecord) -> PlanResult:
    """Return the goal while the planner is at work on what was observed."""
    reason, message = waits(record, asked.spec.planning.mode)
    words = "the planner is at work on the traffic that is seen; the plan in force was made for another"
    return PlanResult(record, ConditionValue("True", reason or "Replanning", message or words))


def told(goal: PlanResult, reason: str, message: str) -> PlanResult:
    """Return the goal with what a person must be told instead of why the plan in force stays."""
    quiet = goal.planned.status == "True" and goal.planned.reason != "Replanning"
    return replace(goal, planned=ConditionValue("True", reason, message)) if reason and quiet else goal


def decided(asked: PlanRequest, decision: KeepPlan | ChangePlan) -> PlanResult:
    """Return the goal of a decision about drift; the spec itself is planned in any case."""
    goal = _carried(asked, decision.record, "")
    if isinstance(decision, ChangePlan) or not decision.reason:
        return goal
    return replace(goal, planned=ConditionValue("True", decision.reason, decision.message), again_s=decision.again_s)


def _record(asked: PlanRequest, answer: Planned, before: PlanRecord | None, now: datetime) -> PlanRecord:
    standing = before.standing if before is not None else PlanBaseline()
    stays = before is not None and same_workers(before.plan, answer.plan)
    workload = _observed(asked, before)
    return PlanRecord(
        spec=asked.spec,
        plan=answer.plan,
        profile=answer.profile,
        request_hash=asked.hash,
        profiles=answer.profiles,
        standing=PlanBaseline(
            workload=None if workload is None else standing.workload,
            changed_at=standing.changed_at if stays else now,
            approved=standing.approved,
            rolled_back=standing.rolled_back,
            asleep_at=standing.asleep_at,
        ),
    )


def _carried(asked: PlanRequest, record: PlanRecord, note: str) -> PlanResult:
    plan = record.plan
    current = replace(record, spec=asked.spec)
    why = plan.reason or f"{plan_summary(plan)} on {plan.gpus} GPUs"
    if record.standing.hold is not None:
        held = (
            f"{plan_summary(plan)} is held, because {record.standing.hold.cause}, until the spec or the traffic changes"
        )
        return PlanResult(current, ConditionValue("True", "RolledBack", f"{held}{note}"))
    if record.standing.cause:
        made_for = f"{plan_summary(plan)} was made for the traffic that was seen, because {record.standing.cause}; "
        return PlanResult(current, ConditionValue("True", "Replanned", f"{made_for}{why}{note}"))
    return PlanResult(current, ConditionValue("True", "PlanReady", f"{why}{note}"))
