"""Read what vLLM answers to a prefill: the counts and the parameters of its KV, and nothing else."""

from typing import Final, cast

import orjson

from weft_router.engines.adapter import PrefillResult
from weft_router.engines.handles import points
from weft_router.openai.body import Json
from weft_router.openai.inference import Kind
from weft_router.openai.reply import Reply

CACHED: Final = "remote_prefill_cached_tokens"
"""How many tokens of the prompt the prefill engine had; an engine with Weft's plug-in tells."""
_USAGE: Final = b'"usage":{'
_PARAMS: Final = b',"kv_transfer_params":{'
"""Bare quotes stand outside of texts, so both are members; a reply of any other form is parsed."""
_loads: Final = orjson.loads


def read_prefilled(kind: Kind, raw: bytes) -> PrefillResult | None:
    """Return what a reply to a prefill gives the decode leg; None when it is not in vLLM's usual form.

    The parameters stand last, the counts before them. If what follows their key is one JSON object, then the key was no
    deeper than the reply itself, and these bytes can go on as they are: for a long prompt they list a thousand blocks.
    Nor were the counts, if what stands between both keys is whole members.
    """
    counts = raw.find(_USAGE)
    at = raw.find(_PARAMS, counts) if counts >= 0 else -1
    if at < 0 or not raw.endswith(b"}"):
        return None
    written = raw[at + len(_PARAMS) - 1 : -1]
    try:
        found = transfer_params(_loads(written))
        usage: object = _loads(b"{" + raw[counts:at] + b"}")["usage"]
    except orjson.JSONDecodeError:
        return None
    if found is None:
        return None
    reply = Reply(kind)
    reply.take_usage(usage)
    return PrefillResult(found, reply, written=written, cached_tokens=cached_tokens(found))


def transfer_params(params: object) -> Json | None:
    """Return the object for the decode leg when a prefill reply holds a whole one, None otherwise."""
    if not isinstance(params, dict) or params.get("do_remote_prefill") is not True:
        return None
    found = cast(Json, params)
    return found if points(found) else None


def cached_tokens(params: Json) -> int | None:
    """Return how many tokens of the prompt a prefill engine had, where it tells."""
    cached = params.get(CACHED)
    return cached if isinstance(cached, int) else None
