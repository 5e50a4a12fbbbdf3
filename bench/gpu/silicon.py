"""Hold the operator times that NVIDIA measured (aiconfigurator-core's tables) against the same whole passes.

The tables are of vLLM's kernels: FlashAttention 3 on Hopper where torch has FlashAttention 2, so long attention is
faster there. The package needs Python 3.11 to 3.13: pip install aiconfigurator-core==0.12.0.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.gpu.comparison import PASSES, agreements, entry, points, table, truth
from bench.gpu.record import Record, read, say

from weft_planner.profiling.measurements import GridCell

NAME = "silicon.json"
MODEL = "meta-llama/Meta-Llama-3.1-8B"
SYSTEMS = {
    "nvidia-h100": "h100_sxm", "nvidia-h200": "h200_sxm", "nvidia-b200": "b200_sxm", "nvidia-gb200": "gb200",
}  # fmt: skip


def run(out: Path) -> bool | None:
    """Predict every prefill and decode step; None where that cannot be, else whether errors are met."""
    passes = read(out / PASSES)
    if passes is None:
        say(f"silicon: {out} has no {PASSES}; run that step first")
        return None
    if passes["gpu"] not in SYSTEMS:
        say(f"silicon: there are no tables of {passes['gpu']}")
        return None
    try:
        from aiconfigurator_core.sdk.engine import EngineHandle
    except ImportError:
        say("silicon: aiconfigurator-core is not installed: pip install aiconfigurator-core==0.12.0")
        return None
    from importlib.metadata import version

    system = SYSTEMS[passes["gpu"]]
    handle = EngineHandle.compile(MODEL, system, "vllm", tp_size=1)
    found = points(truth(passes), prediction(handle))
    record = Record(
        out / NAME,
        {
            "step": "silicon", "gpu": passes["gpu"], "system": system, "backend": "vllm",
            "package": f"aiconfigurator-core {version('aiconfigurator-core')}", **entry("silicon", found),
        },
    )  # fmt: skip
    record.save()
    say(table("silicon", found))
    return all(row.met for row in agreements(found)) and bool(found)


def prediction(handle: Any) -> Callable[[GridCell], float | None]:
    """Return what predicts a pass's seconds from tables; they have no steps in which a chunk has its own history."""

    def seconds(cell: GridCell) -> float | None:
        if cell.function == "prefill":
            ms = handle.predict_prefill_latency(1, cell.history + cell.increment, cell.history)
        elif cell.chunk:
            return None
        else:
            # One step after a prompt: its sequences hold the prompt and one new token.
            ms = handle.predict_decode_latency(cell.batch, cell.context // cell.batch - 1, 2)
        return float(ms) / 1e3

    return seconds
