"""The silicon tables of a request: shipped profiles, and for what these lack the package that has the tables."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from weft_core.cost import CostProfile
from weft_core.dimensions import ModelDimensions
from weft_core.gpus import gpu_named
from weft_core.hf_config import dimensions_of_config
from weft_core.parallelism import Degree
from weft_planner.profiling.operators import Overheads
from weft_planner.request.hardware import dimensions_of
from weft_planner.request.parts import Model, Silicon
from weft_planner.silicon.all_to_all import AllToAll
from weft_planner.silicon.shipped import ENGINES, TableCosts, shipped, spans_as_tables, with_tables
from weft_planner.silicon.systems import BACKENDS, GPU_TYPES, SYSTEMS

if TYPE_CHECKING:
    from weft_planner.profiling.silicon import Tables
    from weft_planner.profiling.silicon_fit import FittedTables
    from weft_planner.request.reading import Request

PACKAGE = "aiconfigurator-core"
INSTALL = (
    "is not installed: pip install 'weft[silicon]', or let the operator run the image with the tables (chart value "
    "operator.silicon)"
)
REASON_LENGTH = 240
"""Longest part of a reason in a note, in characters: the package names every operator it looked for."""

_fitted_before: "dict[tuple[ModelDimensions, Tables, str], FittedTables]" = {}
"""What this process has fitted, by model, tables and config.json."""


@dataclass(frozen=True, slots=True)
class TableSource:
    """Which tables: the GPU type that they are of, the engine type, and the version asked for (empty: none)."""

    gpu: str
    engine: str
    version: str

    @property
    def exists(self) -> bool:
        """Return whether there are tables of such a system and backend at all."""
        return self.gpu in SYSTEMS and self.engine in BACKENDS


@dataclass(frozen=True, slots=True)
class TableLookup:
    """What tables say of the degrees asked for, which of these were fitted for it, and which are lacking and why.

    The reason is empty where the package is not installed. ``other_version`` is that of shipped profiles where another
    was asked for.
    """

    source: TableSource
    tables: TableCosts | None
    fitted: tuple[Degree, ...] = ()
    lacking: Mapping[Degree, str] = field(default_factory=dict)
    other_version: str = ""


def installed() -> bool:
    """Return whether the package with the tables can be imported."""
    return find_spec("aiconfigurator_core") is not None


def with_silicon(request: "Request", profile: CostProfile, model: ModelDimensions, node_gpus: int) -> CostProfile:
    """Return a derived profile with the regimes of the request's tables in place of its own where they have some."""
    asked = request.silicon or Silicon()
    ways = request.engine.prefill.all_to_all, request.engine.decode.all_to_all
    of_prefill, of_decode = (
        look_up(request, model, profile.gpu, profile.degrees, node_sizes=(node_gpus,), all_to_all=way) for way in ways
    )
    given = {"prefill": asked.prefill_overhead, "step": asked.decode_overhead}
    return with_tables(
        profile,
        (of_prefill.tables, of_decode.tables),
        of_prefill.source.engine,
        Overheads(**{name: seconds for name, seconds in given.items() if seconds is not None}),
        node_gpus=node_gpus,
        tables_gpu=of_prefill.source.gpu,
        all_to_all=ways,
    )


def look_up(
    request: "Request",
    model: ModelDimensions,
    gpu: str,
    degrees: Iterable[Degree],
    *,
    node_sizes: Iterable[int] = (0,),
    all_to_all: AllToAll = "",
) -> TableLookup:
    """Return what tables say of a model on a GPU type at some degrees.

    Shipped profiles come first, unless the request asks for another version. The package with the tables, where it is
    installed, is asked for the rest, except degrees that cross nodes of ``node_sizes`` as the tables' workers do not.
    """
    source = _source(request, gpu)
    ready = shipped(model, source.gpu, source.engine, all_to_all)
    other = "" if ready is None or source.version in ("", _version(ready)) else _version(ready)
    sizes = tuple(node_sizes)
    lacking = [
        n
        for n in degrees
        if (ready is None or other or n not in ready.degrees)
        and any(spans_as_tables(n, size, source.gpu) for size in sizes)
    ]
    if not lacking or not source.exists:
        return TableLookup(source, ready, other_version=other)
    if not installed():
        return TableLookup(source, ready, lacking=dict.fromkeys(lacking, ""), other_version=other)
    found = _fitted(request.model, model, source, lacking, all_to_all)
    fitted = {n: found.degrees[n] for n in lacking if n in found.degrees}
    if ready is not None and fitted:
        tables = dict.fromkeys((ready.provenance["tables"], found.provenance["tables"]))
        ready = TableCosts(
            {**ready.degrees, **fitted}, {**found.provenance, **ready.provenance, "tables": "; ".join(tables)}
        )
    elif fitted:
        ready = TableCosts(fitted, found.provenance)
    without = {n: found.left_out[n] for n in lacking if n not in fitted}
    return TableLookup(source, ready, tuple(fitted), without, other)


def silicon_notes(request: "Request", profile: CostProfile) -> list[str]:
    """Return which costs of a profile were fitted for this plan, and which tables are lacking and why."""
    sizes = [p.scale_up_gpus for p in request.capacity.pools if p.gpu_type == profile.gpu]
    model = dimensions_of(request.model)
    notes: list[str] = []
    for way in dict.fromkeys((request.engine.prefill.all_to_all, request.engine.decode.all_to_all)):
        found = look_up(request, model, profile.gpu, profile.degrees, node_sizes=sizes, all_to_all=way)
        notes += _notes(found, profile.gpu)
    return list(dict.fromkeys(notes))


def _notes(found: TableLookup, gpu: str) -> list[str]:
    source, notes = found.source, []
    if found.fitted and found.tables is not None:
        tables = found.tables.provenance["tables"]
        notes.append(
            f"costs of {gpu} at {_named(found.fitted)} were fitted for this plan ({tables}): no profiles of these are "
            "shipped"
        )
    if not found.lacking:
        return notes
    what = f"tables of {SYSTEMS[source.gpu]} with {source.engine}{f' {source.version}' if source.version else ''}"
    reason = next(iter(found.lacking.values()))
    if reason:
        notes.append(f"{PACKAGE} has no {what} at {_named(found.lacking)}: {_shortened(reason)}")
    else:
        notes.append(f"{PACKAGE}, which may have {what} at {_named(found.lacking)}, {INSTALL}")
    kept = [n for n in found.lacking if found.tables is not None and n in found.tables.degrees]
    if found.other_version and kept:
        notes.append(
            f"silicon.version: no profiles of {source.engine} {source.version} are shipped; costs of {gpu} at "
            f"{_named(kept)} are those of {found.other_version}"
        )
    return notes


def _named(degrees: Iterable[Degree]) -> str:
    names = [str(degree) for degree in degrees]
    return f"degree{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _shortened(reason: str) -> str:
    return reason if len(reason) <= REASON_LENGTH else f"{reason[: REASON_LENGTH - 1]}…"


def _source(request: "Request", gpu: str) -> TableSource:
    asked = request.silicon or Silicon()
    engine = asked.backend or request.engine.type
    of_gpu = gpu if asked.system is None else GPU_TYPES[asked.system]
    return TableSource(of_gpu, ENGINES.get(engine, engine), asked.version or "")


def _version(tables: TableCosts) -> str:
    """Return the backend's version that shipped profiles are of."""
    return tables.provenance["tables"].rpartition(" ")[2]


def _fitted(
    asked: Model, model: ModelDimensions, source: TableSource, degrees: Sequence[Degree], all_to_all: AllToAll
) -> "FittedTables":
    """Return what the package's tables give at these degrees and those asked for before."""
    # The first import gives numba the folder for its machine code.
    import weft_planner.simulation.compiled  # noqa: F401
    from weft_planner.profiling.knowledge import KnownHardware
    from weft_planner.profiling.silicon import SiliconError, tables_of
    from weft_planner.profiling.silicon_fit import FittedTables, fit_tables

    try:
        tables = tables_of(source.gpu, source.engine, source.version, all_to_all)
    except SiliconError as error:
        return FittedTables({}, {}, dict.fromkeys(degrees, str(error)))
    config = _config(asked, model)
    key = model, tables, json.dumps(config, sort_keys=True)
    before = _fitted_before.get(key, FittedTables({}, {}, {}))
    new = [n for n in degrees if n not in before.degrees and n not in before.left_out]
    if new:
        facts = KnownHardware(model, gpu_named(source.gpu))
        found = fit_tables(facts, tables, source.engine, new, config)
        before = FittedTables(
            {**before.degrees, **found.degrees},
            {**found.provenance, **before.provenance},
            {**before.left_out, **found.left_out},
        )
        _fitted_before[key] = before
    return before


def _config(asked: Model, model: ModelDimensions) -> Mapping[str, object] | None:
    """Return the request's config.json; None where the engine loads the weights at another precision than it says."""
    if asked.config is None:
        return None
    plain = dimensions_of_config(asked.name, asked.config)
    return asked.config if replace(plain, kv_dtype_bytes=model.kv_dtype_bytes) == model else None
