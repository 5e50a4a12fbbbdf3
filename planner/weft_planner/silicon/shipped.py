"""Read the shipped profiles: the prefill and decode regimes of a well-known model on a well-known GPU."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

from weft_core.cost import CostProfile, DegreeCosts
from weft_core.dimensions import ModelDimensions
from weft_core.models import MODELS
from weft_core.profile_json import degree_from_json
from weft_planner.profiling.operators import ASSUMED_OVERHEADS, Overheads

DATA = Path(__file__).parent / "data"
ENGINES: Mapping[str, str] = MappingProxyType({"": "vllm", "mock": "vllm"})
"""Whose figures an engine type has that has none of its own."""


@dataclass(frozen=True, slots=True)
class ShippedProfile:
    """The regimes of each degree, memory left out, and what the provenance says of them."""

    degrees: Mapping[int, DegreeCosts]
    provenance: Mapping[str, str]


def representative(model: ModelDimensions) -> ModelDimensions | None:
    """Return the first of the well-known models with the same dimensions, whose file it shares; None: there is none."""
    equal = (one for one in MODELS.values() if replace(one, name=model.name) == model)
    return min(equal, key=lambda one: one.name, default=None)


def file_name(model: ModelDimensions, gpu: str) -> str:
    """Return the name of the file with a model's profiles on a GPU."""
    return f"{model.name.replace('/', '--')}_{gpu}.json"


@cache
def shipped(model: ModelDimensions, gpu: str, engine: str) -> ShippedProfile | None:
    """Return the profile of a model at this precision on a GPU and an engine type; None: there is none."""
    one = representative(model)
    path = None if one is None else DATA / file_name(one, gpu)
    if path is None or not path.is_file():
        return None
    wanted = ENGINES.get(engine, engine)
    for body in json.loads(path.read_text(encoding="utf-8"))["profiles"]:
        if body["engine"] == wanted:
            degrees = {row["degree"]: degree_from_json(row, path.name) for row in body["degrees"]}
            return ShippedProfile(degrees, body["provenance"])
    return None


def with_shipped(
    analytic: CostProfile, model: ModelDimensions, engine: str, overheads: Overheads = ASSUMED_OVERHEADS
) -> CostProfile:
    """Return a derived profile with the shipped regimes in place of its own, at every degree that has some.

    Memory and transfers stay as derived. The provenance says which degrees are of which source.
    """
    found = shipped(model, analytic.gpu, engine)
    known = {} if found is None else {n: costs for n, costs in found.degrees.items() if n in analytic.degrees}
    if found is None or not known:
        return analytic
    degrees = {
        n: _with_regimes(costs, known[n], overheads) if n in known else costs for n, costs in analytic.degrees.items()
    }
    notes = {**analytic.provenance, **found.provenance}
    notes["overheads"] = f"prefill {overheads.prefill:g} s, step {overheads.step:g} s"
    if rest := sorted(set(analytic.degrees) - set(known)):
        notes["analytic"] = f"degrees {', '.join(map(str, rest))}: no tables, derived from the data sheet"
    return replace(analytic, degrees=degrees, provenance=notes)


def _with_regimes(derived: DegreeCosts, known: DegreeCosts, overheads: Overheads) -> DegreeCosts:
    return replace(
        derived,
        prefill=tuple(replace(piece, alpha=piece.alpha + overheads.prefill) for piece in known.prefill),
        decode=tuple(replace(piece, alpha=piece.alpha + overheads.step) for piece in known.decode),
        prefill_fit=known.prefill_fit,
        step_fit=known.step_fit,
    )
