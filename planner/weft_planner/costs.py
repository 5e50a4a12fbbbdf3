"""Get the cost profile that a plan is made with: the one given, or one derived from model and GPU."""

import difflib
from collections.abc import Iterable
from dataclasses import replace

from weft_core.analytic import Efficiency, ModelDoesNotFit, derive_profile, smallest_degree
from weft_core.cost import CostProfile, CostProfileError
from weft_core.gpus import GPUS
from weft_core.models import MODELS, ModelDimensions
from weft_core.profile_json import profile_from_json
from weft_planner.infeasible import Infeasible
from weft_planner.request_parts import Analytic, Model
from weft_planner.workload import Request

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}


def profile_of(request: Request) -> CostProfile:
    """Return the request's own profile, or one derived analytically for its model and GPU type.

    Raises:
        Infeasible: the profile cannot be used, the model or GPU is unknown, or the model fits nowhere.
    """
    gpu_types = sorted({pool.gpu_type for pool in request.capacity.pools})
    if len(gpu_types) > 1:
        raise Infeasible(
            "MixedGpuTypes",
            f"capacity.pools name {len(gpu_types)} GPU types ({', '.join(gpu_types)}); one plan uses one type: "
            "keep the pools of one of them",
        )
    return _given(request, gpu_types[0]) if request.profile is not None else _derived(request, gpu_types[0])


def _given(request: Request, gpu_type: str) -> CostProfile:
    try:
        profile = profile_from_json(request.profile or {})
    except CostProfileError as error:
        raise Infeasible("ProfileInvalid", f"profile.{error}") from error
    if profile.gpu != gpu_type:
        raise Infeasible(
            "ProfileInvalid",
            f"profile.gpu: it was measured on {profile.gpu}, the pools have {gpu_type}; use a profile of {gpu_type}",
        )
    if profile.model != request.model.name:
        raise Infeasible(
            "ProfileInvalid",
            f"profile.model: it is of {profile.model}, the service runs {request.model.name}; use a profile of that",
        )
    return profile


def _derived(request: Request, gpu_type: str) -> CostProfile:
    gpu = GPUS.get(gpu_type)
    if gpu is None:
        raise Infeasible("UnknownGpu", _unknown("capacity.pools.gpuType", gpu_type, GPUS))
    model = dimensions_of(request.model)
    degrees = sorted({n for pool in request.capacity.pools for n in pool.degrees if n <= pool.gpus_per_node})
    efficiency = efficiency_of(request.analytic)
    try:
        return derive_profile(model, gpu, degrees=degrees, efficiency=efficiency)
    except ModelDoesNotFit as error:
        raise Infeasible("ModelDoesNotFit", f"{error}{_other_gpus(model, degrees, efficiency)}") from error


def dimensions_of(model: Model) -> ModelDimensions:
    """Return a model's dimensions at the requested precision; 8-bit weights keep 16-bit KV unless told otherwise.

    Raises:
        Infeasible: the model is not in the catalogue.
    """
    known = MODELS.get(model.name)
    if known is None:
        raise Infeasible("UnknownModel", _unknown("model.name", model.name, MODELS))
    weights = known.dtype_bytes if model.dtype == "auto" else BYTES[model.dtype]
    kv = known.kv_dtype_bytes if model.kv_cache_dtype == "auto" else BYTES[model.kv_cache_dtype]
    return replace(known, dtype_bytes=weights, kv_dtype_bytes=kv)


def efficiency_of(overrides: Analytic | None) -> Efficiency:
    """Return the analytic model's efficiency factors with the request's own in place."""
    if overrides is None:
        return Efficiency()
    renamed = {
        "prefill_overhead": "prefill_overhead_s",
        "decode_overhead": "decode_overhead_s",
        "all_reduce_latency": "all_reduce_latency_s",
        "kv_latency": "kv_latency_s",
    }
    given = {renamed.get(k, k): v for k, v in overrides.model_dump(exclude_none=True).items()}
    return replace(Efficiency(), **given)


def _other_gpus(model: ModelDimensions, degrees: list[int], efficiency: Efficiency) -> str:
    """Name up to three GPU types, least memory first, on which a degree of the pools would do."""
    by_memory = sorted(GPUS.values(), key=lambda gpu: (gpu.memory_bytes, gpu.name))
    fitting = [(gpu.name, smallest_degree(model, gpu, efficiency=efficiency)) for gpu in by_memory]
    named = [f"{name} at degree {n}" for name, n in fitting if n is not None and n <= max(degrees)][:3]
    return f"; with these degrees it fits {', '.join(named)}" if named else ""


def _unknown(field: str, name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    meant = f"; did you mean {close[0]}?" if close else ""
    return (
        f"{field}: {name} is not in the catalogue{meant} Known: {', '.join(names)}. "
        "Give a cost profile (spec.profile.ref) for anything else"
    )
