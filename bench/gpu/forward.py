"""Time whole passes of a model with random weights: what a profile composed of operators has to predict."""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any

from bench.gpu.card import card_state, software
from bench.gpu.comparison import PASSES
from bench.gpu.llama import Batch, Llama, batch_of, random_weights
from bench.gpu.operators import named
from bench.gpu.record import Budget, Record, say, spread
from bench.gpu.setting import Setting, tokens_of

from weft_core.memory import kv_layout
from weft_planner.profiling.cuda_graphs import GpuTiming, GraphClock, ReplayLimits
from weft_planner.profiling.fused import kernels

_RESERVE_BYTES = 8 * 2**30
"""For the activations of the longest prefill, twice (the warm-up's and the graph's), and the libraries' workspaces."""
_LIMITS = ReplayLimits(warm_up_s=0.1, counted=20, budget_s=0.35, fewest=3)


def run(setting: Setting, out: Path, *, seconds: float) -> bool:
    """Time every shape while there is time, and write each; tell whether any was timed."""
    import torch

    budget = Budget(seconds)
    device = torch.device(setting.device, 0) if setting.device == "cuda" else torch.device(setting.device)
    with torch.inference_mode():
        fused, note = kernels(torch, device, setting.dtype)
        say(f"forward: small operators by {note} after {budget.spent:.0f} s")
        model = _model(torch, setting, device, fused)
        say(f"forward: {setting.model.name} with {model.kv_tokens} tokens of KV after {budget.spent:.0f} s")
        record = Record(
            out / PASSES,
            {
                "step": "forward", "model": setting.model.name, "gpu": setting.gpu, "card": card_state(),
                "software": software(torch), "fused": note, "kvTokens": model.kv_tokens,
            },
        )  # fmt: skip
        clock = GraphClock(torch, device, _LIMITS) if device.type == "cuda" else None
        rows: list[dict[str, Any]] = []
        failed: list[dict[str, Any]] = []
        record.body |= {"rows": rows, "failed": failed}
        wanted = spread(setting.predicted)
        for number, cell in enumerate(wanted, 1):
            if budget.over or tokens_of(cell) > model.kv_tokens:
                failed.append(named(cell) | {"error": "no time left" if budget.over else "KV cache too small"})
                continue
            try:
                batch = batch_of(torch, cell, vocab=setting.model.vocab, device=device)
                timing = _timed(torch, clock, model, batch)
            except RuntimeError as error:
                failed.append(named(cell) | {"error": str(error)[:300]})
                say(f"forward: {cell}: {str(error)[:200]}")
                if not _usable(torch, device):
                    break
            else:
                rows.append(named(cell) | _told(timing))
                say(f"forward {number}/{len(wanted)}, {budget.spent:.0f} s: {cell}: {timing.seconds * 1e3:.3f} ms")
            record.save()
        record.body |= {"cardAfter": card_state(), "wallSeconds": round(budget.spent, 1)}
        record.save()
    return bool(rows)


def _model(torch: Any, setting: Setting, device: Any, fused: Any) -> Llama:
    weights = random_weights(torch, setting.model, device=device, dtype=getattr(torch, setting.dtype))
    tokens = setting.kv_tokens
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(device)
        tokens = min(tokens, (free - _RESERVE_BYTES) // kv_layout(setting.model).per_token)
    return Llama(torch, setting.model, weights, fused, kv_tokens=tokens)


def _timed(torch: Any, clock: GraphClock | None, model: Llama, batch: Batch) -> GpuTiming:
    if clock is None:
        return cpu_timing(lambda: model.forward(batch))
    try:
        return clock.timing(lambda: model.forward(batch))
    finally:
        torch.cuda.empty_cache()


def cpu_timing(run_once: Callable[[], object], *, runs: int = 5) -> GpuTiming:
    """Return one thread's CPU time of a pass, for a trial."""
    run_once()
    times = []
    for _ in range(runs):
        began = thread_time()
        run_once()
        times.append(thread_time() - began)
    return GpuTiming(median(times), graph=False, runs=runs)


def _usable(torch: Any, device: Any) -> bool:
    """Tell whether the GPU still computes: after an illegal access nothing does."""
    if device.type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        say(f"forward: the GPU gives up: {str(error)[:200]}")
        return False
    return True


def _told(timing: GpuTiming) -> dict[str, Any]:
    told: dict[str, Any] = {"seconds": float(f"{timing.seconds:.6g}"), "graph": timing.graph, "runs": timing.runs}
    told |= {"clockMHz": timing.clock_mhz} if timing.clock_mhz else {}
    return told | ({"error": timing.error} if timing.error else {})
