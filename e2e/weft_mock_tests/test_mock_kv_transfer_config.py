"""vLLM's connectors on the mock engine's command line: what vLLM would misread is refused, and named."""

import copy
import json
from typing import Any

import pytest

from weft_mock.kv_transfer_config import check_transfer_config

NIXL: dict[str, Any] = {
    "kv_connector": "NixlConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "kv_lease_duration": 60,
        "bidirectional_kv_xfer": True,
        "kv_recompute_threshold": 64,
        "decoder_kv_blocks_ttl": 120,
    },
}
DISK: dict[str, Any] = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": 2**30,
        "offload_prompt_only": False,
        "secondary_tiers": [{"type": "fs", "root_dir": "/kv-cache/a"}],
    },
}
LMCACHE: dict[str, Any] = {
    "kv_connector": "LMCacheConnectorV1",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"lmcache.max_local_cpu_size": 2.5, "lmcache.remote_url": "lm://store:65432"},
}
MOONCAKE: dict[str, Any] = {
    "kv_connector": "MooncakeStoreConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"cache_prefix": "default-demo-r1", "save_decode_cache": True},
}


def multi(*connectors: Any, **more: Any) -> dict[str, Any]:
    extra = {"connectors": list(connectors), **more}
    return {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


def check(config: Any, *, bidirectional: bool = True) -> bool:
    return check_transfer_config(config if isinstance(config, str) else json.dumps(config), bidirectional=bidirectional)


def without(config: dict[str, Any], key: str) -> dict[str, Any]:
    copied = copy.deepcopy(config)
    del copied["kv_connector_extra_config"][key]
    return copied


def changed(config: dict[str, Any], **settings: Any) -> dict[str, Any]:
    copied = copy.deepcopy(config)
    copied["kv_connector_extra_config"] |= settings
    return copied


@pytest.mark.parametrize(
    "config",
    [
        NIXL,
        multi(NIXL, DISK),
        multi(NIXL, LMCACHE),
        {**multi(NIXL, MOONCAKE), "kv_load_failure_policy": "recompute"},
        multi(NIXL),
        DISK,
    ],
)
def test_connectors_of_vllm_are_accepted(config: Any) -> None:
    check(config)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{", "no JSON"),
        ("[]", "a JSON object is needed"),
        ({"kv_role": "kv_both"}, "kv_connector: None is none of NixlConnector"),
        ({**NIXL, "kv_connector": "OffloadConnector"}, "kv_connector: 'OffloadConnector' is none of"),
        ({**NIXL, "kv_role": "both"}, "kv_role: 'both' is none of"),
        ({"kv_connector": "NixlConnector", "kv_connector_extra_config": {}}, "kv_role: None is none of"),
        ({**NIXL, "kv_load_failure_policy": "retry"}, "kv_load_failure_policy: 'retry'"),
        ({**NIXL, "kv_rank": 0}, "kv_rank: unknown"),
        (without(NIXL, "kv_lease_duration"), "NixlConnector: kv_lease_duration: is missing"),
        (changed(NIXL, kv_lease_duration="60"), "kv_lease_duration: '60' cannot be"),
        (changed(NIXL, bidirectional=True), "NixlConnector: bidirectional: unknown"),
        (without(NIXL, "bidirectional_kv_xfer"), "bidirectional_kv_xfer is False and --bidirectional True"),
        (without(DISK, "cpu_bytes_to_use"), "OffloadingConnector: cpu_bytes_to_use: is missing"),
        (changed(DISK, cpu_bytes_to_use=0), "cpu_bytes_to_use: 0 cannot be"),
        (changed(DISK, cpu_bytes_to_use=True), "cpu_bytes_to_use: True cannot be"),
        (changed(DISK, spec_name="FileOffloadingSpec"), "spec_name: 'FileOffloadingSpec' cannot be"),
        (without(DISK, "spec_name"), "secondary_tiers are for spec_name TieringOffloadingSpec"),
        (without(DISK, "secondary_tiers"), "secondary_tiers are for spec_name TieringOffloadingSpec"),
        (changed(DISK, secondary_tiers=[]), "secondary_tiers: [] cannot be"),
        (changed(DISK, secondary_tiers=[{"type": "fs"}]), "secondary_tiers[0]: root_dir: is missing"),
        (changed(DISK, secondary_tiers=[{"type": "fs", "root_dir": "a"}]), "root_dir: 'a' cannot be"),
        (changed(DISK, secondary_tiers=[{"type": "disk", "root_dir": "/a"}]), "type: 'disk' cannot be"),
        (without(LMCACHE, "lmcache.max_local_cpu_size"), "lmcache.max_local_cpu_size: is missing"),
        (changed(MOONCAKE, cache_prefix=""), "cache_prefix: '' cannot be"),
        (multi(), "has a list of connectors"),
        (multi(NIXL, engine_id="x"), "has a list of connectors"),
        (multi(NIXL, multi(DISK)), "connectors[1]: kv_connector: 'MultiConnector'"),
        (multi(NIXL, {**DISK, "engine_id": "x"}), "connectors[1]: engine_id: unknown"),
        (multi(NIXL, {**MOONCAKE, "kv_load_failure_policy": "fail"}), "connectors[1]: kv_load_failure_policy: unknown"),
        (multi(NIXL, 3), "connectors[1]: a JSON object is needed"),
        (multi(NIXL, DISK, DISK), "one is there twice"),
    ],
)
def test_what_vllm_would_misread_is_refused(config: Any, words: str) -> None:
    with pytest.raises(ValueError, match=r"^--kv-transfer-config: ") as caught:
        check(config)
    assert words in str(caught.value)


@pytest.mark.parametrize("published", [True, False])
def test_a_tier_of_files_says_whether_it_publishes_events(published: bool) -> None:
    tier = {"type": "fs", "root_dir": "/a", "enable_kv_events": published}
    assert check(multi(NIXL, changed(DISK, secondary_tiers=[tier]))) is published
    assert check(DISK) is False


def test_nixl_goes_by_the_engine_s_own_flags() -> None:
    check(without(NIXL, "bidirectional_kv_xfer"), bidirectional=False)
    check(DISK, bidirectional=False)
