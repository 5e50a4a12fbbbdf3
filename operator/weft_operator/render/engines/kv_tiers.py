"""KV cache tiers (``spec.kvCache``): sizes and places that the adapters of engines share."""

from weft_core.parallelism import gpus_of
from weft_core.plan import canonical_json
from weft_core.quantities import bytes_of
from weft_operator.api.kv_cache import MooncakeStore
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.render.engines.container import EngineRequest

FOLDER = "/kv-cache"
"""Where the volume with the files of a worker is mounted."""
MOONCAKE_FILE = "mooncake.json"
MOONCAKE_BUFFER = 4 * 2**30
"""Bytes that each GPU's process sets aside to hand KV to Mooncake, vLLM's own default."""


def cpu_bytes(spec: DisaggInferenceServiceSpec) -> int:
    """Return the size of a worker's tier in CPU memory, 0 where it has none."""
    cache = spec.kv_cache
    return 0 if cache is None or cache.cpu is None else bytes_of(cache.cpu.size)


def worker_tiers(spec: DisaggInferenceServiceSpec) -> tuple[tuple[str, int], ...]:
    """Return the tiers of each worker's own by name and size in bytes, fastest first."""
    cache = spec.kv_cache
    tiers = (("cpu", cache.cpu), ("disk", cache.disk)) if cache is not None else ()
    return tuple((name, bytes_of(tier.size)) for name, tier in tiers if tier is not None)


def per_node(size: int, request: EngineRequest) -> int:
    """Return the part of each of a worker's pods."""
    return -(-size // request.nodes)


def per_gpu(size: int, request: EngineRequest) -> int:
    """Return the part of the process of each GPU."""
    return size // gpus_of(request.degree)


def gpus_per_node(request: EngineRequest) -> int:
    """Return how many GPUs each of a worker's pods has."""
    return gpus_of(request.degree) // request.nodes


def disk_folder(spec: DisaggInferenceServiceSpec, request: EngineRequest) -> str:
    """Return the folder of a pod's files, "" where it has none; on a claim or a path there are those of other pods.

    File names are hashes of tokens beside the name of the model: of other weights the same ones would be read, so each
    revision has folders of its own.
    """
    if spec.kv_cache is None or spec.kv_cache.disk is None:
        return ""
    service = request.service
    return f"{FOLDER}/{service.namespace}/{service.name}/{request.revision}-$(POD_NAME)"


def mooncake_of(spec: DisaggInferenceServiceSpec) -> MooncakeStore | None:
    """Return the Mooncake Store that workers share, None where there is none."""
    remote = spec.kv_cache.remote if spec.kv_cache is not None else None
    return None if remote is None else remote.mooncake


def store_prefix(request: EngineRequest) -> str:
    """Return what distinguishes the keys of a service and revision from those of others in one store."""
    return "-".join((request.service.namespace, request.service.name, request.revision))


def mooncake_file(store: MooncakeStore) -> str:
    """Return the file that vLLM's Mooncake client reads (vllm/distributed/mooncake_store.py, MooncakeStoreConfig).

    In mode standalone-store the servers of the store hold all KV: memory of a worker would go with it.
    """
    return canonical_json(
        {
            "mode": "standalone-store",
            "metadata_server": store.metadata_server,
            "master_server_address": store.master,
            "protocol": store.protocol,
            "device_name": "",
            "global_segment_size": 0,
            "local_buffer_size": MOONCAKE_BUFFER,
        }
    )
