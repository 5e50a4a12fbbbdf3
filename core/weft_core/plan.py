"""The planner's answer as a value: which groups of workers to run, what they should achieve, and why."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from weft_core.json_fields import at, finite_or_none
from weft_core.layouts import LAYOUTS, ROLES, WORKER_ROLES, LayoutKind, PlannedGroup, PlannedPolicy, Role, WorkerRole
from weft_core.parallelism import degree_to_json
from weft_core.plan_fields import FIELDS, PlanError
from weft_core.prediction import Prediction, prediction_from_json, prediction_to_json
from weft_core.shortfall import Shortfall, shortfall_from_json, shortfall_to_json
from weft_core.validity import Validity, validity_from_json, validity_to_json

__all__ = [
    "LAYOUTS",
    "OBJECTIVES",
    "ROLES",
    "SEARCHES",
    "WORKER_ROLES",
    "Alternative",
    "LayoutKind",
    "Objective",
    "Plan",
    "PlanError",
    "PlannedGroup",
    "PlannedPolicy",
    "Prediction",
    "Role",
    "Search",
    "Shortfall",
    "Validity",
    "WorkerRole",
    "canonical_json",
    "content_hash",
    "plan_from_json",
    "plan_revision",
    "plan_to_json",
]

Objective = Literal["latency", "cost"]
OBJECTIVES: tuple[Objective, ...] = ("latency", "cost")
Search = Literal["optimal", "incumbent", "enumeration", "heuristic"]
SEARCHES: tuple[Search, ...] = ("optimal", "incumbent", "enumeration", "heuristic")
"""How candidates were found: proved best, best found in time, by trying every pair, or by a rule of thumb."""

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Alternative:
    """A layout that was also considered; ``score`` is the worst latency as a share of its SLO (1 = just met).

    ``runnable``: this operator can deploy it; ``note`` says why not, or what it would bring.
    """

    groups: tuple[PlannedGroup, ...]
    predicted: Prediction
    score: float
    layout: LayoutKind = "disaggregated"
    policy: PlannedPolicy | None = None
    runnable: bool = True
    note: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """Groups to run, with predictions, reasons and the alternatives; ``slo_reading`` says how the SLO was read.

    ``policy`` is what the prediction was made with, None for phases alone; ``shortfall`` is there when the SLO is
    missed; ``nodes_seen`` tells whether free GPUs of real nodes were known; ``validity`` is the traffic that it holds
    for.
    """

    groups: tuple[PlannedGroup, ...]
    predicted: Prediction
    objective: Objective
    inputs_hash: str
    revision: str
    reason: str = ""
    slo_reading: str = ""
    alternatives: tuple[Alternative, ...] = ()
    layout: LayoutKind = "disaggregated"
    policy: PlannedPolicy | None = None
    search: Search = "optimal"
    shortfall: Shortfall | None = None
    nodes_seen: bool = False
    notes: tuple[str, ...] = ()
    validity: Validity | None = None

    @property
    def gpus(self) -> int:
        """Return how many GPUs all groups take."""
        return sum(group.gpus for group in self.groups)


def canonical_json(body: object) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces, no NaN."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def content_hash(body: object, length: int) -> str:
    """Return the first hex digits of the SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(body).encode()).hexdigest()[:length]


def plan_revision(groups: Sequence[PlannedGroup], *, profile: Json, engine_inputs: Json) -> str:
    """Name what will run: 10 hex digits that change with the groups, the cost profile or the engines' settings."""
    listed = [_group_to_json(group) for group in sorted(groups)]
    return content_hash({"groups": listed, "profile": profile, "engine": engine_inputs}, 10)


def plan_to_json(plan: Plan) -> dict[str, object]:
    """Return the plan as a JSON-ready dict; infinite predictions become null, for JSON has no infinity."""
    optional = {
        "policy": _policy_to_json(plan.policy),
        "shortfall": shortfall_to_json(plan.shortfall),
        "validity": validity_to_json(plan.validity),
    }
    return {
        "revision": plan.revision,
        "inputsHash": plan.inputs_hash,
        "objective": plan.objective,
        "layout": plan.layout,
        "groups": [_group_to_json(group) for group in plan.groups],
        "gpus": plan.gpus,
        "predicted": prediction_to_json(plan.predicted),
        "alternatives": [
            {
                "groups": [_group_to_json(group) for group in alternative.groups],
                "predicted": prediction_to_json(alternative.predicted),
                "score": finite_or_none(alternative.score),
                "layout": alternative.layout,
                "policy": _policy_to_json(alternative.policy),
                "runnable": alternative.runnable,
                "note": alternative.note,
            }
            for alternative in plan.alternatives
        ],
        "reason": plan.reason,
        "sloReading": plan.slo_reading,
        "search": plan.search,
        "nodesSeen": plan.nodes_seen,
        "notes": list(plan.notes),
        **{key: value for key, value in optional.items() if value is not None},
    }


def plan_from_json(body: Json) -> Plan:
    """Build a plan from its JSON form; plans stored before a field existed read with its default.

    Raises:
        PlanError: a field is missing or of the wrong type.
    """
    groups = _groups(body, "groups")
    objective = body.get("objective")
    if objective not in OBJECTIVES:
        raise PlanError(f"objective: {objective!r} is not an objective; use one of {', '.join(OBJECTIVES)}")
    return Plan(
        groups=groups,
        predicted=prediction_from_json(body, gpus=sum(group.gpus for group in groups)),
        objective=objective,
        inputs_hash=FIELDS.text(body, "inputsHash"),
        revision=FIELDS.text(body, "revision"),
        reason=str(body.get("reason", "")),
        slo_reading=str(body.get("sloReading", "")),
        alternatives=tuple(
            _alternative(row, f"alternatives[{i}]")
            for i, row in enumerate(FIELDS.rows(body.get("alternatives", []), "alternatives"))
        ),
        layout=_layout(body, ""),
        policy=_policy(body, ""),
        search=cast(Search, FIELDS.choice({"search": "optimal", **body}, "search", SEARCHES)),
        shortfall=shortfall_from_json(body, "shortfall"),
        nodes_seen=FIELDS.flag({"nodesSeen": False, **body}, "nodesSeen"),
        notes=_texts(body.get("notes", []), "notes"),
        validity=validity_from_json(body, "validity"),
    )


def _alternative(row: Json, where: str) -> Alternative:
    groups = _groups(row, "groups", where)
    return Alternative(
        groups=groups,
        predicted=prediction_from_json(row, gpus=sum(group.gpus for group in groups), where=where),
        score=FIELDS.seconds(row, "score", where),
        layout=_layout(row, where),
        policy=_policy(row, where),
        runnable=FIELDS.flag({"runnable": True, **row}, "runnable", where),
        note=str(row.get("note", "")),
    )


def _group_to_json(group: PlannedGroup) -> dict[str, object]:
    return {"role": group.role, "degree": degree_to_json(group.degree), "replicas": group.replicas, "pool": group.pool}


def _policy_to_json(policy: PlannedPolicy | None) -> dict[str, object] | None:
    if policy is None:
        return None
    return {
        "route": policy.route,
        "mode": policy.mode,
        "order": policy.order,
        "binding": policy.binding,
        "chunked": policy.chunked,
        **({} if policy.chunk_share is None else {"chunkShare": policy.chunk_share}),
    }


def _policy(row: Json, where: str) -> PlannedPolicy | None:
    found = FIELDS.part(row, "policy", where)
    if found is None:
        return None
    here = at(where, "policy")
    return PlannedPolicy(
        route=FIELDS.text(found, "route", here),
        mode=str(found.get("mode", "")),
        order=FIELDS.text({"order": "fcfs", **found}, "order", here),
        binding=FIELDS.text({"binding": "kv-headroom", **found}, "binding", here),
        chunked=FIELDS.flag({"chunked": False, **found}, "chunked", here),
        chunk_share=FIELDS.figure(found, "chunkShare", here),
    )


def _layout(row: Json, where: str) -> LayoutKind:
    return cast(LayoutKind, FIELDS.choice({"layout": "disaggregated", **row}, "layout", LAYOUTS, where))


def _groups(body: Json, key: str, where: str = "") -> tuple[PlannedGroup, ...]:
    here = at(where, key)
    listed = FIELDS.rows(body.get(key), here)
    if not listed:
        raise PlanError(f"{here}: at least one group is needed")
    groups = []
    for i, row in enumerate(listed):
        role = row.get("role")
        if role not in WORKER_ROLES:
            raise PlanError(f"{here}[{i}].role: {role!r} is not a role; use prefill, decode or both")
        groups.append(
            PlannedGroup(
                role=role,
                degree=FIELDS.degree(row, "degree", f"{here}[{i}]"),
                replicas=FIELDS.whole(row, "replicas", f"{here}[{i}]"),
                pool=FIELDS.text(row, "pool", f"{here}[{i}]"),
            )
        )
    return tuple(groups)


def _texts(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise PlanError(f"{where}: a list is needed, got {value!r}")
    return tuple(str(item) for item in value)
