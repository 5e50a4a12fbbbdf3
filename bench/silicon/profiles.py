"""Write the profiles that Weft ships: ``make silicon-profiles``.

One file per model and GPU under ``data``, with every backend and degree that the tables of the installed
``aiconfigurator-core`` have. Times are those of the kernels alone: what an engine adds is added where a plan is made.
"""

import json
import sys
from collections.abc import Iterable
from typing import Any

from bench.silicon.tables import degrees_of, models

from weft_core.cost import DegreeCosts
from weft_core.dimensions import ModelDimensions
from weft_core.profile_json import costs_to_json
from weft_planner.profiling.knowledge import FitStrictness, KnownHardware, known, profile_from_measurements
from weft_planner.profiling.measurements import MeasurementContext, MeasurementError, Measurements
from weft_planner.profiling.operators import Overheads
from weft_planner.profiling.silicon import BACKENDS, NOISE, SYSTEMS, SiliconError, measure, tables_of
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
    """Yield the fitted degrees of each backend that has tables."""
    for engine in BACKENDS:
        tables = tables_of(gpu, engine)
        try:
            found = measure(facts, tables, degrees=degrees_of(model), overheads=Overheads(0.0, 0.0))
        except SiliconError as error:
            print(f"  {engine}: {str(error).splitlines()[0]}", flush=True)
            continue
        degrees = []
        for degree in degrees_of(model):
            rows = tuple(row for row in found.rows if row.cell.degree == degree)
            if not rows:
                continue
            about = MeasurementContext(model.name, gpu, engine)
            try:
                profile = profile_from_measurements(
                    Measurements(about, rows), facts, FitStrictness(noise=NOISE, allow_missing=True)
                )
            except MeasurementError as error:
                print(f"  {engine}, degree {degree}: {error.problems[0]}", flush=True)
                continue
            costs = profile.degrees[degree]
            if why := unusable(costs):
                print(f"  {engine}, degree {degree}: {why}", flush=True)
                continue
            degrees.append(costs_to_json(degree, costs))
        if degrees:
            yield {"engine": engine, "degrees": degrees, "provenance": dict(found.notes)}


def _text(model: str, gpu: str, profiles: list[dict[str, Any]]) -> str:
    """Return one line for each degree: small, and a changed figure shows in a diff."""
    lines = [
        json.dumps({"engine": profile["engine"], "provenance": profile["provenance"]})[:-1] + ', "degrees": [\n  '
        + ",\n  ".join(json.dumps(row) for row in profile["degrees"]) + "\n ]}"
        for profile in profiles
    ]  # fmt: skip
    return json.dumps({"model": model, "gpu": gpu})[:-1] + ', "profiles": [\n ' + ",\n ".join(lines) + "\n]}\n"


def main(names: list[str]) -> None:
    """Write the profiles of the named models, of all without names."""
    DATA.mkdir(exist_ok=True)
    for model in models():
        if names and model.name not in names:
            continue
        for gpu in SYSTEMS:
            print(f"{model.name} on {gpu}", flush=True)
            profiles = list(entries(known(model=model.name, gpu=gpu), model, gpu))
            if profiles:
                (DATA / file_name(model, gpu)).write_text(_text(model.name, gpu, profiles), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
