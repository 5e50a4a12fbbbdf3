"""Time single operators of a model, and fit a cost profile to passes composed of them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.gpu.card import card_state, software
from bench.gpu.record import Budget, Record, say, spread
from bench.gpu.setting import Setting

from weft_core.cost import CostProfile
from weft_core.gpus import gpu_named
from weft_core.parallelism import Degree
from weft_planner.profiling.cuda_graphs import GpuTiming
from weft_planner.profiling.knowledge import FitStrictness, KnownHardware, profile_from_measurements
from weft_planner.profiling.measurements import GridCell, MeasurementContext, MeasurementError, Measurements, Memory
from weft_planner.profiling.operators import (
    Operator,
    OperatorUnknownError,
    Overheads,
    compose,
    pass_of,
)
from weft_planner.profiling.torch_timer import Repetition, TorchTimer

NAME = "operators.json"
PROFILE = "operators-profile.json"
TRIAL = Repetition(warm_up=1, counted=5, budget_s=0.1)
NO_OVERHEADS = Overheads(0.0, 0.0)
"""Whole passes are timed on the GPU alone, so nothing of an engine is in them."""


@dataclass(frozen=True, slots=True)
class RecordedTimes:
    """A timer that knows the operators of a record."""

    times: Mapping[Operator, float]

    def seconds(self, operator: Operator) -> float:
        """Return the recorded time.

        Raises:
            OperatorUnknownError: it was not timed.
        """
        if operator not in self.times:
            raise OperatorUnknownError(f"{operator} was not timed")
        return self.times[operator]


def run(setting: Setting, out: Path, *, seconds: float) -> bool:
    """Time the operators of all passes while there is time, and write each; tell whether any was timed."""
    import torch

    budget = Budget(seconds)
    timer = TorchTimer(device=setting.device, dtype=setting.dtype, repetition=TRIAL)
    say(f"operators: {timer.name}, {timer.versions}, small operators by {timer.fused} after {budget.spent:.0f} s")
    times: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    record = Record(
        out / NAME,
        {
            "step": "operators", "model": setting.model.name, "gpu": setting.gpu, "card": card_state(),
            "software": software(torch), "fused": timer.fused, "times": times, "failed": failed,
        },
    )  # fmt: skip
    # Those of the grid first; the passes that are to be predicted tell what composing costs, apart from fitting.
    wanted = list(
        dict.fromkeys(
            operator
            for cell in (*spread(setting.fitted), *spread(setting.predicted))
            for operator in pass_of(setting.model, cell)
        )
    )
    for number, operator in enumerate(wanted, 1):
        if budget.over:
            failed.append(named(operator) | {"error": "no time left"})
            continue
        try:
            took = timer.seconds(operator)
        except (OperatorUnknownError, RuntimeError) as error:
            failed.append(named(operator) | {"error": str(error)[:300]})
            say(f"operators: {operator}: {str(error)[:200]}")
        else:
            times.append(named(operator) | {"us": float(f"{took * 1e6:.5g}")} | _told(timer.last))
            if number % 10 == 0:
                say(f"operators {number}/{len(wanted)}, {budget.spent:.0f} s: {operator.kind}: {took * 1e6:.1f} us")
        if number % 10 == 0:
            record.save()
    record.body |= {"cardAfter": card_state(), "wallSeconds": round(budget.spent, 1)}
    record.save()
    say(f"operators: {len(times)} timed, {len(failed)} not, {budget.spent:.0f} s")
    return bool(times)


def named(shape: Operator | GridCell) -> dict[str, Any]:
    """Return the fields of an operator or a pass that are not 0; a pass is on one GPU, so without its link."""
    return {name: value for name, value in asdict(shape).items() if name not in ("link", "way") and value}


def _told(last: GpuTiming | None) -> dict[str, Any]:
    """Return the clock of a GPU's timing, and that it was no graph's, where it was none."""
    if last is None:
        return {}
    return ({"clockMHz": last.clock_mhz} if last.clock_mhz else {}) | ({} if last.graph else {"graph": False})


def recorded(record: Mapping[str, Any]) -> RecordedTimes:
    """Return the times of a record."""
    fields = Operator.__dataclass_fields__
    return RecordedTimes(
        {
            Operator(**{name: value for name, value in row.items() if name in fields}): row["us"] / 1e6
            for row in record["times"]
        }
    )


def fitted(setting: Setting, record: Mapping[str, Any]) -> tuple[CostProfile, list[str]]:
    """Return the profile fitted to composed passes of the grid, and notes.

    Raises:
        MeasurementError: the operators do not suffice.
    """
    composed = compose(setting.model, setting.fitted, recorded(record), overheads=NO_OVERHEADS)
    notes = list(composed.left_out)
    facts = KnownHardware(setting.model, gpu_named(setting.gpu))
    memory: dict[Degree, Memory] = {} if facts.gpu else {1: Memory(0, setting.kv_tokens)}
    about = MeasurementContext(
        setting.model.name, setting.gpu, "operators", memory=memory, notes={"source": "operators", "overheads": "none"}
    )
    result = Measurements(about, composed.rows)
    strictness = FitStrictness(allow_missing=True, link_rate=0.0 if facts.gpu else 1e9)
    try:
        return profile_from_measurements(result, facts, strictness), notes
    except MeasurementError as error:
        notes += error.problems
    return profile_from_measurements(result, facts, replace(strictness, noise=10.0)), notes


def composed_seconds(setting: Setting, record: Mapping[str, Any], wanted: list[GridCell]) -> dict[GridCell, float]:
    """Return the sums of operators of passes, of those whose operators were all timed."""
    composed = compose(setting.model, wanted, recorded(record), overheads=NO_OVERHEADS)
    return {row.cell: row.seconds for row in composed.rows}
