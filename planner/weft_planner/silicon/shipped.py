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
from weft_core.parallelism import Degree, degree_from_json, gpus_of
from weft_core.profile_json import costs_from_json
from weft_planner.profiling.operators import ASSUMED_OVERHEADS, Overheads

DATA = Path(__file__).parent / "data"
TABLES_NODE_GPUS = 8
"""GPUs of a node in the tables: what larger workers send each other there crosses nodes of this size."""
ENGINES: Mapping[str, str] = MappingProxyType({"": "vllm", "mock": "vllm"})
"""Engine types without figures of their own, and the type whose figures they take."""


@dataclass(frozen=True, slots=True)
class ShippedProfile:
    """What is known of each degree, of which the memory is not used, and what the provenance says of it."""

    degrees: Mapping[Degree, DegreeCosts]
    provenance: Mapping[str, str]


def representative(model: ModelDimensions) -> ModelDimensions | None:
    """Return the first of the well-known models with the same dimensions, whose file it shares; None: there is none.

    Layers that predict further tokens are no part of plain passes.
    """
    equal = (
        one
        for one in MODELS.values()
        if replace(one, name=model.name, prediction_layers=model.prediction_layers) == model
    )
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
            degrees = {degree_from_json(row["degree"]): costs_from_json(row, path.name) for row in body["degrees"]}
            return ShippedProfile(degrees, body["provenance"])
    return None


def with_shipped(
    analytic: CostProfile,
    model: ModelDimensions,
    engine: str,
    overheads: Overheads = ASSUMED_OVERHEADS,
    *,
    node_gpus: int = 0,
) -> CostProfile:
    """Return a derived profile with the shipped regimes in place of its own, at every degree that has some.

    Memory and transfers stay as derived, and so do degrees that span nodes of ``node_gpus`` (0: all share one) of
    another size than the tables'. The provenance says which degrees are of which source.
    """
    found = shipped(model, analytic.gpu, engine)
    if found is None:
        return analytic
    known = {
        n: costs
        for n, costs in found.degrees.items()
        if n in analytic.degrees and (node_gpus in (0, TABLES_NODE_GPUS) or gpus_of(n) <= node_gpus)
    }
    if not known:
        return analytic
    degrees = {
        n: _with_regimes(costs, known[n], overheads) if n in known else costs for n, costs in analytic.degrees.items()
    }
    notes = {**analytic.provenance, **found.provenance}
    notes["overheads"] = f"prefill {overheads.prefill:g} s, step {overheads.step:g} s, assumed"
    worst = max(fit.p95 for costs in known.values() for fit in (costs.prefill_fit, costs.step_fit) if fit is not None)
    notes["fit"] = f"passes that were held out are predicted with a P95 error of up to {worst:.0%}"
    if rest := sorted(set(analytic.degrees) - set(known)):
        notes["analytic"] = f"degrees {', '.join(map(str, rest))}: no tables, derived from the data sheet"
    return replace(analytic, engine=ENGINES.get(engine, engine), degrees=degrees, provenance=notes)


def _with_regimes(derived: DegreeCosts, known: DegreeCosts, overheads: Overheads) -> DegreeCosts:
    return replace(
        derived,
        prefill=tuple(replace(piece, alpha=piece.alpha + overheads.prefill) for piece in known.prefill),
        decode=tuple(replace(piece, alpha=piece.alpha + overheads.step) for piece in known.decode),
        prefill_fit=known.prefill_fit,
        step_fit=known.step_fit,
    )
