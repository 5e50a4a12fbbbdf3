"""KV cache tiers below GPU memory: CPU memory, disks and remote stores, and what engines cannot do with them."""

from collections.abc import Collection
from typing import Annotated, Any, ClassVar, Literal

from pydantic import StringConstraints

from weft_core.parallelism import gpus_of
from weft_operator.api.base import ApiModel, Rule
from weft_operator.api.fields import ObjectName, Quantity

NodePath = Annotated[str, StringConstraints(pattern=r"^/[A-Za-z0-9._/-]+$", max_length=256)]
StoreUrl = Annotated[
    str, StringConstraints(pattern=r"^[a-z][a-z0-9+.-]*://[^\s/?#@]+:[0-9]{1,5}(/[^\s?#@]*)?$", max_length=256)
]
HostAndPort = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?:[0-9]{1,5}$", max_length=256)
]
PEER_TO_PEER = "P2PHANDSHAKE"
MetadataServer = Annotated[
    str, StringConstraints(pattern=rf"^({PEER_TO_PEER}|https?://[^\s?#@]+)$", min_length=1, max_length=256)
]


class CpuTier(ApiModel):
    """A tier in the memory of a worker's nodes."""

    size: Quantity
    """Memory of one worker, at least 1Gi; it comes on top of engine.resources, and for vllm of engine.sharedMemory."""


class DiskTier(ApiModel):
    """A tier of files: on a volume of each worker's own, or in a folder of its own on a claim or a path."""

    size: Quantity
    """Space of one worker, at least 1Gi; beyond it, what was unused for longest is deleted."""
    storage_class_name: ObjectName | None = None
    """Storage class of the volume that each worker gets and that goes with its pod; the cluster's default class if
    absent."""
    claim: ObjectName | None = None
    """An existing PersistentVolumeClaim in place of these volumes, ReadWriteMany unless all workers run on one node.
    Files stay when a pod goes. The namespace must allow writableClaims."""
    path: NodePath | None = None
    """An existing folder of every node, writable for the engine's user, in place of these volumes, such as the mount of
    a local NVMe disk. The namespace must allow hostPath."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.claim) || !has(self.path)",
            "spec.kvCache.disk: claim and path are two places for the same files; remove one",
            lambda d: d.claim is None or d.path is None,
        ),
        Rule(
            "!has(self.storageClassName) || !(has(self.claim) || has(self.path))",
            "spec.kvCache.disk.storageClassName: is of volumes that are made for workers; remove it, or claim and path",
            lambda d: d.storage_class_name is None or (d.claim is None and d.path is None),
        ),
        Rule(
            "!has(self.path) || !self.path.contains('/..')",
            "spec.kvCache.disk.path: holds .., which kubelets refuse; write the folder's own path",
            lambda d: d.path is None or "/.." not in d.path,
        ),
    )


class LmcacheStore(ApiModel):
    """A store that LMCache reads and writes; the engine's image must hold LMCache."""

    url: StoreUrl
    """The store with its port, such as lm://lmcache.models.svc:65432 or redis://redis.models.svc:6379. Its keys name
    the model and no revision: give each model a store of its own, and empty it when the weights change."""


class MooncakeStore(ApiModel):
    """A Mooncake Store, whose own servers hold the KV; the engine's image must hold mooncake-transfer-engine."""

    master: HostAndPort
    """Host and port of its master."""
    metadata_server: MetadataServer = PEER_TO_PEER
    """URL of its metadata service; P2PHANDSHAKE where there is none."""
    protocol: Literal["tcp", "rdma"] = "tcp"
    """How KV is moved; rdma needs the network devices of every pool."""


class RemoteTier(ApiModel):
    """A store that workers share."""

    lmcache: LmcacheStore | None = None
    """A store of LMCache; for vllm."""
    mooncake: MooncakeStore | None = None
    """A Mooncake Store; for vllm and sglang."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.lmcache) != has(self.mooncake)",
            "spec.kvCache.remote: give exactly one of lmcache and mooncake",
            lambda r: (r.lmcache is None) != (r.mooncake is None),
        ),
    )


class KvCache(ApiModel):
    """Tiers below GPU memory: KV that leaves a GPU is read back from them instead of being computed again."""

    cpu: CpuTier | None = None
    """A tier in CPU memory."""
    disk: DiskTier | None = None
    """A tier on disks, below cpu."""
    remote: RemoteTier | None = None
    """A tier in a store that all workers share, below cpu."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.cpu) || has(self.disk) || has(self.remote)",
            "spec.kvCache: names no tier; give cpu, disk or remote, or remove it",
            lambda c: (c.cpu, c.disk, c.remote) != (None, None, None),
        ),
        Rule(
            "!has(self.disk) || has(self.cpu)",
            "spec.kvCache.cpu: is needed with disk, because KV reaches the disk through it; add it",
            lambda c: c.disk is None or c.cpu is not None,
        ),
        Rule(
            "!has(self.disk) || !has(self.remote)",
            "spec.kvCache.disk: engines have one tier below cpu; remove disk or remote",
            lambda c: c.disk is None or c.remote is None,
        ),
        Rule(
            "!has(self.remote) || !has(self.remote.lmcache) || has(self.cpu)",
            "spec.kvCache.cpu: is needed with remote.lmcache, which moves KV through it; add it",
            lambda c: c.remote is None or c.remote.lmcache is None or c.cpu is not None,
        ),
    )


def kv_disk_fault(cache: KvCache | None, permitted: Collection[str]) -> str | None:
    """Return what is wrong with where files are; None where the author of a service may have them there.

    The engine, whose image and arguments are the author's, writes there. On nodes are files of the kubelet and of
    other pods, on claims the weights of other services.
    """
    disk = cache.disk if cache is not None else None
    for field, given, permission in (
        ("path", disk.path if disk is not None else None, "hostPath"),
        ("claim", disk.claim if disk is not None else None, "writableClaims"),
    ):
        if given is not None and permission not in permitted:
            return (
                f"spec.kvCache.disk.{field}: is writable for the engine, which the namespace does not allow; remove "
                f"it, so that each worker gets a volume, or let a cluster administrator add {permission} to "
                "operator.podTemplates.allow in the values of Weft's chart"
            )
    return None


_GIVEN = "has(self.kvCache)"
_REMOTE = f"{_GIVEN} && has(self.kvCache.remote)"


def _tier(spec: Any, name: str) -> Any:
    return None if spec.kv_cache is None else getattr(spec.kv_cache, name)


def _on_one_node(spec: Any) -> bool:
    if _tier(spec, "disk") is None:
        return True
    return all(
        pool.named_degrees is not None and all(gpus_of(degree) <= pool.gpus_per_node for degree in pool.named_degrees)
        for pool in spec.capacity.pools
    )


def _has_devices(spec: Any) -> bool:
    remote = _tier(spec, "remote")
    if remote is None or remote.mooncake is None or remote.mooncake.protocol != "rdma":
        return True
    return all(pool.rdma is not None or pool.resource_claims is not None for pool in spec.capacity.pools)


KV_CACHE_RULES: tuple[Rule, ...] = (
    Rule(
        f"!{_GIVEN} || self.engine.type != 'neuron'",
        "spec.kvCache: neuron keeps KV in the memory of its devices alone; remove it",
        lambda s: s.kv_cache is None or s.engine.type != "neuron",
    ),
    Rule(
        f"!{_GIVEN} || self.engine.type != 'tensorrt-llm' || !(has(self.kvCache.disk) || has(self.kvCache.remote))",
        "spec.kvCache: tensorrt-llm has a tier in CPU memory alone; remove disk and remote",
        lambda s: s.engine.type != "tensorrt-llm" or (_tier(s, "disk"), _tier(s, "remote")) == (None, None),
    ),
    Rule(
        f"!({_REMOTE}) || self.engine.type != 'sglang' || !has(self.kvCache.remote.lmcache)",
        "spec.kvCache.remote.lmcache: of remote stores sglang is given mooncake alone; choose it, or remove remote",
        lambda s: s.engine.type != "sglang" or _tier(s, "remote") is None or _tier(s, "remote").lmcache is None,
    ),
    Rule(
        f"!{_GIVEN} || self.engine.type != 'sglang' || has(self.kvCache.cpu)",
        "spec.kvCache.cpu: is needed with sglang, which moves KV through it; add it",
        lambda s: s.kv_cache is None or s.engine.type != "sglang" or s.kv_cache.cpu is not None,
    ),
    Rule(
        f"!{_GIVEN} || !has(self.kvCache.disk) || self.capacity.pools.all(p, has(p.parallelism)"
        " ? p.parallelism.all(w, w.tp * w.pp * w.dp <= p.gpusPerNode)"
        " : has(p.degrees) && p.degrees.all(d, d <= p.gpusPerNode))",
        "spec.capacity.pools: a worker with spec.kvCache.disk lies on one node; name degrees or parallelism of at most "
        "gpusPerNode GPUs",
        _on_one_node,
    ),
    Rule(
        f"!({_REMOTE}) || !has(self.kvCache.remote.mooncake) || self.kvCache.remote.mooncake.protocol != 'rdma'"
        " || self.capacity.pools.all(p, has(p.rdma) || has(p.resourceClaims))",
        "spec.kvCache.remote.mooncake.protocol: rdma needs network devices in every pool; add rdma or resourceClaims "
        "to the pools without, or set tcp",
        _has_devices,
    ),
)
"""Rules over the whole spec."""
