"""Put a spec into the planner's words: seconds and tokens, no Kubernetes."""

from collections.abc import Mapping
from typing import Any

from weft_core.durations import parse_duration
from weft_core.plan import content_hash
from weft_operator.api.capacity import Pool
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.api.serving import Bounds

Request = dict[str, Any]

HASH_DIGITS = 16


def planner_request(spec: DisaggInferenceServiceSpec, *, profile: Mapping[str, Any] | None) -> Request:
    """Return the request for a spec; ``profile`` is the referenced one, None for an analytic one."""
    load = spec.workload
    analytic = None
    if profile is None and spec.profile.analytic is not None:
        given = spec.profile.analytic.model_dump(mode="json", by_alias=True, exclude_none=True)
        analytic = {"memoryFraction": spec.engine.memory_fraction, **given}
    return {
        "model": {
            "name": spec.model.name,
            "maxModelLen": spec.model.max_model_len,
            "dtype": spec.model.dtype,
            "kvCacheDtype": "fp8" if spec.model.kv_cache_dtype.startswith("fp8") else spec.model.kv_cache_dtype,
        },
        "engine": {"bidirectional": spec.engine.kv_transfer.bidirectional},
        "slo": {
            "ttft": parse_duration(spec.slo.ttft),
            "itl": parse_duration(spec.slo.itl),
            "percentile": spec.slo.percentile,
            "attainment": spec.slo.attainment,
        },
        "workload": {
            "arrivalRate": load.arrival_rate,
            "rounds": load.rounds.mean,
            "firstPrompt": load.first_prompt.mean,
            "increment": load.increment.mean,
            "decode": load.decode.mean,
            "gap": parse_duration(load.gap.mean),
        },
        "capacity": {"gpus": spec.capacity.gpus, "pools": [_pool(pool) for pool in spec.capacity.pools]},
        "profile": profile,
        "analytic": analytic,
        "bounds": {"prefill": _bounds(spec.planning.prefill), "decode": _bounds(spec.planning.decode)},
        "objective": spec.planning.objective,
        "seed": spec.planning.seed,
    }


def request_hash(request: Request) -> str:
    """Return the hash of a request: the plan is made anew only when it changes."""
    return content_hash(request, HASH_DIGITS)


def _pool(pool: Pool) -> Request:
    row: Request = {
        "name": pool.name,
        "gpuType": pool.gpu_type,
        "gpusPerNode": pool.gpus_per_node,
        "degrees": sorted(pool.degrees),
        "roles": sorted(pool.roles),
    }
    if pool.gpus is not None:
        row["gpus"] = pool.gpus
    return row


def _bounds(bounds: Bounds) -> Request:
    return {"min": bounds.min} if bounds.max is None else {"min": bounds.min, "max": bounds.max}
