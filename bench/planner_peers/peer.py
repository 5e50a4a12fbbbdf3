"""Ask aiconfigurator for its best configurations, and what it says of any other.

All of it is the package's own: the search over strategies, batch sizes and replicas, the ratio of prefill to decode
workers, and the rate of a configuration (its ``Task``, ``run_single_disagg`` and ``pick_default``).
"""

import logging
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from bench.planner_peers.cells import ENGINE, MODEL_NAMES, Cell, Slo, Traffic

from weft_core.parallelism import Degree, degree_of, gpus_of, parallelism_of
from weft_core.plan import LayoutKind, PlannedGroup
from weft_planner.profiling.silicon import precision_of_kv
from weft_planner.silicon.systems import SYSTEMS

POOL = "gpu"
MODES = {"disaggregated": "disagg", "colocated": "agg"}
QUEUEING = 1.8
"""By this factor its search multiplies the TTFT of a prefill worker that is not idle."""
MEMORY_FRACTION = 0.9
"""Of a GPU's memory that vLLM may use: what Weft sets."""
LARGEST_BATCH = 512
BATCHES = (*range(1, 16), *range(16, 32, 2), *range(32, 128, 4), *range(128, LARGEST_BATCH + 1, 8))
"""Sequences of a decode worker (of each of its ranks) that its search tries."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One answer: the workers on all GPUs, output tokens per second and GPU, and the seconds that it took."""

    kind: LayoutKind
    groups: tuple[PlannedGroup, ...]
    tokens_per_s_gpu: float
    seconds: float


class Unsupported(Exception):  # noqa: N818  an answer, not a fault
    """It has no configuration; the message is its own."""


def best(
    cell: Cell, slo: Slo, traffic: Traffic, kind: LayoutKind, *, sizes: Sequence[int] | None = None
) -> Configuration:
    """Return its best configuration of a kind; ``sizes`` are the GPUs that a worker may have, by default its own.

    Raises:
        Unsupported: it has none within the SLO, or lacks data.
    """
    from aiconfigurator.sdk.picking import pick_default

    began = time.perf_counter()
    mode = MODES[kind]
    roles = ("prefill", "decode") if mode == "disagg" else ("agg",)
    given: dict[str, Any] = {} if sizes is None else {f"{role}_num_gpu_candidates": list(sizes) for role in roles}
    if mode == "disagg":
        given["num_gpu_per_replica"] = _divisors(cell.gpus)
    rows = _run(_task(cell, slo, traffic, kind, **given))
    picked = pick_default(rows, cell.gpus, mode, target_tpot=slo.itl * 1e3, top_n=1, strict_sla=True)["best_config_df"]
    seconds = time.perf_counter() - began
    if picked is None or picked.empty:
        raise Unsupported("no configuration holds the SLO")
    row = picked.iloc[0].to_dict()
    copies = cell.gpus // int(row["num_total_gpus"])
    if mode == "agg":
        groups: tuple[PlannedGroup, ...] = (PlannedGroup("decode", _degree(row, ""), copies, POOL),)
    else:
        groups = (
            PlannedGroup("prefill", _degree(row, "(p)"), copies * int(row["(p)workers"]), POOL),
            PlannedGroup("decode", _degree(row, "(d)"), copies * int(row["(d)workers"]), POOL),
        )
    return Configuration(kind, groups, float(row["tokens/s/gpu_cluster"]), seconds)


def rate(cell: Cell, slo: Slo, traffic: Traffic, kind: LayoutKind, groups: Sequence[PlannedGroup]) -> float:
    """Return output tokens per second and GPU of a cell by its model, at the batch size that is best within the SLO.

    NaN: it misses the SLO at every batch size, does not fit, or its model has no such layout.
    """
    if kind == "colocated":
        (group,) = groups
        pinned = _only("agg", cell, group.degree)
        try:
            rows = _run(_task(cell, slo, traffic, kind, **pinned))
        except Unsupported:
            return math.nan
        of_worker = float(rows["tokens/s/gpu"].max()) * gpus_of(group.degree)
        return of_worker * group.replicas / cell.gpus
    if kind != "disaggregated" or len(groups) != 2:
        return math.nan
    prefill, decode = groups
    task = _task(cell, slo, traffic, kind)
    given = {**_single("prefill", cell, prefill), **_single("decode", cell, decode)}

    @cache
    def row(at: int) -> Mapping[str, float] | None:
        """Return its figures at a batch size; None where that misses the SLO or does not fit."""
        try:
            found: Mapping[str, float] = task.run_single_disagg(**given, decode_batch_size=BATCHES[at])
        except _ERRORS:
            return None
        late = found["ttft"] * QUEUEING >= slo.ttft * 1e3 or found["tpot"] >= slo.itl * 1e3
        return None if late else found

    low, high = -1, len(BATCHES)
    while high - low > 1:  # a larger batch takes longer steps and more memory
        middle = (low + high) // 2
        low, high = (middle, high) if row(middle) is not None else (low, middle)
    held = row(low) if low >= 0 else None
    return math.nan if held is None else float(held["tokens/s"]) / cell.gpus


def prices(cell: Cell, slo: Slo, traffic: Traffic, degree: Degree) -> bool:
    """Return whether its tables have what workers of a strategy compute, for both phases."""
    both = PlannedGroup("prefill", degree, 1, POOL), PlannedGroup("decode", degree, 1, POOL)
    given = {name: value for group in both for name, value in _single(group.role, cell, group).items()}
    try:
        _task(cell, slo, traffic, "disaggregated").run_single_disagg(**given, decode_batch_size=BATCHES[0])
    except _ERRORS:
        return False
    return True


_ERRORS = (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)
"""What the package raises where its tables lack something, or a configuration does not fit."""


@cache
def _predictor() -> Any:
    """Return its own predictor, which remembers a worker's figures: they are the same for every SLO."""
    from aiconfigurator.sdk.predictor import AnalyticPredictor

    class Remembering(AnalyticPredictor):  # type: ignore[misc]  # the package has no types
        def __init__(self) -> None:
            self._known: dict[Any, Any] = {}

        def predict_disagg_worker(self, **given: Any) -> Any:
            model, runtime = given["model"].config, given["runtime_config"]
            shape = (runtime.batch_size, runtime.isl, runtime.osl, runtime.prefix)
            parts = (model.tp_size, model.pp_size, model.attention_dp_size, model.moe_tp_size, model.moe_ep_size)
            key = (given["model"].model_path, given["database"].system, given["role"], shape, parts)
            if key not in self._known:
                self._known[key] = super().predict_disagg_worker(**given)
            return self._known[key]

    return Remembering()


def _run(task: Any) -> Any:
    from aiconfigurator.sdk.errors import NoFeasibleConfigError

    try:
        rows = task.run()
    except (*_ERRORS, NoFeasibleConfigError) as error:
        raise Unsupported(str(error)) from error
    if rows is None or rows.empty:
        raise Unsupported("no configuration holds the SLO")
    return rows


def _task(cell: Cell, slo: Slo, traffic: Traffic, kind: LayoutKind, **given: Any) -> Any:
    """Return its task: the search of its command line's default mode, with the precision of KV that Weft takes."""
    from aiconfigurator.sdk import common
    from aiconfigurator.sdk.task_v2 import Task

    logging.getLogger("aiconfigurator").setLevel(logging.CRITICAL)
    logging.getLogger("aiconfigurator_core").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="aiconfigurator")
    precision = {
        name: {"kvcache_quant_mode": common.KVCacheQuantMode, "fmha_quant_mode": common.FMHAQuantMode}[name][value]
        for name, value in precision_of_kv(cell.dimensions).items()
    }
    isl, osl, prefix = traffic.lengths
    whole = {
        "isl": isl, "osl": osl, "prefix": prefix, "ttft": slo.ttft * 1e3, "tpot": slo.itl * 1e3,
        "total_gpus": cell.gpus, "serving_mode": MODES[kind], "pareto_sweep": False,
        "free_gpu_memory_fraction": MEMORY_FRACTION,
    }  # fmt: skip
    own = {
        "model_path": MODEL_NAMES[cell.model], "system_name": SYSTEMS[cell.gpu], "backend_name": ENGINE, **precision,
    }  # fmt: skip
    roles = ("",) if kind == "colocated" else ("prefill_", "decode_")
    try:
        return Task(
            predictor=_predictor(),
            **whole,
            **{role + name: value for role in roles for name, value in own.items()},
            **given,
        )
    except _ERRORS as error:
        raise Unsupported(str(error)) from error


def _divisors(gpus: int) -> list[int]:
    """Return sizes of a replica that leave no GPU idle."""
    return [size for size in range(1, gpus + 1) if gpus % size == 0]


def _degree(row: Mapping[str, Any], role: str) -> Degree:
    tp, pp, dp = (int(row[f"{role}{name}"]) for name in ("tp", "pp", "dp"))
    return degree_of(tp=tp, pp=pp, dp=dp, ep=int(row[f"{role}moe_ep"]) > 1)


def _sizes(cell: Cell, degree: Degree) -> dict[str, int]:
    parts = parallelism_of(degree)
    spread = parts.expert_gpus if cell.dimensions.experts > 1 else 1
    ep = spread if parts.ep else 1
    return {"tp": parts.tp, "pp": parts.pp, "dp": parts.dp, "moe_tp": spread // ep, "moe_ep": ep}


def _single(role: str, cell: Cell, group: PlannedGroup) -> dict[str, int]:
    sizes = {f"{role}_{name}": value for name, value in _sizes(cell, group.degree).items()}
    return {**sizes, f"{role}_num_workers": group.replicas}


def _only(role: str, cell: Cell, degree: Degree) -> dict[str, list[int]]:
    sizes = {f"{role}_{name}_candidates": [value] for name, value in _sizes(cell, degree).items()}
    return {**sizes, f"{role}_num_gpu_candidates": [gpus_of(degree)]}
