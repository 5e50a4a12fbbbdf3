"""How much of the data sheet an engine reaches, and what it adds: the named assumptions of the analytic cost model."""

import math
from dataclasses import dataclass, fields

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
