"""Read what an engine answered: text, tool calls, usage, token ids and the KV handle."""

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import orjson

from weft_router.openai.body import Json
from weft_router.openai.inference import Kind
from weft_router.openai.token_ids import TokenIds

_IDS: Final = re.compile(rb',\s*"(?:prompt_)?token_ids"\s*:\s*(?:null|\[[0-9,\s]*\])')
"""A bare quote cannot occur inside a JSON text, so this matches members only, never content."""
NO_HANDLE: Final = b',"kv_transfer_params":null}'
"""A whole reply that ends so has no handle: its last quotes are bare ones, so this is a member, and the last one."""
_IDS_FIRST: Final = re.compile(rb'"(?:prompt_)?token_ids"\s*:\s*(?:null|\[[0-9,\s]*\])\s*,\s*')
_PROMPT_IDS: Final = b',"prompt_token_ids":['
_ID_LISTS: Final = (_PROMPT_IDS, b',"token_ids":[')
_NUMBERS: Final = b"0123456789, "
ID_KEYS: Final = frozenset({"prompt_token_ids", "token_ids"})
LONG: Final = 256
"""Bytes of an event from which on the ids of a prompt are cut out before the rest is parsed."""
ENDS: Final = {"completed": "stop", "incomplete": "length"}
"""How a response that ended says so, in the words of the other APIs."""
_COUNTS: Final = {
    "chat": ("prompt_tokens", "completion_tokens", "prompt_tokens_details"),
    "text": ("prompt_tokens", "completion_tokens", "prompt_tokens_details"),
    "responses": ("input_tokens", "output_tokens", "input_tokens_details"),
}
_HEAD: Final[tuple[str, ...]] = ("id", "created", "model", "system_fingerprint")
_PIECES: Final = 64
"""So many pieces are put together: one by one they take ten times the room."""
_loads: Final = orjson.loads


class Reply:
    """What is known of an engine's reply so far."""

    reasoning = False
    reasoning_text: list[str] | None = None
    finish_reason: str | None = None
    prompt_tokens = 0
    completion_tokens = 0
    cached_tokens: int | None = None
    handle: Json | None = None
    output_ids: TokenIds | None = None
    error = False
    head: Json | None = None
    """Id, time, model and fingerprint as the first event of a stream gave them."""
    shown = 0
    """How many of the output ids have their whole text with the client: a character may need several tokens."""
    diverged = False
    """The decode engine found another first token than the one that was shown."""
    output: list[Json] | None = None
    """The items of a response."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._prompt: TokenIds | bytes | None = None
        self.text: list[str] = []
        self.tool_calls: dict[int, Json] = {}

    @property
    def prompt_ids(self) -> TokenIds | None:
        """Return the prompt's token ids; they are read when they are asked for."""
        held = self._prompt
        if type(held) is bytes:
            held = self._prompt = read_ids(held)
        return held  # type: ignore[return-value]

    @prompt_ids.setter
    def prompt_ids(self, ids: TokenIds | None) -> None:
        self._prompt = ids

    def offer_prompt_ids(self, ids: object) -> None:
        """Take the prompt's ids, a list or JSON without its brackets, unless they are known already."""
        if self._prompt is None:
            self._prompt = ids if type(ids) is bytes else ids_of(ids)

    @property
    def ids(self) -> TokenIds | None:
        """Return all token ids the engine holds for this sequence, or None when it did not tell."""
        if self.prompt_ids is None or self.output_ids is None:
            return None
        return self.prompt_ids + self.output_ids

    @property
    def plain(self) -> bool:
        """Return whether the reply is text alone, so that rendering it again gives the same tokens."""
        return not self.reasoning and not self.tool_calls

    def content(self) -> Json | str:
        """Return the reply as a client will send it back: a chat message, text, or a response's id and items."""
        text = "".join(self.text)
        if self.kind == "responses":
            return {"id": (self.head or {}).get("id"), "output": self.output or []}
        if self.kind == "text":
            return text
        message: Json = {"role": "assistant", "content": text}
        if self.tool_calls:
            message["tool_calls"] = [self.tool_calls[i] for i in sorted(self.tool_calls)]
        return message

    def dump(self) -> Json:
        """Return what another process needs to go on with this stream: ids only as far as their text is shown."""
        return {
            "kind": self.kind,
            "text": "".join(self.text),
            "head": self.head,
            "prompt_ids": self.prompt_ids.tolist() if self.prompt_ids is not None else None,
            "output_ids": self.output_ids[: self.shown].tolist() if self.output_ids is not None else None,
            "shown": self.shown,
            "structured": not self.plain,
            "finish_reason": self.finish_reason,
        }

    @classmethod
    def load(cls, dumped: Json) -> "Reply":
        """Return the reply of another process.

        Raises:
            ValueError: this is no dumped reply.
        """
        kind, text, head, shown = (dumped.get(key) for key in ("kind", "text", "head", "shown"))
        finish = dumped.get("finish_reason")
        good = isinstance(text, str) and isinstance(head, dict | None) and isinstance(finish, str | None)
        if kind not in ("chat", "text") or not good or not isinstance(shown, int):
            raise ValueError("this is no dumped reply")
        reply = cls(kind)
        reply.text.append(cast(str, text))
        reply.reasoning = bool(dumped.get("structured"))
        reply.head, reply.finish_reason = cast(Json | None, head), cast(str | None, finish)
        reply.prompt_ids, reply.output_ids = (
            ids_of(ids) if (ids := dumped.get(key)) is not None else None for key in ("prompt_ids", "output_ids")
        )
        reply.shown = max(0, min(shown, len(reply.output_ids or ())))
        return reply

    def go_on(self, more: "Reply") -> None:
        """Add what another engine said after the ids whose text is shown."""
        self.text += more.text
        self.finish_reason, self.error = more.finish_reason, more.error
        self.reasoning = self.reasoning or more.reasoning
        self.tool_calls |= more.tool_calls
        if more.output_ids is not None and self.output_ids is not None:
            self.output_ids = self.output_ids[: self.shown] + more.output_ids
            self.shown += more.shown

    def take_usage(self, usage: object) -> None:
        """Take the engine's exact token counts."""
        if type(usage) is not dict:
            return
        prompt, completion, details = _COUNTS[self.kind]
        count = usage.get(prompt)
        self.prompt_tokens = count if type(count) is int and count >= 0 else 0
        count = usage.get(completion)
        self.completion_tokens = count if type(count) is int and count >= 0 else 0
        detailed = usage.get(details)
        if type(detailed) is dict and (count := detailed.get("cached_tokens")) is not None:
            self.cached_tokens = count if type(count) is int and count >= 0 else 0

    def take_part(self, part: Json) -> None:
        """Take the text and tool calls of a stream's delta or of a whole message."""
        if self.kind == "text":
            text = part.get("text")
            if type(text) is str and text:
                self.text.append(text)
            return
        text = part.get("content")
        if type(text) is str and text:
            self.text.append(text)
        thought = part.get("reasoning") or part.get("reasoning_content")
        if thought:
            self.reasoning = True
            if type(thought) is str:
                self._take_reasoning(thought)
        calls = part.get("tool_calls")
        if calls and isinstance(calls, list):
            for position, call in enumerate(calls):
                if isinstance(call, dict):
                    self._take_call(position, cast(Json, call))

    def take_output(self, output: object) -> None:
        """Take the items of a finished response."""
        self.output = (
            [cast(Json, item) for item in output if isinstance(item, dict)] if isinstance(output, list) else []
        )
        for item in self.output:
            if item.get("type") == "message":
                content = item.get("content")
                for part in content if isinstance(content, list) else ():
                    if isinstance(part, dict) and isinstance(part.get("text"), str):
                        self.text.append(part["text"])
            elif item.get("type") == "reasoning":
                self.reasoning = True
            else:
                self.tool_calls[len(self.tool_calls)] = item

    def _take_reasoning(self, text: str) -> None:
        texts = self.reasoning_text
        if texts is None:
            self.reasoning_text = [text]
            return
        texts.append(text)
        if len(texts) > _PIECES:
            texts[:] = ["".join(texts)]

    def _take_call(self, position: int, call: Json) -> None:
        index = call.get("index")
        known = self.tool_calls.setdefault(index if isinstance(index, int) else position, {})
        for key in ("id", "type"):
            if call.get(key) is not None:
                known[key] = call[key]
        function = call.get("function")
        if isinstance(function, dict):
            held = cast(Json, known.setdefault("function", {}))
            if function.get("name") is not None:
                held["name"] = function["name"]
            if isinstance(function.get("arguments"), str):
                held["arguments"] = str(held.get("arguments", "")) + function["arguments"]


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The first token as the prefill engine found it; ``text`` is None where it was passed on without reading it."""

    text: str | None
    head: Json
    tokens: TokenIds
    prompt_ids: TokenIds | None = None

    def events(self, kind: Kind, *, with_ids: bool = False) -> bytes:
        """Return the events that show it: for chats the role first, as engines do, and with ids if asked."""
        chat = kind == "chat"
        head = {key: self.head[key] for key in _HEAD if key in self.head}
        head["object"] = "chat.completion.chunk" if chat else "text_completion"
        rest = {"logprobs": None, "finish_reason": None}
        ids = {"token_ids": self.tokens.tolist()} if with_ids else {}
        prompt = {"prompt_token_ids": self.prompt_ids.tolist()} if with_ids and self.prompt_ids is not None else {}
        if not chat:
            return to_event({**head, "choices": [{"index": 0, "text": self.text, **rest, **prompt, **ids}]})
        opening = {"index": 0, "delta": {"role": "assistant", "content": ""}, **rest}
        token = {"index": 0, "delta": {"content": self.text}, **rest, **ids}
        return to_event({**head, "choices": [opening], **prompt}) + to_event({**head, "choices": [token]})


def read_counts(kind: Kind, raw: bytes) -> tuple[Json, Reply]:
    """Read what a reply in one piece says besides its text: counts, the KV handle, the prompt's ids.

    Raises:
        ValueError: the engine's reply is not a JSON object.
    """
    answer: Any = _loads(raw)
    if type(answer) is not dict:
        raise ValueError("the engine's reply is not a JSON object")
    reply = Reply(kind)
    reply.take_usage(answer.get("usage"))
    params = answer.get("kv_transfer_params")
    if type(params) is dict:
        reply.handle = params
    ids = answer.get("prompt_token_ids")
    if kind == "text" and not ids:
        choices = answer.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        ids = first.get("prompt_token_ids") if isinstance(first, dict) else None
    if ids:
        reply.prompt_ids = ids_of(ids)
    return answer, reply


def read_answer(kind: Kind, raw: bytes) -> tuple[Json, Reply]:
    """Read a reply that came in one piece; return it as it came and all that it says.

    Raises:
        ValueError: the engine's reply is not a JSON object.
    """
    answer, reply = read_counts(kind, raw)
    if kind == "responses":
        reply.head = head_of(answer)
        reply.take_output(answer.get("output"))
        reply.finish_reason = ENDS.get(str(answer.get("status")))
        return answer, reply
    choices = answer.get("choices")
    if type(choices) is list and choices and type(choices[0]) is dict:
        choice = choices[0]
        part = choice.get("message") if kind == "chat" else choice
        if type(part) is dict:
            reply.take_part(part)
        reason = choice.get("finish_reason")
        reply.finish_reason = reason if type(reason) is str else None
        found = choice.get("token_ids")
        if type(found) is list:
            reply.output_ids = ids_of(found)
            reply.shown = len(reply.output_ids or ())
    return answer, reply


def read_whole(kind: Kind, raw: bytes, *, keep_ids: bool, public_id: str | None = None) -> tuple[Reply, bytes]:
    """Read a reply that came in one piece; return it and the bytes for the client.

    Only what the router asked for itself is taken out: the KV handle, and token ids that the client did not request.

    Raises:
        ValueError: the engine's reply is not a JSON object.
    """
    answer, reply = read_answer(kind, raw)
    handle = "kv_transfer_params" in answer
    cut = handle and raw.endswith(NO_HANDLE)
    rewritten = handle and not cut
    if not keep_ids and drop_ids(answer):
        rewritten = True
    if public_id is not None and "id" in answer:
        answer["id"] = public_id
        rewritten = True
    if rewritten:
        answer.pop("kv_transfer_params", None)
        return reply, orjson.dumps(answer)
    return reply, raw[: -len(NO_HANDLE)] + b"}" if cut else raw


def head_of(answer: Json) -> Json:
    """Return what all events of one stream have in common."""
    return {key: answer[key] for key in _HEAD if key in answer}


def without_ids(event: bytes, chunk: Json, count: int) -> bytes:
    """Return an event without its token ids, ``count`` members, other bytes unchanged where that can be."""
    cut = event
    for key in _ID_LISTS:
        while count and (at := cut.find(key)) >= 0:
            end = cut.find(b"]", at)
            if cut[at + len(key) : end].strip(_NUMBERS):
                break
            cut = cut[:at] + cut[end + 1 :]
            count -= 1
    if not count:
        return cut
    cut = _IDS.sub(b"", event)
    if b'token_ids"' not in cut:
        return cut
    cut = _IDS_FIRST.sub(b"", cut)
    if b'token_ids"' not in cut:
        return cut
    drop_ids(chunk)
    return to_event(chunk)


def part_prompt_ids(raw: bytes) -> tuple[bytes, bytes] | None:
    """Return JSON without the ids of its prompt, and these without brackets; None where they are not in the usual form.

    What is left is to be parsed: if that fails, the ids were no list of numbers.
    """
    at = raw.find(_PROMPT_IDS)
    if at < 0:
        return None
    start = at + len(_PROMPT_IDS)
    end = raw.find(b"]", start)
    return (raw[:at] + raw[end + 1 :], raw[start:end]) if end > start else None


def to_event(chunk: Json) -> bytes:
    """Return a chunk as an event."""
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def drop_ids(answer: Json) -> bool:
    """Delete the token ids of a whole reply or of a chunk; tell whether there were any."""
    found = _drop_ids(answer)
    choices = answer.get("choices")
    if type(choices) is list:
        for choice in choices:
            if type(choice) is dict and _drop_ids(choice):
                found = True
    return found


def _drop_ids(level: Json) -> bool:
    if "token_ids" not in level and "prompt_token_ids" not in level:
        return False
    for key in ID_KEYS:
        level.pop(key, None)
    return True


def read_ids(raw: bytes) -> TokenIds | None:
    """Return token ids from a JSON list without its brackets; None when they are none."""
    try:
        return array("I", orjson.loads(b"[" + raw + b"]"))
    except (ValueError, TypeError, OverflowError):
        return None


def ids_of(values: object) -> TokenIds | None:
    """Return token ids in compact form; None when they are none."""
    try:
        return array("I", cast(Sequence[int], values))
    except (TypeError, OverflowError):
        return None
