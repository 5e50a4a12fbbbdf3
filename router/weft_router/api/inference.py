"""Check a request before any byte goes upstream, and make the bodies of its legs from the checked form.

The client's object is written as JSON once, without the few fields that legs change; each leg's body is that
text with its own fields appended. So a prompt of 64 KB is written once, however many engines it goes to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import orjson

from weft_router.api import bounds, responses
from weft_router.api.body import CHAINED, Json
from weft_router.config import LimitsConfig, ModelConfig
from weft_router.errors import InvalidRequestError, NotFoundError

Kind = Literal["chat", "text", "responses"]
PATHS: dict[str, Kind] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text",
    "/v1/responses": "responses",
}

LEG_FIELDS = frozenset(
    {
        "stream",
        "stream_options",
        "max_tokens",
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
"""What a prefill leg asks for differently than a decode leg; everything else is the same in both."""

MOST_CHARS_PER_TOKEN = 16.0
"""Even runs of blanks seldom exceed 16 characters a token; used only to refuse what certainly does not fit."""

_ANSWERED = ("function_call", "reasoning")
_RULES = {"chat": bounds.CHAT, "text": bounds.TEXT, "responses": responses.RULES}
_MOST = ("max_tokens", "max_completion_tokens", "max_output_tokens")


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
    _own: Json | None = None
    _common: bytes = b""

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
        """Tell whether the request goes on from an earlier response, so that its history is with the engine."""
        return self.kind == "responses" and self.body.get(CHAINED) is not None

    @property
    def items(self) -> Sequence[Json]:
        """Return what the prompt consists of, chat messages or a response's input items; empty for text."""
        if self.kind == "chat":
            return self.messages
        given = self.body.get("input") if self.kind == "responses" else ()
        return [{"role": "user", "content": given}] if isinstance(given, str) else cast(Sequence[Json], given)

    @property
    def follows(self) -> bool:
        """Tell whether the request goes on with a conversation: it sends an answer back, or names one."""
        return self.chained or any(map(answered, self.items))

    @property
    def media(self) -> bool:
        """Tell whether a prompt holds more than text: its token ids alone would not be the same prompt."""
        if self.kind == "responses":
            return True  # not looked into: what it holds is the engine's to judge
        for message in self.messages:
            content = message.get("content")
            if isinstance(content, list) and any(
                not isinstance(part, dict) or part.get("type") != "text" for part in content
            ):
                return True
        return False

    @property
    def transferable(self) -> bool:
        """Tell whether the KV of this request may travel between workers.

        A handle is read once, so one sequence only; prompt log-probabilities and echo need the prompt computed
        where the answer is made, and so does a history that only one engine has.
        """
        b = self.body
        if self.n != 1 or self.chained:
            return False
        return not (b.get("echo") or b.get("use_beam_search") or b.get("continue_final_message")) and (
            b.get("prompt_logprobs") is None
        )

    def own(self) -> Json:
        """Return what the client asked for in the fields that legs change, as an object of the caller's own."""
        return dict(self._own if self._own is not None else self._split())

    def common(self) -> bytes:
        """Return the rest of the client's object as JSON without its closing brace; it always holds the model."""
        if self._own is None:
            self._split()
        return self._common

    def encoded(self, fields: Mapping[str, object]) -> bytes:
        """Return a body as JSON: the client's, with ``fields`` in place of all those that legs change."""
        return self.common() + b"," + orjson.dumps(fields)[1:] if fields else self.common() + b"}"

    def _split(self) -> Json:
        own: Json = {}
        rest: Json = {}
        for name, value in self.body.items():
            (own if name in LEG_FIELDS else rest)[name] = value
        self._common = orjson.dumps(rest)[:-1]
        self._own = own
        return own

    def whole(self) -> bytes:
        """Return the client's own body as JSON."""
        return self.encoded(self.own())


def answered(item: Json) -> bool:
    """Tell whether a message or item is one that a model gave."""
    return item.get("role") == "assistant" or item.get("type") in _ANSWERED


def check(path: str, body: Json, *, model: ModelConfig, limits: LimitsConfig) -> Inference:
    """Return the request in checked form.

    Raises:
        InvalidRequestError: a field has the wrong type or lies outside its bounds; ``param`` names it.
        NotFoundError: the model is not the one this service runs.
    """
    kind = PATHS[path]
    check_model(body, model)
    rules = _RULES[kind]
    for name, value in body.items():
        rule = rules.get(name)
        if rule is not None and value is not None:
            rule(body, name, value, limits)
    most = _most_tokens(body, model)
    exact: int | None = None
    if kind == "chat":
        field, chars = "messages", bounds.message_chars(body)
    elif kind == "text":
        field = "prompt"
        chars, exact = bounds.prompt_size(body)
    else:
        field, chars = "input", responses.input_chars(body)
    least = exact if exact is not None else int(chars / MOST_CHARS_PER_TOKEN)
    if least + (most or 1) > model.max_model_len:
        _refuse_length(chars, exact, most, model, field)
    options = cast(Json | None, body.get("stream_options"))
    return Inference(
        path,
        kind,
        body,
        body.get("stream") is True,
        max(cast(int, body.get("n") or 1), cast(int, body.get("best_of") or 1)),
        most,
        options is not None and options.get("include_usage") is True,
        body.get("return_token_ids") is True,
        chars,
        exact,
    )


def check_model(body: Json, model: ModelConfig) -> None:
    """Refuse a request for another model than the one this service runs.

    Raises:
        InvalidRequestError: it names none.
        NotFoundError: it names another one.
    """
    if body.get("model") != model.name:
        _refuse_model(body, model)


def _refuse_model(body: Json, model: ModelConfig) -> None:
    name = body.get("model")
    if not isinstance(name, str) or not name:
        raise InvalidRequestError(f"model: name the model to use, here {model.name!r}", param="model")
    shown = name if len(name) <= 128 else name[:128] + "…"
    raise NotFoundError(
        f"the model {shown!r} does not exist here; this service runs {model.name!r}",
        param="model",
        code="model_not_found",
    )


def _most_tokens(body: Json, model: ModelConfig) -> int | None:
    most: int | None = None
    for name in _MOST:
        value = cast(int | None, body.get(name))
        if value is None:
            continue
        if value > model.max_model_len:
            raise InvalidRequestError(
                f"{name}: {value} exceeds the model's context of {model.max_model_len} tokens; ask for less",
                param=name,
                code="context_length_exceeded",
            )
        most = value if most is None or value < most else most
    least = cast(int | None, body.get("min_tokens"))
    if least is not None and least > (model.max_model_len if most is None else most):
        bound = f"the model's context of {model.max_model_len}" if most is None else f"max_tokens {most}"
        raise InvalidRequestError(f"min_tokens: {least} is more than {bound}", param="min_tokens")
    return most


def _refuse_length(chars: int, exact: int | None, most: int | None, model: ModelConfig, param: str) -> None:
    least = exact if exact is not None else int(chars / MOST_CHARS_PER_TOKEN)
    count = f"{exact} tokens" if exact is not None else f"{chars} characters (at least {least} tokens)"
    asked = f" and {most} output tokens" if most else ""
    raise InvalidRequestError(
        f"{param}: {count}{asked} exceed the model's context of {model.max_model_len} tokens; shorten the input",
        param=param,
        code="context_length_exceeded",
    )
