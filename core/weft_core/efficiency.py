"""How much of the data sheet an engine reaches, and what it adds: the named assumptions of the analytic cost model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

from weft_core.cost import CostProfileError
from weft_core.gpus import GB

_SECONDS = (0.0, 60.0, "seconds, from 0")
_RANGES = {
    "prefill_overhead_s": _SECONDS,
    "decode_overhead_s": _SECONDS,
    "all_reduce_latency_s": _SECONDS,
    "kv_latency_s": _SECONDS,
    "prefill_layer_s": _SECONDS,
    "decode_layer_s": _SECONDS,
    "expert_layer_s": _SECONDS,
    "sparse_layer_s": _SECONDS,
    "all_reduce_growth": (0.0, 10.0, "a growth with each doubling, from 0"),
    "all_reduce_crowding": (0.0, 100.0, "a growth with each GPU beyond two, from 0"),
    "reserve_bytes_per_gpu": (0.0, 1e12, "bytes, from 0"),
}
"""Least, most and unit of the factors that are not shares."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """How much of the data sheet an engine reaches, and what it adds: assumptions, to be replaced by measurements.

    The shares are of the dense peak, of memory bandwidth and of link bandwidth; times are seconds.

    * ``expert_compute``: share of the 16-bit peak that products with routed experts reach, whose rows are few.
    * ``prefill_layer_s``, ``decode_layer_s``: what a layer takes beside its work, as each kernel has to be started;
      ``expert_layer_s``: what the kernels of routed experts add to it, and ``sparse_layer_s`` those of sparse attention
      where there are new tokens of a prompt. The overheads are an engine's, once a pass.
    * ``all_reduce_latency_s`` is one all-reduce over 2 GPUs and grows by ``all_reduce_growth`` with each doubling.
    * ``all_reduce_crowding``: without a switch GPUs share the host's bridges, so an all-reduce's bytes take by this
      share longer with each GPU beyond two.
    """

    compute: float = 0.6
    expert_compute: float = 0.5
    attention: float = 0.4
    memory: float = 0.75
    all_reduce_link: float = 0.75
    kv_link: float = 0.7
    prefill_overhead_s: float = 0.015
    decode_overhead_s: float = 0.006
    prefill_layer_s: float = 0.0
    decode_layer_s: float = 0.0
    expert_layer_s: float = 0.0
    sparse_layer_s: float = 0.0
    all_reduce_latency_s: float = 15e-6
    all_reduce_growth: float = 0.25
    all_reduce_crowding: float = 0.0
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

_KERNELS = replace(DEFAULTS, prefill_overhead_s=2e-3, decode_overhead_s=1e-3)
"""Where what kernels take at least is fitted, the overheads are what an engine adds to them: assumptions."""

_A100 = replace(
    _KERNELS,
    compute=0.721, expert_compute=0.66, attention=0.619, memory=0.755, all_reduce_link=0.323, prefill_layer_s=70.1e-6,
    decode_layer_s=66.8e-6, expert_layer_s=9.81e-6, sparse_layer_s=1e-3, all_reduce_latency_s=4.92e-6,
    all_reduce_growth=0.293,
)  # fmt: skip
FITTED: Mapping[str, Efficiency] = MappingProxyType(
    {
        "nvidia-a100-40": _A100,
        "nvidia-a100-80": _A100,
        "nvidia-h100": replace(
            _KERNELS,
            compute=0.668, expert_compute=0.63, attention=0.66, memory=0.871, all_reduce_link=0.493,
            prefill_layer_s=58.9e-6, decode_layer_s=42.7e-6, expert_layer_s=19.6e-6, sparse_layer_s=1e-3,
            all_reduce_latency_s=4.24e-6, all_reduce_growth=0.325,
        ),
        "nvidia-h200": replace(
            _KERNELS,
            compute=0.691, expert_compute=0.586, attention=0.62, memory=0.85, all_reduce_link=0.523,
            prefill_layer_s=55.6e-6, decode_layer_s=42.9e-6, expert_layer_s=26.5e-6, sparse_layer_s=1.21e-3,
            all_reduce_latency_s=4.46e-6, all_reduce_growth=0.369,
        ),
        "nvidia-b200": replace(
            _KERNELS,
            compute=0.602, expert_compute=0.339, attention=0.545, memory=0.808, all_reduce_link=0.373,
            prefill_layer_s=56.6e-6, decode_layer_s=39.2e-6, expert_layer_s=19.7e-6, sparse_layer_s=0.997e-3,
            all_reduce_latency_s=6.11e-6, all_reduce_growth=0.38,
        ),
        "nvidia-gb200": replace(
            _KERNELS,
            compute=0.543, expert_compute=0.308, attention=0.529, memory=0.846, all_reduce_link=0.379,
            prefill_layer_s=55e-6, decode_layer_s=40.3e-6, expert_layer_s=18.9e-6, sparse_layer_s=1.49e-3,
            all_reduce_latency_s=5.26e-6, all_reduce_growth=0.282,
        ),
        "nvidia-b300": replace(
            _KERNELS,
            compute=0.651, expert_compute=0.375, attention=0.655, memory=0.85, all_reduce_link=0.384,
            prefill_layer_s=55.4e-6, decode_layer_s=39.6e-6, expert_layer_s=19.4e-6, sparse_layer_s=0.896e-3,
            all_reduce_latency_s=5.65e-6, all_reduce_growth=0.433,
        ),
        "nvidia-gb300": replace(
            _KERNELS,
            compute=0.647, expert_compute=0.362, attention=0.667, memory=0.844, all_reduce_link=0.425,
            prefill_layer_s=54.6e-6, decode_layer_s=39.9e-6, expert_layer_s=22.4e-6, sparse_layer_s=1.46e-3,
            all_reduce_latency_s=5.2e-6, all_reduce_growth=0.863,
        ),
        "nvidia-l40s": replace(
            _KERNELS,
            compute=0.513, expert_compute=0.536, attention=0.526, memory=0.83, all_reduce_link=0.472,
            prefill_layer_s=44.8e-6, decode_layer_s=22.6e-6, expert_layer_s=10.1e-6, sparse_layer_s=1e-3,
            all_reduce_latency_s=5.14e-6, all_reduce_growth=0.679, all_reduce_crowding=1.31,
        ),
        "nvidia-rtx-pro-6000": replace(
            _KERNELS,
            compute=0.679, expert_compute=0.694, attention=0.593, memory=0.949, all_reduce_link=0.439,
            prefill_layer_s=53.8e-6, decode_layer_s=19.2e-6, expert_layer_s=5.9e-6, sparse_layer_s=1e-3,
            all_reduce_latency_s=9.79e-6, all_reduce_growth=1.11, all_reduce_crowding=0.0698,
        ),
    }
)  # fmt: skip
"""Fitted to passes made of the operator times that NVIDIA measured with the kernels of vLLM, SGLang and TensorRT-LLM:
one set for all models and engines (``make silicon-calibration``).

The tables of A100, H100, L40S and RTX PRO 6000 have no model with sparse attention: 1 ms a layer is near what
the others have.
"""

_SLICE = "-mig-"


def efficiency_for(gpu: str) -> Efficiency:
    """Return the factors of a GPU type: fitted ones, those of its GPU for a MIG slice, else the assumptions."""
    return FITTED.get(gpu.split(_SLICE)[0], DEFAULTS)
