"""The Responses API: what a request may ask for here, how long its input is, and the ids its answers get.

Responses are created, streamed or whole; nothing is kept for retrieval. ``previous_response_id`` goes on from an
earlier response: the engine that made it holds its history, so the round goes where that session is bound. The ids
are made by the router: they name the session and carry a tag over tenant and session, so that every coordinator finds
the session without asking a store, and no tenant can go on from another's response.
"""

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Final, cast

import orjson

from weft_router.errors import InvalidRequestError, NotFoundError
from weft_router.openai.body import CHAINED, Json
from weft_router.openai.bounds import COMMON, MAX_LOGPROBS, RequestLimits, Rule, content_chars, flag, tokens, whole
from weft_router.openai.fields import refuse

PREFIX = "resp_"
_SESSION = 32
_NONCE = 16
_TAG = 32
CLIENTS_TOOLS: Final = frozenset({"function", "custom"})
"""Kinds of tools that the client runs itself."""


def _never(reason: str) -> Rule:
    def refuse(_: Json, name: str, __: object, ___: RequestLimits) -> None:
        raise InvalidRequestError(f"{name}: {reason}", param=name, code="unsupported_parameter")

    return refuse


def _not_true(reason: str) -> Rule:
    def refuse(body: Json, name: str, value: object, allowed: RequestLimits) -> None:
        flag(body, name, value, allowed)
        if value is True:
            raise InvalidRequestError(f"{name}: {reason}", param=name, code="unsupported_parameter")

    return refuse


def _top_logprobs(body: Json, name: str, value: object, _: RequestLimits) -> None:
    whole(body, name, value, 0, MAX_LOGPROBS)


def _text(_: Json, name: str, value: object, __: RequestLimits) -> None:
    if not isinstance(value, str):
        raise InvalidRequestError(f"{name}: must be a text", param=name)


def _tools(body: Json, name: str, value: object, allowed: RequestLimits) -> None:
    """Refuse tools that the engine itself would run or call, unless the service allows their kind."""
    COMMON[name](body, name, value, allowed)
    for i, tool in enumerate(cast(list[object], value)):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if not isinstance(kind, str):
            raise InvalidRequestError(f"{name}[{i}].type: must be a text such as 'function'", param=f"{name}[{i}].type")
        if kind not in CLIENTS_TOOLS and allowed.fields is not None and f"{name}.{kind}" not in allowed.fields:
            raise refuse(f"{name}[{i}].type", "tools of this kind are run by the engine", field=f"'{name}.{kind[:64]}'")


_SERVED = "responses are not kept for retrieval here"
RULES: Mapping[str, Rule] = {
    **COMMON,
    "max_output_tokens": tokens,
    "tools": _tools,
    "top_logprobs": _top_logprobs,
    "instructions": _text,
    CHAINED: _text,
    "store": _not_true(f"{_SERVED}; leave it out or send false, previous_response_id works without it"),
    "background": _not_true(f"{_SERVED}, so none can run in the background; leave it out and wait for the answer"),
    "conversation": _never("conversations are not kept here; send the items as input, or previous_response_id"),
    "prompt": _never("prompt templates are not kept here; send the text as instructions and input"),
    "previous_input_messages": _never("send earlier messages as items of input, or previous_response_id"),
    "max_tokens": _never("the Responses API calls it max_output_tokens; rename it"),
    "max_completion_tokens": _never("the Responses API calls it max_output_tokens; rename it"),
    "stream_options": _never("the last event of a response's stream always has its usage; leave it out"),
}


def input_chars(body: Json) -> int:
    """Check the input; return how many characters an engine has to read, instructions and tools included."""
    given = body.get("input")
    if isinstance(given, str) and given:
        chars = len(given)
    elif isinstance(given, list) and given:
        chars = sum(_item_chars(item, f"input[{i}]") for i, item in enumerate(given))
    else:
        raise InvalidRequestError("input: must be a text or a list of at least one item", param="input")
    instructions, tools = body.get("instructions"), body.get("tools")
    chars += len(instructions) if isinstance(instructions, str) else 0
    return chars + (len(orjson.dumps(tools)) if tools else 0)


def _item_chars(item: object, where: str) -> int:
    if not isinstance(item, dict):
        raise InvalidRequestError(f"{where}: must be an object", param=where)
    kind = item.get("type", "message")
    if not isinstance(kind, str):
        raise InvalidRequestError(f"{where}.type: must be a text such as 'message'", param=f"{where}.type")
    if kind == "message":
        role = item.get("role")
        if not isinstance(role, str) or not role:
            raise InvalidRequestError(f"{where}.role: must be a text such as 'user'", param=f"{where}.role")
        return content_chars(item.get("content"), f"{where}.content")
    chars = content_chars(item.get("content"), f"{where}.content")
    for field in ("name", "arguments", "output"):
        value = item.get(field)
        chars += len(value) if isinstance(value, str) else len(orjson.dumps(value)) if value else 0
    return chars


def new_id(secret: bytes, tenant: str, session: str) -> str:
    """Return the id of a response about to be made in a session; ``session`` is a key of 32 hexadecimal digits."""
    nonce = secrets.token_hex(_NONCE // 2)
    return f"{PREFIX}{session}{nonce}{_tag(secret, tenant, session + nonce)}"


def session_of(secret: bytes, tenant: str, response: str) -> str:
    """Return the key of the session in which a response was made.

    Raises:
        NotFoundError: the id is none that this service gave this tenant.
    """
    body, tag = response[len(PREFIX) : -_TAG], response[-_TAG:]
    made = response.startswith(PREFIX) and len(response) == len(PREFIX) + _SESSION + _NONCE + _TAG
    if not made or not response.isascii() or not hmac.compare_digest(tag, _tag(secret, tenant, body)):
        raise NotFoundError(
            f"{CHAINED}: no such response; send the whole conversation as input instead",
            param=CHAINED,
            code="previous_response_not_found",
        )
    return body[:_SESSION]


def not_kept(response: str) -> NotFoundError:
    """Return the error for requests of a stored response by its id."""
    return NotFoundError(
        f"the response {response[:128]!r} cannot be fetched: {_SERVED}; read it from the answer that created it",
        code="response_not_found",
    )


def _tag(secret: bytes, tenant: str, value: str) -> str:
    text = f"response|{len(tenant)}:{tenant}|{value}".encode("utf-8", "surrogatepass")
    return hmac.new(secret, text, hashlib.sha256).hexdigest()[:_TAG]
