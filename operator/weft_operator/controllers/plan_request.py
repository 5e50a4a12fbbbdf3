"""The planner request for a spec, with everything that the spec refers to."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from weft_core.cost import CostProfileError
from weft_core.policies.policy import PolicyError
from weft_core.policies.ppd_file import table_from_json
from weft_core.profile_json import profile_from_json
from weft_operator.api.cost_profile import CostProfileSpec
from weft_operator.api.objects import APPROVE_ANNOTATION, ROLLBACK_ANNOTATION, annotations_of
from weft_operator.api.quantities import resources_fault, tier_fault
from weft_operator.api.scaling import Schedule
from weft_operator.api.service import DisaggInferenceService, DisaggInferenceServiceSpec
from weft_operator.api.spec_size import size_fault
from weft_operator.controllers.permitted_specs import check_permitted
from weft_operator.errors import StalledError
from weft_operator.kube.observe import Observed
from weft_operator.kube.stored_service import first_error
from weft_operator.planning.request import Request, planner_request, request_hash
from weft_operator.profiling.measured_profiles import measured_profiles
from weft_operator.scaling.schedules import bounded, in_force, unknown_zone
from weft_planner.request.error import RequestError


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The planner request for a spec.

    ``spec`` has the figures of its routing table among its params, so that plans are simulated, records kept and
    routers configured with them. ``bounded`` is the same with the bounds of the active ``schedule``, for which plans
    are made. ``approval`` (a proposal's hash) and ``rollback`` (a revision's number) are annotations of the service.
    """

    spec: DisaggInferenceServiceSpec
    bounded: DisaggInferenceServiceSpec
    request: Request
    hash: str
    schedule: Schedule | None = None
    approval: str = ""
    rollback: str = ""


def build_plan_request(
    service: DisaggInferenceService, observed: Observed, *, now: datetime, permitted: Collection[str] = ()
) -> PlanRequest:
    """Return the planner request for the spec, with the bounds of the active schedule.

    ``permitted`` are the permissions of the service's namespace beyond the allow-list of pod templates.

    Raises:
        StalledError: the spec refers to something that does not exist or cannot be used.
    """
    spec = service.spec
    fault = (
        size_fault(observed.service["spec"])
        or unknown_zone(spec.planning.schedules)
        or resources_fault(spec)
        or tier_fault(spec)
    )
    if fault:
        raise StalledError("InvalidSpec", fault)
    check_permitted(spec, observed, permitted, unmarked=observed.unmarked)
    _references(spec, observed, service.metadata.namespace)
    spec = _with_table(spec, observed, service.metadata.namespace)
    schedule = in_force(spec.planning.schedules, now)
    within = bounded(spec, schedule)
    profiles = _profiles(spec, observed, service.metadata.namespace)
    trace = _trace(spec, observed, service.metadata.namespace)
    try:
        request = planner_request(within, profiles=profiles, trace=trace)
    except RequestError as error:
        raise StalledError("InvalidSpec", str(error)) from error
    annotations = annotations_of(observed.service)
    return PlanRequest(
        spec=spec,
        bounded=within,
        request=request,
        hash=request_hash(request),
        schedule=schedule,
        approval=annotations.get(APPROVE_ANNOTATION, "").strip(),
        rollback=annotations.get(ROLLBACK_ANNOTATION, "").strip(),
    )


def _references(spec: DisaggInferenceServiceSpec, observed: Observed, namespace: str) -> None:
    """Refuse a spec that refers to a missing object.

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
    """Return the cost profiles that spec.profile refers to, in its order; none when it refers to none."""
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
                "create it, correct the name, or remove the reference",
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


def _with_table(spec: DisaggInferenceServiceSpec, observed: Observed, namespace: str) -> DisaggInferenceServiceSpec:
    """Return the spec with the figures of spec.routing.tableConfigMapRef; those of spec.routing.params go first.

    Raises:
        StalledError: RoutingTableNotFound or RoutingTableInvalid, naming the figure.
    """
    ref = spec.routing.table_config_map_ref
    if ref is None:
        return spec
    text = ((observed.routing_table or {}).get("data") or {}).get(ref.key, "")
    if not text.strip():
        raise StalledError(
            "RoutingTableNotFound",
            f"spec.routing.tableConfigMapRef: there is no ConfigMap {ref.name} with a non-empty key {ref.key} in "
            f"namespace {namespace}; create it with weft ppd learn, or correct the reference",
        )
    try:
        table = table_from_json(text)
    except PolicyError as error:
        raise StalledError(
            "RoutingTableInvalid", f"spec.routing.tableConfigMapRef: ConfigMap {ref.name}, {ref.key}: {error}"
        ) from error
    routing = spec.routing.model_copy(update={"params": {**table, **spec.routing.params}})
    return spec.model_copy(update={"routing": routing})


def _profile_json(name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON form of a referenced profile, defaults filled in and figures checked."""
    try:
        spec = CostProfileSpec.model_validate(body, extra="ignore").model_dump(
            mode="json", by_alias=True, exclude_none=True
        )
        profile_from_json(spec)
    except ValidationError as error:
        where, message = first_error(error)
        raise StalledError("ProfileInvalid", f"CostProfile {name}: spec.{where}: {message}") from error
    except CostProfileError as error:
        raise StalledError("ProfileInvalid", f"CostProfile {name}: spec.{error}") from error
    return spec
