"""Fit the costs of degrees to silicon tables: those that Weft ships, and those that a plan asks for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft_core.cost import DegreeCosts
from weft_core.parallelism import Degree
from weft_planner.profiling.knowledge import FitStrictness, KnownHardware, profile_from_measurements
from weft_planner.profiling.measurements import Measurement, MeasurementContext, MeasurementError, Measurements
from weft_planner.profiling.operators import Overheads
from weft_planner.profiling.silicon import NOISE, SiliconError, Tables, measure

WORST_MEDIAN, WORST_P95 = 0.15, 0.3
"""Largest errors on held-out passes with which a fit is used."""
USUAL_CHUNKS = range(128, 2049)
"""Tokens of the chunks that are fitted alone where no fit of all is good enough."""


@dataclass(frozen=True, slots=True)
class FittedTables:
    """The costs of degrees without an engine's overheads, where they come from, and what the tables lack, by degree."""

    degrees: Mapping[Degree, DegreeCosts]
    provenance: Mapping[str, str]
    left_out: Mapping[Degree, str]


def fit_tables(
    facts: KnownHardware,
    tables: Tables,
    engine: str,
    degrees: Sequence[Degree],
    config: Mapping[str, object] | None = None,
) -> FittedTables:
    """Return the costs of the degrees that the tables have, each fitted by itself.

    On one core of a server reading takes 1 to 2 s, of which most is loading the package and the tables, and a fit
    0.2 to 1 s a degree.
    """
    from weft_planner.profiling.compiled_regression import compiled_fits  # imports numba

    try:
        found = measure(facts, tables, degrees=degrees, overheads=Overheads(0.0, 0.0), config=config)
    except SiliconError as error:
        lines = str(error).splitlines()
        common = lines[0] if not lines[0].startswith("degree ") else "the tables lack an operator"
        return FittedTables({}, {}, {degree: _reason(degree, lines) or common for degree in degrees})
    fitted: dict[Degree, DegreeCosts] = {}
    left_out: dict[Degree, str] = {}
    about = MeasurementContext(facts.model.name if facts.model else "", facts.gpu.name if facts.gpu else "", engine)
    for degree in degrees:
        rows = tuple(row for row in found.rows if row.cell.degree == degree)
        if not rows:
            left_out[degree] = _reason(degree, found.left_out)
            continue
        usual = tuple(row for row in rows if not row.cell.chunk or row.cell.chunk in USUAL_CHUNKS)
        with compiled_fits():
            costs = _fitted(degree, rows, facts, about)
            if isinstance(costs, str):
                other = _fitted(degree, usual, facts, about)
                costs = costs if isinstance(other, str) else other
        if isinstance(costs, str):
            left_out[degree] = costs
        else:
            fitted[degree] = costs
    return FittedTables(fitted, found.notes, left_out)


def _fitted(
    degree: Degree, rows: Sequence[Measurement], facts: KnownHardware, about: MeasurementContext
) -> DegreeCosts | str:
    """Return the costs of a degree, or why there are none."""
    try:
        strictness = FitStrictness(noise=NOISE, allow_missing=True)
        costs = profile_from_measurements(Measurements(about, tuple(rows)), facts, strictness).degrees[degree]
    except MeasurementError as error:
        return error.problems[0]
    return unusable(costs) or costs


def unusable(costs: DegreeCosts) -> str:
    """Return why a fit is not used; empty: it is."""
    for name, fit in (("prefills", costs.prefill_fit), ("steps", costs.step_fit)):
        if fit is None or fit.median > WORST_MEDIAN or fit.p95 > WORST_P95:
            return f"{name} are predicted too badly: {fit}"
    if not any(piece.per_pair for piece in costs.prefill):
        return "attention costs nothing in any regime of prefills"
    return ""


def _reason(degree: Degree, left_out: Sequence[str]) -> str:
    """Return the first of the reasons that is of a degree, without its name."""
    for separator in (": ", ", "):
        for line in left_out:
            if line.startswith(start := f"degree {degree}{separator}"):
                return line.removeprefix(start)
    return ""
