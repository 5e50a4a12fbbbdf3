"""ConfigMaps: the configuration of routers and mock engines, named by content, and the record of the active plan."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from weft_core.cost import CostProfileError
from weft_core.plan import PlanError, canonical_json, content_hash, plan_from_json, plan_to_json
from weft_core.profile_json import profile_from_json
from weft_operator.api.objects import Manifest
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.render.engines.adapters import engine_files
from weft_operator.render.inputs import PlanRecord, Rendering
from weft_operator.render.plan_baseline import baseline_json, read_baseline
from weft_operator.render.router_config import front_json, live_json, router_json


def router_config(rendering: Rendering) -> Manifest:
    """Return the immutable ConfigMap of sidecars and mock engines; a changed content has another name."""
    record = rendering.record
    data = {
        "router.json": canonical_json(router_json(rendering)),
        "profile.json": canonical_json(record.profile),
        **{profile_key(pool): canonical_json(profile) for pool, profile in record.profiles.items()},
        **engine_files(record.spec, paired=record.paired),
    }
    return _immutable(rendering, "router", data)


def front_config(rendering: Rendering) -> Manifest | None:
    """Return the coordinators' own ConfigMap, None where it would equal the sidecars'.

    What only the front door reads is in a ConfigMap of its own, so that changing it restarts no engine.
    """
    config = front_json(rendering)
    if config == router_json(rendering):
        return None
    return _immutable(rendering, "front", {"router.json": canonical_json(config)})


def live_config(rendering: Rendering) -> Manifest:
    """Return the ConfigMap of what routers reload; a change restarts nothing."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": rendering.metadata(rendering.name("live"), "config"),
        "data": {"live.json": canonical_json(live_json(rendering))},
    }


def ledger_text(config: Manifest | None) -> str:
    """Return the rollout's ledger as stored in the plan's ConfigMap, "" without one."""
    return str(((config or {}).get("data") or {}).get("rollout.json") or "")


def read_pinned_images(config: Manifest | None) -> str:
    """Return the pinned images as stored in the plan's ConfigMap, "" without any."""
    return str(((config or {}).get("data") or {}).get("images.json") or "")


def _immutable(rendering: Rendering, name: str, data: Mapping[str, str]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": rendering.metadata(rendering.name(f"{name}-{content_hash(data, 8)}"), "config"),
        "immutable": True,
        "data": dict(data),
    }


def profile_key(pool: str) -> str:
    """Return the name of a pool's own profile in the ConfigMap."""
    return f"profile-{pool}.json"


def plan_config(rendering: Rendering) -> Manifest:
    """Return the ConfigMap with the active plan and its inputs."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": rendering.metadata(rendering.name("plan"), "plan"),
        "data": {
            **record_data(rendering.record),
            **({"rollout.json": rendering.ledger} if rendering.ledger else {}),
            **({"images.json": rendering.images} if rendering.images else {}),
        },
    }


def record_data(record: PlanRecord) -> dict[str, str]:
    """Return a plan and its inputs as ConfigMaps and ControllerRevisions store them."""
    profiles = {"profiles.json": canonical_json(record.profiles)} if record.profiles else {}
    baseline = baseline_json(record.baseline)
    return {
        "plan.json": _pretty(plan_to_json(record.plan)),
        "profile.json": canonical_json(record.profile),
        **profiles,
        **({"replanning.json": baseline} if baseline is not None else {}),
        "spec.json": canonical_json(spec_json(record.spec)),
        "request-hash": record.request_hash,
    }


def read_record(config: Manifest) -> PlanRecord | None:
    """Return the record in an object's data; None when it is empty or damaged."""
    data = config.get("data") or {}
    try:
        plan, profile = json.loads(data["plan.json"]), json.loads(data["profile.json"])
        profiles = json.loads(data.get("profiles.json", "{}"))
        if not all(isinstance(part, dict) for part in (plan, profile, profiles)):
            return None
        for body in (profile, *profiles.values()):
            profile_from_json(body)
        return PlanRecord(
            spec=DisaggInferenceServiceSpec.model_validate_json(data["spec.json"], extra="ignore"),
            plan=plan_from_json(plan),
            profile=profile,
            request_hash=data["request-hash"],
            profiles=profiles,
            baseline=read_baseline(data.get("replanning.json")),
        )
    except (KeyError, TypeError, AttributeError, ValidationError, PlanError, CostProfileError, json.JSONDecodeError):
        return None


def spec_json(spec: DisaggInferenceServiceSpec) -> dict[str, Any]:
    """Return a spec in its JSON form, defaults included."""
    return spec.model_dump(mode="json", by_alias=True, exclude_none=True)


def _pretty(body: object) -> str:
    return json.dumps(body, indent=2, sort_keys=True, allow_nan=False) + "\n"
