"""Write the profiles that Weft ships: ``make silicon-profiles``.

One file per model and GPU under ``data``, with every backend and degree that the tables of the installed
``aiconfigurator-core`` have, and whole experts with DeepEP's kernels where they have these. Times are those of the
kernels alone: what an engine adds is added where a plan is made.
"""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from bench.silicon.compiled_solver import install
from bench.silicon.tables import degrees_of, models

from weft_core.cost import DegreeCosts
from weft_core.dimensions import ModelDimensions
from weft_core.parallelism import Degree, parallelism_of
from weft_core.profile_json import costs_to_json
from weft_planner.profiling.deepep import BACKENDS as WITH_DEEPEP
from weft_planner.profiling.knowledge import FitStrictness, KnownHardware, known, profile_from_measurements
from weft_planner.profiling.measurements import MeasurementContext, MeasurementError, Measurements
from weft_planner.profiling.operators import Overheads
from weft_planner.profiling.silicon import BACKENDS, NOISE, SYSTEMS, SiliconError, measure, tables_of
from weft_planner.silicon.all_to_all import AllToAll
from weft_planner.silicon.shipped import DATA, file_name

WORST_MEDIAN, WORST_P95 = 0.15, 0.3
"""Largest errors on held-out passes with which a fit is shipped."""


def unusable(costs: DegreeCosts) -> str:
    """Return why a fit is not shipped; empty: it is."""
    for name, fit in (("prefills", costs.prefill_fit), ("steps", costs.step_fit)):
        if fit is None or fit.median > WORST_MEDIAN or fit.p95 > WORST_P95:
            return f"{name} are predicted too badly: {fit}"
    if not any(piece.per_pair for piece in costs.prefill):
        return "attention costs nothing in any regime of prefills"
    return ""


def entries(facts: KnownHardware, model: ModelDimensions, gpu: str) -> Iterable[dict[str, Any]]:
    """Yield the fitted degrees of each backend that has tables, and those of whole experts with DeepEP's kernels."""
    degrees = degrees_of(model)
    whole = tuple(n for n in degrees if parallelism_of(n).ep)
    for engine, backend in BACKENDS.items():
        yield from _entry(facts, model, gpu, engine, degrees)
        if whole and backend in WITH_DEEPEP:
            yield from _entry(facts, model, gpu, engine, whole, "deepep")


def _entry(
    facts: KnownHardware, model: ModelDimensions, gpu: str, engine: str, degrees: Sequence[Degree], way: AllToAll = ""
) -> Iterable[dict[str, Any]]:
    said = f"{engine}, {way}" if way else engine
    try:
        tables = tables_of(gpu, engine, all_to_all=way)
        found = measure(facts, tables, degrees=degrees, overheads=Overheads(0.0, 0.0))
    except SiliconError as error:
        print(f"  {said}: {str(error).splitlines()[0]}", flush=True)
        return
    fitted = []
    for degree in degrees:
        rows = tuple(row for row in found.rows if row.cell.degree == degree)
        if not rows:
            continue
        about = MeasurementContext(model.name, gpu, engine)
        try:
            profile = profile_from_measurements(
                Measurements(about, rows), facts, FitStrictness(noise=NOISE, allow_missing=True)
            )
        except MeasurementError as error:
            print(f"  {said}, degree {degree}: {error.problems[0]}", flush=True)
            continue
        costs = profile.degrees[degree]
        if why := unusable(costs):
            print(f"  {said}, degree {degree}: {why}", flush=True)
            continue
        fitted.append(costs_to_json(degree, costs))
    if fitted:
        key = {"engine": engine, "allToAll": way} if way else {"engine": engine}
        yield {**key, "provenance": dict(found.notes), "degrees": fitted}


def _text(model: str, gpu: str, profiles: list[dict[str, Any]]) -> str:
    """Return one line for each degree: small, and a changed figure shows in a diff."""
    lines = [
        json.dumps({name: value for name, value in profile.items() if name != "degrees"})[:-1] + ', "degrees": [\n  '
        + ",\n  ".join(json.dumps(row) for row in profile["degrees"]) + "\n ]}"
        for profile in profiles
    ]  # fmt: skip
    return json.dumps({"model": model, "gpu": gpu})[:-1] + ', "profiles": [\n ' + ",\n ".join(lines) + "\n]}\n"


def main(names: list[str]) -> None:
    """Write the profiles of the named models, of all without names; on the GPU types in GPUS, on all without."""
    install()
    DATA.mkdir(exist_ok=True)
    gpus = os.environ.get("GPUS", "").split() or list(SYSTEMS)
    for model in models():
        if names and model.name not in names:
            continue
        for gpu in gpus:
            print(f"{model.name} on {gpu}", flush=True)
            profiles = list(entries(known(model=model.name, gpu=gpu), model, gpu))
            if profiles:
                (DATA / file_name(model, gpu)).write_text(_text(model.name, gpu, profiles), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
