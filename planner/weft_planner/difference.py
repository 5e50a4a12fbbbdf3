"""Say what differs between two plans, and what in the spec made it so."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from weft_core.json_fields import finite_or_none
from weft_core.layouts import PlannedGroup, PlannedPolicy, WorkerRole
from weft_core.parallelism import Degree, degree_to_json, gpus_of
from weft_core.plan import Plan
from weft_core.prediction import Prediction

Json = Mapping[str, object]
ABSENT = "(absent)"


@dataclass(frozen=True, slots=True)
class GroupChange:
    """Workers of one role, degree and pool, before and after."""

    role: WorkerRole
    degree: Degree
    pool: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class FigureChange:
    """A predicted figure before and after; ``better`` is None when it did not move, or has no good direction."""

    name: str
    unit: str
    before: float
    after: float
    better: bool | None


@dataclass(frozen=True, slots=True)
class SpecChange:
    """A field of the service's spec before and after, as text."""

    path: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Difference:
    """All that differs; ``spec_known`` tells whether the old spec was there to compare."""

    same_workers: bool
    same_inputs: bool
    groups: tuple[GroupChange, ...]
    layout: tuple[str, str]
    policy: tuple[str, str]
    figures: tuple[FigureChange, ...]
    spec: tuple[SpecChange, ...]
    spec_known: bool

    @property
    def gpus(self) -> int:
        """Return how many more GPUs the new plan takes."""
        return sum((change.after - change.before) * gpus_of(change.degree) for change in self.groups)


def compare_plans(
    old: Plan, new: Plan, *, old_spec: Json | None = None, new_spec: Json | None = None, as_written: bool = True
) -> Difference:
    """Return what differs from ``old`` to ``new``.

    Not ``as_written``, the old spec has defaults filled in: only fields that the new one has are compared.
    """
    groups = tuple(_groups(old.groups, new.groups))
    known = old_spec is not None and new_spec is not None
    return Difference(
        same_workers=not groups and old.layout == new.layout,
        same_inputs=old.inputs_hash == new.inputs_hash,
        groups=groups,
        layout=(old.layout, new.layout),
        policy=(_policy(old.policy), _policy(new.policy)),
        figures=tuple(_figures(old.predicted, new.predicted)),
        spec=tuple(_changes(old_spec or {}, new_spec or {}, "spec", all_keys=as_written)) if known else (),
        spec_known=known,
    )


def difference_to_json(difference: Difference) -> dict[str, object]:
    """Return the JSON-ready form; what is unbounded becomes null."""
    return {
        "sameWorkers": difference.same_workers,
        "sameInputs": difference.same_inputs,
        "gpus": difference.gpus,
        "groups": [
            {"role": c.role, "degree": degree_to_json(c.degree), "pool": c.pool, "before": c.before, "after": c.after}
            for c in difference.groups
        ],
        "layout": {"before": difference.layout[0], "after": difference.layout[1]},
        "policy": {"before": difference.policy[0], "after": difference.policy[1]},
        "predicted": {
            c.name: {"before": finite_or_none(c.before), "after": finite_or_none(c.after), "unit": c.unit}
            for c in difference.figures
        },
        "spec": [{"path": c.path, "before": c.before, "after": c.after} for c in difference.spec]
        if difference.spec_known
        else None,
    }


def _groups(old: tuple[PlannedGroup, ...], new: tuple[PlannedGroup, ...]) -> Iterator[GroupChange]:
    counts: dict[tuple[WorkerRole, Degree, str], list[int]] = {}
    for side, groups in enumerate((old, new)):
        for group in groups:
            counts.setdefault((group.role, group.degree, group.pool), [0, 0])[side] += group.replicas
    for (role, degree, pool), (before, after) in sorted(counts.items(), key=lambda kv: (kv[0][0] != "prefill", kv[0])):
        if before != after:
            yield GroupChange(role, degree, pool, before, after)


def _policy(policy: PlannedPolicy | None) -> str:
    return "" if policy is None else f"{policy}, order {policy.order}, binding {policy.binding}"


def _figures(old: Prediction, new: Prediction) -> Iterator[FigureChange]:
    """Yield the figures that both predictions have."""
    pairs = (
        ("ttftP95", "s", old.ttft_p95_s, new.ttft_p95_s, -1),
        ("itlP95", "s", old.itl_p95_s, new.itl_p95_s, -1),
        ("attainment", "share", _value(old.attainment), _value(new.attainment), 1),
        ("goodput", "sessions/s", _value(old.goodput), _value(new.goodput), 1),
        ("gpus", "GPUs", float(old.gpus), float(new.gpus), -1),
        ("costPerHour", "per hour", old.cost_per_hour, new.cost_per_hour, -1),
        ("costPerMillionTokens", "per M tokens", old.cost_per_million_tokens, new.cost_per_million_tokens, -1),
    )
    for name, unit, before, after, sign in pairs:
        if before is not None and after is not None:
            moved = not (before == after or math.isclose(before, after, rel_tol=1e-6))
            yield FigureChange(name, unit, before, after, (after - before) * sign > 0 if moved else None)


def _value(estimate: object) -> float | None:
    value = getattr(estimate, "value", None)
    return None if value is None else float(value)


def _changes(old: object, new: object, path: str, *, all_keys: bool) -> Iterator[SpecChange]:
    """Yield every field that differs, the deepest that do; lists of named objects are compared by name."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new} if all_keys else new, key=str):
            dot = "" if str(key).startswith("[") else "."
            yield from _changes(old.get(key, ABSENT), new.get(key, ABSENT), f"{path}{dot}{key}", all_keys=all_keys)
    elif _named(old) and _named(new):
        yield from _changes(_by_name(old), _by_name(new), path, all_keys=True)
    elif old != new:
        yield SpecChange(path, str(old), str(new))


def _named(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, Mapping) and "name" in v for v in value)


def _by_name(value: object) -> Json:
    return {f"[{item['name']}]": item for item in cast(list[Json], value)}
