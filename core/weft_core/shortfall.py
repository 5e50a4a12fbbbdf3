"""Why no plan is possible, or why the best one misses the SLO: what binds, and what would do, as data to act on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from weft_core.json_fields import Json, at, finite_or_none
from weft_core.plan_fields import FIELDS, PlanError

Constraint = Literal["gpus", "memory", "node-shape", "ttft", "itl", "budget", "bounds", "roles", "engine", "profile"]
CONSTRAINTS: tuple[Constraint, ...] = (
    "gpus", "memory", "node-shape", "ttft", "itl", "budget", "bounds", "roles", "engine", "profile",
)  # fmt: skip
Value = bool | int | float | str | list[int] | list[str] | None


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change that helps: the request's field (which has the same name below ``spec``) and its new value.

    None removes the field. Steps of one answer are alternatives; one alone is enough.
    """

    path: str
    value: Value


@dataclass(frozen=True, slots=True)
class Shortfall:
    """The constraint that binds, in words too; the nearest SLO that holds on these GPUs, and the GPUs that hold it.

    Thresholds are seconds; None where unknown or where no such SLO or number exists.
    """

    binding: Constraint
    message: str
    nearest_ttft_s: float | None = None
    nearest_itl_s: float | None = None
    least_gpus: int | None = None
    remedies: tuple[Remedy, ...] = ()


def shortfall_to_json(shortfall: Shortfall | None) -> dict[str, object] | None:
    """Return the JSON-ready form."""
    if shortfall is None:
        return None
    nearest = None
    if shortfall.nearest_ttft_s is not None and shortfall.nearest_itl_s is not None:
        nearest = {"ttft": finite_or_none(shortfall.nearest_ttft_s), "itl": finite_or_none(shortfall.nearest_itl_s)}
    return {
        "binding": shortfall.binding,
        "message": shortfall.message,
        "nearestSlo": nearest,
        "leastGpus": shortfall.least_gpus,
        "remedies": [{"path": remedy.path, "value": remedy.value} for remedy in shortfall.remedies],
    }


def shortfall_from_json(body: Json, key: str) -> Shortfall | None:
    """Read a shortfall, None when there is none.

    Raises:
        PlanError: a field is missing or of the wrong type.
    """
    row = FIELDS.part(body, key)
    if row is None:
        return None
    nearest = FIELDS.part(row, "nearestSlo", key) or {}
    return Shortfall(
        binding=cast(Constraint, FIELDS.choice(row, "binding", CONSTRAINTS, key)),
        message=FIELDS.text(row, "message", key),
        nearest_ttft_s=FIELDS.figure(nearest, "ttft", f"{key}.nearestSlo"),
        nearest_itl_s=FIELDS.figure(nearest, "itl", f"{key}.nearestSlo"),
        least_gpus=_count(row, "leastGpus", key),
        remedies=tuple(
            Remedy(path=FIELDS.text(item, "path", f"{key}.remedies[{i}]"), value=_value(item, f"{key}.remedies[{i}]"))
            for i, item in enumerate(FIELDS.rows(row.get("remedies", []), f"{key}.remedies"))
        ),
    )


def _count(row: Json, key: str, where: str) -> int | None:
    value = FIELDS.figure(row, key, where)
    return None if value is None else int(value)


def _value(row: Json, where: str) -> Value:
    value = row.get("value")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Sequence) and all(isinstance(item, int | str) for item in value):
        return cast(Value, list(value))
    raise PlanError(f"{at(where, 'value')}: a single value or a list of them is needed, got {value!r}")
