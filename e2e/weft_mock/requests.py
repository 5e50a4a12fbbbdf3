"""Read the bodies of chat and text completions as vLLM 0.32 does, and refuse what is not simulated.

Sampling parameters are checked and then ignored: the model has one answer per prompt. Fields vLLM
does not know are ignored too, as there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from weft_mock.config import EngineConfig
from weft_mock.kv_params import KvRequest, parse_kv_params
from weft_mock.sequence import Limits
from weft_mock.tokenizer import ChatError, UnknownTokenError, chat_ids, check_ids, completion_ids

_MAX_ANSWERS = 128


class ApiError(Exception):
    """Answer a request with an error in vLLM's form."""

    def __init__(self, status: int, message: str, *, kind: str = "BadRequestError", param: str | None = None) -> None:
        """Carry status, message, the error's type and the parameter it is about."""
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def to_json(self) -> dict[str, object]:
        """Return the body of the reply."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}
        return {"error": error}


@dataclass(frozen=True, slots=True)
class Generation:
    """What one HTTP request asks for: ``n`` answers to each prompt."""

    chat: bool
    prompts: list[list[int]]
    n: int
    limits: Limits
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    usage_in_chunks: bool
    return_token_ids: bool
    kv: KvRequest | None
    salt: int


def check_model(body: Mapping[str, object], config: EngineConfig) -> None:
    """Refuse another model than the served one; an absent name means the served one.

    Raises:
        ApiError: 404, or 400 when it is no text.
    """
    model = body.get("model")
    if model is None:
        return
    if not isinstance(model, str):
        raise ApiError(400, "model: a text is needed", param="model")
    if model not in config.names:
        raise ApiError(404, f"The model `{model}` does not exist.", kind="NotFoundError", param="model")


def read_generation(body: Mapping[str, object], config: EngineConfig, *, chat: bool) -> Generation:
    """Return what a body asks for.

    Raises:
        ApiError: 400 or 404, naming the field.
        KvProtocolError: the transfer parameters are wrong.
    """
    check_model(body, config)
    n = _whole(body, "n", 1, default=1, most=_MAX_ANSWERS)
    _check_sampling(body)
    stream = _flag(body, "stream")
    options = body.get("stream_options")
    if options is not None and not stream:
        raise ApiError(400, "Stream options can only be defined when `stream=True`.", param="stream_options")
    if options is not None and not isinstance(options, Mapping):
        raise ApiError(400, "stream_options: an object is needed", param="stream_options")
    prompts = [_chat_prompt(body)] if chat else _prompts(body)
    try:
        for ids in prompts:
            check_ids(ids)
    except UnknownTokenError as error:
        raise ApiError(400, f"prompt: {error}", param="prompt") from error
    limits = _limits(body, config, longest=max(map(len, prompts)), chat=chat)
    salt = body.get("cache_salt")
    if salt is not None and (not isinstance(salt, str) or not salt):
        raise ApiError(400, "Parameter 'cache_salt' must be a non-empty string if provided.", param="cache_salt")
    kv = parse_kv_params(
        body.get("kv_transfer_params"),
        role=config.role,
        bidirectional=config.bidirectional,
        n=n * len(prompts),
    )
    return Generation(
        chat=chat,
        prompts=prompts,
        n=n,
        limits=limits,
        stop=_stop(body),
        stream=stream,
        include_usage=bool(options and options.get("include_usage")),
        usage_in_chunks=bool(options and options.get("continuous_usage_stats")),
        return_token_ids=_flag(body, "return_token_ids"),
        kv=kv,
        salt=int.from_bytes(salt.encode()[:64], "big") * 0x9E3779B97F4A7C15 % (2**61 - 1) if salt else 0,
    )


def _chat_prompt(body: Mapping[str, object]) -> list[int]:
    params = body.get("kv_transfer_params")
    exact = params.get("prompt_token_ids") if isinstance(params, Mapping) else None
    if exact is not None:
        ids = _ids(exact)
        if not ids:
            raise ApiError(400, "kv_transfer_params.prompt_token_ids: a list of token ids is needed", param="prompt")
        return ids
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise ApiError(400, "messages: a list of at least one message is needed", param="messages")
    tools = body.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise ApiError(400, "tools: a list is needed", param="tools")
    try:
        return chat_ids(
            messages,
            tools=tools,
            add_generation_prompt=_flag(body, "add_generation_prompt", default=True),
            continue_final_message=_flag(body, "continue_final_message"),
        )
    except ChatError as error:
        raise ApiError(400, str(error), param="messages") from error


def _prompts(body: Mapping[str, object]) -> list[list[int]]:
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return [completion_ids(prompt)]
    if isinstance(prompt, list) and prompt:
        if all(isinstance(part, str) for part in prompt):
            return [completion_ids(part) for part in prompt]
        ids = _ids(prompt)
        if ids:
            return [ids]
        lists = [_ids(part) for part in prompt]
        if all(lists):
            return lists
    raise ApiError(400, "prompt: a text, a list of token ids, or a list of either is needed", param="prompt")


def _ids(value: object) -> list[int]:
    """Return a list of whole numbers as it is, and anything else as an empty list."""
    if not isinstance(value, list) or not all(type(i) is int for i in value):
        return []
    return value


def _limits(body: Mapping[str, object], config: EngineConfig, *, longest: int, chat: bool) -> Limits:
    limit = config.context_limit
    name: Literal["max_completion_tokens", "max_tokens"] = "max_tokens"
    if chat and body.get("max_completion_tokens") is not None:
        name = "max_completion_tokens"
    if longest >= limit:
        raise ApiError(
            400,
            f"This model's maximum context length is {limit} tokens. However, your prompt contains {longest} input "
            "tokens, which leaves no room for an answer. Please reduce the length of the input prompt.",
            param="input_tokens",
        )
    max_tokens = _whole(body, name, 1, default=limit - longest if chat else min(16, limit - longest))
    if longest + max_tokens > limit:
        raise ApiError(
            400,
            f"This model's maximum context length is {limit} tokens. However, you requested {max_tokens} output tokens "
            f"and your prompt contains {longest} input tokens, for a total of {longest + max_tokens} tokens. Please "
            "reduce the length of the input prompt or the number of requested output tokens.",
            param="input_tokens",
        )
    min_tokens = _whole(body, "min_tokens", 0, default=0)
    if min_tokens > max_tokens:
        raise ApiError(
            400,
            f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {min_tokens}.",
            param="min_tokens",
        )
    stop_ids = body.get("stop_token_ids")
    ids = _ids(stop_ids)
    if stop_ids and not ids:
        raise ApiError(400, "stop_token_ids: a list of token ids is needed", param="stop_token_ids")
    return Limits(max_tokens, min_tokens, _flag(body, "ignore_eos"), frozenset(ids))


def _stop(body: Mapping[str, object]) -> tuple[str, ...]:
    stop = body.get("stop")
    texts = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(texts, list) or not all(isinstance(t, str) and t for t in texts):
        raise ApiError(400, "stop: a text or a list of texts that are not empty is needed", param="stop")
    return tuple(texts)


def _check_sampling(body: Mapping[str, object]) -> None:
    for name, least, most in (
        ("temperature", 0.0, float("inf")),
        ("top_p", 0.0, 1.0),
        ("presence_penalty", -2.0, 2.0),
        ("frequency_penalty", -2.0, 2.0),
    ):
        value = body.get(name)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most
        ):
            raise ApiError(400, f"{name}: a number from {least} to {most} is needed, got {value!r}", param=name)
    for name in ("logprobs", "top_logprobs", "prompt_logprobs", "echo", "best_of", "suffix"):
        value = body.get(name)
        if value and not (name == "best_of" and value == 1):
            raise ApiError(400, f"{name}: not simulated by the mock engine; leave it out", param=name)
    if body.get("priority"):
        raise ApiError(
            400, f"Got priority {body['priority']} but Priority scheduling is not enabled.", param="priority"
        )


def _flag(body: Mapping[str, object], name: str, *, default: bool = False) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ApiError(400, f"{name}: true or false is needed, got {value!r}", param=name)
    return value


def _whole(body: Mapping[str, object], name: str, least: int, *, default: int, most: int | None = None) -> int:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise ApiError(400, f"{name}: a whole number is needed, got {value!r}", param=name)
    if value < least:
        raise ApiError(400, f"{name} must be at least {least}, got {value}.", param=name)
    if most is not None and value > most:
        raise ApiError(400, f"{name} must be at most {most}, got {value}.", param=name)
    return value
