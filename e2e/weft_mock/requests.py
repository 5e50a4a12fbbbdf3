"""Read the bodies of chat and text completions and of responses as vLLM 0.32 does; refuse what is not simulated.

The model has one answer per prompt. Sampling parameters are checked; a temperature above zero, a seed or a penalty
make no other answer, but one that cannot be continued exactly by another request, as in vLLM. Fields vLLM does not
know are ignored too, as there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from weft_core.parallelism import parallelism_of
from weft_mock.config import EngineConfig
from weft_mock.errors import ApiError
from weft_mock.fields import read_flag, read_number, read_whole, token_ids
from weft_mock.kv_params import KvRequest, parse_kv_params
from weft_mock.prompts import Api, read_prompts
from weft_mock.sequence import Limits
from weft_mock.tokenizer import UnknownTokenError, check_ids

RANK_HEADER = "X-Data-Parallel-Rank"
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_MAX_ANSWERS = 128
_LEAST_INT, _MOST_INT = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class Generation:
    """What one HTTP request asks for: ``n`` answers to each prompt; ``body`` is what it said."""

    api: Api
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
    priority: int
    sampled: bool
    rank: int
    body: Mapping[str, object]


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
    if model not in config.names and model not in config.adapters:
        raise ApiError(404, f"The model `{model}` does not exist.", kind="NotFoundError", param="model")


def _rank(headers: Mapping[str, str], config: EngineConfig) -> int:
    """Return the data-parallel rank that vLLM and SGLang are asked for, -1 where they are not.

    Raises:
        ApiError: the engine has no such rank.
    """
    text = headers.get(RANK_HEADER, "") if config.protocol in ("vllm", "sglang") else ""
    if not (text.isascii() and text.isdigit()):
        return -1
    rank, ranks = int(text), parallelism_of(config.degree).dp
    if rank >= ranks:
        raise ApiError(400, f"data_parallel_rank {rank} is out of range [0, {ranks})", param="data_parallel_rank")
    return rank


def read_generation(
    body: Mapping[str, object], config: EngineConfig, *, api: Api, headers: Mapping[str, str] = _NO_HEADERS
) -> Generation:
    """Return what a body asks for.

    Raises:
        ApiError: 400 or 404, naming the field.
        KvProtocolError: vLLM's transfer parameters are wrong.
    """
    check_model(body, config)
    n = read_whole(body, "n", 1, default=1, most=_MAX_ANSWERS) if api != "responses" else 1
    sampled = _sampled(body)
    priority = _priority(body, config)
    stream = read_flag(body, "stream")
    options = body.get("stream_options") if api != "responses" else None
    if options is not None and not stream:
        raise ApiError(400, "Stream options can only be defined when `stream=True`.", param="stream_options")
    if options is not None and not isinstance(options, Mapping):
        raise ApiError(400, "stream_options: an object is needed", param="stream_options")
    if api == "responses":
        _check_response(body)
    prompts = _exact_prompt(body, config, api) or read_prompts(body, api)
    try:
        for ids in prompts:
            check_ids(ids)
    except UnknownTokenError as error:
        raise ApiError(400, f"prompt: {error}", param="prompt") from error
    limits = _limits(body, config, longest=max(map(len, prompts)), api=api)
    salt = body.get("cache_salt")
    if salt is not None and (not isinstance(salt, str) or not salt):
        raise ApiError(400, "Parameter 'cache_salt' must be a non-empty string if provided.", param="cache_salt")
    kv: KvRequest | None = None
    if config.protocol == "vllm":
        kv = parse_kv_params(
            body.get("kv_transfer_params"),
            role=config.role,
            bidirectional=config.bidirectional,
            n=n * len(prompts),
        )
    return Generation(
        api=api,
        prompts=prompts,
        n=n,
        limits=limits,
        stop=_stop(body),
        stream=stream,
        include_usage=bool(options and options.get("include_usage")),
        usage_in_chunks=bool(options and options.get("continuous_usage_stats")),
        return_token_ids=config.protocol == "vllm" and api != "responses" and read_flag(body, "return_token_ids"),
        kv=kv,
        salt=_number(salt) ^ (_number(model) if (model := body.get("model")) in config.adapters else 0),
        priority=priority,
        sampled=sampled,
        rank=_rank(headers, config),
        body=body,
    )


def _number(text: object) -> int:
    """Return what tells the blocks of one salt, or of one adapter, from those of others."""
    return int.from_bytes(text.encode()[:64], "big") * 0x9E3779B97F4A7C15 % (2**61 - 1) if isinstance(text, str) else 0


def _exact_prompt(body: Mapping[str, object], config: EngineConfig, api: Api) -> list[list[int]] | None:
    """Return TensorRT-LLM's field for ids in place of messages."""
    if config.protocol != "tensorrt-llm" or api != "chat" or body.get("prompt_token_ids") is None:
        return None
    ids = token_ids(body["prompt_token_ids"])
    if not ids:
        raise ApiError(400, "prompt_token_ids: a list of token ids is needed", param="prompt_token_ids")
    return [ids]


def _check_response(body: Mapping[str, object]) -> None:
    previous = body.get("previous_response_id")
    if previous is not None:
        # Without VLLM_ENABLE_RESPONSES_API_STORE vLLM keeps no response.
        raise ApiError(
            404,
            f"Response with id '{previous}' not found.",
            kind="invalid_request_error",
            param="response_id",
        )
    if body.get("background"):
        raise ApiError(400, "background: not simulated by the mock engine; leave it out", param="background")
    if body.get("prompt") is not None:
        raise ApiError(400, "prompt template is not supported", param="prompt")


def _limits(body: Mapping[str, object], config: EngineConfig, *, longest: int, api: Api) -> Limits:
    limit = config.context_limit
    if longest >= limit:
        raise ApiError(
            400,
            f"This model's maximum context length is {limit} tokens. However, your prompt contains {longest} input "
            "tokens, which leaves no room for an answer. Please reduce the length of the input prompt.",
            param="input_tokens",
        )
    room = limit - longest
    if api == "responses":
        # As in vLLM, too large a wish is cut to what fits.
        max_tokens = min(room, read_whole(body, "max_output_tokens", 1, default=room))
    else:
        name = "max_tokens"
        if api == "chat" and body.get("max_completion_tokens") is not None:
            name = "max_completion_tokens"
        max_tokens = read_whole(body, name, 1, default=room if api == "chat" else min(16, room))
    if max_tokens > room:
        raise ApiError(
            400,
            f"This model's maximum context length is {limit} tokens. However, you requested {max_tokens} output tokens "
            f"and your prompt contains {longest} input tokens, for a total of {longest + max_tokens} tokens. Please "
            "reduce the length of the input prompt or the number of requested output tokens.",
            param="input_tokens",
        )
    min_tokens = read_whole(body, "min_tokens", 0, default=0)
    if min_tokens > max_tokens:
        raise ApiError(
            400,
            f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {min_tokens}.",
            param="min_tokens",
        )
    stop_ids = body.get("stop_token_ids")
    ids = token_ids(stop_ids)
    if stop_ids and not ids:
        raise ApiError(400, "stop_token_ids: a list of token ids is needed", param="stop_token_ids")
    return Limits(max_tokens, min_tokens, read_flag(body, "ignore_eos"), frozenset(ids))


def _stop(body: Mapping[str, object]) -> tuple[str, ...]:
    stop = body.get("stop")
    texts = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(texts, list) or not all(isinstance(t, str) and t for t in texts):
        raise ApiError(400, "stop: a text or a list of texts that are not empty is needed", param="stop")
    return tuple(texts)


def _sampled(body: Mapping[str, object]) -> bool:
    """Check the sampling parameters; tell whether a request cannot be continued exactly.

    A seed starts its generator anew with each request, and tokens that were answer become prompt, which the two
    penalties do not count. The mock's default is greedy: it has no generation config.
    """
    temperature = read_number(body, "temperature", 0.0, float("inf"))
    read_number(body, "top_p", 0.0, 1.0)
    penalties = [read_number(body, name, -2.0, 2.0) for name in ("presence_penalty", "frequency_penalty")]
    seed = body.get("seed")
    if seed is not None and (
        isinstance(seed, bool) or not isinstance(seed, int) or not _LEAST_INT <= seed <= _MOST_INT
    ):
        raise ApiError(400, f"seed: a whole number is needed, got {seed!r}", param="seed")
    for name in ("logprobs", "top_logprobs", "prompt_logprobs", "echo", "best_of", "suffix"):
        value = body.get(name)
        if value and not (name == "best_of" and value == 1):
            raise ApiError(400, f"{name}: not simulated by the mock engine; leave it out", param=name)
    return bool(temperature) or (seed is not None and temperature is None) or any(penalties)


def _priority(body: Mapping[str, object], config: EngineConfig) -> int:
    priority = read_whole(body, "priority", _LEAST_INT, default=0)
    if priority and not config.priority_scheduling:
        raise ApiError(400, f"Got priority {priority} but Priority scheduling is not enabled.", param="priority")
    return priority
