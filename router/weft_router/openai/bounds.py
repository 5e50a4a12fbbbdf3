"""Say what each field of a request may be: its type where the router depends on it, its size where it costs.

Only that is judged here; the rest of OpenAI's schema is the engine's to judge, and its own 400 is passed through.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, cast

import orjson

from weft_router.config import AdapterConfig, LimitsConfig, ModelConfig, RequestsConfig
from weft_router.errors import InvalidRequestError
from weft_router.openai.body import Json

MAX_STOPS: Final = 64
MAX_STOP_CHARS: Final = 4096
MAX_LOGPROBS: Final = 20
MAX_LISTED: Final = 1024
"""Entries of lists and maps that an engine goes through for every token."""


DEFAULT_REQUESTS: Final = RequestsConfig()


class RequestLimits:
    """What requests may ask for, taken from a configuration once: its sections are slow to look into."""

    __slots__ = (
        "adapters", "aliases", "fields", "hop_nodes", "max_model_len", "max_n", "max_nodes", "max_output_tokens",
        "media_hosts", "media_http", "media_suffixes", "model",
    )  # fmt: skip

    def __init__(
        self, model: ModelConfig, limits: LimitsConfig, requests: RequestsConfig | None = DEFAULT_REQUESTS,
        *, adapters: Iterable[AdapterConfig] | None = None,
    ) -> None:  # fmt: skip
        """Take it; without ``requests`` any field and any media are allowed, for a front has looked at them.

        ``adapters`` are those that sidecars load.
        """
        self.model = model.name
        self.aliases = frozenset(model.aliases)
        """Other names of the model."""
        self.adapters = {**dict.fromkeys(model.adapters, ""), **{one.name: one.version for one in adapters or ()}}
        """Its adapters, which answer in its place, and the version of those that sidecars load."""
        self.max_model_len = model.max_model_len
        self.max_n = limits.max_n
        self.max_nodes = limits.max_body_nodes
        self.hop_nodes = 2 * limits.max_body_nodes + 2 * model.max_model_len
        """Of a body between the router's own hops, which may have grown by the ids of prompt and answer."""
        self.max_output_tokens = limits.max_output_tokens
        self.fields: frozenset[str] | None = None
        """Fields that not every service allows, and this one does; None: all."""
        hosts: tuple[str, ...] = ()
        self.media_http = False
        if requests is not None:
            self.fields = frozenset(requests.allowed_fields)
            hosts = tuple(host.lower() for host in requests.media_hosts)
            self.media_http = requests.media_over_http
        self.media_hosts = frozenset(host for host in hosts if not host.startswith("*"))
        """Where media may be loaded from: hosts, with a port where it is not the scheme's own."""
        self.media_suffixes = tuple(host[1:] for host in hosts if host.startswith("*"))
        """Ends of such hosts, each with its first dot."""


Rule = Callable[[Json, str, object, RequestLimits], None]
"""Judge one field that is not null: the body, the field's name, its value, what is allowed."""


_ANSWERED: Final = ("function_call", "reasoning")


def flag(_: Json, name: str, value: object, __: RequestLimits) -> None:
    """Refuse anything but true and false."""
    if value is not True and value is not False:
        raise InvalidRequestError(f"{name}: must be true or false", param=name)


def whole(body: Json, name: str, value: object, low: int, high: int) -> None:
    """Refuse anything but a whole number within its bounds; one such as 4.0 becomes 4, which every engine reads."""
    if type(value) is float and value.is_integer():
        value = body[name] = int(value)
    if type(value) is not int:
        raise InvalidRequestError(f"{name}: must be a whole number", param=name)
    if not low <= value <= high:
        raise InvalidRequestError(f"{name}: {value} is not between {low} and {high}", param=name)


def _answers(body: Json, name: str, value: object, allowed: RequestLimits) -> None:
    whole(body, name, value, 1, allowed.max_n)


def tokens(body: Json, name: str, value: object, allowed: RequestLimits) -> None:
    """Refuse anything but a number of tokens that an answer may have."""
    most = allowed.max_output_tokens
    if type(value) is not int or not 1 <= value <= most:
        whole(body, name, value, 1, most)


def _least_tokens(body: Json, name: str, value: object, allowed: RequestLimits) -> None:
    whole(body, name, value, 0, allowed.max_output_tokens)


def _logprobs(body: Json, name: str, value: object, __: RequestLimits) -> None:
    whole(body, name, value, 0, MAX_LOGPROBS)


def _number(_: Json, name: str, value: object, __: RequestLimits) -> None:
    if type(value) is not float and type(value) is not int:
        raise InvalidRequestError(f"{name}: must be a number", param=name)


def _stop(_: Json, name: str, value: object, __: RequestLimits) -> None:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(item, str) for item in texts):
        raise InvalidRequestError(f"{name}: must be a text or a list of texts", param=name)
    if len(texts) > MAX_STOPS:
        raise InvalidRequestError(f"{name}: at most {MAX_STOPS} texts are allowed, got {len(texts)}", param=name)
    if sum(map(len, texts)) > MAX_STOP_CHARS:
        raise InvalidRequestError(f"{name}: at most {MAX_STOP_CHARS} characters are allowed; shorten it", param=name)


def _listed(_: Json, name: str, value: object, __: RequestLimits) -> None:
    if isinstance(value, list | dict) and len(value) > MAX_LISTED:
        raise InvalidRequestError(f"{name}: at most {MAX_LISTED} entries are allowed, got {len(value)}", param=name)


def _tools(_: Json, name: str, value: object, __: RequestLimits) -> None:
    if not isinstance(value, list):
        raise InvalidRequestError(f"{name}: must be a list", param=name)


def _stream_options(body: Json, name: str, value: object, _: RequestLimits) -> None:
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{name}: must be an object", param=name)
    if body.get("stream") is not True:
        raise InvalidRequestError(f"{name}: only allowed with stream true", param=name)
    wanted = value.get("include_usage")
    if wanted is not None and not isinstance(wanted, bool):
        raise InvalidRequestError(f"{name}.include_usage: must be true or false", param=name)


COMMON: Mapping[str, Rule] = {
    "stream": flag,
    "return_token_ids": flag,
    "temperature": _number,
    "top_p": _number,
    "presence_penalty": _number,
    "frequency_penalty": _number,
    "repetition_penalty": _number,
    "stop": _stop,
    "tools": _tools,
    "logit_bias": _listed,
    "bad_words": _listed,
    "stop_token_ids": _listed,
    "allowed_token_ids": _listed,
    "logprob_token_ids": _listed,
    "min_tokens": _least_tokens,
    "prompt_logprobs": _logprobs,
    "n": _answers,
    "best_of": _answers,
}
TEXT: Mapping[str, Rule] = {
    **COMMON,
    "stream_options": _stream_options,
    "max_tokens": tokens,
    "max_completion_tokens": tokens,
    "logprobs": _logprobs,
}
CHAT: Mapping[str, Rule] = {**TEXT, "logprobs": flag, "top_logprobs": _logprobs}


def message_chars(body: Json) -> tuple[int, bool, bool]:
    """Check the messages; return how many characters an engine has to read, tools included, and what is among them.

    That is whether one is an answer, and whether one is more than a role and a text.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidRequestError("messages: must be a list of at least one message", param="messages")
    chars, follows, mixed = 0, False, False
    for i, message in enumerate(messages):
        if type(message) is dict and len(message) == 2:
            role, content = message.get("role"), message.get("content")
            if type(role) is str and type(content) is str and role:
                chars += len(content)
                if role == "assistant":
                    follows = True
                continue
        chars += _message_chars(message, f"messages[{i}]")
        follows, mixed = follows or answered(message), True
    tools = body.get("tools")
    return (chars + len(orjson.dumps(tools)) if tools else chars), follows, mixed


def answered(item: Json) -> bool:
    """Return whether a message or item is one that a model gave."""
    return item.get("role") == "assistant" or item.get("type") in _ANSWERED


def _message_chars(message: object, where: str) -> int:
    if not isinstance(message, dict):
        raise InvalidRequestError(f"{where}: must be an object", param=where)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequestError(f"{where}.role: must be a text such as 'user'", param=f"{where}.role")
    chars = content_chars(message.get("content"), f"{where}.content")
    calls = message.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list):
            raise InvalidRequestError(f"{where}.tool_calls: must be a list", param=f"{where}.tool_calls")
        chars += len(orjson.dumps(calls))
    return chars


def content_chars(content: object, where: str) -> int:
    """Check a message's content: text, parts or nothing; return its characters of text, media not counted."""
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


def prompt_size(body: Json) -> tuple[int, int | None]:
    """Check a completion's prompt; return its characters, and its exact tokens when it came as ids."""
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
    if isinstance(prompt, list) and prompt and set(map(type, prompt)) == {int}:
        ids = cast(list[int], prompt)
        if min(ids) >= 0 and max(ids) < 2**31:
            return 4 * len(ids), len(ids)
    raise InvalidRequestError("prompt: must be a text or a list of token ids", param="prompt")
