"""Check a request before any byte goes upstream, and make the bodies of its legs from the checked form.

What goes to an engine is always written from the object that was checked, never cut out of the client's bytes: orjson
writes 64 KB in 3 µs, less than it takes to make sure that a cut holds no key twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import orjson

from weft_router.errors import InvalidRequestError, NotFoundError
from weft_router.openai import bounds, fields, media, responses
from weft_router.openai.body import CHAINED, Json
from weft_router.openai.bounds import RequestLimits, Rule, answered

Kind = Literal["chat", "text", "responses"]
CHAT: Final = "/v1/chat/completions"
TEXT: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
PATHS: Final[dict[str, Kind]] = {
    CHAT: "chat",
    TEXT: "text",
    RESPONSES: "responses",
}

ANSWER_FIELDS: Final = frozenset(
    {
        "stream_options",
        "max_completion_tokens",
        "max_output_tokens",
        "min_tokens",
        "n",
        "best_of",
        "logprobs",
        "top_logprobs",
        "return_token_ids",
        "store",
    }
)
"""What only a leg that answers the client asks for. Beside these, prefill legs differ in ``stream`` and ``max_tokens``,
which they set themselves; everything else is the same in both."""
PREAMBLE: Final = (
    "tools",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "add_generation_prompt",
    "response_format",
    "instructions",
    "reasoning",
    "text",
)
"""Fields besides the messages that templates render into the prompt."""

MOST_CHARS_PER_TOKEN: Final = 16
"""Even runs of blanks seldom exceed 16 characters a token; used only to refuse what certainly does not fit."""

_MOST: Final[tuple[str, ...]] = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_USUAL_MOST: Final[tuple[str, ...]] = ("max_tokens",)
NOTHING: Final[frozenset[str]] = frozenset()

RENDERED: Final = 2
"""A request's mark of fields of ``PREAMBLE``."""
ANSWERING: Final = 4
"""Its mark of ``ANSWER_FIELDS``."""
FIXED: Final = 8
"""Its mark of fields for which the prompt may have to be computed where the answer is made."""
MIXED: Final = 16
"""Its mark of messages that are more than a role and a text."""
ADAPTED: Final = 1024
"""Its mark of an adapter in the model's place."""
UNUSUAL: Final = 512
"""Its mark of fields that not nearly all requests have."""
_PLAIN: Final = frozenset(
    {
        "model", "messages", "prompt", "input", "instructions", "stream", "stream_options", "temperature", "top_p",
        "max_tokens", "max_completion_tokens", "max_output_tokens", "stop", "seed", "user", "metadata", "store",
        "tools", "tool_choice", "parallel_tool_calls", "service_tier", "return_token_ids", "reasoning",
        "reasoning_effort", "truncation", "safety_identifier", CHAINED,
    }
)  # fmt: skip
_LENGTH: Final = 32
_LENGTHS: Final = 64
_SELDOM: Final = 128
_STREAM: Final = 256
_MARKED: Final = (
    (RENDERED, frozenset(PREAMBLE)),
    (ANSWERING, ANSWER_FIELDS),
    (FIXED, frozenset({"echo", "use_beam_search", "continue_final_message", "prompt_logprobs"})),
    (_LENGTH, frozenset(_USUAL_MOST)),
    (_LENGTHS, frozenset({*_MOST, "min_tokens"}.difference(_USUAL_MOST))),
    (_SELDOM, frozenset({"n", "best_of", "stream_options", "return_token_ids"})),
    (_STREAM, frozenset({"stream"})),
)


@dataclass(slots=True, eq=False)
class _Field:
    """What there is to know of a field: the rule for its value, and what it marks a request with."""

    rule: Rule | None
    marks: int


def _fields(rules: Mapping[str, Rule]) -> dict[str, _Field]:
    rules = {**fields.RULES, **rules}
    names = fields.PASSES.union(rules, *(names for _, names in _MARKED))
    found = {name: sum(mark for mark, marked in _MARKED if name in marked) for name in names}
    return {name: _Field(rules.get(name), marks | (0 if name in _PLAIN else UNUSUAL)) for name, marks in found.items()}


_FIELDS: Final[dict[Kind, dict[str, _Field]]] = {
    "chat": _fields(bounds.CHAT),
    "text": _fields(bounds.TEXT),
    "responses": _fields(responses.RULES),
}
_dumps: Final = orjson.dumps


TOKENIZED: Final = frozenset(
    {
        "model", "prompt", "messages", "add_special_tokens", "add_generation_prompt", "continue_final_message",
        "return_token_strs", "tools", "documents", fields.TEMPLATE_KWARGS,
    }
)  # fmt: skip
"""Fields of a request to count tokens that every client may send."""


@dataclass(slots=True, eq=False)
class Inference:
    """One checked request; ``body`` is the client's object without the router-owned fields and is not changed."""

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
    follows: bool
    """Whether the request goes on with a conversation: it sends an answer back, or names one."""
    marks: int
    """What is among the body's fields and messages: ``RENDERED``, ``ANSWERING`` and so on. Told once, asked often."""
    version: str = ""
    """The version of the adapter that answers, where sidecars load it (AdapterConfig.version); else nothing."""

    @staticmethod
    def unusual(name: str) -> bool:
        """Return whether not nearly all requests have a field."""
        return name not in _PLAIN

    @property
    def messages(self) -> Sequence[Json]:
        """Return the chat messages; empty for everything else."""
        return cast(list[Json], self.body["messages"]) if self.kind == "chat" else ()

    @property
    def prompt(self) -> str | Sequence[int]:
        """Return the prompt of a text completion, as text or token ids."""
        prompt = self.body.get("prompt", "")
        if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
            return cast(str | list[int], prompt[0])
        return cast(str | list[int], prompt)

    @property
    def chained(self) -> bool:
        """Return whether the request goes on from an earlier response, so that its history is with the engine."""
        return self.kind == "responses" and self.body.get(CHAINED) is not None

    @property
    def items(self) -> Sequence[Json]:
        """Return what the prompt consists of, chat messages or a response's input items; empty for text."""
        if self.kind == "chat":
            messages: Any = self.body["messages"]
            return messages  # type: ignore[no-any-return]
        given = self.body.get("input") if self.kind == "responses" else ()
        return [{"role": "user", "content": given}] if isinstance(given, str) else cast(Sequence[Json], given)

    @property
    def media(self) -> bool:
        """Return whether a prompt holds more than text: its token ids alone would not be the same prompt."""
        if self.kind == "responses":
            return True  # not looked into: what it holds is the engine's to judge
        if not self.marks & MIXED:
            return False
        for message in self.messages:
            content = message.get("content")
            if isinstance(content, list) and any(
                not isinstance(part, dict) or part.get("type") != "text" for part in content
            ):
                return True
        return False

    @property
    def adapter(self) -> str:
        """Return the LoRA adapter that answers, nothing where the model itself does."""
        return cast(str, self.body["model"]) if self.marks & ADAPTED else ""

    @property
    def transferable(self) -> bool:
        """Return whether the KV of this request may travel between workers.

        A handle is read once, so one sequence only; prompt log-probabilities and echo need the prompt computed
        where the answer is made, and so does a history that only one engine has.
        """
        b = self.body
        if self.n != 1 or self.chained:
            return False
        if not self.marks & FIXED:
            return True
        return not (b.get("echo") or b.get("use_beam_search") or b.get("continue_final_message")) and (
            b.get("prompt_logprobs") is None
        )

    def encoded(self, fields: Mapping[str, object], *, without: frozenset[str] = NOTHING) -> bytes:
        """Return the client's object as JSON with these fields set; of ``without``, those that are not set are gone."""
        body = {name: value for name, value in self.body.items() if name not in without}
        body.update(fields)
        return _dumps(body)

    def whole(self) -> bytes:
        """Return the client's own body as JSON."""
        return _dumps(self.body)


def check_request(path: str, body: Json, allowed: RequestLimits) -> Inference:
    """Return the request in checked form.

    Raises:
        InvalidRequestError: a field has the wrong type or lies outside its bounds; ``param`` names it.
        NotFoundError: the model is not the one this service runs.
    """
    kind = PATHS[path]
    check_model(body, allowed)
    known_fields, marks = _FIELDS[kind], 0 if body["model"] == allowed.model else ADAPTED
    version = allowed.adapters[cast(str, body["model"])] if marks else ""
    for name, value in body.items():
        known = known_fields.get(name)
        if known is None:
            fields.refuse_unknown(name, allowed)
            marks |= UNUSUAL
            continue
        marks |= known.marks
        rule = known.rule
        if rule is not None and value is not None:
            rule(body, name, value, allowed)
    longest = allowed.max_model_len
    most = _most_tokens(body, longest, marks) if marks & (_LENGTH | _LENGTHS) else None
    exact: int | None = None
    if kind == "chat":
        field = "messages"
        chars, follows, mixed = bounds.message_chars(body)
        if mixed:
            marks |= MIXED
            media.check_messages(cast(list[Json], body["messages"]), allowed)
    elif kind == "text":
        field, follows = "prompt", False
        chars, exact = bounds.prompt_size(body)
    else:
        field, chars = "input", responses.input_chars(body)
        given: Any = body["input"]
        if not isinstance(given, str):
            media.check_item(given, field, allowed)
        follows = body.get(CHAINED) is not None or (not isinstance(given, str) and any(map(answered, given)))
    if (chars // MOST_CHARS_PER_TOKEN if exact is None else exact) + (most or 1) > longest:
        _refuse_length(chars, exact, most, longest, field)
    n, options, ids = 1, None, False
    if marks & _SELDOM:
        n = max(cast(int, body.get("n") or 1), cast(int, body.get("best_of") or 1))
        options = cast(Json | None, body.get("stream_options"))
        ids = body.get("return_token_ids") is True
    return Inference(
        path,
        kind,
        body,
        bool(marks & _STREAM) and body.get("stream") is True,
        n,
        most,
        options is not None and options.get("include_usage") is True,
        ids,
        chars,
        exact,
        follows,
        marks,
        version,
    )


def check_tokenized(body: Json, allowed: RequestLimits) -> None:
    """Refuse a request to count tokens that has fields or media which it may not have.

    Raises:
        InvalidRequestError: ``param`` names the field.
    """
    for name, value in body.items():
        rule = fields.RULES.get(name)
        if rule is not None:
            if value is not None:
                rule(body, name, value, allowed)
        elif name not in TOKENIZED:
            fields.refuse_unknown(name, allowed)
    messages = body.get("messages")
    if messages is not None:
        _, _, mixed = bounds.message_chars(body)
        if mixed:
            media.check_messages(cast(list[Json], messages), allowed)


def check_model(body: Json, allowed: RequestLimits) -> None:
    """Refuse a request for what this service does not run; an alias becomes the model's own name.

    Raises:
        InvalidRequestError: it names none.
        NotFoundError: it names another one.
    """
    if body.get("model") != allowed.model:
        body["model"] = model_of(body.get("model"), allowed)


def model_of(name: object, allowed: RequestLimits) -> str:
    """Return the model or adapter that a name stands for, as engines know it.

    Raises:
        InvalidRequestError: it is no name.
        NotFoundError: it is that of another model.
    """
    model = allowed.model
    if not isinstance(name, str) or not name:
        raise InvalidRequestError(f"model: name the model to use, here {model!r}", param="model")
    if name == model or name in allowed.aliases:
        return model
    if name in allowed.adapters:
        return name
    shown = name if len(name) <= 128 else name[:128] + "…"
    raise NotFoundError(
        f"the model {shown!r} does not exist here; this service runs {model!r}",
        param="model",
        code="model_not_found",
    )


def _most_tokens(body: Json, longest: int, marks: int) -> int | None:
    most: int | None = None
    value: Any  # the rules have seen that it is a whole number
    for name in _MOST if marks & _LENGTHS else _USUAL_MOST:
        value = body.get(name)
        if value is None:
            continue
        if value > longest:
            raise InvalidRequestError(
                f"{name}: {value} exceeds the model's context of {longest} tokens; ask for less",
                param=name,
                code="context_length_exceeded",
            )
        if most is None or value < most:
            most = value
    value = body.get("min_tokens") if marks & _LENGTHS else None
    if value is not None and value > (longest if most is None else most):
        bound = f"the model's context of {longest}" if most is None else f"max_tokens {most}"
        raise InvalidRequestError(f"min_tokens: {value} is more than {bound}", param="min_tokens")
    return most


def _refuse_length(chars: int, exact: int | None, most: int | None, longest: int, param: str) -> None:
    least = exact if exact is not None else chars // MOST_CHARS_PER_TOKEN
    count = f"{exact} tokens" if exact is not None else f"{chars} characters (at least {least} tokens)"
    asked = f" and {most} output tokens" if most else ""
    raise InvalidRequestError(
        f"{param}: {count}{asked} exceed the model's context of {longest} tokens; shorten the input",
        param=param,
        code="context_length_exceeded",
    )
