"""Fit the analytic profile's efficiencies to the tables, GPU type by GPU type, and say how well they predict others.

``make silicon-calibration`` prints what ``weft_core.efficiency`` has. The errors are of models that were left out of
the fit, one at a time.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
from bench.silicon.tables import Floats, Passes, passes

from weft_core.analytic import derive_profile
from weft_core.efficiency import DEFAULTS, Efficiency
from weft_core.gpus import GPUS
from weft_planner.silicon.systems import SYSTEMS

SHARES = ("compute", "attention", "memory", "all_reduce_link")
FITTED = (*SHARES, "prefill_overhead_s", "decode_overhead_s", "all_reduce_latency_s", "all_reduce_growth")
LIMIT = 0.3
"""Errors above this count linearly (Huber)."""
STEPS = (0.3, 0.1, 0.03)
ENGINE = "vllm"


def errors(efficiency: Efficiency, of: Sequence[Passes]) -> Floats:
    """Return predicted over measured, as logarithms, of all passes."""
    found = []
    by_model: dict[str, list[Passes]] = {}
    for one in of:
        by_model.setdefault(one.model.name, []).append(one)
    for some in by_model.values():
        degrees = [one.degree for one in some]
        model, gpu = some[0].model, GPUS[some[0].gpu]
        costs = derive_profile(model, gpu, degrees=degrees, efficiency=efficiency).degrees
        found += [np.log(one.predicted(costs[one.degree]) / one.seconds) for one in some]
    return np.concatenate(found)


def loss(efficiency: Efficiency, of: Sequence[Passes]) -> float:
    """Return Huber's loss of the errors."""
    size = np.abs(errors(efficiency, of))
    return float(np.where(size <= LIMIT, size**2 / 2, LIMIT * (size - LIMIT / 2)).mean())


def fitted(of: Sequence[Passes], start: Efficiency, steps: Sequence[float] = STEPS) -> Efficiency:
    """Return the efficiencies with the least loss near a start, changing one at a time in ever smaller steps."""
    best, least = start, loss(start, of)
    for step in steps:
        for _ in range(20):
            before = least
            for name in FITTED:
                for factor in (1 + step, 1 / (1 + step)):
                    value = getattr(best, name) * factor
                    if name in SHARES and value > 1:
                        continue
                    tried = replace(best, **{name: value})
                    if (found := loss(tried, of)) < least:
                        best, least = tried, found
            if least > 0.995 * before:
                break
    return best


def words(found: Floats) -> str:
    """Return the median and the 95th percentile of absolute relative errors."""
    size = np.abs(np.exp(found) - 1)
    return f"median {np.median(size):.1%}, P95 {np.quantile(size, 0.95):.1%}"


def main(gpus: Sequence[str]) -> None:
    """Print the fitted efficiencies of the named GPU types, of all without names; by the models in MODELS, if any."""
    only = os.environ.get("MODELS", "").split()
    for gpu in gpus or SYSTEMS:
        of = list(passes(gpu, ENGINE, only))
        names = sorted({one.model.name for one in of})
        best = fitted(of, DEFAULTS)
        out = []
        for name in names:
            others = [one for one in of if one.model.name != name]
            out.append(errors(fitted(others, best, STEPS[-1:]), [one for one in of if one.model.name == name]))
        print(f"{gpu}: {len(names)} models, {sum(len(one.cells) for one in of)} passes")
        print(f"  defaults {words(errors(DEFAULTS, of))}; fitted {words(errors(best, of))}")
        print(f"  models left out: {words(np.concatenate(out))}", flush=True)
        for name, error in zip(names, out, strict=True):
            print(f"    {name}: {words(error)}")
        own = {field.name: getattr(best, field.name) for field in fields(best) if field.name in FITTED}
        print("  " + ", ".join(f"{name}={value:.3g}" for name, value in own.items()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
