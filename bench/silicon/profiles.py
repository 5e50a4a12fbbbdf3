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

from bench.silicon.tables import degrees_of, models

from weft_core.dimensions import ModelDimensions
from weft_core.parallelism import Degree, parallelism_of
from weft_core.profile_json import costs_to_json
from weft_planner.profiling.deepep import BACKENDS as WITH_DEEPEP
from weft_planner.profiling.knowledge import KnownHardware, known
from weft_planner.profiling.silicon import SiliconError, tables_of
from weft_planner.profiling.silicon_fit import fit_tables
from weft_planner.silicon.all_to_all import AllToAll
from weft_planner.silicon.shipped import DATA, file_name
from weft_planner.silicon.systems import BACKENDS, SYSTEMS


def entries(facts: KnownHardware, model: ModelDimensions, gpu: str) -> Iterable[dict[str, Any]]:
    """Yield the fitted degrees of each backend that has tables, and those of whole experts with DeepEP's kernels."""
    degrees = degrees_of(model)
    whole = tuple(n for n in degrees if parallelism_of(n).ep)
    for engine, backend in BACKENDS.items():
        yield from _entry(facts, gpu, engine, degrees)
        if whole and backend in WITH_DEEPEP:
            yield from _entry(facts, gpu, engine, whole, "deepep")


def _entry(
    facts: KnownHardware, gpu: str, engine: str, degrees: Sequence[Degree], way: AllToAll = ""
) -> Iterable[dict[str, Any]]:
    said = f"{engine}, {way}" if way else engine
    try:
        tables = tables_of(gpu, engine, all_to_all=way)
    except SiliconError as error:
        print(f"  {said}: {error}", flush=True)
        return
    found = fit_tables(facts, tables, engine, degrees)
    for degree, why in found.left_out.items():
        print(f"  {said}, degree {degree}: {why}", flush=True)
    if found.degrees:
        key = {"engine": engine, "allToAll": way} if way else {"engine": engine}
        fitted = [costs_to_json(degree, costs) for degree, costs in found.degrees.items()]
        yield {**key, "provenance": dict(found.provenance), "degrees": fitted}


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
