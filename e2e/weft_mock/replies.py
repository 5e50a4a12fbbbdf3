"""Write replies in each engine's form: whole bodies, and the events of a stream, most of them without a JSON library.

An event of a stream is mostly constant text; building it from prepared bytes costs about a
microsecond, which matters because all engines of a demonstration share two cores.
"""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import orjson

from weft_mock.errors import ApiError
from weft_mock.protocols.dialects import Dialect

Usage = Mapping[str, object]
DONE = b"data: [DONE]\n\n"


def usage_json(*, prompt: int, completion: int, cached: int | None) -> dict[str, object]:
    """Return the usage object; ``cached`` is None where the engine does not tell."""
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None if cached is None else {"cached_tokens": cached},
    }


def handle_comment(handle: Mapping[str, object]) -> bytes:
    """Return the SSE comment by which the engine plug-in sends a KV handle; clients ignore it."""
    return b": kv_transfer_params " + orjson.dumps(handle) + b"\n\n"


def event(body: Mapping[str, object]) -> bytes:
    """Return one SSE event."""
    return b"data: " + orjson.dumps(body) + b"\n\n"


class Piece(NamedTuple):
    """What is new of one answer; ``finish`` with its last piece, ``prompt_ids`` with its first."""

    choice: int
    text: str
    ids: Sequence[int]
    finish: str | None
    stop_reason: str | int | None
    prompt_ids: Sequence[int] | None
    usage: Usage | None


class StreamWriter:
    """Render the events of one stream of chat or text completions."""

    def __init__(
        self,
        *,
        chat: bool,
        public_id: str,
        model: str,
        return_token_ids: bool,
        include_usage: bool,
        dialect: Dialect,
    ) -> None:
        """Prepare the constant parts."""
        self._chat = chat
        self._ids = return_token_ids
        self._include_usage = include_usage
        self._null_usage = dialect.null_usage
        self._head: dict[str, object] = {
            "id": public_id,
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._start = b"data: " + orjson.dumps(self._head)[:-1] + b',"choices":[{"index":'
        key = dialect.stop_key
        self._stop = b"" if key is None else b',"%s":' % key.encode()
        self._always = dialect.always

    def head(self) -> bytes:
        """Return what is sent before anything was generated: nothing."""
        return b""

    def opening(self, index: int, prompt_ids: Sequence[int]) -> bytes:
        """Return the first event of a choice: the role, and the prompt's ids if asked for; nothing for completions."""
        if not self._chat:
            return b""
        choice: dict[str, object] = {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        if self._always:
            choice["matched_stop"] = None
        body = {**self._head, "choices": [choice]}
        if self._ids:
            body["prompt_token_ids"] = prompt_ids
        if self._null_usage:
            body["usage"] = None
        return event(body)

    def piece(self, piece: Piece) -> bytes:
        """Return the event that carries a piece of an answer."""
        index, text, ids, finish, stop_reason, prompt_ids, usage = piece
        quoted = orjson.dumps(text)
        parts = [self._start, b"%d" % index]
        parts += (b',"delta":{"content":', quoted, b"}") if self._chat else (b',"text":', quoted)
        if finish is None:
            parts.append(b',"logprobs":null,"finish_reason":null')
        else:
            parts.append(b',"logprobs":null,"finish_reason":"%s"' % finish.encode())
        if self._stop and (finish is not None or self._always):
            parts += (self._stop, orjson.dumps(stop_reason))
        if self._ids:
            parts += (b',"token_ids":', orjson.dumps(ids))
            if prompt_ids is not None and not self._chat:
                parts += (b',"prompt_token_ids":', orjson.dumps(prompt_ids))
        parts.append(b"}]")
        if usage is not None or self._null_usage:
            parts += (b',"usage":', orjson.dumps(usage))
        parts.append(b"}\n\n")
        return b"".join(parts)

    def closing(self, usage: Usage, _handle: Mapping[str, object] | None) -> bytes:
        """Return what ends the stream: the usage if ``stream_options.include_usage`` asked for it, and the mark."""
        if not self._include_usage:
            return DONE
        return event({**self._head, "choices": [], "usage": usage}) + DONE

    def failure(self, error: ApiError) -> bytes:
        """Return what a stream ends with that failed after its headers were sent."""
        return event(error.to_json()) + DONE


def whole_reply(
    *,
    chat: bool,
    public_id: str,
    model: str,
    choices: Sequence[Mapping[str, object]],
    usage: Usage,
    handle: Mapping[str, object] | None,
    prompt_ids: Sequence[int] | None,
    dialect: Dialect,
) -> dict[str, object]:
    """Return the body of a reply that does not stream."""
    body: dict[str, object] = {
        "id": public_id,
        "object": "chat.completion" if chat else "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": choices,
        "usage": usage,
    }
    if dialect.handles:
        body["kv_transfer_params"] = handle
    if prompt_ids is not None:
        body["prompt_token_ids"] = prompt_ids
    return body


def whole_choice(
    *,
    chat: bool,
    index: int,
    text: str,
    finish: str,
    stop_reason: str | int | None,
    ids: Sequence[int] | None,
    prompt_ids: Sequence[int] | None,
    dialect: Dialect,
) -> dict[str, object]:
    """Return one choice of a reply that does not stream; ``ids`` are given when the client asked for them."""
    choice: dict[str, object] = {"index": index}
    if chat:
        choice["message"] = {"role": "assistant", "content": text}
    else:
        choice["text"] = text
    choice |= {"logprobs": None, "finish_reason": finish}
    if dialect.stop_key is not None:
        choice[dialect.stop_key] = stop_reason
    if ids is not None:
        choice["token_ids"] = ids
        if prompt_ids is not None:
            choice["prompt_token_ids"] = prompt_ids
    return choice
