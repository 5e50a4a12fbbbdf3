"""Read what an engine answered, streamed or whole: text, tool calls, usage, token ids and the KV handle.

The tap forwards event bytes as they are, but for three declared rewrites: the KV handle (a comment of the engine
plug-in, or a field of a chunk), token ids nobody asked for, and a usage chunk nobody asked for are taken out.
"""

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import orjson

from weft_router.api.body import Json
from weft_router.api.inference import Kind
from weft_router.engines.handles import Ids
from weft_router.wire.sse import EventSplitter, payload

HANDLE_COMMENT = b": kv_transfer_params "
_IDS = re.compile(rb',\s*"(?:prompt_)?token_ids"\s*:\s*(?:null|\[[0-9,\s]*\])')
"""A bare quote cannot occur inside a JSON text, so this matches members only, never content."""
_IDS_FIRST = re.compile(rb'"(?:prompt_)?token_ids"\s*:\s*(?:null|\[[0-9,\s]*\])\s*,\s*')
_ID_KEYS = ("prompt_token_ids", "token_ids")


@dataclass(slots=True)
class Reply:
    """What is known of an engine's reply so far."""

    kind: Kind
    text: list[str] = field(default_factory=list)
    tool_calls: dict[int, Json] = field(default_factory=dict)
    reasoning: bool = False
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    handle: Json | None = None
    prompt_ids: Ids | None = None
    output_ids: Ids | None = None
    error: bool = False

    @property
    def ids(self) -> Ids | None:
        """Return all token ids the engine holds for this sequence, or None when it did not tell."""
        if self.prompt_ids is None or self.output_ids is None:
            return None
        return self.prompt_ids + self.output_ids

    @property
    def plain(self) -> bool:
        """Tell whether the reply is text alone, so that rendering it again gives the same tokens."""
        return not self.reasoning and not self.tool_calls

    def content(self) -> Json | str:
        """Return the reply as a client will send it back: a chat message, or text."""
        text = "".join(self.text)
        if self.kind == "text":
            return text
        message: Json = {"role": "assistant", "content": text}
        if self.tool_calls:
            message["tool_calls"] = [self.tool_calls[i] for i in sorted(self.tool_calls)]
        return message

    def take_usage(self, usage: object) -> None:
        """Take the engine's exact token counts."""
        if not isinstance(usage, dict):
            return
        self.prompt_tokens = _count(usage.get("prompt_tokens"))
        self.completion_tokens = _count(usage.get("completion_tokens"))
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict) and details.get("cached_tokens") is not None:
            self.cached_tokens = _count(details["cached_tokens"])

    def take_part(self, part: Json) -> None:
        """Take the text and tool calls of a stream's delta or of a whole message."""
        text = part.get("content") if self.kind == "chat" else part.get("text")
        if isinstance(text, str) and text:
            self.text.append(text)
        if self.kind == "text":
            return
        if part.get("reasoning") or part.get("reasoning_content"):
            self.reasoning = True
        calls = part.get("tool_calls")
        for position, call in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(call, dict):
                self._take_call(position, cast(Json, call))

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


class StreamTap:
    """Watch a stream of events pass: forward its bytes and collect what the router needs."""

    def __init__(self, kind: Kind, *, keep_usage: bool, keep_ids: bool) -> None:
        self.reply = Reply(kind)
        self.done = False
        self.tokens = 0
        self._keep_usage = keep_usage
        self._keep_ids = keep_ids
        self._splitter = EventSplitter()
        self._held: list[bytes] = []

    def feed(self, data: bytes) -> bytes:
        """Add bytes from the engine; return what goes on to the client now.

        Whole events only; an opening event without any token waits for the next one, so that nothing
        has been sent as long as the engine has not shown its first token.
        """
        out = self._held
        self._held = []
        for event in self._splitter.feed(data):
            kept = self._take(event)
            if kept:
                out.append(kept)
        if out and not self.tokens and not self.done and not self.reply.error and self.reply.finish_reason is None:
            self._held = out
            return b""
        return b"".join(out)

    @property
    def complete(self) -> bool:
        """Tell whether the stream ended as it should: with its last event, and nothing cut off."""
        return self.done and not self._splitter.rest.strip()

    def _take(self, event: bytes) -> bytes:
        if event.startswith(HANDLE_COMMENT):
            self.reply.handle = _handle(event[len(HANDLE_COMMENT) :])
            return b""
        data = payload(event)
        if data is None:
            return event
        if data == b"[DONE]":
            self.done = True
            return event
        try:
            chunk: object = orjson.loads(data)
        except orjson.JSONDecodeError:
            return event
        if not isinstance(chunk, dict):
            return event
        return self._take_chunk(event, cast(Json, chunk))

    def _take_chunk(self, event: bytes, chunk: Json) -> bytes:
        reply = self.reply
        if chunk.get("kv_transfer_params") is not None:  # newer engines put the handle into the last chunk
            params = chunk.pop("kv_transfer_params")
            if isinstance(params, dict):
                reply.handle = cast(Json, params)
            event = _event(chunk)
        if "error" in chunk:
            reply.error = True
            return event
        choices = chunk.get("choices")
        usage = chunk.get("usage")
        if usage is not None:
            reply.take_usage(usage)
            if not choices and not self._keep_usage:
                return b""
        has_ids = False
        ids = chunk.get("prompt_token_ids")
        if "prompt_token_ids" in chunk:
            has_ids = True
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            has_ids = has_ids or "token_ids" in choice or "prompt_token_ids" in choice
            ids = ids or choice.get("prompt_token_ids")
            self._take_choice(cast(Json, choice))
        if ids:
            reply.prompt_ids = _ids(ids)
        return _without_ids(event, chunk) if has_ids and not self._keep_ids else event

    def _take_choice(self, choice: Json) -> None:
        reply = self.reply
        part: object = choice.get("delta") if reply.kind == "chat" else choice
        before = len(reply.text), len(reply.tool_calls)
        if isinstance(part, dict):
            reply.take_part(cast(Json, part))
        token_ids = choice.get("token_ids")
        if isinstance(token_ids, list):
            self.tokens += len(token_ids)
            found = _ids(token_ids)
            if found is not None:
                reply.output_ids = found if reply.output_ids is None else reply.output_ids + found
        elif isinstance(part, dict) and (
            (len(reply.text), len(reply.tool_calls)) != before
            or part.get("tool_calls")
            or part.get("reasoning")
            or part.get("reasoning_content")
        ):
            self.tokens += 1
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            reply.finish_reason = reason


def read_whole(kind: Kind, raw: bytes, *, keep_ids: bool) -> tuple[Reply, bytes]:
    """Read a reply that came in one piece; return it and the bytes for the client.

    Raises:
        ValueError: the engine's reply is not a JSON object.
    """
    body: object = orjson.loads(raw)
    if not isinstance(body, dict):
        raise ValueError("the engine's reply is not a JSON object")
    answer = cast(Json, body)
    reply = Reply(kind)
    reply.take_usage(answer.get("usage"))
    rewritten = "kv_transfer_params" in answer
    params = answer.pop("kv_transfer_params", None)
    if isinstance(params, dict):
        reply.handle = cast(Json, params)
    ids: object = answer.get("prompt_token_ids")
    choices = answer.get("choices")
    for position, choice in enumerate(choices if isinstance(choices, list) else ()):
        if not isinstance(choice, dict):
            continue
        ids = ids or choice.get("prompt_token_ids")
        if position == 0:
            part: object = choice.get("message") if kind == "chat" else choice
            if isinstance(part, dict):
                reply.take_part(cast(Json, part))
            reason = choice.get("finish_reason")
            reply.finish_reason = reason if isinstance(reason, str) else None
            if isinstance(choice.get("token_ids"), list):
                reply.output_ids = _ids(choice["token_ids"])
    if ids:
        reply.prompt_ids = _ids(ids)
    if not keep_ids and _drop_ids(answer):
        rewritten = True
    return reply, orjson.dumps(answer) if rewritten else raw


def _without_ids(event: bytes, chunk: Json) -> bytes:
    cut = _IDS.sub(b"", event)
    if b'token_ids"' not in cut:
        return cut
    cut = _IDS_FIRST.sub(b"", cut)
    if b'token_ids"' not in cut:
        return cut
    _drop_ids(chunk)
    return _event(chunk)


def _event(chunk: Json) -> bytes:
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def _drop_ids(answer: Json) -> bool:
    found = False
    levels: list[Json] = [answer]
    choices = answer.get("choices")
    if isinstance(choices, list):
        levels += [cast(Json, choice) for choice in choices if isinstance(choice, dict)]
    for level in levels:
        for key in _ID_KEYS:
            if key in level:
                del level[key]
                found = True
    return found


def _handle(raw: bytes) -> Json | None:
    try:
        value: object = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return cast(Json, value) if isinstance(value, dict) else None


def _ids(values: object) -> Ids | None:
    try:
        return array("I", cast(Sequence[int], values))
    except (TypeError, OverflowError):
        return None


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
