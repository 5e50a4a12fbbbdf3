"""Read everything about one service from the API server: the first step of every pass."""

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from weft_operator.api.cost_profile import profile_name
from weft_operator.api.model_cache import own_claim
from weft_operator.api.objects import (
    COMPONENT_LABEL,
    SERVICE_LABEL,
    WEIGHTS_COMPONENT,
    Manifest,
    ObjectKey,
    ServiceKey,
    condition_of,
    controller_of,
    key_of,
    labels_of,
    name_of,
)
from weft_operator.api.secret_references import SecretReference, references, usable
from weft_operator.api.service import GROUP, KIND, VERSION
from weft_operator.api.worker_group import GROUP_KIND
from weft_operator.errors import ForbiddenError, NotFoundError, Right
from weft_operator.kube.client import KubeClient
from weft_operator.render.config_maps import read_record, spec_json
from weft_operator.render.gateway import HTTP_ROUTE, INFERENCE_POOL
from weft_operator.render.mesh import PEER_AUTHENTICATION
from weft_operator.render.pod_templates.allowed import MalformedError, secret_names

OWNED_KINDS: tuple[tuple[str, str], ...] = (
    (f"{GROUP}/{VERSION}", GROUP_KIND),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "Deployment"),
    ("v1", "Service"),
    ("v1", "ConfigMap"),
    ("v1", "ServiceAccount"),
    ("policy/v1", "PodDisruptionBudget"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("apps/v1", "ControllerRevision"),
)
"""Kinds that are listed by label. Secrets are read by name, so that the operator needs no right to list them."""

MAX_PATCHED_SECRETS = 32
"""Most Secrets of patches that are read, one request each; others count as missing."""
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")

_EXTRA_SELECTORS = {"ControllerRevision": f",{COMPONENT_LABEL}=plan"}
"""ControllerRevisions of StatefulSets have the service's label, too, and are large."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One service as the API server had it at the start of a pass."""

    service: Manifest
    owned: tuple[Manifest, ...]
    """Objects that the service controls, by uid."""
    pods: tuple[Manifest, ...]
    workers: tuple[Manifest, ...] = ()
    """StatefulSets of the service's groups."""
    former: tuple[ObjectKey, ...] = ()
    """Objects of a service of the same name that was deleted; the garbage collector is removing them."""
    profiles: Mapping[str, Manifest] = field(default_factory=dict)
    """The existing CostProfiles that the spec refers to, by name."""
    api_key_found: bool = True
    """Whether the Secret and key of ``coordinator.auth.apiKeySecretRef`` exist, if the spec names one."""
    model_token_found: bool = True
    """The same for ``model.source.huggingFace.tokenSecretRef``."""
    certificate_found: bool = True
    """The same for ``coordinator.tls.secretRef``, whose keys are tls.crt and tls.key."""
    jwks_found: bool = True
    """The same for ``coordinator.auth.jwt.jwksConfigMapRef``."""
    jobs_refused: Right | None = None
    """The missing right to read profiling Jobs; only these are then unknown."""
    claims: Mapping[str, Manifest] = field(default_factory=dict)
    """The PersistentVolumeClaims on which weights are or were cached, by name."""
    tier_claims: Mapping[str, Manifest | None] = field(default_factory=dict)
    """Those that ``kvCache.disk.claim`` of the spec and of the active plan's spec name, None where one does not exist;
    those that may not be read are left out."""
    model_keys_found: bool = True
    """The same for ``model.source.s3.credentialsSecretRef``, for both keys that it must have."""
    trace: Manifest | None = None
    """The ConfigMap that ``workload.traceConfigMap`` names, None when it does not exist."""
    routing_table: Manifest | None = None
    """The ConfigMap that ``routing.tableConfigMapRef`` names, None when it does not exist."""
    unmarked: tuple[SecretReference, ...] = ()
    """References to Secrets that are not marked for their use (``secret_use``)."""
    unmarked_in_active_plan: tuple[SecretReference, ...] = ()
    """The same for the spec of the active plan."""
    patched_secrets: Mapping[str, Literal["missing", "unmarked", "marked"]] = field(default_factory=dict)
    """State of the Secrets that ``podTemplates`` of the spec and of the active plan's spec refer to, by name."""

    def of_kind(self, kind: str) -> tuple[Manifest, ...]:
        """Return the owned objects of one kind."""
        return tuple(item for item in self.owned if item["kind"] == kind)

    def named(self, kind: str, name: str) -> Manifest | None:
        """Return one owned object."""
        return next((item for item in self.of_kind(kind) if item["metadata"]["name"] == name), None)


def observe(api: KubeClient, key: ServiceKey) -> Observed | None:
    """Return the service and its objects; None when the service is gone."""
    service = read_service(api, key)
    if service is None:
        return None
    selector = f"{SERVICE_LABEL}={key.name}"
    found = list_owned(api, key.namespace, selector)
    return of_service(api, key, service, found, api.list("v1", "Pod", namespace=key.namespace, selector=selector))


def list_owned(api: KubeClient, namespace: str, selector: str) -> list[Manifest]:
    """Return all objects that may belong to the services a label selector names."""
    return [
        item
        for api_version, kind in OWNED_KINDS
        for item in api.list(
            api_version, kind, namespace=namespace, selector=f"{selector}{_EXTRA_SELECTORS.get(kind, '')}"
        )
    ]


def of_service(
    api: KubeClient, key: ServiceKey, service: Manifest, found: Sequence[Manifest], pods: Sequence[Manifest]
) -> Observed:
    """Return a service with its listed objects and the objects that it refers to by name."""
    token = _get(api, ObjectKey("v1", "Secret", key.namespace, f"{key.name}-token"))
    if token is not None and labels_of(token).get(SERVICE_LABEL) == key.name:
        found = [*found, token]
    measured, jobs_refused = _profiling_objects(api, key, service.get("spec") or {})
    cached, claims = _weights_objects(api, key, service)
    found = [*found, *_objects_of_other_projects(api, key, service.get("spec") or {}, found)]
    # Both list all Jobs of the service, so they are deduplicated by key.
    found = [*found, *{key_of(item): item for item in (*measured, *cached)}.values()]
    uid = service["metadata"]["uid"]
    owned, former, workers = [], [], []
    groups = {item["metadata"]["uid"] for item in found if item["kind"] == GROUP_KIND}
    for item in found:
        owner = controller_of(item)
        if owner is not None and owner.get("uid") in groups:
            workers.append(item)
        if owner is None or owner.get("kind") != KIND:
            continue
        if owner.get("uid") == uid:
            owned.append(item)
        else:
            former.append(key_of(item))
    spec = service.get("spec") or {}
    front = spec.get("coordinator") or {}
    secret = cache(lambda name: read_secret(api, key, name))
    active_spec = _active_spec(key, owned)
    return Observed(
        service=service,
        owned=tuple(owned),
        workers=tuple(workers),
        pods=tuple(pods),
        former=tuple(former),
        profiles=_profiles(api, key, spec),
        jobs_refused=jobs_refused,
        claims=claims,
        tier_claims=_tier_claims(api, key, (spec, active_spec)),
        trace=_config_map(api, key, (spec.get("workload") or {}).get("traceConfigMap")),
        routing_table=_config_map(api, key, (spec.get("routing") or {}).get("tableConfigMapRef")),
        api_key_found=_secret_found(secret, front.get("auth"), "apiKeySecretRef"),
        model_token_found=_secret_found(
            secret, ((spec.get("model") or {}).get("source") or {}).get("huggingFace"), "tokenSecretRef"
        ),
        model_keys_found=_s3_keys_found(secret, ((spec.get("model") or {}).get("source") or {}).get("s3")),
        certificate_found=_certificate_found(secret, front.get("tls")),
        unmarked=_unmarked_references(secret, spec),
        unmarked_in_active_plan=_unmarked_references(secret, active_spec),
        patched_secrets={
            name: _secret_state(secret(name))
            for name in (*_patched_secret_names(spec), *_patched_secret_names(active_spec))
        },
        jwks_found=_jwks_found(api, key, (front.get("auth") or {}).get("jwt")),
    )


def service_object(key: ServiceKey) -> ObjectKey:
    """Return the key of the service's own object."""
    return ObjectKey(f"{GROUP}/{VERSION}", KIND, key.namespace, key.name)


def read_service(api: KubeClient, key: ServiceKey) -> Manifest | None:
    """Return the service's object, None when it does not exist."""
    return _get(api, service_object(key))


def read_secret(api: KubeClient, service: ServiceKey, name: str) -> Manifest | None:
    """Return a Secret of a service's namespace, None when it does not exist."""
    return _get(api, ObjectKey("v1", "Secret", service.namespace, name))


def _profiles(api: KubeClient, key: ServiceKey, spec: dict[str, Any]) -> dict[str, Manifest]:
    given = spec.get("profile") or {}
    names = [ref["name"] for ref in (given.get("ref"), *(given.get("refs") or ())) if ref]
    found = {name: _get(api, ObjectKey(f"{GROUP}/{VERSION}", "CostProfile", key.namespace, name)) for name in names}
    return {name: profile for name, profile in found.items() if profile is not None}


def _profiling_objects(api: KubeClient, key: ServiceKey, spec: dict[str, Any]) -> tuple[list[Manifest], Right | None]:
    """Return the profiling Jobs and measured profiles of a service; no request is made for one without ``measure``.

    If the Jobs may not be listed, the missing right is returned instead of an error: serving does not need them.
    """
    if not (spec.get("profile") or {}).get("measure"):
        return [], None
    pools = (spec.get("capacity") or {}).get("pools") or ()
    names = {profile_name(key.name, pool["gpuType"]) for pool in pools}
    asked = (_get(api, ObjectKey(f"{GROUP}/{VERSION}", "CostProfile", key.namespace, name)) for name in sorted(names))
    profiles = [profile for profile in asked if profile is not None]
    try:
        jobs = api.list("batch/v1", "Job", namespace=key.namespace, selector=f"{SERVICE_LABEL}={key.name}")
    except ForbiddenError as error:
        if error.right is None:
            raise
        return profiles, error.right
    return [*profiles, *jobs], None


def _weights_objects(api: KubeClient, key: ServiceKey, service: Manifest) -> tuple[list[Manifest], dict[str, Manifest]]:
    """Return the Jobs and claims of a service's weights cache; no request is made for a service without one.

    While the condition ModelReady is reported, objects of a cache may exist that the spec does not name any more.
    """
    source = ((service.get("spec") or {}).get("model") or {}).get("source") or {}
    named = [
        str(claim.get("existingClaim") or own_claim(key.name))
        for kind in ("huggingFace", "s3")
        if (claim := ((source.get(kind) or {}).get("cache") or {}).get("claim"))
    ]
    if not named and condition_of(service, "ModelReady") is None:
        return [], {}
    jobs = api.list("batch/v1", "Job", namespace=key.namespace, selector=f"{SERVICE_LABEL}={key.name}")
    jobs = [job for job in jobs if labels_of(job).get(COMPONENT_LABEL) == WEIGHTS_COMPONENT]
    mounted = [
        str(volume["persistentVolumeClaim"]["claimName"])
        for job in jobs
        for volume in job["spec"]["template"]["spec"].get("volumes") or ()
        if volume.get("persistentVolumeClaim")
    ]
    claims = {}
    for name in sorted({own_claim(key.name), *named, *mounted}):
        found = _get(api, ObjectKey("v1", "PersistentVolumeClaim", key.namespace, name))
        if found is not None:
            claims[name] = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **found}
    return [*jobs, *claims.values()], claims


def _tier_claims(api: KubeClient, key: ServiceKey, specs: Sequence[dict[str, Any]]) -> dict[str, Manifest | None]:
    """Return the claims that hold tiers of files; no request is made for a service without such a one."""
    disks = [(spec.get("kvCache") or {}).get("disk") or {} for spec in specs]
    found: dict[str, Manifest | None] = {}
    for name in sorted({str(disk["claim"]) for disk in disks if disk.get("claim")}):
        with suppress(ForbiddenError):  # the condition KVCacheTiers then says nothing of the claim
            found[name] = _get(api, ObjectKey("v1", "PersistentVolumeClaim", key.namespace, name))
    return found


def _objects_of_other_projects(
    api: KubeClient, key: ServiceKey, spec: dict[str, Any], found: Sequence[Manifest]
) -> list[Manifest]:
    """Return the route and pool of a service for a gateway, and its rule for a mesh.

    No request is made for those that neither the spec nor that of the active plan has. Where they cannot be read,
    because the cluster has no such kind or the operator no right, their absence is reported when they are applied.
    """
    specs = (spec, _active_spec(key, found))
    kinds: list[tuple[str, str]] = []
    if any(one.get("gateway") for one in specs):
        kinds += [HTTP_ROUTE, INFERENCE_POOL]
    if any(((one.get("network") or {}).get("mesh") or {}).get("mtls") == "Strict" for one in specs):
        kinds.append(PEER_AUTHENTICATION)
    made = []
    for api_version, kind in kinds:
        with suppress(NotFoundError, ForbiddenError):
            made.append(api.get(ObjectKey(api_version, kind, key.namespace, key.name)))
    return made


def _config_map(api: KubeClient, key: ServiceKey, ref: dict[str, Any] | None) -> Manifest | None:
    return _get(api, ObjectKey("v1", "ConfigMap", key.namespace, ref["name"])) if ref else None


ReadSecret = Callable[[str], Manifest | None]


def _patched_secret_names(spec: dict[str, Any]) -> list[str]:
    """Return the names of Secrets in pod templates; malformed ones have none, and are refused elsewhere."""
    try:
        return sorted(
            {
                name
                for item in spec.get("podTemplates") or ()
                for _, name in secret_names(item.get("patch") or {})
                if _OBJECT_NAME.fullmatch(name)
            }
        )[:MAX_PATCHED_SECRETS]
    except MalformedError:
        return []


def _active_spec(key: ServiceKey, owned: Sequence[Manifest]) -> dict[str, Any]:
    """Return the spec of the active plan; empty without a plan."""
    name = f"{key.name}-plan"
    config = next((item for item in owned if item["kind"] == "ConfigMap" and name_of(item) == name), None)
    record = read_record(config) if config is not None else None
    return {} if record is None else spec_json(record.spec)


def _unmarked_references(secret: ReadSecret, spec: dict[str, Any]) -> tuple[SecretReference, ...]:
    return tuple(
        reference
        for reference in references(spec)
        if (found := secret(reference.name)) is not None and not usable(found, reference.use)
    )


def _secret_state(secret: Manifest | None) -> Literal["missing", "unmarked", "marked"]:
    if secret is None:
        return "missing"
    return "marked" if usable(secret, "pods") else "unmarked"


def _secret_found(secret: ReadSecret, part: dict[str, Any] | None, field: str) -> bool:
    """Return whether a referenced Secret has the key with a value; True without a reference."""
    ref = (part or {}).get(field)
    return not ref or _has_value(secret(ref["name"]), ref["key"])


def _s3_keys_found(secret: ReadSecret, s3: dict[str, Any] | None) -> bool:
    ref = (s3 or {}).get("credentialsSecretRef")
    if not ref:
        return True
    found = secret(ref["name"])
    return _has_value(found, "AWS_ACCESS_KEY_ID") and _has_value(found, "AWS_SECRET_ACCESS_KEY")


def _certificate_found(secret: ReadSecret, tls: dict[str, Any] | None) -> bool:
    if not tls:
        return True
    found = secret(tls["secretRef"]["name"])
    return _has_value(found, "tls.crt") and _has_value(found, "tls.key")


def _jwks_found(api: KubeClient, key: ServiceKey, jwt: dict[str, Any] | None) -> bool:
    ref = (jwt or {}).get("jwksConfigMapRef")
    if not ref:
        return True
    found = _config_map(api, key, ref)
    return bool(((found or {}).get("data") or {}).get(ref["key"], "").strip())


def _has_value(secret: Manifest | None, name: str) -> bool:
    """Return whether a Secret has a key with a value."""
    value = ((secret or {}).get("data") or {}).get(name, "")
    try:
        return bool(base64.b64decode(value, validate=True).strip())
    except (binascii.Error, ValueError):
        return False


def _get(api: KubeClient, key: ObjectKey) -> Manifest | None:
    try:
        return api.get(key)
    except NotFoundError:
        return None
