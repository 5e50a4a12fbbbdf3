"""The targets of a measurement: each degree on each GPU type, and the hash of what figures depend on. Pure."""

from dataclasses import dataclass

from weft_core.plan import content_hash
from weft_core.spans import nodes_spanned
from weft_operator.api.engine_merge import measured_engine
from weft_operator.api.service import DisaggInferenceServiceSpec

KV_TIMED = frozenset({"vllm", "mock"})
"""Engines whose KV transfers ``weft profile engine`` can time."""

_KEPT = {"source": {"hugging_face": {"cache"}, "s3": {"cache"}}}
"""The place of weights, which does not affect figures."""


@dataclass(frozen=True, slots=True, order=True)
class MeasurementTarget:
    """One engine to measure; ``pool`` is the first with the GPU type and the degree."""

    gpu: str
    degree: int
    pool: str


def targets_of(spec: DisaggInferenceServiceSpec) -> tuple[MeasurementTarget, ...]:
    """Return the targets, small degrees first: every degree of the pools, or those that the spec names.

    A degree that spans several nodes is left out: a Job has one pod. So are GPU types of pools with other ways to
    split than by tensors alone, which Jobs do not measure.
    """
    asked = spec.profile.measure.degrees if spec.profile.measure is not None else None
    found: dict[tuple[str, int], MeasurementTarget] = {}
    split = {pool.gpu_type for pool in spec.capacity.pools if pool.parallelism is not None}
    for pool in spec.capacity.pools:
        for degree in pool.by_tensors if pool.gpu_type not in split else ():
            if nodes_spanned(degree, pool.gpus_per_node) == 1 and (asked is None or degree in asked):
                found.setdefault((pool.gpu_type, degree), MeasurementTarget(pool.gpu_type, degree, pool.name))
    return tuple(sorted(found.values()))


def gpu_types(spec: DisaggInferenceServiceSpec) -> tuple[str, ...]:
    """Return the GPU types of the pools, each once: there is a profile for each."""
    return tuple(dict.fromkeys(pool.gpu_type for pool in spec.capacity.pools))


def identity(spec: DisaggInferenceServiceSpec, gpu: str) -> str:
    """Return the hash of what figures depend on: model, engine and GPU."""
    engine = measured_engine(spec.engine)
    given = (engine.max_num_seqs, engine.max_num_batched_tokens, engine.quantization)
    limits = [] if given == (None, None, None) else [list(given)]
    return content_hash(
        {
            "gpu": gpu,
            "model": spec.model.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=_KEPT),
            "engine": [engine.type, engine.image or "", *engine.args, f"{engine.memory_fraction:g}", *limits],
            "env": [[item.name, item.value] for item in engine.env],
            "mock": None if engine.mock is None else engine.mock.model_dump(mode="json", by_alias=True),
        },
        10,
    )
