"""Fit the analytic profile's efficiencies to the tables, GPU type by GPU type, and say how well they predict others.

``make silicon-calibration`` prints what ``weft_core.efficiency`` has: one set for each GPU type, fitted to the passes
of all models and engines. The errors are of models that were left out of the fit, one at a time, with all engines.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from bench.silicon.tables import Floats, Passes, passes

from weft_core.analytic import derive_profile
from weft_core.efficiency import DEFAULTS, Efficiency
from weft_core.gpus import GPUS
from weft_planner.profiling.operators import ASSUMED_OVERHEADS
from weft_planner.silicon.systems import BACKENDS, SYSTEMS

SHARES = ("compute", "expert_compute", "attention", "memory", "all_reduce_link")
LATENCIES = (
    "prefill_layer_s", "decode_layer_s", "expert_layer_s", "sparse_layer_s",
    "all_reduce_latency_s", "all_reduce_growth",
)  # fmt: skip
CROWDING = "all_reduce_crowding"
"""Fitted where GPUs have no switch: their workers exchange KV over the link of tensor parallelism."""
START = replace(
    DEFAULTS,
    prefill_overhead_s=ASSUMED_OVERHEADS.prefill, decode_overhead_s=ASSUMED_OVERHEADS.step, prefill_layer_s=50e-6,
    decode_layer_s=40e-6, expert_layer_s=20e-6, sparse_layer_s=1e-3, all_reduce_latency_s=5e-6, all_reduce_crowding=0.5,
)  # fmt: skip
"""The overheads are those that the passes contain, and are not fitted."""
LIMIT = 0.3
"""Errors above this count linearly (Huber)."""
ROUNDS, ROUNDS_LEFT_OUT = 30, 2
PRIOR = 1e-4
"""What a factor's squared distance from its start counts, in logarithms: it decides where the passes hardly do."""
_NUDGE, _FARTHEST = 0.01, 1.0


def errors(efficiency: Efficiency, of: Sequence[Passes]) -> Floats:
    """Return predicted over measured, as logarithms, of all passes."""
    degrees: dict[str, set[int]] = {}
    for one in of:
        degrees.setdefault(one.model.name, set()).add(one.degree)
    models = {one.model.name: one.model for one in of}
    gpu = GPUS[of[0].gpu]
    costs = {
        name: derive_profile(models[name], gpu, degrees=sorted(some), efficiency=efficiency).degrees
        for name, some in degrees.items()
    }
    return np.concatenate([np.log(one.predicted(costs[one.model.name][one.degree]) / one.seconds) for one in of])


def loss(found: Floats) -> float:
    """Return Huber's loss of the errors."""
    size = np.abs(found)
    return float(np.where(size <= LIMIT, size**2 / 2, LIMIT * (size - LIMIT / 2)).mean())


def fitted(of: Sequence[Passes], start: Efficiency, rounds: int = ROUNDS) -> Efficiency:
    """Return the efficiencies with the least loss near a start: Gauss and Newton's steps in their logarithms."""
    switch = GPUS[of[0].gpu].scale_up != GPUS[of[0].gpu].kv_in_node
    names = (*SHARES, *LATENCIES, *(() if switch else (CROWDING,)))
    usual = np.log([getattr(START, name) for name in names])

    def values(efficiency: Efficiency) -> Floats:
        return np.log([getattr(efficiency, name) for name in names])

    def total(efficiency: Efficiency, found: Floats) -> float:
        return loss(found) + PRIOR * float(((values(efficiency) - usual) ** 2).sum()) / 2

    best = replace(start, all_reduce_crowding=0.0) if switch else start
    found = errors(best, of)
    least = total(best, found)
    for _ in range(rounds):
        slopes = np.column_stack(
            [(errors(_moved(best, {name: -_NUDGE}), of) - found) / -_NUDGE for name in names]
        )  # down, as no share may go above 1
        weights = np.minimum(1.0, LIMIT / np.maximum(np.abs(found), 1e-12)) / len(found)
        normal = slopes.T @ (weights[:, None] * slopes) + PRIOR * np.eye(len(names))
        slope = slopes.T @ (weights * found) + PRIOR * (values(best) - usual)
        step = np.clip(np.linalg.solve(normal, -slope), -_FARTHEST, _FARTHEST)
        before = least
        for part in (1.0, 0.5, 0.25, 0.1):
            tried = _moved(best, dict(zip(names, part * step, strict=True)))
            other = errors(tried, of)
            if (reached := total(tried, other)) < least:
                best, found, least = tried, other, reached
                break
        if least > 0.9995 * before:
            break
    return best


def _moved(efficiency: Efficiency, by: dict[str, float]) -> Efficiency:
    """Return efficiencies of which some are larger by a difference of logarithms; shares stay at most 1."""
    values: dict[str, Any] = {name: float(getattr(efficiency, name) * np.exp(step)) for name, step in by.items()}
    return replace(efficiency, **{name: min(1.0, value) if name in SHARES else value for name, value in values.items()})


def words(found: Sequence[Floats]) -> str:
    """Return the median and the 95th percentile of absolute relative errors."""
    size = np.abs(np.exp(np.concatenate(found)) - 1)
    return f"median {np.median(size):.1%}, P95 {np.quantile(size, 0.95):.1%}"


def main(gpus: Sequence[str]) -> None:
    """Print the fitted efficiencies of the named GPU types, of all without names; by the models in MODELS, if any."""
    only = os.environ.get("MODELS", "").split()
    for gpu in gpus or SYSTEMS:
        of = [one for engine in BACKENDS for one in passes(gpu, engine, only)]
        names = sorted({one.model.name for one in of})
        best = fitted(of, START)
        values = {name: getattr(best, name) for name in (*SHARES, *LATENCIES, CROWDING)}
        print(f"{gpu}: {len(names)} models, {sum(len(one.cells) for one in of)} passes")
        print("  " + ", ".join(f"{name}={value:.3g}" for name, value in values.items()))
        print(f"  defaults {words([errors(DEFAULTS, of)])}; fitted {words([errors(best, of)])}", flush=True)
        out: dict[tuple[str, str], Floats] = {}
        for name in names:
            others = fitted([one for one in of if one.model.name != name], best, ROUNDS_LEFT_OUT)
            for engine in BACKENDS:
                if some := [one for one in of if (one.model.name, one.engine) == (name, engine)]:
                    out[name, engine] = errors(others, some)
        print(f"  models left out: {words(list(out.values()))}")
        for engine in BACKENDS:
            if each := [error for (_, ran), error in out.items() if ran == engine]:
                print(f"    {engine}: {words(each)}")
        for (name, engine), error in out.items():
            print(f"    {name}, {engine}: {words([error])}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
