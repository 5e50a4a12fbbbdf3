"""Make a chat completion of a request in the form of Anthropic's Messages API.

What chat completions have no field for is either without effect on the answer's text, and left out, or refused. The
chat completion is checked afterwards as any other: here only what has to be read is looked at.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import orjson

from weft_router.errors import InvalidRequestError
from weft_router.openai.body import Json

_SAME: Final = (
    "model", "max_tokens", "temperature", "top_p", "top_k", "stream",
    # fields that name a session, which are the router's own
    "session_id", "conversation_id", "prompt_cache_key",
)  # fmt: skip
_IGNORED: Final = frozenset(
    {"cache_control", "context_management", "diagnostics", "inference_geo", "speed", "betas", "container"}
)
"""Fields about Anthropic's own caches, places and prices. A container is refused where it is more than null."""
_ATTRIBUTION: Final = "x-anthropic-billing-header"
"""Claude Code begins its system prompt with a text of this name that differs in every request. With it no prompt would
begin like the one before, and nothing could be read from a prefix cache."""
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}


def chat_of(body: Json) -> Json:
    """Return the chat completion that a request for a message stands for.

    Raises:
        InvalidRequestError: a field cannot be read, or asks for what engines do not do; ``param`` names it.
    """
    if body.get("max_tokens") is None:
        raise InvalidRequestError(
            "max_tokens: is required; say how many tokens the answer may have", param="max_tokens"
        )
    chat: Json = {name: body[name] for name in _SAME if name in body}
    chat["messages"] = _messages(body)
    for name, value in body.items():
        convert = _CONVERTED.get(name)
        if convert is not None:
            if value is not None:
                convert(chat, name, value)
        elif name in ("container", "mcp_servers"):
            if value:
                raise InvalidRequestError(f"{name}: only Anthropic's own service has these; leave it out", param=name)
        elif name not in _KNOWN:
            raise InvalidRequestError(f"{name[:64]}: the Messages API has no such field here", param=name[:64])
    if chat.get("stream") is True:
        chat["stream_options"] = {"include_usage": True}
    return chat


def _messages(body: Json) -> list[Json]:
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise InvalidRequestError("messages: must be a list of at least one message", param="messages")
    made: list[Json] = []
    system = _system_text(body.get("system"), "system")
    if system:
        made.append({"role": "system", "content": system})
    for i, message in enumerate(given):
        where = f"messages[{i}]"
        if not isinstance(message, dict):
            raise InvalidRequestError(f"{where}: must be an object", param=where)
        role = message.get("role")
        if role == "user":
            made += _user(message.get("content"), where)
        elif role == "assistant":
            made.append(_assistant(message.get("content"), where))
        elif role == "system":
            text = _system_text(message.get("content"), f"{where}.content")
            made += [{"role": "system", "content": text}] if text else []
        else:
            raise InvalidRequestError(f"{where}.role: must be user or assistant", param=f"{where}.role")
    return made


def _system_text(given: object, where: str) -> str:
    """Return a system prompt without the text that differs in every request."""
    if given is None:
        return ""
    texts = [_text(block, at) for block, at in _blocks(given, where) if _kind(block, at, ("text",)) == "text"]
    return "".join(text for text in texts if not text.startswith(_ATTRIBUTION))


def _user(content: object, where: str) -> list[Json]:
    """Return a user's message as chat messages: the results of tools come first, each by itself."""
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    results: list[Json] = []
    parts: list[Json] = []
    for block, at in _blocks(content, f"{where}.content"):
        kind = _kind(block, at, ("text", "image", "document", "tool_result"))
        if kind == "text":
            parts.append({"type": "text", "text": _text(block, at)})
        elif kind == "tool_result":
            text, images = _tool_result(block.get("content"), f"{at}.content")
            results.append({"role": "tool", "tool_call_id": _string(block, "tool_use_id", at), "content": text})
            parts += images
        else:
            parts.append(_image(block, at) if kind == "image" else _document(block, at))
    if not parts:
        return results
    if all(part["type"] == "text" for part in parts):
        return [*results, {"role": "user", "content": "\n".join(cast(str, part["text"]) for part in parts)}]
    return [*results, {"role": "user", "content": parts}]


def _assistant(content: object, where: str) -> Json:
    """Return an assistant's message; what it thought comes back as engines gave it."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Json] = []
    for block, at in _blocks(content, f"{where}.content"):
        kind = _kind(block, at, ("text", "thinking", "redacted_thinking", "tool_use"))
        if kind == "text":
            texts.append(_text(block, at))
        elif kind == "thinking":
            thoughts.append(_string(block, "thinking", at))
        elif kind == "tool_use":
            arguments = orjson.dumps(block.get("input") or {}).decode()
            function = {"name": _string(block, "name", at), "arguments": arguments}
            calls.append({"id": _string(block, "id", at), "type": "function", "function": function})
    message: Json = {"role": "assistant", "content": "".join(texts) if texts or not calls else None}
    if thoughts:
        message["reasoning"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _tool_result(content: object, where: str) -> tuple[str, list[Json]]:
    """Return the text of a tool's result, and its images, which chat completions have in users' messages only."""
    if content is None:
        return "", []
    texts: list[str] = []
    images: list[Json] = []
    for block, at in _blocks(content, where):
        kind = _kind(block, at, ("text", "image", "document", "tool_reference", "search_result"))
        if kind == "image":
            images.append(_image(block, at))
        elif kind == "document":
            texts.append(cast(str, _document(block, at)["text"]))
        elif kind == "tool_reference":
            texts.append(_string(block, "tool_name", at))
        elif kind == "search_result":
            texts += [_text(one, place) for one, place in _blocks(block.get("content"), f"{at}.content")]
        else:
            texts.append(_text(block, at))
    return "\n".join(texts), images


def _image(block: Json, where: str) -> Json:
    source = _object(block, "source", where)
    at = f"{where}.source"
    if source.get("type") == "url":
        url = _string(source, "url", at)
    elif source.get("type") == "base64":
        url = f"data:{_string(source, 'media_type', at)};base64,{_string(source, 'data', at)}"
    else:
        raise InvalidRequestError(f"{at}.type: must be base64 or url; files are not kept here", param=f"{at}.type")
    return {"type": "image_url", "image_url": {"url": url}}


def _document(block: Json, where: str) -> Json:
    source = _object(block, "source", where)
    at = f"{where}.source"
    if source.get("type") == "text":
        return {"type": "text", "text": _string(source, "data", at)}
    if source.get("type") == "content":
        texts = [_text(one, place) for one, place in _blocks(source.get("content"), f"{at}.content")]
        return {"type": "text", "text": "\n".join(texts)}
    raise InvalidRequestError(
        f"{at}.type: must be text or content; engines read no PDF files, so send their text", param=f"{at}.type"
    )


def _tools(chat: Json, name: str, value: object) -> None:
    if not isinstance(value, list):
        raise InvalidRequestError(f"{name}: must be a list", param=name)
    chat[name] = [_tool(tool, f"{name}[{i}]") for i, tool in enumerate(value)]


def _tool(tool: object, where: str) -> Json:
    if not isinstance(tool, dict):
        raise InvalidRequestError(f"{where}: must be an object", param=where)
    if tool.get("type", "custom") not in ("custom", None):
        raise InvalidRequestError(
            f"{where}.type: {str(tool['type'])[:64]!r} runs in Anthropic's own service only; describe the tool by "
            "name, description and input_schema, and run it in the client",
            param=f"{where}.type",
        )
    function: Json = {"name": _string(tool, "name", where)}
    if isinstance(tool.get("description"), str):
        function["description"] = tool["description"]
    function["parameters"] = {"type": "object", **_object(tool, "input_schema", where)}
    if isinstance(tool.get("strict"), bool):
        function["strict"] = tool["strict"]
    return {"type": "function", "function": function}


def _tool_choice(chat: Json, name: str, value: object) -> None:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "tool":
        given = cast(Json, value)
        chat[name] = {"type": "function", "function": {"name": _string(given, "name", name)}}
    elif isinstance(kind, str) and kind in _CHOICES:
        chat[name] = _CHOICES[kind]
    else:
        raise InvalidRequestError(f"{name}.type: must be auto, any, tool or none", param=f"{name}.type")
    if cast(Json, value).get("disable_parallel_tool_use") is True:
        chat["parallel_tool_calls"] = False


def _thinking(chat: Json, name: str, value: object) -> None:
    """Have templates that can do so think, or not; how long, is the model's own choice."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind not in ("enabled", "disabled", "adaptive"):
        raise InvalidRequestError(f"{name}.type: must be enabled, disabled or adaptive", param=f"{name}.type")
    if kind != "adaptive":
        chat["chat_template_kwargs"] = {"enable_thinking": kind == "enabled"}


def _output_config(chat: Json, name: str, value: object) -> None:
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{name}: must be an object", param=name)
    if isinstance(value.get("effort"), str):
        chat["reasoning_effort"] = value["effort"]
    if value.get("format") is not None:
        _output_format(chat, f"{name}.format", value["format"])


def _output_format(chat: Json, name: str, value: object) -> None:
    if not isinstance(value, dict) or value.get("type") != "json_schema":
        raise InvalidRequestError(f"{name}.type: must be json_schema", param=f"{name}.type")
    schema = {"name": "answer", "schema": _object(value, "schema", name)}
    chat["response_format"] = {"type": "json_schema", "json_schema": schema}


def _metadata(chat: Json, _: str, value: object) -> None:
    if isinstance(value, dict) and isinstance(value.get("user_id"), str):
        chat["user"] = value["user_id"]


def _service_tier(chat: Json, name: str, value: object) -> None:
    """Pass on what may be the name of a class; Anthropic's own tiers mean nothing here."""
    if value not in ("auto", "standard_only"):
        chat[name] = value


def _stop(chat: Json, _: str, value: object) -> None:
    chat["stop"] = value


_CONVERTED: Final[Mapping[str, Callable[[Json, str, object], None]]] = {
    "tools": _tools,
    "tool_choice": _tool_choice,
    "thinking": _thinking,
    "output_config": _output_config,
    "output_format": _output_format,
    "metadata": _metadata,
    "service_tier": _service_tier,
    "stop_sequences": _stop,
}
_KNOWN: Final = _IGNORED.union(_SAME, ("messages", "system"))


def _blocks(content: object, where: str) -> list[tuple[Json, str]]:
    """Return the blocks of a content, each with its place; a text is one block."""
    if isinstance(content, str):
        return [({"type": "text", "text": content}, where)]
    if not isinstance(content, list):
        raise InvalidRequestError(f"{where}: must be a text or a list of blocks", param=where)
    found: list[tuple[Json, str]] = []
    for i, block in enumerate(content):
        at = f"{where}[{i}]"
        if not isinstance(block, dict):
            raise InvalidRequestError(f"{at}: must be an object with a type", param=at)
        found.append((block, at))
    return found


def _kind(block: Json, where: str, allowed: tuple[str, ...]) -> str:
    kind: Any = block.get("type")
    if kind not in allowed:
        shown = str(kind)[:64]
        raise InvalidRequestError(
            f"{where}.type: {shown!r} is not supported here; it may be {', '.join(allowed)}", param=f"{where}.type"
        )
    return cast(str, kind)


def _text(block: Json, where: str) -> str:
    return _string(block, "text", where)


def _string(owner: Json, name: str, where: str) -> str:
    value = owner.get(name)
    if not isinstance(value, str):
        raise InvalidRequestError(f"{where}.{name}: must be a text", param=f"{where}.{name}")
    return value


def _object(owner: Json, name: str, where: str) -> Json:
    value = owner.get(name)
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{where}.{name}: must be an object", param=f"{where}.{name}")
    return value
