"""Which GPUs there are, and where."""

# ruff: noqa: RUF012 - pydantic copies the defaults of fields

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue, StringConstraints

from weft_core.gpus import CORES_OF_A_CHIP, NEURON_CHIPS
from weft_core.parallelism import Degree as CoreDegree
from weft_core.parallelism import degree_of, gpus_of
from weft_core.spans import MAX_NODES, fits_nodes
from weft_core.strategies import near_strategies, powers_of_two
from weft_operator.api.base import ApiModel, Rule
from weft_operator.api.fields import DnsLabel, ObjectName, ResourceName, Role
from weft_operator.api.scheduling import Topology

CLIQUE = "nvidia.com/gpu.clique"
"""The label by which NVIDIA's GPU feature discovery names the NVLink domain of a node."""
Degree = Annotated[int, Field(ge=1, le=64)]
LabelValue = Annotated[str, StringConstraints(max_length=63)]


class Toleration(ApiModel):
    """A taint that pods tolerate, as in a pod."""

    key: Annotated[str, StringConstraints(max_length=317)] = ""
    """Key of the taint; empty with operator Exists tolerates all."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """How the value is compared."""
    value: Annotated[str, StringConstraints(max_length=63)] | None = None
    """Value of the taint; only with operator Equal."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Effect of the taint; empty means all."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.operator != 'Exists' || !has(self.value)",
            "tolerations: operator Exists takes no value; remove value or use operator Equal",
            lambda t: t.operator != "Exists" or t.value is None,
        ),
        Rule(
            "self.operator == 'Exists' || self.key != ''",
            "tolerations: operator Equal needs a key; add it or use operator Exists",
            lambda t: t.operator == "Exists" or t.key != "",
        ),
    )


class Rdma(ApiModel):
    """Network devices for KV transfers, one request per worker pod."""

    resource: ResourceName
    """Extended resource of the device plug-in."""
    count: Annotated[int, Field(ge=1, le=64)] = 1
    """Devices per pod: a worker has one pod on each of its nodes."""


class ResourceClaim(ApiModel):
    """Devices by dynamic resource allocation: each worker pod gets a claim of its own, made from a template."""

    name: DnsLabel
    """Name of the claim within the pod, such as gpus or rdma."""
    template: ObjectName
    """ResourceClaimTemplate in the service's namespace."""
    degrees: (
        Annotated[
            list[Annotated[int, Field(ge=1, le=4096)]],
            Field(min_length=1, max_length=7, json_schema_extra={"x-kubernetes-list-type": "set"}),
        ]
        | None
    ) = None
    """Workers of so many GPUs get it, each of their pods; all if absent."""


class Parallelism(ApiModel):
    """A parallelism strategy: how the model is split over a worker's tp x pp x dp GPUs."""

    tp: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs that share each layer by tensors."""
    pp: Annotated[int, Field(ge=1, le=64)] = 1
    """Pipeline stages of consecutive layers."""
    dp: Annotated[int, Field(ge=1, le=256)] = 1
    """Data-parallel ranks with attention and batches of their own, for mixtures of experts."""
    ep: bool = False
    """Whether the tp x dp GPUs of a stage hold whole experts; otherwise each holds a part of every expert."""

    @property
    def degree(self) -> CoreDegree:
        """Return it as a degree."""
        return degree_of(tp=self.tp, pp=self.pp, dp=self.dp, ep=self.ep)


def _claims_cover(pool: "Pool") -> bool:
    claims = pool.resource_claims or []
    if pool.named_degrees is None:
        return bool(claims)  # the planner takes those that have claims
    sizes = {gpus_of(degree) for degree in pool.named_degrees}
    return all(any(item.degrees is None or gpus in item.degrees for item in claims) for gpus in sizes)


def _is_mig(pool: "Pool") -> bool:
    return "/mig-" in pool.resource or "-mig-" in pool.gpu_type


def _too_wide(pool: "Pool") -> int:
    """Return the place of the first degree that fills a node in part."""
    return next(i for i, degree in enumerate(pool.degrees or ()) if not fits_nodes(degree, pool.gpus_per_node))


_GPUS = "p.tp * p.pp * p.dp"
"""The GPUs of a strategy p in CEL."""


def _strategy_rule(cel: str, message: str, fits: Callable[[Parallelism, int], bool]) -> Rule:
    """Return a rule that each strategy p of a pool keeps, by the GPUs of a node; ``cel`` says it of one."""

    def first(pool: "Pool") -> int:
        return next(i for i, one in enumerate(pool.parallelism or ()) if not fits(one, pool.gpus_per_node))

    return Rule(
        f"!has(self.parallelism) || self.parallelism.all(p, {cel})",
        message,
        lambda p: all(fits(one, p.gpus_per_node) for one in p.parallelism or ()),
        culprit=lambda p: _on_nodes(p.parallelism[first(p)].degree, p.gpus_per_node),
        entry=first,
        cel_culprit=(
            "tp %d, pp %d, dp %d: %d GPUs, nodes of %d",
            f"self.parallelism.filter(p, !({cel})).map(p, [p.tp, p.pp, p.dp, {_GPUS}, self.gpusPerNode])[0]",
        ),
    )


def _on_nodes(degree: CoreDegree, node_gpus: int) -> str:
    """Return a degree, its GPUs and a node's, and the nearest degree of the same kind that lies on such nodes."""
    near = [
        n for n in near_strategies(degree, node_gpus=node_gpus) if isinstance(n, int) or not isinstance(degree, int)
    ]
    return f"{degree}: {gpus_of(degree)} GPUs, nodes of {node_gpus}{f'; {near[0]} fits' if near else ''}"


Rate = Annotated[float, Field(gt=0, le=10_000)]


class Interconnect(ApiModel):
    """What one GPU's links carry of KV, in gigabytes per second and one way, in place of the catalogue's figures."""

    in_node: Rate | None = None
    """Between two workers on one node."""
    across_nodes: Rate | None = None
    """Between two workers on different nodes."""


class Pool(ApiModel):
    """Nodes of one kind."""

    name: DnsLabel
    """Name of the pool."""
    gpu_type: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=63)]
    """GPU in the planner's catalogue, for example nvidia-h100; docs/reference lists them."""
    gpus: Annotated[int, Field(ge=1, le=4096)] | None = None
    """GPUs of this pool that the plan may use; capacity.gpus if absent."""
    resource: ResourceName = "nvidia.com/gpu"
    """Extended resource that a GPU is requested by: nvidia.com/gpu, nvidia.com/mig-3g.40gb, amd.com/gpu,
    habana.ai/gaudi, aws.amazon.com/neuroncore; one aws.amazon.com/neuron is a chip and counts as 4 GPUs."""
    gpus_per_node: Annotated[int, Field(ge=1, le=64)] = 8
    """GPUs of one node; a worker of a larger degree fills several nodes."""
    gpus_per_rack: Annotated[int, Field(ge=1, le=4096)] | None = None
    """GPUs that NVLink joins over several nodes, a multiple of gpusPerNode: 72 in GB200 NVL72. Workers on several nodes
    then lie in one rack, which topology.required names; nvidia.com/gpu.clique if absent."""
    degrees: (
        Annotated[list[Degree], Field(min_length=1, max_length=7, json_schema_extra={"x-kubernetes-list-type": "set"})]
        | None
    ) = None
    """Tensor-parallel degrees the planner may choose: powers of two, those above gpusPerNode multiples of it. Absent,
    with parallelism absent too, the planner takes the strategies that fit the model, the pool and the engine."""
    parallelism: (
        Annotated[
            list[Parallelism],
            Field(min_length=1, max_length=8, json_schema_extra={"x-kubernetes-list-type": "atomic"}),
        ]
        | None
    ) = None
    """Parallelism strategies that the planner may choose, in place of degrees: tensor, pipeline, data and expert."""
    roles: Annotated[
        list[Role], Field(min_length=1, max_length=2, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = ["prefill", "decode"]
    """What workers of this pool may do."""
    price_per_gpu_hour: Annotated[float, Field(ge=0, le=10_000)] | None = None
    """Price of one GPU for an hour, in any currency: plans then say costs, and objective cost seeks the cheapest."""
    interconnect: Interconnect | None = None
    """Bandwidth of KV transfers, where it differs from the GPU's data sheet."""
    rdma: Rdma | None = None
    """Network devices for KV transfers."""
    node_selector: Annotated[dict[str, LabelValue], Field(max_length=16)] = {}
    """Labels of the pool's nodes."""
    tolerations: Annotated[list[Toleration], Field(max_length=16)] = []
    """Taints of the pool's nodes."""
    resource_claims: Annotated[list[ResourceClaim], Field(max_length=8)] | None = None
    """Devices by dynamic resource allocation, beside those of resource and rdma; names may repeat for other degrees."""
    gpus_from_claims: bool | None = None
    """Set this where resourceClaims bring the GPUs, too; workers then ask for no extended resource."""
    priority_class_name: ObjectName | None = None
    """PriorityClass of the pool's workers."""
    affinity: (
        Annotated[
            dict[str, JsonValue],
            Field(max_length=3, json_schema_extra={"x-kubernetes-preserve-unknown-fields": True}),
        ]
        | None
    ) = None
    """Affinity of the pool's workers, as in a pod (nodeAffinity, podAffinity, podAntiAffinity)."""
    topology_key: Annotated[str, StringConstraints(min_length=1, max_length=317)] = "kubernetes.io/hostname"
    """Node label that workers of one role spread over."""
    topology: Topology | None = None
    """Part of the network that pods share; absent with another topologyKey than nodes, the pods of one worker on
    several nodes prefer one part of that."""
    compute_domain: bool | None = None
    """Set this for GPUs that share memory over NVLink across nodes (GB200 NVL72): each worker on several nodes gets a
    ComputeDomain of NVIDIA's DRA driver."""

    @property
    def named_degrees(self) -> tuple[CoreDegree, ...] | None:
        """Return the degrees that the planner may choose; None where it takes those that fit."""
        if self.parallelism is not None:
            return tuple(one.degree for one in self.parallelism)
        return None if self.degrees is None else tuple(self.degrees)

    @property
    def by_tensors(self) -> tuple[int, ...]:
        """Return the numbers of GPUs that may share layers by tensors alone; powers of two where none are named."""
        if self.degrees is not None:
            return tuple(self.degrees)
        return tuple(n for n in powers_of_two(self.gpus_per_node) if n % self.gpus_of_device == 0)

    @property
    def rack_label(self) -> str | None:
        """Return the node label whose value is a node's rack; None where NVLink ends at the node."""
        if self.gpus_per_rack is None:
            return None
        return self.topology.required if self.topology is not None and self.topology.required else CLIQUE

    @property
    def gpus_of_device(self) -> int:
        """Return for how many GPUs one of ``resource`` counts."""
        return CORES_OF_A_CHIP if self.resource in NEURON_CHIPS else 1

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!(self.resource in {list(NEURON_CHIPS)}) || (self.gpusPerNode % {CORES_OF_A_CHIP} == 0"
            f" && (has(self.parallelism) ? self.parallelism.all(p, p.tp * p.pp * p.dp % {CORES_OF_A_CHIP} == 0)"
            f" : !has(self.degrees) || self.degrees.all(d, d % {CORES_OF_A_CHIP} == 0)))",
            "spec.capacity.pools.degrees: a worker takes whole chips by this resource, which count as 4 GPUs each; "
            "choose degrees and gpusPerNode that are multiples of 4, or resource aws.amazon.com/neuroncore",
            lambda p: all(
                gpus % p.gpus_of_device == 0 for gpus in (p.gpus_per_node, *map(gpus_of, p.named_degrees or ()))
            ),
        ),
        Rule(
            "!has(self.degrees) || self.degrees.all(d, d in [1, 2, 4, 8, 16, 32, 64])",
            "spec.capacity.pools.degrees: must be powers of two (1, 2, 4, 8, 16, 32, 64)",
            lambda p: all(d & (d - 1) == 0 for d in p.degrees or ()),
        ),
        Rule(
            "has(self.parallelism) || !has(self.degrees)"
            " || self.degrees.all(d, d <= self.gpusPerNode || d % self.gpusPerNode == 0)",
            "spec.capacity.pools.degrees: those above gpusPerNode fill whole nodes; choose multiples of gpusPerNode",
            lambda p: p.parallelism is not None or all(fits_nodes(d, p.gpus_per_node) for d in p.degrees or ()),
            culprit=lambda p: _on_nodes(p.degrees[_too_wide(p)], p.gpus_per_node),
            entry=_too_wide,
            cel_culprit=(
                "%d GPUs, nodes of %d",
                "[self.degrees.filter(d, d > self.gpusPerNode && d % self.gpusPerNode != 0)[0], self.gpusPerNode]",
            ),
        ),
        Rule(
            "!has(self.gpusPerRack) || self.gpusPerRack % self.gpusPerNode == 0",
            "spec.capacity.pools.gpusPerRack: a rack has whole nodes; choose a multiple of gpusPerNode",
            lambda p: p.gpus_per_rack is None or p.gpus_per_rack % p.gpus_per_node == 0,
            culprit=lambda p: f"{p.gpus_per_rack} GPUs, nodes of {p.gpus_per_node}",
            cel_culprit=("%d GPUs, nodes of %d", "[self.gpusPerRack, self.gpusPerNode]"),
        ),
        Rule(
            "!has(self.gpusPerRack) || (has(self.parallelism)"
            " ? self.parallelism.all(p, p.tp * p.pp * p.dp <= self.gpusPerRack)"
            " : !has(self.degrees) || self.degrees.all(d, d <= self.gpusPerRack))",
            "spec.capacity.pools.gpusPerRack: a worker lies in one rack; choose degrees and parallelism of at most "
            "gpusPerRack GPUs",
            lambda p: p.gpus_per_rack is None or all(gpus_of(n) <= p.gpus_per_rack for n in p.named_degrees or ()),
            culprit=lambda p: ", ".join(str(n) for n in p.named_degrees or () if gpus_of(n) > p.gpus_per_rack),
            cel_culprit=(
                "%d GPUs, racks of %d",
                (
                    f"[(has(self.parallelism) ? self.parallelism.map(p, {_GPUS}) : self.degrees)"
                    ".filter(n, n > self.gpusPerRack)[0], self.gpusPerRack]"
                ),
            ),
        ),
        Rule(
            "!has(self.gpusFromClaims) || !self.gpusFromClaims || (has(self.resourceClaims) && (has(self.parallelism)"
            " ? self.parallelism.all(p, self.resourceClaims.exists(c,"
            " !has(c.degrees) || p.tp * p.pp * p.dp in c.degrees))"
            " : !has(self.degrees)"
            " || self.degrees.all(d, self.resourceClaims.exists(c, !has(c.degrees) || d in c.degrees))))",
            "spec.capacity.pools.gpusFromClaims: every degree needs a claim with that many GPUs; add one to "
            "resourceClaims that names the degree",
            lambda p: not p.gpus_from_claims or _claims_cover(p),
        ),
        _strategy_rule(
            f"{_GPUS} <= self.gpusPerNode || {_GPUS} % self.gpusPerNode == 0",
            "spec.capacity.pools.parallelism: tp x pp x dp above gpusPerNode must fill whole nodes; choose a multiple "
            "of gpusPerNode",
            lambda one, node_gpus: fits_nodes(one.degree, node_gpus),
        ),
        _strategy_rule(
            f"p.dp == 1 || {_GPUS} <= self.gpusPerNode || self.gpusPerNode % (p.tp * p.pp) == 0",
            "spec.capacity.pools.parallelism: data-parallel ranks lie on one node each and fill it; choose a tp x pp "
            "that divides gpusPerNode",
            lambda one, node_gpus: (
                one.dp == 1 or gpus_of(one.degree) <= node_gpus or node_gpus % (one.tp * one.pp) == 0
            ),
        ),
        _strategy_rule(
            f"{_GPUS} <= {MAX_NODES} * self.gpusPerNode",
            f"spec.capacity.pools.parallelism: tp x pp x dp is above {MAX_NODES} x gpusPerNode, and a worker lies on "
            f"at most {MAX_NODES} nodes; lower dp, pp or tp",
            lambda one, node_gpus: gpus_of(one.degree) <= MAX_NODES * node_gpus,
        ),
        Rule(
            None,  # the API server looks into no field of unknown shape; the operator and weft plan say it
            "spec.capacity.pools.affinity: has nodeAffinity, podAffinity and podAntiAffinity; remove the rest",
            lambda p: p.affinity is None or set(p.affinity) <= {"nodeAffinity", "podAffinity", "podAntiAffinity"},
        ),
        Rule(
            "!has(self.rdma) || self.rdma.resource != self.resource",
            "spec.capacity.pools.rdma.resource: is the same as the GPU's resource; name the network device's",
            lambda p: p.rdma is None or p.rdma.resource != p.resource,
        ),
        Rule(
            "!(self.resource.contains('/mig-') || self.gpuType.contains('-mig-'))"
            " || ((!has(self.degrees) || self.degrees.all(d, d == 1)) && !has(self.parallelism))",
            "spec.capacity.pools.degrees: a worker on MIG slices takes one, for slices have no links between them; set "
            "degrees to [1], or use whole GPUs",
            lambda p: not _is_mig(p) or (all(d == 1 for d in p.degrees or ()) and p.parallelism is None),
        ),
        Rule(
            "!has(self.topology) || self.topology.scope != 'service'"
            " || ((!has(self.topology.required) || self.topology.required != self.topologyKey)"
            " && (!has(self.topology.preferred) || self.topology.preferred != self.topologyKey))",
            "spec.capacity.pools.topology: draws all workers to one part of topologyKey, over which they are spread; "
            "name another label in one of them",
            lambda p: (
                p.topology is None
                or p.topology.scope != "service"
                or p.topology_key not in (p.topology.required, p.topology.preferred)
            ),
        ),
        Rule(
            "!has(self.topology) || !has(self.topology.required) || self.topology.required != 'kubernetes.io/hostname'",
            "spec.capacity.pools.topology.required: pods of one worker never share a node; name the label of a larger "
            "part of the network",
            lambda p: p.topology is None or p.topology.required != "kubernetes.io/hostname",
        ),
        Rule(
            "!has(self.computeDomain) || !self.computeDomain || !has(self.resourceClaims)"
            " || self.resourceClaims.all(c, c.name != 'compute-domain')",
            "spec.capacity.pools.resourceClaims: compute-domain is the name of the claim that computeDomain brings; "
            "rename yours",
            lambda p: not p.compute_domain or all(c.name != "compute-domain" for c in p.resource_claims or ()),
        ),
    )


class Capacity(ApiModel):
    """The GPU budget."""

    gpus: Annotated[int, Field(ge=1, le=4096)]
    """Most GPUs the service takes; a disaggregated layout needs at least 2, one for prefill and one for decode."""
    elastic: bool = False
    """Set this where an autoscaler adds nodes; else a budget above the GPUs of today's nodes is refused."""
    pools: Annotated[
        list[Pool], Field(min_length=1, max_length=16, json_schema_extra={"x-kubernetes-list-map-keys": ["name"]})
    ]
    """Nodes to use."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.pools.exists(p, 'prefill' in p.roles)",
            "spec.capacity.pools: no pool has the role prefill; add it to the roles of one",
            lambda c: any("prefill" in p.roles for p in c.pools),
        ),
        Rule(
            "self.pools.exists(p, 'decode' in p.roles)",
            "spec.capacity.pools: no pool has the role decode; add it to the roles of one",
            lambda c: any("decode" in p.roles for p in c.pools),
        ),
        Rule(
            "self.pools.all(p, !has(p.gpus) || p.gpus <= self.gpus)",
            "spec.capacity.pools.gpus: is above spec.capacity.gpus; lower it or raise the budget",
            lambda c: all(p.gpus is None or p.gpus <= c.gpus for p in c.pools),
            culprit=lambda c: next(
                f"pool {p.name}: {p.gpus}, budget {c.gpus}" for p in c.pools if p.gpus is not None and p.gpus > c.gpus
            ),
            cel_culprit=(
                "%d, budget %d",
                "[self.pools.filter(p, has(p.gpus) && p.gpus > self.gpus)[0].gpus, self.gpus]",
            ),
        ),
        Rule(
            "self.elastic || self.pools.all(p, !has(p.gpusFromClaims) || !p.gpusFromClaims)",
            "spec.capacity.elastic: must be true where pools.gpusFromClaims is, because free GPUs are counted by "
            "extended resource; set it",
            lambda c: c.elastic or not any(p.gpus_from_claims for p in c.pools),
        ),
        Rule(
            None,  # the list is keyed by name, so the API server refuses duplicates itself
            "spec.capacity.pools: two pools have the same name; rename one",
            lambda c: len({p.name for p in c.pools}) == len(c.pools),
        ),
    )
