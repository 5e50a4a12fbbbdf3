"""Services whose KV cache tiers ``kubectl apply`` must refuse."""

from typing import Any

from weft_operator.api.engine_flags import EngineType
from weft_operator.api.objects import Manifest
from weft_operator_tests.invalid_case import Case, managed_flags
from weft_operator_tests.valid import (
    REMOVED,
    changed,
    neuron_service,
    service,
    sglang_service,
    tensorrt_llm_service,
    vllm_service,
)

CPU = {"size": "200Gi"}
DISK = {"size": "2Ti"}
LMCACHE = {"lmcache": {"url": "lm://lmcache.models.svc:65432"}}
MOONCAKE = {"mooncake": {"master": "mooncake-master.models.svc:50051"}}


def with_tiers(body: Manifest, **tiers: Any) -> Manifest:
    """Return a service with KV cache tiers."""
    return changed(body, "spec.kvCache", tiers)


def _tiers(name: str, rule: str, *, of: Manifest | None = None, **tiers: Any) -> Case:
    return Case(f"kv-cache-{name}", with_tiers(of or vllm_service(), **tiers), rule=rule)


def _field(name: str, path: str, value: Any, *words: str) -> Case:
    tiers = {"cpu": CPU, "remote": {**MOONCAKE}} if "mooncake" in path else {"cpu": CPU}
    tiers = {"cpu": CPU, "remote": {**LMCACHE}} if "lmcache" in path else tiers
    return Case(f"kv-cache-{name}", changed(with_tiers(vllm_service(), **tiers), path, value), words=words)


_ONE_NODE = (
    "spec.capacity.pools: a worker with spec.kvCache.disk lies on one node; name degrees or parallelism of at most "
    "gpusPerNode GPUs"
)
_RDMA = {"mooncake": {**MOONCAKE["mooncake"], "protocol": "rdma"}}

_FLAGS: tuple[tuple[EngineType, Manifest, str], ...] = (
    ("vllm", vllm_service(), "--kv_offloading_size=100"),
    ("vllm", vllm_service(), "--kv-transfer-config.kv_connector=OffloadingConnector"),
    ("sglang", sglang_service(), "--enable-hierarchical"),
    ("sglang", sglang_service(), "--hicache_ratio=2"),
    ("mock", service(), "--kv-transfer-config={}"),
    ("vllm", vllm_service(), "--kv-events-config.endpoint=tcp://*:5557"),
    ("sglang", sglang_service(), "--kv_events_config={}"),
)

KV_CACHE_CASES: tuple[Case, ...] = (
    _tiers("empty", "spec.kvCache: names no tier; give cpu, disk or remote, or remove it"),
    _tiers(
        "disk-alone", "spec.kvCache.cpu: is needed with disk, because KV reaches the disk through it; add it", disk=DISK
    ),
    _tiers(
        "two-lower-tiers",
        "spec.kvCache.disk: engines have one tier below cpu; remove disk or remote",
        cpu=CPU,
        disk=DISK,
        remote=MOONCAKE,
    ),
    _tiers(
        "lmcache-alone",
        "spec.kvCache.cpu: is needed with remote.lmcache, which moves KV through it; add it",
        remote=LMCACHE,
    ),
    _tiers(
        "two-places",
        "spec.kvCache.disk: claim and path are two places for the same files; remove one",
        cpu=CPU,
        disk={**DISK, "claim": "kv", "path": "/mnt/nvme"},
    ),
    *(
        _tiers(
            f"class-of-{name}",
            "spec.kvCache.disk.storageClassName: is of volumes that are made for workers; remove it, or claim and path",
            cpu=CPU,
            disk={**DISK, "storageClassName": "local-nvme", name: value},
        )
        for name, value in (("claim", "kv"), ("path", "/mnt/nvme"))
    ),
    _tiers(
        "path-upwards",
        "spec.kvCache.disk.path: holds .., which kubelets refuse; write the folder's own path",
        cpu=CPU,
        disk={**DISK, "path": "/mnt/../etc"},
    ),
    *(
        _tiers(
            f"stores-{len(stores)}",
            "spec.kvCache.remote: give exactly one of lmcache and mooncake",
            cpu=CPU,
            remote=stores,
        )
        for stores in ({}, {**LMCACHE, **MOONCAKE})
    ),
    _tiers(
        "neuron",
        "spec.kvCache: neuron keeps KV in the memory of its devices alone; remove it",
        of=neuron_service(),
        cpu=CPU,
    ),
    *(
        _tiers(
            f"tensorrt-{name}",
            "spec.kvCache: tensorrt-llm has a tier in CPU memory alone; remove disk and remote",
            of=tensorrt_llm_service(),
            cpu=CPU,
            **{name: tier},
        )
        for name, tier in (("disk", DISK), ("remote", MOONCAKE))
    ),
    _tiers(
        "sglang-lmcache",
        "spec.kvCache.remote.lmcache: of remote stores sglang is given mooncake alone; choose it, or remove remote",
        of=sglang_service(),
        cpu=CPU,
        remote=LMCACHE,
    ),
    _tiers(
        "sglang-without-memory",
        "spec.kvCache.cpu: is needed with sglang, which moves KV through it; add it",
        of=sglang_service(),
        remote=MOONCAKE,
    ),
    *(
        _tiers(
            f"disk-over-nodes-{number}",
            _ONE_NODE,
            of=changed(vllm_service(), f"spec.capacity.pools.0.{field}", value),
            cpu=CPU,
            disk=DISK,
        )
        for number, (field, value) in enumerate(
            (
                ("gpusPerNode", 4),
                ("degrees", REMOVED),
                ("parallelism", [{"tp": 8}, {"tp": 8, "pp": 2}]),
            )
        )
    ),
    _tiers(
        "rdma-without-devices",
        "spec.kvCache.remote.mooncake.protocol: rdma needs network devices in every pool; add rdma or resourceClaims "
        "to the pools without, or set tcp",
        of=changed(vllm_service(), "spec.capacity.pools.0.rdma", REMOVED),
        remote=_RDMA,
    ),
    _field("size", "spec.kvCache.cpu.size", "much", "spec.kvCache.cpu.size", "should match"),
    _field("size-without-unit", "spec.kvCache.cpu.size", "200GiB", "spec.kvCache.cpu.size", "should match"),
    _field("no-size", "spec.kvCache.cpu", {}, "spec.kvCache.cpu.size: Required value"),
    _field("retention", "spec.kvCache.retention", {}, "unknown field", "spec.kvCache.retention"),
    _field("store-with-password", "spec.kvCache.remote.lmcache.url", "redis://u:p@redis:6379", "url", "should match"),
    _field("store-without-port", "spec.kvCache.remote.lmcache.url", "redis://redis", "url", "should match"),
    _field("master-with-scheme", "spec.kvCache.remote.mooncake.master", "tcp://m:1", "master", "should match"),
    _field("metadata", "spec.kvCache.remote.mooncake.metadataServer", "p2p", "metadataServer", "should match"),
    _field("protocol", "spec.kvCache.remote.mooncake.protocol", "ib", "protocol", "Unsupported value"),
    *(
        Case(
            f"kv-cache-flag-{number}",
            changed(body, "spec.engine.args", [arg]),
            rule=managed_flags(engine),
        )
        for number, (engine, body, arg) in enumerate(_FLAGS)
    ),
)
