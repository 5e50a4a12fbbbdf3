"""Condense a request into what it can be recognised by: exactly, and by the fields that make it unusual."""

import hashlib
from typing import Final

import orjson

from weft_router.openai.inference import MIXED, NOTHING, UNUSUAL, Inference

_VOLATILE: Final = frozenset({"stream", "stream_options", "user", "metadata", "service_tier", "safety_identifier"})
"""Fields that say nothing of what the engine computes."""
_NEUTRAL: Final[dict[str, object]] = {"n": 1, "best_of": 1, "repetition_penalty": 1, "length_penalty": 1}
_NOTHING_ASKED: Final[tuple[object, ...]] = (None, False, 0, "", [], {})
_BYTES: Final = 16


def unusual(inference: Inference) -> frozenset[str]:
    """Return the fields of a request that not nearly all have, where they ask for anything; mostly none."""
    if not inference.marks & (UNUSUAL | MIXED):
        return NOTHING
    found = set()
    if inference.marks & UNUSUAL:
        found = {
            name
            for name, value in inference.body.items()
            if inference.unusual(name) and value not in _NOTHING_ASKED and value != _NEUTRAL.get(name)
        }
    if inference.kind == "chat" and inference.media:
        found.add("media")
    return frozenset(found)


def owner(key: bytes, tenant: str) -> str:
    """Return what stands for a tenant; ``key`` is 16 to 64 secret bytes."""
    return hashlib.blake2b(tenant.encode("utf-8", "surrogatepass"), key=key, digest_size=8).hexdigest()


def fingerprint(key: bytes, tenant: str, inference: Inference) -> tuple[str, str]:
    """Return what stands for a tenant's request as it is, and for its unusual fields, "" where there are none.

    Both are keyed: they leave the process, and nobody can tell from them what was asked.
    """
    body = {name: value for name, value in inference.body.items() if name not in _VOLATILE}
    whose = f"{len(tenant)}:{tenant}|{inference.kind}|".encode("utf-8", "surrogatepass")
    exact = _digest(key, whose + orjson.dumps(body, option=orjson.OPT_SORT_KEYS))
    fields = unusual(inference)
    return exact, _digest(key, whose + ",".join(sorted(fields)).encode("utf-8", "surrogatepass")) if fields else ""


def _digest(key: bytes, raw: bytes) -> str:
    return hashlib.blake2b(raw, key=key, digest_size=_BYTES).hexdigest()
