"""AWS Neuron's fork of vLLM: its settings, and what it cannot do.

It is compiled for fixed shapes, keeps the KV of each sequence in a place of its own as long as the longest context, and
moves KV by the Neuron runtime over EFA (AWS Neuron documentation, disaggregated inference).
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar

from pydantic import Field, JsonValue

from weft_core.gpus import NEURON_CHIPS
from weft_core.kv_head_ranks import kv_heads_of_ranks
from weft_core.parallelism import gpus_of
from weft_operator.api.base import ApiModel, Rule
from weft_operator.api.model import Model, known_dimensions

NEURON_RESOURCES = ("aws.amazon.com/neuroncore", *NEURON_CHIPS)
"""What Neuron's device plug-in calls cores and chips."""

Buckets = Annotated[
    list[Annotated[int, Field(ge=1, le=10_485_760)]],
    Field(min_length=1, max_length=32, json_schema_extra={"x-kubernetes-list-type": "atomic"}),
]


MANAGED_CONFIG = frozenset(
    {
        "apply_seq_ids_mask",
        "batch_size",
        "context_encoding_buckets",
        "ctx_batch_size",
        "enable_bucketing",
        "is_block_kv_layout",
        "is_continuous_batching",
        "is_prefix_caching",
        "max_context_length",
        "pa_block_size",
        "pa_num_blocks",
        "seq_len",
        "token_generation_buckets",
        "tp_degree",
    }
)
"""Entries of a NeuronConfig that follow from other fields, or on which both roles' KV depends."""


def _ascending(buckets: Sequence[int] | None) -> bool:
    return buckets is None or all(one < other for one, other in pairwise(buckets))


class NeuronEngine(ApiModel):
    """What Neuron's engines are compiled for; lengths are the compiler's own powers of two where absent."""

    context_buckets: Buckets | None = None
    """Prompt lengths, ascending up to maxModelLen: a prompt is computed as if it were as long as the next one."""
    token_buckets: Buckets | None = None
    """Context lengths of decode steps, ascending up to maxModelLen."""
    config: (
        Annotated[
            dict[str, JsonValue],
            Field(max_length=64, json_schema_extra={"x-kubernetes-preserve-unknown-fields": True}),
        ]
        | None
    ) = None
    """Further entries of the NeuronConfig of both roles, such as fused_qkv, sequence_parallel_enabled and those that
    choose kernels."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            None,  # CEL has no pairs of neighbours; the operator and weft plan say it
            "spec.engine.neuron: the lengths of contextBuckets and tokenBuckets must ascend; sort them",
            lambda n: _ascending(n.context_buckets) and _ascending(n.token_buckets),
        ),
        Rule(
            None,  # the API server looks into no field of unknown shape; the operator and weft plan say it
            f"spec.engine.neuron.config: {', '.join(sorted(MANAGED_CONFIG))} follow from other fields; remove them",
            lambda n: MANAGED_CONFIG.isdisjoint(n.config or ()),
        ),
    )


def kv_head_map(model: Model, tp: int) -> tuple[tuple[int, ...], ...] | None:
    """Return the KV heads of each rank at a degree; None where they are not known, or not divided evenly."""
    dimensions = known_dimensions(model)
    return None if dimensions is None else kv_heads_of_ranks(dimensions, tp)


def _degrees_pair(spec: Any) -> bool:
    degrees = {gpus_of(n) for pool in spec.capacity.pools for n in pool.named_degrees or pool.by_tensors}
    return len(degrees) == 1 or all(kv_head_map(spec.model, degree) is not None for degree in degrees)


def _last_buckets(spec: Any) -> set[int]:
    neuron = spec.engine.neuron
    return set() if neuron is None else {own[-1] for own in (neuron.context_buckets, neuron.token_buckets) if own}


def _tensors_on_a_node(pool: Any) -> bool:
    if pool.parallelism is None:
        return all(degree <= pool.gpus_per_node for degree in pool.degrees or ())
    return all(p.pp == p.dp == 1 and not p.ep and p.tp <= pool.gpus_per_node for p in pool.parallelism)


def _neuron_rule(cel: str | None, message: str, holds: Callable[[Any], bool]) -> Rule:
    """Return a rule over the spec of a service with this engine."""
    return Rule(
        None if cel is None else f"self.engine.type != 'neuron' || {cel}",
        message,
        lambda spec: spec.engine.type != "neuron" or holds(spec),
    )


def _no_other_last(field: str) -> str:
    return f"(!has(self.engine.neuron.{field}) || self.engine.neuron.{field}.max() == self.model.maxModelLen)"


NEURON_RULES: tuple[Rule, ...] = (
    _neuron_rule(
        "self.model.kvCacheDtype == 'auto'",
        "spec.model.kvCacheDtype: neuron keeps KV in the model's own format; set it to auto",
        lambda s: s.model.kv_cache_dtype == "auto",
    ),
    _neuron_rule(
        f"self.capacity.pools.all(p, p.resource in {list(NEURON_RESOURCES)} || has(p.gpusFromClaims) && "
        "p.gpusFromClaims)",
        "spec.capacity.pools.resource: neuron runs on aws.amazon.com/neuroncore or aws.amazon.com/neuron; name one of "
        "them",
        lambda s: all(p.resource in NEURON_RESOURCES or p.gpus_from_claims for p in s.capacity.pools),
    ),
    _neuron_rule(
        "self.capacity.pools.all(p, has(p.rdma) || has(p.resourceClaims))",
        "spec.capacity.pools.rdma: neuron moves KV through EFA, within a node, too; name its resource, "
        "vpc.amazonaws.com/efa, or bring it by resourceClaims",
        lambda s: all(p.rdma is not None or p.resource_claims for p in s.capacity.pools),
    ),
    _neuron_rule(
        "self.capacity.pools.all(p, has(p.parallelism)"
        " ? p.parallelism.all(w, w.pp == 1 && w.dp == 1 && !w.ep && w.tp <= p.gpusPerNode)"
        " : !has(p.degrees) || p.degrees.all(d, d <= p.gpusPerNode))",
        "spec.capacity.pools: a worker of neuron has the cores of one node and shares layers by tensors alone; choose "
        "degrees up to gpusPerNode and no pp, dp or ep",
        lambda s: all(map(_tensors_on_a_node, s.capacity.pools)),
    ),
    _neuron_rule(
        f"!has(self.engine.neuron) || ({_no_other_last('contextBuckets')} && {_no_other_last('tokenBuckets')})",
        "spec.engine.neuron: the last length of contextBuckets and tokenBuckets must be spec.model.maxModelLen; add it",
        lambda s: _last_buckets(s) <= {s.model.max_model_len},
    ),
    _neuron_rule(
        "!has(self.profile.measure)",
        "spec.profile.measure: an engine of neuron keeps each prompt's KV until its decode engine has it, so it cannot "
        "be measured alone; remove measure and give a CostProfile (spec.profile.ref)",
        lambda s: s.profile.measure is None,
    ),
    _neuron_rule(
        None,  # the API server has no catalogue of models; the operator and weft plan say it
        "spec.capacity.pools.degrees: engines of neuron with unlike degrees exchange KV by a map of KV heads, and this "
        "model's are not known or not divided evenly; choose one degree for all pools, or give spec.model.config",
        _degrees_pair,
    ),
)
"""What services with Neuron's engine are refused for, with the field and the fix."""
