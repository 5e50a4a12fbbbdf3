"""Read client bodies and take out every field that only the router may write.

A body is parsed once and what is forwarded is serialised from that very object, so duplicate keys
or odd encodings cannot smuggle a value past the checks.
"""

import unicodedata
from collections.abc import Iterable
from typing import cast

import orjson

from weft_router.errors import InvalidRequestError

Json = dict[str, object]

MAX_DEPTH = 64
"""Deepest nesting accepted; orjson reads 1024 levels but writes only 254, and real tool schemas stay below 20."""

_FORBIDDEN = frozenset(
    {
        # KV transfer and its steering: whoever writes these chooses what an engine reads and whom it dials
        "kv_transfer_params",
        "ec_transfer_params",
        "disaggregated_params",
        "do_remote_prefill",
        "do_remote_decode",
        "do_local_prefill",
        "data_parallel_rank",
        "data_parallel_rank_decode",
        "routed_dp_rank",
        "nvext",
        # isolation of cached prefixes between tenants
        "cache_salt",
        # ids the router makes itself: an engine may take addresses from them
        "request_id",
        "rid",
        # session identity, read before this and meant for the router alone
        "session_id",
        "conversation_id",
        "previous_response_id",
        "prompt_cache_key",
        "session_params",
        # reaches into the engine's media loading
        "mm_processor_kwargs",
    }
)
_FORBIDDEN_PREFIXES = ("bootstrap_", "disagg_", "x_weft_", "remote_")
_CONTAINERS = frozenset({"extra_body", "extra_args", "vllm_xargs", "sampling_params", "custom_params"})


def parse(raw: bytes) -> Json:
    """Return the JSON object in a request body.

    Raises:
        InvalidRequestError: the body is empty, not JSON, not an object, or nested too deeply.
    """
    if not raw.strip():
        raise InvalidRequestError("the request body is empty; send a JSON object")
    try:
        value: object = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(
            f"the request body is not valid JSON: {error.msg} at character {error.pos}"
        ) from error
    if not isinstance(value, dict):
        raise InvalidRequestError("the request body must be a JSON object")
    if _deeper_than(value, MAX_DEPTH):
        raise InvalidRequestError(f"the request body is nested more than {MAX_DEPTH} levels deep")
    return cast(Json, value)


def sanitise(body: Json) -> list[str]:
    """Delete every router-owned field from a client body in place; return what was deleted.

    Works on the top level and inside the containers that engines unpack (``extra_body``, ``vllm_xargs``, ...),
    ignoring case, dashes and Unicode look-alikes. Messages and tool schemas are content and stay as they are.
    """
    return _strip(body, everywhere=False)


def _strip(level: Json, *, everywhere: bool) -> list[str]:
    dropped = [key for key in level if _router_owned(key)]
    for key in dropped:
        del level[key]
    for key, value in level.items():
        if everywhere or _plain(key) in _CONTAINERS:
            for inner in _objects(value):
                dropped += _strip(inner, everywhere=True)
    return dropped


def _objects(value: object) -> Iterable[Json]:
    if isinstance(value, dict):
        yield cast(Json, value)
    elif isinstance(value, list):
        for item in value:
            yield from _objects(item)


def _router_owned(key: str) -> bool:
    name = _plain(key)
    return name in _FORBIDDEN or name.startswith(_FORBIDDEN_PREFIXES)


def _plain(key: str) -> str:
    if key.isascii():
        return key.strip().lower().replace("-", "_")
    return unicodedata.normalize("NFKC", key).strip().casefold().replace("-", "_")


def _deeper_than(value: object, limit: int) -> bool:
    level: list[object] = [value]
    for _ in range(limit):
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(child for child in item.values() if isinstance(child, dict | list))
            elif isinstance(item, list):
                below.extend(child for child in item if isinstance(child, dict | list))
        if not below:
            return False
        level = below
    return True
