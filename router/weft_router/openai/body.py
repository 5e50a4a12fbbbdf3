"""Read client bodies and take out every field that only the router may write.

A body is parsed once and what is forwarded is serialised from that very object, so duplicate keys
or odd encodings cannot smuggle a value past the checks.
"""

import unicodedata
from collections.abc import Collection, Iterable
from typing import Final, cast

import orjson

from weft_core.request_fields import ROUTER_FIELD_PREFIXES, ROUTER_FIELDS
from weft_router.errors import InvalidRequestError
from weft_router.openai.nodes import AT_ONCE, CONTAINER, MAX_NODES, bound, too_many

Json = dict[str, object]

MAX_DEPTH: Final = 64
"""Deepest nesting accepted; orjson reads 1024 levels but writes only 254, and real tool schemas stay below 20."""

_FORBIDDEN: Final = frozenset(ROUTER_FIELDS)
CHAINED: Final = "previous_response_id"
_CONTAINERS: Final = frozenset({"extra_args", "vllm_xargs", "sampling_params", "custom_params"})


SAFE: Final = frozenset(
    {
        "model", "messages", "prompt", "input", "instructions", "stream", "stream_options", "temperature", "top_p",
        "top_k", "min_p", "n", "best_of", "max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens",
        "stop", "stop_token_ids", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty",
        "length_penalty", "logit_bias", "logprobs", "top_logprobs", "prompt_logprobs", "echo", "suffix", "user",
        "metadata", "store", "tools", "tool_choice", "parallel_tool_calls", "response_format", "reasoning",
        "reasoning_effort", "text", "include", "truncation", "priority", "return_token_ids", "add_generation_prompt",
        "continue_final_message", "chat_template", "chat_template_kwargs", "documents", "ignore_eos",
        "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output", "service_tier",
        "background",
    }
)  # fmt: skip
"""Fields that clients often send and that are neither router-owned nor containers: nothing to look for inside."""

_NESTED: Final = (dict, list)
_NESTED_TYPES: Final = frozenset(_NESTED)
_loads: Final = orjson.loads
_MORE: Final = CONTAINER - 1


def parse(raw: bytes, most: int = MAX_NODES) -> Json:
    """Return the JSON object in a request body.

    Raises:
        InvalidRequestError: the body is empty, not JSON, not an object, or nested too deeply.
        TooLargeError: it has more than ``most`` nodes.
    """
    if len(raw) > AT_ONCE:
        bound(raw, most)
    return measured(raw, most)[0]


def measured(raw: bytes, most: int) -> tuple[Json, int]:
    """Return the JSON object in a request body, and how many nodes it has (see ``nodes``).

    One above ``AT_ONCE`` makes more than ``most`` in memory before that is known, unless ``bound`` has looked at it.

    Raises:
        InvalidRequestError: as ``parse`` does.
        TooLargeError: it has more than ``most`` nodes.
    """
    try:
        value: object = _loads(raw)
    except orjson.JSONDecodeError as error:
        if not raw.strip():
            raise InvalidRequestError("the request body is empty; send a JSON object") from error
        raise InvalidRequestError(
            f"the request body is not valid JSON: {error.msg} at character {error.pos}"
        ) from error
    if not isinstance(value, dict):
        raise InvalidRequestError("the request body must be a JSON object")
    nodes = _nodes(value, most)
    if nodes > most:
        raise too_many(most)
    return cast(Json, value), nodes


def sanitise(body: Json, kind: str = "chat") -> list[str]:
    """Delete every router-owned field from a client body in place; return what was deleted.

    Works on the top level and inside the containers that engines unpack (``vllm_xargs``, ``sampling_params``, ...),
    ignoring case, dashes and Unicode look-alikes. Messages and tool schemas are content and stay as they are.
    Of kind ``responses`` the exact field ``previous_response_id`` stays, for the response's history is the engine's;
    whoever lets it stay must have checked that it belongs to the tenant.
    """
    if SAFE.issuperset(body):
        return []
    kept = body.pop(CHAINED, None) if kind == "responses" else None
    dropped = _strip(body, everywhere=False)
    if kept is not None:
        body[CHAINED] = kept
    return dropped


def _strip(level: Json, *, everywhere: bool) -> list[str]:
    dropped = [key for key in level if key not in SAFE and _router_owned(key)]
    for key in dropped:
        del level[key]
    for key, value in level.items():
        if not isinstance(value, _NESTED):
            continue
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
    return name in _FORBIDDEN or name.startswith(ROUTER_FIELD_PREFIXES)


def _plain(key: str) -> str:
    if key.isascii():
        return key.strip().lower().replace("-", "_")
    return unicodedata.normalize("NFKC", key).strip().casefold().replace("-", "_")


def _nodes(value: Json, most: int) -> int:
    """Return how many nodes an object has, or any number above ``most`` where it has more.

    One of plain values and lists of such objects is seen at a glance.

    Exact types will do, for orjson makes no others.

    Raises:
        InvalidRequestError: it is nested too deeply.
    """
    nodes = len(value) + (len(value) or 1) + _MORE
    for child in value.values():
        if type(child) is list:
            nodes += (len(child) or 1) + _MORE
            if nodes > most:
                return nodes
            if child and type(child[0]) is int and _NESTED_TYPES.isdisjoint(map(type, child)):
                continue  # the ids of a prompt
            for item in child:
                if type(item) is dict:
                    nodes += len(item) + (len(item) or 1) + _MORE
                    for leaf in item.values():
                        if type(leaf) is list or type(leaf) is dict:
                            return _nodes_below(value, most)
                elif type(item) is list:
                    return _nodes_below(value, most)
        elif type(child) is dict:
            return _nodes_below(value, most)
    return nodes


def _nodes_below(value: Json, most: int) -> int:
    """Do as ``_nodes`` does, whatever is in the object."""
    nodes = 0
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for item in level:
            if type(item) is dict:
                children: Collection[object] = item.values()
                nodes += len(children)
            else:
                children = cast(list[object], item)
            nodes += (len(children) or 1) + _MORE
            if not _NESTED_TYPES.isdisjoint(map(type, children)):
                below += [child for child in children if type(child) is dict or type(child) is list]
        if not below or nodes + len(below) > most:
            return nodes + len(below)
        level = below
    raise InvalidRequestError(f"the request body is nested more than {MAX_DEPTH} levels deep")
