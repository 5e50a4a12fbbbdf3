"""Read a plan that was made before: what ``weft plan -o json`` or ``-o yaml`` wrote, or a service or its ConfigMap."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from weft_planner.cli.errors import BadInputError
from weft_planner.cli.service import documents_of

if TYPE_CHECKING:
    from weft_core.plan import Plan

Json = Mapping[str, object]
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
FORMS = (
    "a plan of `weft plan -o json` or `-o yaml`, or a DisaggInferenceService as "
    "`kubectl get dis NAME -o yaml` prints it"
)


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A plan, the service's name where it is known, and the spec that it was made from where it is there too.

    ``as_written``: the spec is what a user wrote; otherwise the API server filled in defaults.
    """

    plan: "Plan"
    name: str
    spec: Json | None
    as_written: bool


def stored_plan(path: str, *, name: str | None = None) -> StoredPlan:
    """Return the plan in a file, or on stdin for ``-``; ``name`` chooses among several services.

    Raises:
        BadInputError: the file holds no plan, several, or one that cannot be read.
    """
    from weft_core.plan import PlanError, plan_from_json

    found = [item for document in documents_of(path) for item in _items(document)]
    plans = [(body, item) for item in found if (body := _plan_in(item, path)) is not None]
    if name is not None and len(plans) > 1:
        plans = [(body, item) for body, item in plans if _name(item) == name]
    if len(plans) != 1:
        what = "no plan" if not plans else f"{len(plans)} plans"
        raise BadInputError(path, f"holds {what}; give {FORMS}")
    body, item = plans[0]
    spec, as_written = _spec(item)
    try:
        return StoredPlan(plan_from_json(body), _name(item), spec, as_written)
    except PlanError as error:
        raise BadInputError(path, f"plan.{error}") from error


def _items(document: Json) -> list[Json]:
    """Return the objects of a list, as kubectl prints several, or the object itself."""
    items = document.get("items")
    return [item for item in items if isinstance(item, Mapping)] if isinstance(items, list) else [document]


def _plan_in(item: Json, path: str) -> Json | None:
    """Return the plan's body in any of the forms."""
    if item.get("status") == "infeasible":
        raise BadInputError(path, f"status: holds a refusal ({item.get('reason')}), not a plan; give {FORMS}")
    holders: list[object] = [item, item.get("plan")]
    status, data = item.get("status"), item.get("data")
    if isinstance(status, Mapping):
        holders.append(status.get("plan"))
    if isinstance(data, Mapping) and isinstance(data.get("plan.json"), str):
        try:
            holders.append(json.loads(data["plan.json"]))
        except ValueError as error:
            raise BadInputError(path, f"data.plan.json: not JSON: {error}") from error
    return next((cast(Json, h) for h in holders if isinstance(h, Mapping) and "groups" in h and "predicted" in h), None)


def _spec(item: Json) -> tuple[Json | None, bool]:
    """Return the spec of a service, and whether it is as the user wrote it: kubectl apply keeps that."""
    metadata = item.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    applied = annotations.get(LAST_APPLIED) if isinstance(annotations, Mapping) else None
    data = item.get("data")
    written = _object(applied).get("spec") if isinstance(applied, str) else None
    if isinstance(written, Mapping):
        return cast(Json, written), True
    if isinstance(data, Mapping) and isinstance(data.get("spec.json"), str):
        return _object(data["spec.json"]) or None, False
    spec = item.get("spec")
    return (cast(Json, spec), False) if isinstance(spec, Mapping) else (None, False)


def _object(text: str) -> Json:
    try:
        body = json.loads(text)
    except ValueError:
        return {}
    return body if isinstance(body, Mapping) else {}


def _name(item: Json) -> str:
    metadata = item.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, Mapping) else ""
