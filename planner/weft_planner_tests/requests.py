"""Planning requests that tests share."""

import copy
from typing import Any

from weft_planner.request.reading import Request, request_of
from weft_planner.workload.traffic import Workload

LLAMA = "meta-llama/Llama-3.1-70B-Instruct"

# DuReader of AMPD's Table 1 (lengths are per session: 3 rounds share 3,081 prompt and 150 answer tokens) on 16 H20.
DUREADER: dict[str, Any] = {
    "model": {"name": LLAMA, "maxModelLen": 32768},
    "slo": {"ttft": 5.0, "itl": 0.05, "percentile": 95, "attainment": 0.9},
    "workload": {"arrivalRate": 0.8, "rounds": 3, "firstPrompt": 1027, "increment": 1027, "decode": 50, "gap": 0.3},
    "capacity": {
        "gpus": 16,
        "pools": [
            {
                "name": "h20",
                "gpuType": "nvidia-h20",
                "gpusPerNode": 8,
                "degrees": [1, 2, 4, 8],
                "roles": ["prefill", "decode"],
            }
        ],
    },
    "profile": None,
    "analytic": None,
    "objective": "latency",
    "seed": 0,
}


def body(**changes: Any) -> dict[str, Any]:
    """Return the DuReader request with dotted paths set: ``body(**{"capacity.gpus": 8})``; None removes the key.

    Its plans are disaggregated unless other layouts are named.
    """
    result = copy.deepcopy(DUREADER)
    for path, value in changes.items():
        target: Any = result
        *parents, last = path.split(".")
        for key in parents:
            target = target[int(key)] if isinstance(target, list) else target.setdefault(key, {})
        target[int(last) if isinstance(target, list) else last] = value
    result["engine"] = {"layouts": ["disaggregated"], **(result.get("engine") or {})}
    return result


def request(**changes: Any) -> Request:
    """Return the DuReader request with changes."""
    return request_of(body(**changes))


def workload(**changes: float) -> Workload:
    """Return a workload: 4 rounds of 1,000 and 300 prompt tokens, 60 answer tokens, gaps of 2 s, 1 session a second."""
    means = {"arrival_rate": 1.0, "rounds": 4.0, "first_prompt": 1000.0, "increment": 300.0, "decode": 60.0, "gap": 2.0}
    return Workload.model_validate({**means, **changes})
