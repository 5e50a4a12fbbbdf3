"""Check a chat or text completion request before any byte goes upstream, and name the field that is wrong.

Only what the router itself depends on, and what bounds the cost of a request, is checked here; the
rest of OpenAI's schema is the engine's to judge, and its own 400 is passed through.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import orjson

from weft_router.api.body import Json
from weft_router.config import LimitsConfig, ModelConfig
from weft_router.errors import InvalidRequestError, NotFoundError

Kind = Literal["chat", "text"]
PATHS: dict[str, Kind] = {"/v1/chat/completions": "chat", "/v1/completions": "text"}

MOST_CHARS_PER_TOKEN = 16.0
"""Even runs of blanks seldom exceed 16 characters a token; used only to refuse what certainly does not fit."""
MAX_STOPS = 64
MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class Inference:
    """One checked request; ``body`` is the client's object without the router-owned fields."""

    path: str
    kind: Kind
    body: Json
    stream: bool
    n: int
    max_tokens: int | None
    wants_usage: bool
    wants_ids: bool
    chars: int
    exact_tokens: int | None

    @property
    def messages(self) -> Sequence[Json]:
        """Return the chat messages; empty for text completions."""
        return cast(list[Json], self.body["messages"]) if self.kind == "chat" else ()

    @property
    def prompt(self) -> str | Sequence[int]:
        """Return the prompt of a text completion, as text or token ids."""
        prompt = self.body.get("prompt", "")
        if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
            return cast(str | list[int], prompt[0])
        return cast(str | list[int], prompt)

    @property
    def transferable(self) -> bool:
        """Tell whether the KV of this request may travel between workers.

        A handle is read once, so one sequence only; prompt log-probabilities and echo need the prompt computed
        where the answer is made.
        """
        b = self.body
        whole = not b.get("echo") and b.get("prompt_logprobs") is None and not b.get("use_beam_search")
        return self.n == 1 and whole and not b.get("continue_final_message")


def check(path: str, body: Json, *, model: ModelConfig, limits: LimitsConfig) -> Inference:
    """Return the request in checked form.

    Raises:
        InvalidRequestError: a field has the wrong type or lies outside its bounds; ``param`` names it.
        NotFoundError: the model is not the one this service runs.
    """
    kind = PATHS[path]
    _check_model(body, model)
    stream = _flag(body, "stream")
    n = max(_whole(body, "n", 1, limits.max_n) or 1, _whole(body, "best_of", 1, limits.max_n) or 1)
    wants_usage = _check_stream_options(body, stream=stream)
    max_tokens = _check_output(body, model, limits)
    _check_sampling(body, kind)
    exact: int | None = None
    if kind == "chat":
        chars = _check_messages(body)
    else:
        chars, exact = _check_prompt(body)
    _check_length(chars, exact, max_tokens, model, "messages" if kind == "chat" else "prompt")
    return Inference(
        path=path,
        kind=kind,
        body=body,
        stream=stream,
        n=n,
        max_tokens=max_tokens,
        wants_usage=wants_usage,
        wants_ids=_flag(body, "return_token_ids"),
        chars=chars,
        exact_tokens=exact,
    )


def _check_model(body: Json, model: ModelConfig) -> None:
    name = body.get("model")
    if not isinstance(name, str) or not name:
        raise InvalidRequestError(f"model: name the model to use, here {model.name!r}", param="model")
    if name != model.name:
        shown = name if len(name) <= 128 else name[:128] + "…"
        raise NotFoundError(
            f"the model {shown!r} does not exist here; this service runs {model.name!r}",
            param="model",
            code="model_not_found",
        )


def _check_output(body: Json, model: ModelConfig, limits: LimitsConfig) -> int | None:
    given: list[int] = []
    for name in ("max_tokens", "max_completion_tokens"):
        value = _whole(body, name, 1, limits.max_output_tokens)
        if value is not None:
            if value > model.max_model_len:
                raise InvalidRequestError(
                    f"{name}: {value} exceeds the model's context of {model.max_model_len} tokens; ask for less",
                    param=name,
                    code="context_length_exceeded",
                )
            given.append(value)
    most = min(given) if given else None
    least = _whole(body, "min_tokens", 0, limits.max_output_tokens)
    if least is not None and most is not None and least > most:
        raise InvalidRequestError(f"min_tokens: {least} is more than max_tokens {most}", param="min_tokens")
    return most


def _check_sampling(body: Json, kind: Kind) -> None:
    for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty"):
        value = body.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise InvalidRequestError(f"{name}: must be a number", param=name)
    stop = body.get("stop")
    if stop is not None and not isinstance(stop, str):
        if not isinstance(stop, list) or not all(isinstance(item, str) for item in stop):
            raise InvalidRequestError("stop: must be a text or a list of texts", param="stop")
        if len(stop) > MAX_STOPS:
            raise InvalidRequestError(f"stop: at most {MAX_STOPS} texts are allowed, got {len(stop)}", param="stop")
    if kind == "chat":
        _flag(body, "logprobs")
        _whole(body, "top_logprobs", 0, MAX_LOGPROBS)
    else:
        _whole(body, "logprobs", 0, MAX_LOGPROBS)
    _whole(body, "prompt_logprobs", 0, MAX_LOGPROBS)
    tools = body.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise InvalidRequestError("tools: must be a list", param="tools")


def _check_stream_options(body: Json, *, stream: bool) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise InvalidRequestError("stream_options: must be an object", param="stream_options")
    if not stream:
        raise InvalidRequestError("stream_options: only allowed with stream true", param="stream_options")
    wanted = options.get("include_usage")
    if wanted is not None and not isinstance(wanted, bool):
        raise InvalidRequestError("stream_options.include_usage: must be true or false", param="stream_options")
    return bool(wanted)


def _check_messages(body: Json) -> int:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidRequestError("messages: must be a list of at least one message", param="messages")
    chars = 0
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        if not isinstance(message, dict):
            raise InvalidRequestError(f"{where}: must be an object", param=where)
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise InvalidRequestError(f"{where}.role: must be a text such as 'user'", param=f"{where}.role")
        chars += _content_chars(message.get("content"), f"{where}.content")
        calls = message.get("tool_calls")
        if calls is not None:
            if not isinstance(calls, list):
                raise InvalidRequestError(f"{where}.tool_calls: must be a list", param=f"{where}.tool_calls")
            chars += len(orjson.dumps(calls))
    tools = body.get("tools")
    return chars + (len(orjson.dumps(tools)) if tools else 0)


def _content_chars(content: object, where: str) -> int:
    if content is None:
        return 0
    if isinstance(content, str):
        return len(content)
    if not isinstance(content, list):
        raise InvalidRequestError(f"{where}: must be a text, a list of parts or null", param=where)
    chars = 0
    for j, part in enumerate(content):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise InvalidRequestError(f"{where}[{j}]: must be an object with a type", param=f"{where}[{j}]")
        text = part.get("text")
        if text is not None and not isinstance(text, str):
            raise InvalidRequestError(f"{where}[{j}].text: must be a text", param=f"{where}[{j}].text")
        chars += len(text) if text else 0
    return chars


def _check_prompt(body: Json) -> tuple[int, int | None]:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise InvalidRequestError(
                f"prompt: one prompt a request, got {len(prompt)}; send them as separate requests", param="prompt"
            )
        prompt = prompt[0]
    if isinstance(prompt, str):
        if not prompt:
            raise InvalidRequestError("prompt: must not be empty", param="prompt")
        return len(prompt), None
    if isinstance(prompt, list) and prompt and all(type(t) is int and 0 <= t < 2**31 for t in prompt):
        return 4 * len(prompt), len(prompt)
    raise InvalidRequestError("prompt: must be a text or a list of token ids", param="prompt")


def _check_length(chars: int, exact: int | None, max_tokens: int | None, model: ModelConfig, param: str) -> None:
    least = exact if exact is not None else int(chars / MOST_CHARS_PER_TOKEN)
    if least + (max_tokens or 1) > model.max_model_len:
        count = f"{exact} tokens" if exact is not None else f"{chars} characters (at least {least} tokens)"
        asked = f" and {max_tokens} output tokens" if max_tokens else ""
        raise InvalidRequestError(
            f"{param}: {count}{asked} exceed the model's context of {model.max_model_len} tokens; shorten the input",
            param=param,
            code="context_length_exceeded",
        )


def _flag(body: Json, name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidRequestError(f"{name}: must be true or false", param=name)
    return bool(value)


def _whole(body: Json, name: str, low: int, high: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequestError(f"{name}: must be a whole number", param=name)
    if not low <= value <= high:
        raise InvalidRequestError(f"{name}: {value} is not between {low} and {high}", param=name)
    return value
