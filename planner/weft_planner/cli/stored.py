"""Read a plan that was made before: what ``weft plan -o json`` wrote, a service or its ConfigMap, or a running one."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, cast

from weft_cli.errors import BadInputError
from weft_planner.cli.service import documents_of

if TYPE_CHECKING:
    from weft_core.plan import Plan

Json = Mapping[str, object]
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
LIVE = "live"
LIVE_GROUP = "weft.live"
"""Entry points: a function from a service's name and namespace (None: the context's) to its object."""
FORMS = (
    "a plan of `weft plan -o json` or `-o yaml`, or a DisaggInferenceService as "
    "`kubectl get dis NAME -o yaml` prints it, or live:NAME for one that runs"
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
    """Return the plan in a file, on stdin for ``-``, or of a running service for ``live`` or ``live:NAMESPACE/NAME``.

    ``name`` chooses among several services, and names the one that runs.

    Raises:
        BadInputError: it holds no plan, several, or one that cannot be read.
    """
    from weft_core.plan import PlanError, plan_from_json

    documents = [live_service(path, name)] if is_live(path) else documents_of(path)
    found = [item for document in documents for item in _items(document)]
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


def is_live(path: str) -> bool:
    """Return whether a running service is meant, not a file."""
    return path == LIVE or path.startswith(f"{LIVE}:")


def live_service(path: str, name: str | None) -> Json:
    """Return a service as the cluster has it, by the part that can reach one.

    Raises:
        BadInputError: no such part is installed, or no service is named.
    """
    given = path.removeprefix(LIVE).removeprefix(":")
    namespace, _, named = given.rpartition("/")
    if not (named or name):
        raise BadInputError(path, "names no service; write live:NAME or live:NAMESPACE/NAME")
    for point in entry_points(group=LIVE_GROUP):
        try:
            read = cast(Callable[[str, str | None], Json], point.load())
        except ImportError:  # an image holds only the parts it runs
            continue
        return read(named or str(name), namespace or None)
    raise BadInputError(path, "reaching a cluster needs the operator's part: pip install 'weft[operator]'")


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
