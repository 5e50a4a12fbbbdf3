"""vLLM's KV connectors: NIXL between workers, and those of the KV cache tiers, under MultiConnector where several are.

Settings are those of vLLM 0.32:

* ``NixlConnector``: docs/features/nixl_connector_usage.
* ``MultiConnector`` (distributed/kv_transfer/kv_connector/v1/multi_connector.py): KV is loaded from the first connector
  that has some of it and saved to all. NIXL comes first: what another worker holds for a round is longer than what a
  tier does. All connectors here but LMCache's support vLLM's hybrid KV cache manager (``SupportsHMA``). Beside
  LMCache's vLLM switches it off, and needs more memory for models with windows.
* ``OffloadingConnector`` (v1/kv_offload/cpu/spec.py, tiering/spec.py, tiering/fs/manager.py): ``cpu_bytes_to_use`` is
  that of one data-parallel rank over all its GPUs, a file in /dev/shm. Files of the tier ``fs`` are never deleted by
  vLLM, and a full disk takes no more: the sidecar of ``render.kv_disk`` makes room. It publishes events only with
  ``enable_kv_events``, of stored blocks alone: the sidecar reports those that it deletes.
* ``LMCacheConnectorV1`` (lmcache_connector.py): keys with ``lmcache.`` set those of LMCache's own configuration
  (lmcache/v1/config.py); sizes are GiB of each GPU's process. Its keys are Python's hashes
  (``pre_caching_hash_algorithm``), so all processes need one seed.
* ``MooncakeStoreConnector`` (docs/features/mooncake_store_connector_usage), with ``cache_prefix`` before its keys.

What a remote store fails to hand over is computed (``kv_load_failure_policy``); by default the round fails.
"""

import json
from collections.abc import Mapping
from typing import Any

from weft_core.parallelism import parallelism_of
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.render.engines.container import CONFIG_FOLDER, EngineRequest, PodTiers
from weft_operator.render.engines.kv_tiers import (
    MOONCAKE_BUFFER,
    MOONCAKE_FILE,
    cpu_bytes,
    disk_folder,
    gpus_per_node,
    mooncake_file,
    mooncake_of,
    per_gpu,
    per_node,
    store_prefix,
)

RECOMPUTE_THRESHOLD = 64
"""Tokens of history below which reading KV back costs more than computing it (vLLM's own default)."""
_GIB = 2**30
_KV_ROLE = {"prefill": "kv_producer", "decode": "kv_consumer", "both": "kv_both"}

Connector = dict[str, Any]


def transfer_config(spec: DisaggInferenceServiceSpec, request: EngineRequest) -> str:
    """Return the value of ``--kv-transfer-config``, "" where an engine neither hands KV over nor has tiers."""
    connectors = [*([_nixl(spec, request)] if request.paired else []), *_tiers(spec, request)]
    if not connectors:
        return ""
    config = connectors[0]
    if len(connectors) > 1:
        config = {
            "kv_connector": "MultiConnector",
            "kv_role": config["kv_role"],
            "kv_connector_extra_config": {"connectors": connectors},
        }
    if spec.kv_cache is not None and spec.kv_cache.remote is not None:
        config = {**config, "kv_load_failure_policy": "recompute"}
    return json.dumps(config, separators=(",", ":"))


def _nixl(spec: DisaggInferenceServiceSpec, request: EngineRequest) -> Connector:
    transfer = spec.engine.kv_transfer
    extra: dict[str, object] = {"kv_lease_duration": transfer.lease_seconds}
    if transfer.bidirectional:
        extra |= {
            "bidirectional_kv_xfer": True,
            "kv_recompute_threshold": RECOMPUTE_THRESHOLD,
            "decoder_kv_blocks_ttl": transfer.handle_ttl_seconds,
        }
    return {
        "kv_connector": "NixlConnector",
        "kv_role": _KV_ROLE[request.role],
        "kv_connector_extra_config": extra,
    }


def _tiers(spec: DisaggInferenceServiceSpec, request: EngineRequest) -> list[Connector]:
    if _through_lmcache(spec):
        return [_lmcache(spec, request)]
    mooncake = mooncake_of(spec) is not None
    return [
        *([_offloading(spec, request)] if cpu_bytes(spec) else []),
        *([_mooncake(request)] if mooncake else []),
    ]


def _through_lmcache(spec: DisaggInferenceServiceSpec) -> bool:
    """Return whether LMCache has the memory of the tiers, too: it keeps in it what goes to its store."""
    remote = spec.kv_cache.remote if spec.kv_cache is not None else None
    return remote is not None and remote.lmcache is not None


def _offloading(spec: DisaggInferenceServiceSpec, request: EngineRequest) -> Connector:
    folder = disk_folder(spec, request)
    extra: dict[str, object] = {
        "cpu_bytes_to_use": cpu_bytes(spec) // parallelism_of(request.degree).dp,
        "offload_prompt_only": False,  # the next round's history has the answer, too
    }
    if spec.engine.kv_events:
        extra["self_describing_kv_events"] = True  # else an event names the last block of several
    if folder:
        tier = {"type": "fs", "root_dir": folder, **({"enable_kv_events": True} if spec.engine.kv_events else {})}
        extra = {"spec_name": "TieringOffloadingSpec", **extra, "secondary_tiers": [tier]}
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


def _lmcache(spec: DisaggInferenceServiceSpec, request: EngineRequest) -> Connector:
    remote = spec.kv_cache.remote if spec.kv_cache is not None else None
    extra = {
        "lmcache.local_cpu": True,
        "lmcache.max_local_cpu_size": round(per_gpu(cpu_bytes(spec), request) / _GIB, 3),
        "lmcache.remote_url": remote.lmcache.url if remote is not None and remote.lmcache is not None else "",
        "lmcache.save_decode_cache": True,
    }
    return {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both", "kv_connector_extra_config": extra}


def _mooncake(request: EngineRequest) -> Connector:
    extra = {"cache_prefix": store_prefix(request), "save_decode_cache": True}
    return {"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


def tier_env(spec: DisaggInferenceServiceSpec) -> tuple[tuple[str, str], ...]:
    """Return the variables that tiers need."""
    if _through_lmcache(spec):
        return (("PYTHONHASHSEED", "0"),)
    if mooncake_of(spec) is not None:
        return (("MOONCAKE_CONFIG_PATH", f"{CONFIG_FOLDER}/{MOONCAKE_FILE}"),)
    return ()


def tier_files(spec: DisaggInferenceServiceSpec) -> Mapping[str, str]:
    """Return the files that tiers need beside those of the routers."""
    store = mooncake_of(spec)
    return {} if store is None else {MOONCAKE_FILE: mooncake_file(store)}


def pod_tiers(spec: DisaggInferenceServiceSpec, request: EngineRequest) -> PodTiers:
    """Return what tiers take of a pod: the OffloadingConnector's memory is in /dev/shm.

    Of an engine that spans nodes the file there is as large on each of them, and holds that node's part.
    """
    size, parts = cpu_bytes(spec), parallelism_of(request.degree)
    memory = per_node(size, request)
    shared = 0 if _through_lmcache(spec) else size if parts.dp == 1 else memory
    if mooncake_of(spec) is not None:
        memory += MOONCAKE_BUFFER * gpus_per_node(request)
    return PodTiers(memory=memory, shared_memory=shared, folder=disk_folder(spec, request))
