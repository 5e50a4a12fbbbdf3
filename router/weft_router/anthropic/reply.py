"""Write a chat completion's answer, its stream or its error in the form of Anthropic's Messages API."""

from typing import Any, Final, cast

import orjson

from weft_router.openai.body import Json

_REASONS: Final = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
THOUGHTS: Final = ("reasoning", "reasoning_content")
"""What engines call the text that a model wrote before its answer: vLLM, and all others."""


def stop_of(choice: Json) -> tuple[str, str | None]:
    """Return why an answer ended, and the stop sequence at which it did."""
    matched = choice.get("stop_reason", choice.get("matched_stop"))
    reason = choice.get("finish_reason")
    if reason == "stop" and isinstance(matched, str):
        return "stop_sequence", matched
    return _REASONS.get(cast(str, reason), "end_turn"), None


def usage_of(usage: Any) -> Json:
    """Return the tokens of a request: those read from a prefix cache are not among the input tokens."""
    given: Json = usage if isinstance(usage, dict) else {}
    details = given.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    cached = cached if isinstance(cached, int) else 0
    prompt: Any = given.get("prompt_tokens") or 0
    return {
        "input_tokens": max(0, prompt - cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": given.get("completion_tokens") or 0,
    }


def message_id(chat_id: object) -> str:
    """Return the id of the message that a chat completion stands for."""
    return f"msg_{str(chat_id).removeprefix('chatcmpl-')}"


def thoughts_of(part: Json) -> str:
    """Return what a message, or a piece of one, has of the model's thoughts."""
    for name in THOUGHTS:
        text = part.get(name)
        if isinstance(text, str) and text:
            return text
    return ""


def message_of(raw: bytes) -> bytes:
    """Return a whole answer as a message.

    Raises:
        ValueError: it is no chat completion.
    """
    chat = orjson.loads(raw)
    try:
        choice = chat["choices"][0]
        answer = choice["message"]
        content = _content(answer)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError("the engine's answer is no chat completion") from error
    reason, sequence = stop_of(choice)
    return orjson.dumps(
        {
            "id": message_id(chat.get("id")),
            "type": "message",
            "role": "assistant",
            "model": chat.get("model"),
            "content": content,
            "stop_reason": "tool_use" if reason == "end_turn" and answer.get("tool_calls") else reason,
            "stop_sequence": sequence,
            "usage": usage_of(chat.get("usage")),
        }
    )


def _content(answer: Json) -> list[Json]:
    content: list[Json] = []
    thoughts = thoughts_of(answer)
    if thoughts:
        content.append({"type": "thinking", "thinking": thoughts, "signature": ""})
    text = answer.get("content")
    if isinstance(text, str) and text:
        content.append({"type": "text", "text": text})
    calls: Any = answer.get("tool_calls") or ()
    for call in calls:
        function = call["function"]
        arguments = _arguments(function.get("arguments"))
        content.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments})
    return content


def _arguments(text: object) -> object:
    """Return the arguments of a call; what is no JSON stays as it is, for the client to judge."""
    try:
        return orjson.loads(cast(str, text) or "{}")
    except (orjson.JSONDecodeError, TypeError):
        return {"": text}
