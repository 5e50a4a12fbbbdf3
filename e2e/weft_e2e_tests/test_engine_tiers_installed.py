"""The vLLM that is installed takes what KV cache tiers are rendered to: its own classes read connectors and settings.

Offloading needs a GPU, so no engine is started: spec, manager and tiers of files are made as its scheduler makes them.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from weft_e2e.engines.command import tiny_service
from weft_e2e.engines.environment import environment
from weft_operator.api.objects import ServiceKey
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.render.engines import vllm
from weft_operator.render.engines.adapters import engine_files
from weft_operator.render.engines.container import EngineRequest
from weft_router.kv_disk_blocks import DeletedBlocks

pytestmark = [
    pytest.mark.component,
    pytest.mark.engine,
    pytest.mark.skipif(not os.environ.get("WEFT_E2E_ENGINE"), reason="real engines: make e2e-engine"),
]

CPU = {"size": "1Gi"}
TIERS: dict[str, dict[str, Any]] = {
    "cpu": {"cpu": CPU},
    "disk": {"cpu": CPU, "disk": {"size": "2Gi"}},
    "lmcache": {"cpu": CPU, "remote": {"lmcache": {"url": "lm://store.models.svc:65432"}}},
    "mooncake": {"cpu": CPU, "remote": {"mooncake": {"master": "master.models.svc:50051"}}},
}
_READ = """
import inspect, json, sys
from vllm.config.kv_transfer import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

flag = sys.argv[1]
parsed = EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args([flag])
config = parsed.kv_transfer_config
config = KVTransferConfig(**config) if isinstance(config, dict) else config
children = [KVTransferConfig(**one) for one in config.kv_connector_extra_config.get("connectors", [])] or [config]
# NIXL is there; what Mooncake's connector imports at once is not.
known = [one for one in children if one.kv_connector != "MooncakeStoreConnector"]
classes = {one.kv_connector: KVConnectorFactory.get_connector_class(one) for one in known}
registered = {one.kv_connector: one.kv_connector in KVConnectorFactory._registry for one in children}
found = {
    "connector": config.kv_connector,
    "policy": config.kv_load_failure_policy,
    "registered": registered,
    "hma": {one.kv_connector: KVConnectorFactory.supports_hma_config(one) for one in known},
    "piecewise": {
        one.kv_connector: classes[one.kv_connector].requires_piecewise_for_cudagraph(one.kv_connector_extra_config)
        for one in known
    },
}
print("found", json.dumps(found))
"""
_OFFLOAD = """
import json, sys
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig, OffloadingConfig, OffloadingGroupConfig, OffloadingModelConfig, OffloadingParallelConfig
)
from vllm.v1.kv_offload.factory import OffloadingSpecFactory

extra, engine, events = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3] == "events"
config = OffloadingConfig(
    groups=(OffloadingGroupConfig(tokens_per_block=16, layer_names=("layer.0",), group_id=0),),
    worker_kv_bytes_per_block=65536,
    enable_kv_cache_events=events,
    extra_config=extra,
    engine_id=engine,
    model=OffloadingModelConfig(name="tiny", dtype="bfloat16"),
    cache=OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=1),
    parallel=OffloadingParallelConfig(
        rank=0, world_size=1, tp_size=1, pp_size=1, pcp_size=1, dcp_size=1, data_parallel_index=0,
        data_parallel_size=1, data_parallel_rank_local=None, is_parallelism_agnostic=True,
    ),
)
spec = OffloadingSpecFactory.create_spec(config)
manager = spec.get_manager()
tiers = getattr(manager, "secondary_tiers", ())
found = {
    "spec": type(spec).__name__, "chunks": spec.num_chunks, "prompts": spec.offload_prompt_only,
    "published": [tier.events is not None for tier in tiers],
    "blocks_per_file": spec.blocks_per_chunk,
}
if tiers:
    from vllm.v1.kv_offload.base import make_offload_key
    found["file"] = tiers[0].file_mapper.get_file_name(make_offload_key(bytes(range(32)), 0))
print("found", json.dumps(found), flush=True)
manager.shutdown()
"""
_COUNTED = """
import inspect, json
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import get_connector_metric_definitions
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec
from vllm.v1.metrics import loggers
from vllm.v1.metrics.cache_hit_source import CacheHitSource

tiering = TieringOffloadingSpec.build_metric_definitions({"secondary_tiers": [{"type": "fs", "root_dir": "/x"}]})
found = {
    "connector": sorted(get_connector_metric_definitions()),
    "tiering": {name: list(one.labelnames or ()) for name, one in tiering.items()},
    "sources": [one.value for one in CacheHitSource],
    "by_source": '"vllm:prompt_tokens_cached_by_source"' in inspect.getsource(loggers),
}
print("found", json.dumps(found))
"""
_MOONCAKE = """
import dataclasses, json, sys
from vllm.distributed.mooncake_store import MooncakeStoreConfig
print("found", json.dumps(dataclasses.asdict(MooncakeStoreConfig.load_from_config())))
"""


def spec_with(name: str, *, events: bool = False) -> DisaggInferenceServiceSpec:
    body = tiny_service()["spec"]
    if events:
        body = {**body, "engine": {**body["engine"], "kvEvents": "Enabled"}}
    return DisaggInferenceServiceSpec.model_validate({**body, "kvCache": TIERS[name]})


def flag_of(name: str, *, events: bool = False) -> str:
    request = EngineRequest(role="decode", degree=1, default_image="", service=ServiceKey("n", "s"), revision="r1")
    (found,) = (
        a
        for a in vllm.build_container(spec_with(name, events=events), request).args
        if a.startswith("--kv-transfer-config")
    )
    return found


def offloading_of(name: str, *, events: bool = False) -> dict[str, Any]:
    """Return the settings of the connector that offloads."""
    config = json.loads(flag_of(name, events=events).partition("=")[2])
    (found,) = (
        child["kv_connector_extra_config"]
        for child in config["kv_connector_extra_config"]["connectors"]
        if child["kv_connector"] == "OffloadingConnector"
    )
    assert isinstance(found, dict)
    return found


def ask(script: str, *words: str, home: Path, **env: str) -> dict[str, Any]:
    """Return what a program in vLLM's environment found."""
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "VLLM_CACHE_ROOT": str(home),
        "VLLM_TARGET_DEVICE": "cpu",
        **env,
    }
    argv = [str(environment().python), "-c", script, *words]
    done = subprocess.run(argv, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("found "))
    found: dict[str, Any] = json.loads(line.removeprefix("found "))
    return found


@pytest.mark.parametrize("name", sorted(TIERS))
def test_vllm_reads_the_flag_and_knows_the_connectors(name: str, tmp_path: Path) -> None:
    found = ask(_READ, flag_of(name), home=tmp_path)
    assert found["connector"] == "MultiConnector"
    assert found["policy"] == ("recompute" if "remote" in TIERS[name] else "fail")
    assert "NixlConnector" in found["registered"]
    assert all(found["registered"].values())
    # Beside LMCache's connector vLLM manages all layers' KV alike; docs/kv-cache.md says so.
    unaware = {one for one, supported in found["hma"].items() if not supported}
    assert unaware == {"LMCacheConnectorV1"} & set(found["hma"])
    assert not any(found["piecewise"].values())


@pytest.mark.parametrize("events", [False, True], ids=["quiet", "events"])
@pytest.mark.parametrize(("name", "made"), [("cpu", "CPUOffloadingSpec"), ("disk", "TieringOffloadingSpec")])
def test_vllm_makes_its_tiers_of_the_settings(name: str, made: str, events: bool, tmp_path: Path) -> None:
    extra = offloading_of(name, events=events)
    assert extra["cpu_bytes_to_use"] == 2**30
    extra["cpu_bytes_to_use"] = 2**22  # what /dev/shm has here, too
    for tier in extra.get("secondary_tiers", ()):
        tier["root_dir"] = str(tmp_path / "kv")
    engine = f"weft-test-{os.getpid()}"
    try:
        found = ask(_OFFLOAD, json.dumps(extra), engine, "events" if events else "", home=tmp_path)
    finally:
        Path(f"/dev/shm/vllm_offload_{engine}.mmap").unlink(missing_ok=True)
    deleted = DeletedBlocks()
    if name == "disk":
        deleted.add(found.pop("file"))
        assert deleted.page(0)["hashes"] == [int.from_bytes(range(24, 32))], "files are named by their blocks"
    published = [events] if name == "disk" else []
    assert found == {"spec": made, "chunks": 64, "prompts": False, "published": published, "blocks_per_file": 1}
    assert (name == "disk") == bool(list((tmp_path / "kv").glob("tiny_*/config.json")))


def test_vllm_reads_the_file_for_mooncake(tmp_path: Path) -> None:
    file = tmp_path / "mooncake.json"
    file.write_text(engine_files(spec_with("mooncake"), paired=True)["mooncake.json"])
    found = ask(_MOONCAKE, home=tmp_path, MOONCAKE_CONFIG_PATH=str(file))
    assert found["master_server_address"] == "master.models.svc:50051"
    assert (found["mode"], found["protocol"], found["metadata_server"]) == ("standalone-store", "tcp", "P2PHANDSHAKE")


def test_vllm_counts_what_the_dashboard_shows(tmp_path: Path) -> None:
    found = ask(_COUNTED, home=tmp_path)
    assert {"vllm:kv_offload_load_bytes", "vllm:kv_offload_store_bytes"} <= set(found["connector"])
    for name in ("read_bytes", "write_bytes"):
        assert found["tiering"][f"vllm:kv_offload_tiering_{name}"] == ["tier"]
    assert found["by_source"]
    assert found["sources"] == ["device", "host", "p2p", "disk", "external_unspecified"]
