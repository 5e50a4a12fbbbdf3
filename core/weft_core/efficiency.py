"""How much of the data sheet an engine reaches, and what it adds: the named assumptions of the analytic cost model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

from weft_core.cost import CostProfileError
from weft_core.gpus import GB

_SECONDS = (0.0, 60.0, "seconds, from 0")
_RANGES = {
    "prefill_overhead_s": _SECONDS,
    "decode_overhead_s": _SECONDS,
    "all_reduce_latency_s": _SECONDS,
    "kv_latency_s": _SECONDS,
    "all_reduce_growth": (0.0, 10.0, "a growth with each doubling, from 0"),
    "reserve_bytes_per_gpu": (0.0, 1e12, "bytes, from 0"),
}
"""Least, most and unit of the factors that are not shares."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """How much of the data sheet an engine reaches, and what it adds: assumptions, to be replaced by measurements.

    The shares are of the dense peak, of memory bandwidth and of link bandwidth; times are seconds.
    ``all_reduce_latency_s`` is one all-reduce over 2 GPUs and grows by ``all_reduce_growth`` with each doubling.
    """

    compute: float = 0.6
    attention: float = 0.4
    memory: float = 0.75
    all_reduce_link: float = 0.75
    kv_link: float = 0.7
    prefill_overhead_s: float = 0.015
    decode_overhead_s: float = 0.006
    all_reduce_latency_s: float = 15e-6
    all_reduce_growth: float = 0.25
    kv_latency_s: float = 0.005
    memory_fraction: float = 0.9
    reserve_bytes_per_gpu: int = 2 * GB

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            CostProfileError: a share is not above 0 and up to 1, or a time, growth or size is out of its range.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            least, most, unit = _RANGES.get(field.name, (0.0, 1.0, "a share above 0"))
            if not (math.isfinite(value) and least <= value <= most) or (field.name not in _RANGES and value == 0):
                raise CostProfileError(f"analytic.{field.name}: {value!r} is not {unit} and up to {most:g}")


DEFAULTS = Efficiency()
"""Assumptions for a GPU that nobody measured."""

_A100 = Efficiency(
    compute=0.78, attention=0.505, memory=0.682, all_reduce_link=0.289, prefill_overhead_s=3.57e-3,
    decode_overhead_s=2.19e-3, all_reduce_latency_s=8.51e-6, all_reduce_growth=0.368,
)  # fmt: skip
FITTED: Mapping[str, Efficiency] = MappingProxyType(
    {
        "nvidia-a100-40": _A100,
        "nvidia-a100-80": _A100,
        "nvidia-h100": Efficiency(
            compute=0.709, attention=0.505, memory=0.76, all_reduce_link=0.418, prefill_overhead_s=2.97e-3,
            decode_overhead_s=1.55e-3, all_reduce_latency_s=1.09e-5, all_reduce_growth=0.323,
        ),
        "nvidia-h200": Efficiency(
            compute=0.73, attention=0.505, memory=0.707, all_reduce_link=0.457, prefill_overhead_s=3.02e-3,
            decode_overhead_s=1.59e-3, all_reduce_latency_s=1.17e-5, all_reduce_growth=0.297,
        ),
        "nvidia-b200": Efficiency(
            compute=0.618, attention=0.4, memory=0.662, all_reduce_link=0.31, prefill_overhead_s=3.24e-3,
            decode_overhead_s=1.49e-3, all_reduce_latency_s=1.48e-5, all_reduce_growth=0.285,
        ),
        "nvidia-gb200": Efficiency(
            compute=0.508, attention=0.391, memory=0.682, all_reduce_link=0.291, prefill_overhead_s=3.15e-3,
            decode_overhead_s=1.64e-3, all_reduce_latency_s=9.64e-6, all_reduce_growth=0.292,
        ),
        "nvidia-b300": Efficiency(
            compute=0.705, attention=0.481, memory=0.702, all_reduce_link=0.341, prefill_overhead_s=3.78e-3,
            decode_overhead_s=1.63e-3, all_reduce_latency_s=1.44e-5, all_reduce_growth=0.285,
        ),
        "nvidia-gb300": Efficiency(
            compute=0.696, attention=0.556, memory=0.682, all_reduce_link=0.291, prefill_overhead_s=3.81e-3,
            decode_overhead_s=1.8e-3, all_reduce_latency_s=1.2e-5, all_reduce_growth=0.312,
        ),
        "nvidia-l40s": Efficiency(
            compute=0.523, attention=0.776, memory=0.861, all_reduce_link=0.101, prefill_overhead_s=2.32e-3,
            decode_overhead_s=0.997e-3, all_reduce_latency_s=1.02e-5, all_reduce_growth=1.09,
        ),
        "nvidia-rtx-pro-6000": Efficiency(
            compute=0.722, attention=0.601, memory=0.92, all_reduce_link=0.336, prefill_overhead_s=3.52e-3,
            decode_overhead_s=1.21e-3, all_reduce_latency_s=1.16e-5, all_reduce_growth=1.12,
        ),
    }
)  # fmt: skip
"""Fitted to passes made of the operator times that NVIDIA measured with vLLM's kernels (``make silicon-calibration``).

B300, GB300 and RTX PRO 6000 by four models only: Llama-3.1-8B and 70B, Qwen3-32B, gpt-oss-120b (``MODELS='…'``).

The overheads contain those of the engine that were assumed for these passes: 2 ms a prefill, 1 ms a step.
"""

_SLICE = "-mig-"


def efficiency_for(gpu: str) -> Efficiency:
    """Return the factors of a GPU type: fitted ones, those of its GPU for a MIG slice, else the assumptions."""
    return FITTED.get(gpu.split(_SLICE)[0], DEFAULTS)
