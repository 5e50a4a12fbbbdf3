"""Say which fields of a request reach an engine: most do, some only where the service allows them.

An engine ignores what it does not know, and knows more with every version. So a field that is not listed here is
refused, not passed on: the next version's may be one that loads a file. The lists were made from the request models of
vLLM 0.32, SGLang 0.5 and TensorRT-LLM 1.1; a test holds them to vLLM's. Fields of the router's own
(``body.sanitise``) are taken out before, whatever a service allows.
"""

from typing import Final

from weft_router.errors import InvalidRequestError
from weft_router.openai.body import SAFE, Json
from weft_router.openai.bounds import RequestLimits, Rule

ASKS: Final[dict[str, str]] = {
    "chat_template": "it is a program that the engine runs to make the prompt",
    "prompt_embeds": "it is a file that the engine unpacks and computes with in place of a prompt",
    "input_ids": "it takes the place of a prompt that was checked",
    "custom_logit_processor": "it is a program that the engine runs for every token",
    "logits_processors": "they are programs that the engine runs for every token",
    "custom_params": "they are what a program gets that the engine runs for every token",
    "vllm_xargs": "they reach the engine's extensions unchecked",
    "extra_args": "they reach the engine's extensions unchecked",
    "sampling_params": "they would pass the checks of the fields in it",
    "media_io_kwargs": "they steer how the engine reads media: how many frames, how large",
    "mm_processor_kwargs": "they steer how the engine reads media: how many frames, how large",
    "lora_path": "it names weights that the engine loads",
    "lora_request": "it names weights that the engine loads",
    "priority": "the class of a request decides when its turn is",
    "stop_regex": "the engine looks for it in every text that it makes, however long that takes",
    "return_hidden_states": "the answer holds the model's inner states",
    "return_mm_kwargs": "the answer holds what the engine made of media",
    "mm_payload": "the answer holds what the engine made of media",
    "routed_experts_prompt_start": "the answer holds the model's inner states",
    "return_routed_experts": "the answer holds the model's inner states",
    "return_context_logits": "the answer holds a number for every word of the vocabulary and every token",
    "return_generation_logits": "the answer holds a number for every word of the vocabulary and every token",
    "enable_response_messages": "the answer holds the prompt as the engine made it",
    "extra_key": "it decides whose cached prefixes a request shares",
}
"""Fields that change what an engine runs, loads or reads, and why one cannot have them without being allowed to."""

TEMPLATE_KWARGS: Final = "chat_template_kwargs"
PLAIN_KWARGS: Final = frozenset(
    {
        "enable_thinking", "thinking", "thinking_budget", "thinking_mode", "preserve_thinking", "clear_thinking",
        "reasoning_effort", "custom_instructions", "xml_tools", "python_tools",
    }
)  # fmt: skip
"""Variables of published chat templates that only choose between their branches."""
MOST_KWARG: Final = 1024
"""Characters of one of them."""

PASSES: Final = SAFE.difference(ASKS) | {
    # OpenAI's own, whether an engine knows it or not
    "audio", "conversation", "function_call", "functions", "max_tool_calls", "modalities", "moderation", "prediction",
    "prompt_cache_retention", "safety_identifier", "top_logprobs", "verbosity", "web_search_options",
    # vLLM's: what is sampled, and how the answer is written
    "add_special_tokens", "allowed_token_ids", "bad_words", "include_reasoning", "logprob_token_ids",
    "repetition_detection", "return_prompt_text", "return_token_offsets", "return_tokens_as_token_ids",
    "stream_interval", "structured_outputs", "thinking_token_budget", "truncate_prompt_tokens", "truncation_side",
    "use_beam_search", "watermarking",
    # SGLang's and TensorRT-LLM's
    "detokenize", "early_stopping", "ebnf", "no_stop_trim", "regex", "return_perf_metrics", "separate_reasoning",
    "stream_reasoning", "top_p_min",
}  # fmt: skip
"""Fields that every client may send."""


def refuse(name: str, why: str, *, field: str = "") -> InvalidRequestError:
    """Return the refusal of a field; ``field`` is how a service allows it, where that is not its name."""
    return InvalidRequestError(
        f"{name}: {why}; leave it out, or ask whoever runs this service to allow {field or name!r}"
        " in spec.coordinator.requests.allowedFields",
        param=name,
        code="unsupported_parameter",
    )


def refuse_unknown(name: str, allowed: RequestLimits) -> None:
    """Refuse an unknown field, unless the service allows it."""
    if allowed.fields is None or name in allowed.fields:
        return
    shown = name if len(name) <= 64 else name[:64] + "…"
    raise refuse(shown, "this service does not know this field")


def _asks(_: Json, name: str, value: object, allowed: RequestLimits) -> None:
    if value and allowed.fields is not None and name not in allowed.fields:
        raise refuse(name, ASKS[name])


def _template_kwargs(_: Json, name: str, value: object, allowed: RequestLimits) -> None:
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{name}: must be an object", param=name)
    if allowed.fields is None or name in allowed.fields:
        return
    for key, one in value.items():
        if f"{name}.{key}" in allowed.fields:
            continue
        where = f"{name}.{key[:64]}"
        if key not in PLAIN_KWARGS:
            raise refuse(where, "chat templates are programs, and this service does not know this variable of theirs")
        if isinstance(one, list | dict) or (isinstance(one, str) and len(one) > MOST_KWARG):
            raise refuse(where, f"must be a number, true, false, or a text of at most {MOST_KWARG} characters")


RULES: Final[dict[str, Rule]] = {**dict.fromkeys(ASKS, _asks), TEMPLATE_KWARGS: _template_kwargs}
"""The rules of the fields that not every client may send."""
