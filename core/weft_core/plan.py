"""The planner's answer as a value: which groups of workers to run, what they should achieve, and why."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

Role = Literal["prefill", "decode"]
Objective = Literal["latency", "cost"]
ROLES: tuple[Role, ...] = ("prefill", "decode")
OBJECTIVES: tuple[Objective, ...] = ("latency", "cost")

Json = Mapping[str, object]


class PlanError(ValueError):
    """Report a plan that cannot be read; the message names the field and the fix."""


@dataclass(frozen=True, slots=True, order=True)
class PlannedGroup:
    """Workers of one role and tensor-parallel degree in one GPU pool."""

    role: Role
    degree: int
    replicas: int
    pool: str

    @property
    def gpus(self) -> int:
        """Return how many GPUs the group takes."""
        return self.degree * self.replicas


@dataclass(frozen=True, slots=True)
class Prediction:
    """Latencies in seconds that a plan should give at its workload; infinite where the load exceeds the capacity.

    The P95 fields hold the SLO's percentile when it is not 95.
    """

    ttft_p95_s: float
    itl_p95_s: float
    ttft_mean_s: float
    itl_mean_s: float
    gpus: int
    slo_met: bool


@dataclass(frozen=True, slots=True)
class Alternative:
    """A layout that was also considered; ``score`` is the worst latency as a share of its SLO (1 = just met)."""

    groups: tuple[PlannedGroup, ...]
    predicted: Prediction
    score: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Groups to run, with predictions, reasons and the alternatives; ``slo_reading`` says how the SLO was read."""

    groups: tuple[PlannedGroup, ...]
    predicted: Prediction
    objective: Objective
    inputs_hash: str
    revision: str
    reason: str = ""
    slo_reading: str = ""
    alternatives: tuple[Alternative, ...] = ()

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
    """Name what will run: 10 hex digits that change with the groups, the cost profile or what engines are told."""
    rows = [_group_to_json(group) for group in sorted(groups)]
    return content_hash({"groups": rows, "profile": profile, "engine": engine_inputs}, 10)


def plan_to_json(plan: Plan) -> dict[str, object]:
    """Return the plan as a JSON-ready dict; infinite predictions become null, for JSON has no infinity."""
    return {
        "revision": plan.revision,
        "inputsHash": plan.inputs_hash,
        "objective": plan.objective,
        "groups": [_group_to_json(group) for group in plan.groups],
        "gpus": plan.gpus,
        "predicted": _prediction_to_json(plan.predicted),
        "alternatives": [
            {
                "groups": [_group_to_json(group) for group in alternative.groups],
                "predicted": _prediction_to_json(alternative.predicted),
                "score": _finite_or_none(alternative.score),
            }
            for alternative in plan.alternatives
        ],
        "reason": plan.reason,
        "sloReading": plan.slo_reading,
    }


def plan_from_json(body: Json) -> Plan:
    """Build a plan from its JSON form.

    Raises:
        PlanError: a field is missing or of the wrong type.
    """
    groups = _groups(body, "groups")
    objective = body.get("objective")
    if objective not in OBJECTIVES:
        raise PlanError(f"objective: {objective!r} is not an objective; use one of {', '.join(OBJECTIVES)}")
    alternatives = []
    for i, row in enumerate(_rows(body.get("alternatives", []), "alternatives")):
        where = f"alternatives[{i}]"
        chosen = _groups(row, "groups", where)
        predicted = _prediction(row, chosen, where)
        alternatives.append(Alternative(groups=chosen, predicted=predicted, score=_seconds(row, "score", where)))
    return Plan(
        groups=groups,
        predicted=_prediction(body, groups),
        objective=objective,
        inputs_hash=_text(body, "inputsHash"),
        revision=_text(body, "revision"),
        reason=str(body.get("reason", "")),
        slo_reading=str(body.get("sloReading", "")),
        alternatives=tuple(alternatives),
    )


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _group_to_json(group: PlannedGroup) -> dict[str, object]:
    return {"role": group.role, "degree": group.degree, "replicas": group.replicas, "pool": group.pool}


def _prediction_to_json(predicted: Prediction) -> dict[str, object]:
    return {
        "ttftP95": _finite_or_none(predicted.ttft_p95_s),
        "itlP95": _finite_or_none(predicted.itl_p95_s),
        "ttftMean": _finite_or_none(predicted.ttft_mean_s),
        "itlMean": _finite_or_none(predicted.itl_mean_s),
        "sloMet": predicted.slo_met,
    }


def _at(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _rows(value: object, where: str) -> list[Json]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise PlanError(f"{where}: a list is needed, got {value!r}")
    for i, row in enumerate(value):
        if not isinstance(row, Mapping):
            raise PlanError(f"{where}[{i}]: must be an object")
    return cast(list[Json], list(value))


def _groups(body: Json, key: str, where: str = "") -> tuple[PlannedGroup, ...]:
    at = _at(where, key)
    rows = _rows(body.get(key), at)
    if not rows:
        raise PlanError(f"{at}: at least one group is needed")
    groups = []
    for i, row in enumerate(rows):
        role = row.get("role")
        if role not in ROLES:
            raise PlanError(f"{at}[{i}].role: {role!r} is not a role; use prefill or decode")
        groups.append(
            PlannedGroup(
                role=role,
                degree=_whole(row, "degree", f"{at}[{i}]"),
                replicas=_whole(row, "replicas", f"{at}[{i}]"),
                pool=_text(row, "pool", f"{at}[{i}]"),
            )
        )
    return tuple(groups)


def _prediction(body: Json, groups: Sequence[PlannedGroup], where: str = "") -> Prediction:
    at = _at(where, "predicted")
    row = body.get("predicted")
    if not isinstance(row, Mapping):
        raise PlanError(f"{at}: must be an object")
    met = row.get("sloMet")
    if not isinstance(met, bool):
        raise PlanError(f"{at}.sloMet: true or false is needed, got {met!r}")
    return Prediction(
        ttft_p95_s=_seconds(row, "ttftP95", at),
        itl_p95_s=_seconds(row, "itlP95", at),
        ttft_mean_s=_seconds(row, "ttftMean", at),
        itl_mean_s=_seconds(row, "itlMean", at),
        gpus=sum(group.gpus for group in groups),
        slo_met=met,
    )


def _seconds(row: Json, key: str, where: str) -> float:
    value = row.get(key)
    if value is None:
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise PlanError(f"{_at(where, key)}: a figure of 0 or more or null is needed, got {value!r}")
    return float(value)


def _whole(row: Json, key: str, where: str) -> int:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PlanError(f"{_at(where, key)}: a whole number of 1 or more is needed, got {value!r}")
    return value


def _text(row: Json, key: str, where: str = "") -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value:
        raise PlanError(f"{_at(where, key)}: a non-empty text is needed")
    return value
