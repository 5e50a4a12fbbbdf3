"""Read the shipped profiles: the prefill and decode regimes of a well-known model on a well-known GPU."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

from weft_core.cost import CostProfile, DegreeCosts
from weft_core.dimensions import ModelDimensions
from weft_core.layouts import ROLES
from weft_core.models import MODELS
from weft_core.parallelism import Degree, degree_from_json, gpus_of, parallelism_of
from weft_core.profile_json import costs_from_json
from weft_planner.profiling.operators import ASSUMED_OVERHEADS, Overheads
from weft_planner.silicon.all_to_all import AllToAll

DATA = Path(__file__).parent / "data"
TABLES_NODE_GPUS = 8
"""GPUs of a node in the tables: what larger workers send each other there crosses nodes of this size."""
RACKS: Mapping[str, int] = MappingProxyType({"nvidia-gb200": 4, "nvidia-gb300": 4})
"""The same of GPUs whose NVLink reaches the nodes of a rack: larger workers stay on it, in the tables, too."""
ENGINES: Mapping[str, str] = MappingProxyType({"": "vllm", "mock": "vllm"})
"""Engine types without figures of their own, and the type whose figures they take."""


@dataclass(frozen=True, slots=True)
class TableCosts:
    """What tables say of each degree, of which the memory is not used, and what the provenance says of it."""

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
def shipped(model: ModelDimensions, gpu: str, engine: str, all_to_all: AllToAll = "") -> TableCosts | None:
    """Return the profile of a model at this precision on a GPU and an engine type; None: there is none.

    With ``all_to_all`` whole experts exchange tokens by these kernels: what the tables lack of that is left out.
    """
    one = representative(model)
    path = None if one is None else DATA / file_name(one, gpu)
    if path is None or not path.is_file():
        return None
    wanted = ENGINES.get(engine, engine)
    degrees: dict[Degree, DegreeCosts] = {}
    provenance: dict[str, str] = {}
    for body in json.loads(path.read_text(encoding="utf-8"))["profiles"]:
        way = body.get("allToAll", "")
        if body["engine"] != wanted or way not in ("", all_to_all):
            continue
        for row in body["degrees"]:
            degree = degree_from_json(row["degree"])
            if way == all_to_all or not parallelism_of(degree).ep:
                degrees[degree] = costs_from_json(row, path.name)
        provenance |= body["provenance"]
    return TableCosts(degrees, provenance) if degrees else None


def with_shipped(
    analytic: CostProfile,
    model: ModelDimensions,
    engine: str,
    overheads: Overheads = ASSUMED_OVERHEADS,
    *,
    node_gpus: int = 0,
    all_to_all: tuple[AllToAll, AllToAll] = ("", ""),
) -> CostProfile:
    """Return a derived profile with the shipped regimes in place of its own, as ``with_tables`` says."""
    of_prefill, of_decode = (shipped(model, analytic.gpu, engine, way) for way in all_to_all)
    return with_tables(analytic, (of_prefill, of_decode), engine, overheads, node_gpus=node_gpus, all_to_all=all_to_all)


def with_tables(
    analytic: CostProfile,
    tables: tuple[TableCosts | None, TableCosts | None],
    engine: str,
    overheads: Overheads = ASSUMED_OVERHEADS,
    *,
    node_gpus: int = 0,
    tables_gpu: str = "",
    all_to_all: tuple[AllToAll, AllToAll] = ("", ""),
) -> CostProfile:
    """Return a derived profile with the tables' regimes in place of its own, at every degree that has some.

    ``tables`` are those of the engines that prefill and that decode, which exchange tokens by ``all_to_all``; they are
    of ``tables_gpu``, by default the profile's own. Memory and transfers stay as derived, and so do degrees that span
    nodes of ``node_gpus`` (0: all share one) of another size than the tables'. The provenance says which degrees are of
    which source.
    """
    of_prefill, of_decode = tables
    if of_prefill is None or of_decode is None:
        return analytic
    known = {
        n: replace(costs, decode=of_decode.degrees[n].decode, step_fit=of_decode.degrees[n].step_fit)
        for n, costs in of_prefill.degrees.items()
        if n in analytic.degrees
        and n in of_decode.degrees
        and spans_as_tables(n, node_gpus, tables_gpu or analytic.gpu)
    }
    if not known:
        return analytic
    degrees = {
        n: _with_regimes(costs, known[n], overheads) if n in known else costs for n, costs in analytic.degrees.items()
    }
    notes = {**analytic.provenance, **of_prefill.provenance, **of_decode.provenance}
    if any(all_to_all) and any(parallelism_of(n).ep for n in known):
        notes["allToAll"] = ", ".join(
            f"{role} {way or 'collectives'}" for role, way in zip(ROLES, all_to_all, strict=True)
        )
    notes["overheads"] = f"prefill {overheads.prefill:g} s, step {overheads.step:g} s, assumed"
    worst = max(fit.p95 for costs in known.values() for fit in (costs.prefill_fit, costs.step_fit) if fit is not None)
    notes["fit"] = f"passes that were held out are predicted with a P95 error of up to {worst:.0%}"
    if rest := sorted(set(analytic.degrees) - set(known)):
        notes["analytic"] = f"degrees {', '.join(map(str, rest))}: no tables, derived from the data sheet"
    return replace(analytic, engine=ENGINES.get(engine, engine), degrees=degrees, provenance=notes)


def spans_as_tables(degree: Degree, node_gpus: int, gpu: str) -> bool:
    """Return whether workers on nodes of ``node_gpus`` (0: all share one) cross nodes as those of the tables do."""
    return node_gpus in (0, RACKS.get(gpu, TABLES_NODE_GPUS)) or gpus_of(degree) <= node_gpus


def _with_regimes(derived: DegreeCosts, known: DegreeCosts, overheads: Overheads) -> DegreeCosts:
    return replace(
        derived,
        prefill=tuple(replace(piece, alpha=piece.alpha + overheads.prefill) for piece in known.prefill),
        decode=tuple(replace(piece, alpha=piece.alpha + overheads.step) for piece in known.decode),
        prefill_fit=known.prefill_fit,
        step_fit=known.step_fit,
    )
