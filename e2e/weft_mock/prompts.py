"""Turn the prompt of a request into token ids: messages, texts, ids, or the input of a response."""

from collections.abc import Mapping
from typing import Literal

from weft_mock.errors import ApiError
from weft_mock.fields import read_flag, token_ids
from weft_mock.tokenizer import ChatError, chat_ids, completion_ids

Api = Literal["chat", "completions", "responses"]
_TEXT_PARTS = frozenset({"input_text", "output_text", "text"})


def read_prompts(body: Mapping[str, object], api: Api) -> list[list[int]]:
    """Return the ids of every prompt of a body.

    Raises:
        ApiError: 400, naming the field.
    """
    if api == "chat":
        return [_chat_prompt(body)]
    if api == "responses":
        return [message_ids(response_messages(body), body, where="input")]
    return _prompts(body)


def message_ids(messages: object, body: Mapping[str, object], *, where: str = "messages") -> list[int]:
    """Return the ids of messages under the chat template.

    Raises:
        ApiError: 400, naming the field.
    """
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise ApiError(400, f"{where}: a list of at least one message is needed", param=where)
    tools = body.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise ApiError(400, "tools: a list is needed", param="tools")
    try:
        return chat_ids(
            messages,
            tools=tools,
            add_generation_prompt=read_flag(body, "add_generation_prompt", default=True),
            continue_final_message=read_flag(body, "continue_final_message"),
        )
    except ChatError as error:
        raise ApiError(400, str(error), param=where) from error


def response_messages(body: Mapping[str, object]) -> list[dict[str, object]]:
    """Return the messages that a response's instructions and input stand for; reasoning items are left out.

    Raises:
        ApiError: 400, an item is of a kind that is not simulated.
    """
    given = body.get("input")
    instructions = body.get("instructions")
    messages: list[dict[str, object]] = []
    if instructions is not None:
        if not isinstance(instructions, str):
            raise ApiError(400, "instructions: a text is needed", param="instructions")
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise ApiError(400, "input: a text or a list of at least one item is needed", param="input")
    for index, item in enumerate(given):
        if not isinstance(item, dict):
            raise ApiError(400, f"input[{index}]: an object is needed", param="input")
        message = _message_of_item(item, f"input[{index}]")
        if message is not None:
            messages.append(message)
    return messages


def _message_of_item(item: Mapping[str, object], where: str) -> dict[str, object] | None:
    match item.get("type", "message"):
        case "message":
            return {"role": item.get("role"), "content": _item_text(item.get("content"), where)}
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            return {"role": "assistant", "content": None, "tool_calls": [call]}
        case "function_call_output":
            return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
        case "reasoning":
            return None
        case other:
            raise ApiError(400, f"{where}.type: {other!r} is not simulated", param="input")


def _item_text(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(400, f"{where}.content: a text or a list of text parts is needed", param="input")
    texts: list[str] = []
    for at, part in enumerate(content):
        text = part.get("text") if isinstance(part, dict) and part.get("type") in _TEXT_PARTS else None
        if not isinstance(text, str):
            raise ApiError(400, f"{where}.content[{at}]: only parts of text are simulated", param="input")
        texts.append(text)
    return "\n".join(texts)


def _chat_prompt(body: Mapping[str, object]) -> list[int]:
    params = body.get("kv_transfer_params")
    exact = params.get("prompt_token_ids") if isinstance(params, Mapping) else None
    if exact is not None:
        ids = token_ids(exact)
        if not ids:
            raise ApiError(400, "kv_transfer_params.prompt_token_ids: a list of token ids is needed", param="prompt")
        return ids
    return message_ids(body.get("messages"), body)


def _prompts(body: Mapping[str, object]) -> list[list[int]]:
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return [completion_ids(prompt)]
    if isinstance(prompt, list) and prompt:
        if all(isinstance(part, str) for part in prompt):
            return [completion_ids(part) for part in prompt]
        ids = token_ids(prompt)
        if ids:
            return [ids]
        lists = [token_ids(part) for part in prompt]
        if all(lists):
            return lists
    raise ApiError(400, "prompt: a text, a list of token ids, or a list of either is needed", param="prompt")
