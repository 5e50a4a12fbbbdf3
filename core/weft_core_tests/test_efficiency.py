import math
from dataclasses import replace

import pytest

from weft_core.cost import CostProfileError
from weft_core.efficiency import DEFAULTS


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("compute", 0, r"analytic\.compute: 0 is not a share above 0 and up to 1"),
        ("memory", 1.01, r"analytic\.memory: 1\.01 is not a share"),
        ("kv_link", math.nan, r"analytic\.kv_link: nan"),
        ("prefill_overhead_s", -0.1, r"analytic\.prefill_overhead_s: -0\.1 is not seconds, from 0 and up to 60"),
        ("decode_overhead_s", 6000, "up to 60"),
        ("all_reduce_growth", 11, "up to 10"),
        ("reserve_bytes_per_gpu", -1, r"analytic\.reserve_bytes_per_gpu: -1 is not bytes"),
    ],
)
def test_a_factor_out_of_its_range_is_refused_by_name(field: str, value: float, named: str) -> None:
    with pytest.raises(CostProfileError, match=named):
        replace(DEFAULTS, **{field: value})  # type: ignore[arg-type]


def test_the_ends_of_the_ranges_are_allowed() -> None:
    assert replace(DEFAULTS, compute=1, kv_latency_s=0, all_reduce_growth=0, reserve_bytes_per_gpu=0).compute == 1
