"""ConfigMaps: what routers and mock engines read, named by content, and the record of the plan in force."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from weft_core.cost import CostProfileError
from weft_core.durations import parse_duration
from weft_core.plan import Plan, PlanError, canonical_json, content_hash, plan_from_json, plan_to_json
from weft_core.policies.catalogue import DEFAULT_BINDING, DEFAULT_CAP
from weft_core.profile_json import profile_from_json
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.api.serving import Routing
from weft_operator.desired.rendering import PlanRecord, Rendering
from weft_operator.manifest import Manifest


def router_config(rendering: Rendering) -> Manifest:
    """Return the immutable ConfigMap of routers and mock engines; a changed content has another name."""
    data = {
        "router.json": canonical_json(router_json(rendering)),
        "profile.json": canonical_json(rendering.record.profile),
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": rendering.metadata(rendering.name(f"router-{content_hash(data, 8)}"), "config"),
        "immutable": True,
        "data": data,
    }


def router_json(rendering: Rendering) -> Mapping[str, Any]:
    """Return what a router is told; times are seconds. Replica counts are left out: workers register themselves."""
    spec = rendering.spec
    transfer, routing, limits = spec.engine.kv_transfer, spec.routing, spec.coordinator.limits
    # Only where it is asked for, so that the rendering of other services, and with it their pods, stays as it was.
    request_log = {"requestLog": {"to": "stdout"}} if routing.request_log == "Stdout" else {}
    return {
        **request_log,
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
            "policy": routing.policy,
            **_chosen(routing, rendering.record.plan),
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


def _chosen(routing: Routing, plan: Plan) -> Mapping[str, Any]:
    """Return what a service chose beyond its policy, and the mode that its plan chose; the router knows the rest."""
    planned = plan.policy.mode if plan.policy is not None and plan.policy.route == routing.policy == "weft" else None
    chosen = {
        "mode": routing.mode or planned,
        "params": dict(routing.params) or None,
        "binding": None if routing.binding == DEFAULT_BINDING else routing.binding,
        "order": routing.order,
        "ageingCap": None if routing.ageing_cap == DEFAULT_CAP else routing.ageing_cap,
    }
    return {name: value for name, value in chosen.items() if value is not None}


def plan_config(rendering: Rendering) -> Manifest:
    """Return the ConfigMap that keeps the plan in force with all it was made from."""
    record = rendering.record
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": rendering.metadata(rendering.name("plan"), "plan"),
        "data": {
            "plan.json": _pretty(plan_to_json(record.plan)),
            "profile.json": canonical_json(record.profile),
            "spec.json": canonical_json(spec_json(record.spec)),
            "request-hash": record.request_hash,
        },
    }


def read_record(config: Manifest) -> PlanRecord | None:
    """Return the record in a plan ConfigMap; None when somebody emptied or damaged it (then it is planned anew)."""
    data = config.get("data") or {}
    try:
        plan, profile = json.loads(data["plan.json"]), json.loads(data["profile.json"])
        if not isinstance(plan, dict) or not isinstance(profile, dict):
            return None
        profile_from_json(profile)
        return PlanRecord(
            spec=DisaggInferenceServiceSpec.model_validate_json(data["spec.json"]),
            plan=plan_from_json(plan),
            profile=profile,
            request_hash=data["request-hash"],
        )
    except (KeyError, TypeError, ValidationError, PlanError, CostProfileError, json.JSONDecodeError):
        return None


def spec_json(spec: DisaggInferenceServiceSpec) -> dict[str, Any]:
    """Return a spec in its JSON form, defaults included."""
    return spec.model_dump(mode="json", by_alias=True, exclude_none=True)


def _pretty(body: object) -> str:
    return json.dumps(body, indent=2, sort_keys=True, allow_nan=False) + "\n"
