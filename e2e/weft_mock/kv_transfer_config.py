"""Check ``--kv-transfer-config`` as strictly as a mistake in it deserves: vLLM would start without what was meant.

Known are the connectors and settings of vLLM 0.32 that services are rendered with, under ``MultiConnector`` too. NIXL's
settings must be those of the engine's own flags, by which it runs. ``--kv-tier`` has the tiers that it models.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

_FLAG = "--kv-transfer-config"
_ROLES = ("kv_producer", "kv_consumer", "kv_both")
_POLICIES = ("recompute", "fail")
_CHILD = frozenset({"kv_connector", "kv_role", "kv_connector_extra_config"})

Check = Callable[[object], bool]


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _folder(value: object) -> bool:
    return isinstance(value, str) and value.startswith("/")


def _one_of(*words: str) -> Check:
    return lambda value: value in words


_NIXL: Mapping[str, Check] = {
    "kv_lease_duration": _count,
    "bidirectional_kv_xfer": _flag,
    "kv_recompute_threshold": _count,
    "decoder_kv_blocks_ttl": _count,
}
_OFFLOADING: Mapping[str, Check] = {
    "cpu_bytes_to_use": _count,
    "offload_prompt_only": _flag,
    "eviction_policy": _one_of("lru", "arc"),
    "spec_name": _one_of("CPUOffloadingSpec", "TieringOffloadingSpec"),
    "self_describing_kv_events": _flag,
    "secondary_tiers": lambda value: isinstance(value, list) and value != [],
}
_FILE_SYSTEM: Mapping[str, Check] = {
    "type": _one_of("fs"),
    "root_dir": _folder,
    "n_read_threads": _count,
    "n_write_threads": _count,
    "enable_kv_events": _flag,
}
_LMCACHE: Mapping[str, Check] = {
    "lmcache.local_cpu": _flag,
    "lmcache.max_local_cpu_size": _number,
    "lmcache.remote_url": lambda value: isinstance(value, str) and "://" in value,
    "lmcache.save_decode_cache": _flag,
}
_MOONCAKE: Mapping[str, Check] = {"cache_prefix": _text, "save_decode_cache": _flag, "load_async": _flag}
_CONNECTORS: Mapping[str, tuple[Mapping[str, Check], frozenset[str]]] = {
    "NixlConnector": (_NIXL, frozenset({"kv_lease_duration"})),
    "OffloadingConnector": (_OFFLOADING, frozenset({"cpu_bytes_to_use"})),
    "LMCacheConnectorV1": (_LMCACHE, frozenset({"lmcache.max_local_cpu_size"})),
    "MooncakeStoreConnector": (_MOONCAKE, frozenset()),
}
"""By name: the settings of a connector, and those of them that it needs here."""
_MULTI = "MultiConnector"


def check_transfer_config(text: str, *, bidirectional: bool) -> bool:
    """Check the value of the flag beside ``--bidirectional``; return whether its tier of files publishes KV events.

    Raises:
        ValueError: it is none that vLLM would do what was meant with; the message says which part.
    """
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{_FLAG}: no JSON: {error}") from None
    config = _object(config, "")
    policy = config.pop("kv_load_failure_policy", "fail")
    if policy not in _POLICIES:
        raise ValueError(f"{_FLAG}: kv_load_failure_policy: {policy!r} is none of {', '.join(_POLICIES)}")
    found = list(_connectors(config))
    names = [name for name, _ in found]
    if len(set(names)) != len(names):
        raise ValueError(f"{_FLAG}: connectors: one is there twice")
    for name, extra in found:
        both = bool(extra.get("bidirectional_kv_xfer", False))
        if name == "NixlConnector" and both is not bidirectional:
            raise ValueError(f"{_FLAG}: bidirectional_kv_xfer is {both} and --bidirectional {bidirectional}")
    return any(tier.get("enable_kv_events", False) for _, extra in found for tier in extra.get("secondary_tiers", ()))


def _connectors(config: dict[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the names of the connectors with their settings, all checked."""
    if config.get("kv_connector") != _MULTI:
        return [_connector(config, "")]
    extra = _entry(config, "")
    if set(extra) != {"connectors"} or not isinstance(extra["connectors"], list) or not extra["connectors"]:
        raise ValueError(f"{_FLAG}: kv_connector_extra_config: {_MULTI} has a list of connectors and nothing else")
    children = enumerate(extra["connectors"])
    return [_connector(_object(child, f"connectors[{i}]: "), f"connectors[{i}]: ") for i, child in children]


def _connector(config: Mapping[str, Any], at: str) -> tuple[str, Mapping[str, Any]]:
    name = config.get("kv_connector")
    if not isinstance(name, str) or name not in _CONNECTORS:
        raise ValueError(f"{_FLAG}: {at}kv_connector: {name!r} is none of {', '.join((*_CONNECTORS, _MULTI))}")
    extra = _entry(config, at)
    known, needed = _CONNECTORS[name]
    _check(extra, known, needed, f"{at}{name}: ")
    tiers = extra.get("secondary_tiers")
    if (extra.get("spec_name") == "TieringOffloadingSpec") != (tiers is not None):
        words = "secondary_tiers are for spec_name TieringOffloadingSpec, which needs them"
        raise ValueError(f"{_FLAG}: {at}{name}: {words}")
    for i, tier in enumerate(tiers or ()):
        place = f"{at}{name}: secondary_tiers[{i}]: "
        _check(_object(tier, place), _FILE_SYSTEM, frozenset({"type", "root_dir"}), place)
    return name, extra


def _entry(config: Mapping[str, Any], at: str) -> Mapping[str, Any]:
    """Check the fields that every connector has, and return its settings."""
    unknown = sorted(set(config) - _CHILD)
    if unknown:
        raise ValueError(f"{_FLAG}: {at}{unknown[0]}: unknown")
    if config.get("kv_role") not in _ROLES:
        raise ValueError(f"{_FLAG}: {at}kv_role: {config.get('kv_role')!r} is none of {', '.join(_ROLES)}")
    return _object(config.get("kv_connector_extra_config", {}), f"{at}kv_connector_extra_config: ")


def _check(given: Mapping[str, Any], known: Mapping[str, Check], needed: frozenset[str], at: str) -> None:
    missing = sorted(needed - set(given))
    if missing:
        raise ValueError(f"{_FLAG}: {at}{missing[0]}: is missing")
    for key, value in given.items():
        if key not in known:
            raise ValueError(f"{_FLAG}: {at}{key}: unknown")
        if not known[key](value):
            raise ValueError(f"{_FLAG}: {at}{key}: {value!r} cannot be")


def _object(value: object, at: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{_FLAG}: {at}a JSON object is needed")
    return dict(value)
