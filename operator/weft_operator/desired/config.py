"""ConfigMaps: what routers and mock engines read, named by content, and the record of the plan in force."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from weft_core.cost import CostProfileError
from weft_core.durations import parse_duration
from weft_core.plan import Plan, PlanError, canonical_json, content_hash, plan_from_json, plan_to_json
from weft_core.policies.catalogue import DEFAULT_BINDING, DEFAULT_CAP
from weft_core.policies.weft import STATISTICS
from weft_core.profile_json import profile_from_json
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.desired.rendering import PlanRecord, Rendering
from weft_operator.manifest import Manifest


def router_config(rendering: Rendering) -> Manifest:
    """Return the immutable ConfigMap of routers and mock engines; a changed content has another name."""
    record = rendering.record
    data = {
        "router.json": canonical_json(router_json(rendering)),
        "profile.json": canonical_json(record.profile),
        **{profile_key(pool): canonical_json(profile) for pool, profile in record.profiles.items()},
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": rendering.metadata(rendering.name(f"router-{content_hash(data, 8)}"), "config"),
        "immutable": True,
        "data": data,
    }


def profile_key(pool: str) -> str:
    """Return the name of a pool's own profile in the ConfigMap."""
    return f"profile-{pool}.json"


def router_json(rendering: Rendering) -> Mapping[str, Any]:
    """Return what a router is told; times are seconds. Replica counts are left out: workers register themselves."""
    spec = rendering.spec
    transfer, routing, limits = spec.engine.kv_transfer, spec.routing, spec.coordinator.limits
    # Only where they are needed, so that the rendering of other services, and with it their pods, stays as it was.
    request_log = {"requestLog": {"to": "stdout"}} if routing.request_log == "Stdout" else {}
    profiles = {"profiles": rendering.record.profiles} if rendering.record.profiles else {}
    return {
        **request_log,
        **profiles,
        "service": rendering.key.name,
        "namespace": rendering.key.namespace,
        "model": {"name": spec.model.name, "maxModelLen": spec.model.max_model_len},
        "engine": {
            "type": spec.engine.type,
            "bidirectional": transfer.bidirectional,
            "leaseSeconds": transfer.lease_seconds,
            "handleTtlSeconds": transfer.handle_ttl_seconds,
        },
        "slo": {"ttft": parse_duration(spec.slo.ttft), "itl": parse_duration(spec.slo.itl)},
        "routing": {
            **_rules(spec, rendering.record.plan),
            "alpha": routing.alpha,
            "beta": routing.beta,
            "window": routing.window,
            "statsWindowSeconds": parse_duration(routing.stats_window),
            "sessionTtlSeconds": int(parse_duration(routing.session_ttl)),
            "prefillConcurrency": routing.prefill_concurrency,
            "seed": spec.planning.seed,
        },
        "limits": {
            "maxBodyBytes": limits.max_body_bytes,
            "maxN": limits.max_n,
            "maxOutputTokens": limits.max_output_tokens,
        },
        "profile": rendering.record.profile,
        "planRevision": rendering.revision,
    }


def _rules(spec: DisaggInferenceServiceSpec, plan: Plan) -> Mapping[str, Any]:
    """Return the policy, and what was chosen beyond it by the service or by its plan; the router knows the rest."""
    routing, planned = spec.routing, plan.policy
    rules: dict[str, Any] = {
        "policy": routing.policy,
        "binding": None if routing.binding == DEFAULT_BINDING else routing.binding,
        "order": routing.order,
        "ageingCap": None if routing.ageing_cap == DEFAULT_CAP else routing.ageing_cap,
    }
    if plan.layout == "colocated":
        # There is nowhere else to prefill, whatever the policy would say; the order is what the plan was tried with.
        rules |= {"policy": "colocated", "order": planned.order if planned is not None else routing.order}
    else:
        chosen = planned.mode if planned is not None and planned.route == routing.policy == "weft" else None
        rules |= {"mode": routing.mode or chosen, "params": _parameters(spec) or None}
    return {name: value for name, value in rules.items() if value is not None}


def _parameters(spec: DisaggInferenceServiceSpec) -> dict[str, float]:
    """Return the policy's parameters; weft is told which ITL the SLO is about."""
    given = dict(spec.routing.params)
    if spec.routing.policy == "weft" and spec.slo.itl_statistic != "mean":
        given.setdefault("itl_statistic", float(STATISTICS.index(spec.slo.itl_statistic)))
    return given


def plan_config(rendering: Rendering) -> Manifest:
    """Return the ConfigMap that keeps the plan in force with all it was made from."""
    record = rendering.record
    profiles = {"profiles.json": canonical_json(record.profiles)} if record.profiles else {}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": rendering.metadata(rendering.name("plan"), "plan"),
        "data": {
            "plan.json": _pretty(plan_to_json(record.plan)),
            "profile.json": canonical_json(record.profile),
            **profiles,
            "spec.json": canonical_json(spec_json(record.spec)),
            "request-hash": record.request_hash,
        },
    }


def read_record(config: Manifest) -> PlanRecord | None:
    """Return the record in a plan ConfigMap; None when somebody emptied or damaged it (then it is planned anew)."""
    data = config.get("data") or {}
    try:
        plan, profile = json.loads(data["plan.json"]), json.loads(data["profile.json"])
        profiles = json.loads(data.get("profiles.json", "{}"))
        if not all(isinstance(part, dict) for part in (plan, profile, profiles)):
            return None
        for body in (profile, *profiles.values()):
            profile_from_json(body)
        return PlanRecord(
            spec=DisaggInferenceServiceSpec.model_validate_json(data["spec.json"]),
            plan=plan_from_json(plan),
            profile=profile,
            request_hash=data["request-hash"],
            profiles=profiles,
        )
    except (KeyError, TypeError, AttributeError, ValidationError, PlanError, CostProfileError, json.JSONDecodeError):
        return None


def spec_json(spec: DisaggInferenceServiceSpec) -> dict[str, Any]:
    """Return a spec in its JSON form, defaults included."""
    return spec.model_dump(mode="json", by_alias=True, exclude_none=True)


def _pretty(body: object) -> str:
    return json.dumps(body, indent=2, sort_keys=True, allow_nan=False) + "\n"
