"""Fit a cell's cost profile to the tables, with every parallelism strategy that either planner may choose."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from bench.planner_peers.cells import ENGINE, Cell

from weft_core.analytic import ModelDoesNotFit, derive_profile
from weft_core.cost import CostProfile, DecodePiece, PrefillPiece
from weft_core.gpus import GPUS
from weft_core.parallelism import Degree, parallelism_of
from weft_planner.profiling.compiled_regression import compiled_fits
from weft_planner.profiling.knowledge import FitStrictness, KnownHardware, known, profile_from_measurements
from weft_planner.profiling.measurements import Measurement, MeasurementContext, MeasurementError, Measurements
from weft_planner.profiling.operators import Overheads
from weft_planner.profiling.silicon import NOISE, SiliconError, SiliconTimings, measure, tables_of
from weft_planner.profiling.silicon_fit import unusable

PREFILL_CORRECTION, STEP_CORRECTION = 1.1, 1.08
"""What aiconfigurator multiplies the tables' latencies by where workers have one role, in place of the overheads that
Weft assumes."""
NOT_SECONDS = ("expert_share", "from_batch", "from_context")
Piece = TypeVar("Piece", PrefillPiece, DecodePiece)


class NoTables(Exception):  # noqa: N818  an answer, not a fault
    """The tables have nothing for a cell; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class TableProfile:
    """A cell's profile, and for each strategy that is not in it the reason."""

    profile: CostProfile
    left_out: tuple[str, ...]


def profile_of_tables(cell: Cell, strategies: Sequence[Degree]) -> TableProfile:
    """Return a cell's profile by the tables, at the strategies that they have; memory and transfers are derived.

    Raises:
        NoTables: the model fits nowhere, or the tables lack an operator at every strategy.
    """
    facts = known(model=cell.model, gpu=cell.gpu)
    try:
        analytic = derive_profile(cell.dimensions, GPUS[cell.gpu], degrees=strategies)
        found = _passes(facts, cell.gpu, sorted(analytic.degrees))
    except (ModelDoesNotFit, SiliconError) as error:
        raise NoTables(str(error)) from error
    about = MeasurementContext(cell.model, cell.gpu, ENGINE, notes=found.notes)
    costs, left_out = {}, list(found.left_out)
    for degree, derived in analytic.degrees.items():
        rows = [row for row in found.rows if row.cell.degree == degree]
        if not rows:
            continue
        fit, why = _fit(about, rows, facts, degree)
        if fit is None:
            left_out.append(f"degree {degree}: {why}")
            continue
        mine = fit.degrees[degree]
        costs[degree] = replace(
            derived,
            prefill=tuple(_slower(piece, PREFILL_CORRECTION) for piece in mine.prefill),
            decode=tuple(_slower(piece, STEP_CORRECTION) for piece in mine.decode),
            prefill_fit=mine.prefill_fit,
            step_fit=mine.step_fit,
        )
    if not costs:
        raise NoTables("; ".join(left_out))
    whole = derive_profile(cell.dimensions, GPUS[cell.gpu], degrees=sorted(costs))
    return TableProfile(replace(whole, engine=ENGINE, degrees=costs, provenance=dict(found.notes)), tuple(left_out))


def without_corrections(profile: CostProfile) -> CostProfile:
    """Return a profile with the tables' own latencies, as aiconfigurator takes them for workers that do both."""
    bare = {
        degree: replace(
            costs,
            prefill=tuple(_slower(piece, 1 / PREFILL_CORRECTION) for piece in costs.prefill),
            decode=tuple(_slower(piece, 1 / STEP_CORRECTION) for piece in costs.decode),
        )
        for degree, costs in profile.degrees.items()
    }
    return replace(profile, degrees=bare)


def _passes(facts: KnownHardware, gpu: str, degrees: Sequence[Degree]) -> SiliconTimings:
    """Return the passes of all strategies, whole experts with the kernels that aiconfigurator takes for them.

    Those are DeepEP's where the tables have them, which vLLM uses where its flag asks for them.
    """
    none = Overheads(0.0, 0.0)
    found = measure(facts, tables_of(gpu, ENGINE, all_to_all="deepep"), degrees=degrees, overheads=none)
    known_ones = {row.cell.degree for row in found.rows}
    others = [n for n in degrees if n not in known_ones and parallelism_of(n).ep]
    if not others:
        return found
    try:
        rest = measure(facts, tables_of(gpu, ENGINE), degrees=others, overheads=none)
    except SiliconError:
        return found
    about = tuple(f"degree {n}:" for n in others)
    kept = tuple(why for why in found.left_out if not why.startswith(about))
    return replace(found, rows=found.rows + rest.rows, left_out=kept + rest.left_out)


def _slower(piece: Piece, factor: float) -> Piece:
    times = {name: getattr(piece, name) * factor for name in piece.__dataclass_fields__ if name not in NOT_SECONDS}
    return replace(piece, **times)


def _fit(
    about: MeasurementContext, rows: Sequence[Measurement], facts: KnownHardware, degree: Degree
) -> tuple[CostProfile | None, str]:
    """Return a profile of one strategy; where the fit is bad none, and why."""
    try:
        with compiled_fits():
            profile = profile_from_measurements(
                Measurements(about, tuple(rows)), facts, FitStrictness(noise=NOISE, allow_missing=True)
            )
    except MeasurementError as error:
        return None, error.problems[0]
    why = unusable(profile.degrees[degree])
    return (None, why) if why else (profile, "")
