"""Write the bodies of vLLM's prefill/decode protocol (0.32, NixlConnector, pull, bidirectional).

Prefill leg: the client's request, one token, not streamed, asking for the KV to stay. Decode leg: the client's
request with the object the prefill engine gave back, unchanged. Local leg: may ask the engine to keep the KV.
"""

from typing import cast

from weft_router.api.body import Json
from weft_router.api.inference import Inference
from weft_router.engines.handles import KvHandle

_NO_REMOTE: Json = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
_NOT_ON_PREFILL = ("stream_options", "min_tokens", "best_of", "logprobs", "top_logprobs", "max_completion_tokens")
HANDLE_HEADERS = {"X-Weft-KV-Handle": "1"}
PLUGIN_HEADER = "X-Weft-Engine-Plugin"
"""Sent with a stream by engines whose plug-in adds the handle to it."""


def prefill_body(inference: Inference, handle: KvHandle | None, *, want_ids: bool) -> Json:
    """Return the prefill engine's request; with a handle it reads the history instead of computing it."""
    body = {key: value for key, value in inference.body.items() if key not in _NOT_ON_PREFILL}
    body["stream"] = False
    body["max_tokens"] = 1
    if "max_completion_tokens" in inference.body:
        body["max_completion_tokens"] = 1
    if "n" in body:
        body["n"] = 1
    if want_ids:
        body["return_token_ids"] = True
    body["kv_transfer_params"] = dict(handle.params) if handle is not None else dict(_NO_REMOTE)
    return body


def decode_body(inference: Inference, params: Json, *, want_ids: bool) -> Json:
    """Return the decode engine's request that fetches the prefilled KV."""
    body = _answer_body(inference, want_ids=want_ids)
    body["kv_transfer_params"] = params
    return body


def local_body(inference: Inference, *, export: bool, want_ids: bool) -> Json:
    """Return the decode engine's request for a round it prefills itself.

    With ``export`` it keeps the KV for the next round. The flag pair matters: an object with neither flag set
    would pin blocks for good.
    """
    body = _answer_body(inference, want_ids=want_ids)
    if export:
        body["kv_transfer_params"] = dict(_NO_REMOTE)
    return body


def _answer_body(inference: Inference, *, want_ids: bool) -> Json:
    body = dict(inference.body)
    if inference.stream:
        options = body.get("stream_options")
        given = cast(Json, options) if isinstance(options, dict) else {}
        body["stream_options"] = {**given, "include_usage": True}
    if want_ids:
        body["return_token_ids"] = True
    return body


def transfer_params(params: object) -> Json | None:
    """Return the object for the decode leg when a prefill reply holds a whole one, None otherwise."""
    if not isinstance(params, dict) or params.get("do_remote_prefill") is not True:
        return None
    needed = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_block_ids")
    if any(params.get(key) in (None, "", []) for key in needed):
        return None
    return cast(Json, params)
