"""Decide what a service should look like now: the newest plan, or the last good one while there is no newer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from weft_core.cost import CostProfileError
from weft_core.profile_json import profile_from_json
from weft_operator.api.cost_profile import CostProfileSpec
from weft_operator.api.service import GROUP, KIND, VERSION, DisaggInferenceService, DisaggInferenceServiceSpec
from weft_operator.desired.config import read_record
from weft_operator.desired.rendering import PlanRecord
from weft_operator.errors import StalledError
from weft_operator.observe import Observed
from weft_operator.planning.child import Answer, Planned, Refused
from weft_operator.planning.request import Request, planner_request, request_hash
from weft_operator.reasons import PLANNED
from weft_operator.status import Verdict, plan_summary
from weft_planner.request.error import RequestError


@dataclass(frozen=True, slots=True)
class Question:
    """What the planner is to be asked for a spec."""

    spec: DisaggInferenceServiceSpec
    request: Request
    hash: str


@dataclass(frozen=True, slots=True)
class Goal:
    """What to render (None: nothing yet), and the condition Planned that tells why."""

    record: PlanRecord | None
    planned: Verdict


def last_record(observed: Observed) -> PlanRecord | None:
    """Return the plan in force with all it was made from, None when there is none."""
    config = observed.named("ConfigMap", f"{observed.service['metadata']['name']}-plan")
    return read_record(config) if config is not None else None


def parse_service(manifest: Mapping[str, Any]) -> DisaggInferenceService:
    """Return the service of an object as the API server stores it.

    Raises:
        StalledError: InvalidSpec, naming the field; rules may be newer than the stored object.
    """
    body = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": manifest["metadata"],
        "spec": manifest.get("spec"),
    }
    try:
        return DisaggInferenceService.model_validate(body)
    except ValidationError as error:
        where, message = _first(error)
        # A rule's message names the field itself.
        own = error.errors(include_url=False)[0]["type"] == "rule"
        raise StalledError("InvalidSpec", message if own else f"{where}: {message}") from error


def question(service: DisaggInferenceService, observed: Observed) -> Question:
    """Return what the planner must be asked.

    Raises:
        StalledError: the spec refers to something that is not there or cannot be used.
    """
    spec = service.spec
    _references(spec, observed, service.metadata.namespace)
    profiles = _profiles(spec, observed, service.metadata.namespace)
    trace = _trace(spec, observed, service.metadata.namespace)
    try:
        request = planner_request(spec, profiles=profiles, trace=trace)
    except RequestError as error:
        raise StalledError("InvalidSpec", str(error)) from error
    return Question(spec=spec, request=request, hash=request_hash(request))


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
        spec = CostProfileSpec.model_validate(body).model_dump(mode="json", by_alias=True, exclude_none=True)
        profile_from_json(spec)
    except ValidationError as error:
        where, message = _first(error)
        raise StalledError("ProfileInvalid", f"CostProfile {name}: spec.{where}: {message}") from error
    except CostProfileError as error:
        raise StalledError("ProfileInvalid", f"CostProfile {name}: spec.{error}") from error
    return spec


def _first(error: ValidationError) -> tuple[str, str]:
    first = error.errors(include_url=False, include_input=False)[0]
    return ".".join(str(part) for part in first["loc"]), first["msg"]


def settled(asked: Question, record: PlanRecord | None) -> Goal | None:
    """Return the goal when the plan in force answers the question, None when the planner must be asked."""
    if record is None:
        return None
    if record.request_hash == asked.hash:
        return _carried(asked, record, "")
    if asked.spec.planning.mode == "Off":
        return _carried(asked, record, "; kept although the spec has changed, because spec.planning.mode is Off")
    return None


def answered(asked: Question, answer: Answer | None, record: PlanRecord | None, *, notes: Sequence[str] = ()) -> Goal:
    """Return the goal for the planner's answer; without a new plan the last good one stays in force.

    ``notes`` say what the operator could not tell the planner.
    """
    if answer is None:
        kept = f"; {plan_summary(record.plan)} stays in force meanwhile" if record is not None else ""
        return Goal(record, Verdict("Unknown", "Planning", f"the planner is at work{kept}"))
    if isinstance(answer, Refused):
        return refused(answer.reason, answer.message, record)
    return _carried(asked, _record(asked, answer, notes), "")


def refused(reason: str, message: str, record: PlanRecord | None) -> Goal:
    """Return the goal when there can be no new plan: the last good one, and why."""
    known = reason if reason in PLANNED else "Infeasible"
    text = message if known == reason else f"{reason}: {message}"
    kept = f"; workers of {plan_summary(record.plan)} stay as they are" if record is not None else ""
    return Goal(record, Verdict("False", known, f"{text}{kept}"))


def _record(asked: Question, answer: Planned, notes: Sequence[str]) -> PlanRecord:
    plan = replace(answer.plan, notes=(*answer.plan.notes, *notes))
    return PlanRecord(
        spec=asked.spec, plan=plan, profile=answer.profile, request_hash=asked.hash, profiles=answer.profiles
    )


def _carried(asked: Question, record: PlanRecord, note: str) -> Goal:
    plan = record.plan
    current = replace(record, spec=asked.spec)
    why = plan.reason or f"{plan_summary(plan)} on {plan.gpus} GPUs"
    return Goal(current, Verdict("True", "PlanReady", f"{why}{note}"))
