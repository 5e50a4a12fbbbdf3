"""Look up what a request names: the model's dimensions, a pool's accelerator, and how well it is used."""

import difflib
from collections.abc import Iterable
from dataclasses import replace

from weft_core.config_fields import ModelConfigError
from weft_core.dimensions import ModelDimensions
from weft_core.efficiency import Efficiency, efficiency_for
from weft_core.gpus import GPUS, Gpu, gpu_named
from weft_core.hf_config import dimensions_of_config
from weft_core.models import MODELS
from weft_planner.request.capacity import Pool
from weft_planner.request.infeasible import Infeasible
from weft_planner.request.parts import Analytic, Model

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}


def gpu_of(pool: Pool) -> Gpu:
    """Return a pool's accelerator with the pool's own interconnect."""
    gpu = gpu_named(pool.gpu_type)
    if gpu is None:
        raise Infeasible("UnknownGpu", _unknown("capacity.pools.gpuType", pool.gpu_type, GPUS, OTHER_GPU))
    own = pool.interconnect
    if own is None:
        return gpu
    return replace(
        gpu,
        kv_in_node=own.in_node or gpu.kv_in_node,
        kv_across_nodes=own.across_nodes or gpu.kv_across_nodes,
    )


def dimensions_of(model: Model) -> ModelDimensions:
    """Return a model's dimensions at the requested precision; 8-bit weights keep 16-bit KV unless told otherwise.

    ``dtype`` is the precision of what the checkpoint does not quantise; fp8 quantises the rest when it is loaded.

    Raises:
        Infeasible: the model is not in the catalogue and has no config, or its config cannot be used.
    """
    if model.config is not None:
        try:
            known = dimensions_of_config(model.name, model.config)
        except ModelConfigError as error:
            faults = "; ".join(f"model.config.{fault}" for fault in error.faults)
            raise Infeasible("ModelConfigInvalid", faults) from error
    elif model.name in MODELS:
        known = MODELS[model.name]
    else:
        raise Infeasible("UnknownModel", _unknown("model.name", model.name, MODELS, OTHER_MODEL))
    kv = known.kv_dtype_bytes if model.kv_cache_dtype == "auto" else BYTES[model.kv_cache_dtype]
    if model.dtype == "fp8":
        attention, ffn = (
            min(1.0, known.dtype_bytes if own is None else own) for own in (known.attention_bytes, known.ffn_bytes)
        )
        linear = known.linear
        if linear is not None:
            own = linear.weight_bytes
            linear = replace(linear, weight_bytes=min(1.0, known.dtype_bytes if own is None else own))
        return replace(
            known,
            attention_bytes=attention,
            ffn_bytes=ffn,
            linear=linear,
            eight_bit_products=True,
            kv_dtype_bytes=kv,
        )
    weights = known.dtype_bytes if model.dtype == "auto" else BYTES[model.dtype]
    return replace(known, dtype_bytes=weights, kv_dtype_bytes=kv)


def efficiency_of(overrides: Analytic | None, gpu: str = "") -> Efficiency:
    """Return the analytic model's efficiency factors of a GPU type with the request's own in place."""
    if overrides is None:
        return efficiency_for(gpu)
    renamed = {
        "prefill_overhead": "prefill_overhead_s",
        "decode_overhead": "decode_overhead_s",
        "prefill_layer": "prefill_layer_s",
        "decode_layer": "decode_layer_s",
        "expert_layer": "expert_layer_s",
        "sparse_layer": "sparse_layer_s",
        "all_reduce_latency": "all_reduce_latency_s",
        "kv_latency": "kv_latency_s",
    }
    given = {renamed.get(k, k): v for k, v in overrides.model_dump(exclude_none=True).items()}
    return replace(efficiency_for(gpu), **given)


OTHER_MODEL = (
    "For any other model give its Hugging Face config.json (spec.model.config) or a cost profile (spec.profile.ref)"
)
OTHER_GPU = (
    "A MIG slice is named after its GPU (nvidia-h100-mig-3g.40gb). "
    "Give a cost profile (spec.profile.ref) for anything else"
)


def _unknown(field: str, name: str, known: Iterable[str], otherwise: str) -> str:
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    meant = f"; did you mean {close[0]}?" if close else ""
    return f"{field}: {name} is not in the catalogue{meant or '.'} Known: {', '.join(names)}. {otherwise}"
