"""Hold predictions against whole passes: point by point, and by kind the median and the 95th percentile."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench.gpu import operators
from bench.gpu.record import Record, read, say
from bench.gpu.setting import Setting

from weft_planner.profiling.knowledge import manifest
from weft_planner.profiling.measurements import GridCell, MeasurementError
from weft_planner.profiling.validation import predict_cell

NAME = "comparison.json"
PASSES = "forward.json"
"""Where the step ``forward`` leaves the measured passes."""
MEDIAN, P95 = 0.05, 0.12
"""What predictions should reach, as shares of the measured time."""
KINDS = ("prefill", "decode", "mixed")


@dataclass(frozen=True, slots=True)
class Point:
    """One pass: seconds measured and predicted."""

    cell: GridCell
    measured: float
    predicted: float

    @property
    def kind(self) -> str:
        """Return which of ``KINDS`` the pass is."""
        if self.cell.function == "prefill":
            return "prefill"
        return "mixed" if self.cell.chunk else "decode"

    @property
    def error(self) -> float:
        """Return predicted over measured less 1."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True)
class Agreement:
    """Absolute relative errors of one kind; ``bias`` is the median with its sign."""

    kind: str
    points: int
    median: float
    p95: float
    bias: float

    @property
    def met(self) -> bool:
        """Tell whether both are within what predictions should reach."""
        return self.median <= MEDIAN and self.p95 <= P95


def truth(record: Mapping[str, Any]) -> dict[GridCell, float]:
    """Return the seconds of the passes of a forward record."""
    fields = GridCell.__dataclass_fields__
    return {
        GridCell(**{name: value for name, value in row.items() if name in fields}): float(row["seconds"])
        for row in record["rows"]
    }


def points(measured: Mapping[GridCell, float], predict: Callable[[GridCell], float | None]) -> list[Point]:
    """Return a point for each pass that can be predicted, in the order of kinds and shapes."""
    found = [
        Point(cell, seconds, predicted)
        for cell, seconds in measured.items()
        if (predicted := predict(cell)) is not None
    ]
    return sorted(found, key=lambda point: (KINDS.index(point.kind), point.cell))


def agreements(found: Sequence[Point]) -> list[Agreement]:
    """Return the errors of each kind that has points."""
    rows = []
    for kind in KINDS:
        errors = np.array([point.error for point in found if point.kind == kind])
        if len(errors):
            size = np.abs(errors)
            figures = (float(np.median(size)), float(np.quantile(size, 0.95)), float(np.median(errors)))
            rows.append(Agreement(kind, len(errors), *figures))
    return rows


def table(source: str, found: Sequence[Point]) -> str:
    """Return a line per point, then a line per kind."""
    lines = [f"{source}: pass | measured ms | predicted ms | error"]
    lines += [
        f"{str(point.cell).replace(' at degree 1', '')} | {point.measured * 1e3:.3f} | {point.predicted * 1e3:.3f} | "
        f"{point.error:+.1%}"
        for point in found
    ]
    return "\n".join([*lines, *summary(source, found)])


def summary(source: str, found: Sequence[Point]) -> list[str]:
    """Return a line per kind."""
    return [
        f"{source}: {row.kind}: {row.points} passes, median {row.median:.1%}, P95 {row.p95:.1%}, bias {row.bias:+.1%}"
        f" ({'met' if row.met else f'not met: {MEDIAN:.0%} and {P95:.0%}'})"
        for row in agreements(found)
    ]


def entry(source: str, found: Sequence[Point]) -> dict[str, Any]:
    """Return the errors by kind and the points for a record."""
    return {
        source: {
            row.kind: {
                "points": row.points, "median": _short(row.median), "p95": _short(row.p95), "bias": _short(row.bias),
                "met": row.met,
            }
            for row in agreements(found)
        },
        f"{source}Points": [
            {
                "pass": str(point.cell).replace(" at degree 1", ""), "measuredMs": _short(point.measured * 1e3),
                "predictedMs": _short(point.predicted * 1e3), "error": _short(point.error),
            }
            for point in found
        ],
    }  # fmt: skip


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def run(setting: Setting, out: Path) -> bool | None:
    """Fit the profile, predict every pass, write both; tell whether errors are met, None where a record is missing."""
    timed, passes = read(out / operators.NAME), read(out / PASSES)
    if timed is None or passes is None or not timed["times"]:
        say(f"compare: {out} has no {operators.NAME if not timed else PASSES}; run that step first")
        return None
    if timed["gpu"] != passes["gpu"]:
        say(f"compare: operators are of {timed['gpu']}, passes of {passes['gpu']}; run both on one card")
        return None
    try:
        profile, notes = operators.fitted(setting, timed)
    except MeasurementError as error:
        say(f"compare: no profile: {error}")
        return False
    (out / operators.PROFILE).write_text(json.dumps(manifest(profile), indent=1) + "\n", encoding="utf-8")
    measured = truth(passes)
    sums = operators.composed_seconds(setting, timed, list(measured))
    fitted = points(measured, lambda cell: predict_cell(profile, cell))
    composed = points(measured, sums.get)
    record = Record(
        out / NAME, {"step": "compare", "gpu": setting.gpu, "card": passes["card"], "software": passes["software"]}
    )
    record.body |= {**entry("profile", fitted), **entry("operators", composed), "notes": notes}
    record.save()
    say(table("profile", fitted))
    for line in summary("sum of operators", composed):
        say(line)
    for note in notes[:10]:
        say(f"note: {note}")
    return all(row.met for row in agreements(fitted)) and bool(fitted)
