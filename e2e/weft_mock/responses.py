"""Write replies of the Responses API in vLLM's form: the whole object, and the events of a stream.

An answer cut by ``max_output_tokens`` has the status incomplete, in ``response.completed`` too. A stream has named
events and no ``[DONE]``; its last event holds the whole object, ``kv_transfer_params`` with it.
"""

import secrets
import time
from collections.abc import Mapping, Sequence

from weft_mock.errors import ApiError
from weft_mock.replies import Piece, Usage, event
from weft_mock.requests import Generation

# What a response says of its request, and what it says when the request did not.
_ECHOED: Mapping[str, object] = {
    "instructions": None,
    "metadata": None,
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "background": False,
    "max_tool_calls": None,
    "previous_response_id": None,
    "prompt": None,
    "reasoning": None,
    "service_tier": "auto",
    "text": None,
    "top_logprobs": None,
    "truncation": "disabled",
    "user": None,
}


class ResponseWriter:
    """Render one response, whole or as the events of a stream."""

    def __init__(self, generation: Generation, *, model: str, handles: bool) -> None:
        """Prepare what does not change."""
        body = generation.body
        given = body.get("request_id")
        self._id = given if isinstance(given, str) and given else f"resp_{secrets.token_hex(16)}"
        self._item = f"msg_{secrets.token_hex(16)}"
        echoed = {name: default if body.get(name) is None else body[name] for name, default in _ECHOED.items()}
        self._head: dict[str, object] = {
            "id": self._id,
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "max_output_tokens": generation.limits.max_tokens,
            **echoed,
        }
        self._handles = handles
        self._number = 0
        self._text: list[str] = []
        self._incomplete = False

    def whole(self, text: str, *, finish: str, usage: Usage, handle: Mapping[str, object] | None) -> dict[str, object]:
        """Return the whole object of an answer that has ended."""
        self._text = [text]
        self._incomplete = finish == "length"
        return self._final(usage, handle)

    def head(self) -> bytes:
        """Return what is sent before anything was generated."""
        first = self._object("in_progress", [], None)
        return self._event("response.created", response=first) + self._event("response.in_progress", response=first)

    def opening(self, _index: int, _prompt_ids: Sequence[int]) -> bytes:
        """Return what is sent with the first token: nothing, the message is opened with its first text."""
        return b""

    def piece(self, piece: Piece) -> bytes:
        """Return the events that carry a piece of an answer."""
        self._incomplete = piece.finish == "length"
        text = piece.text
        if not text:
            return b""
        out = b""
        if not self._text:
            item = {"id": self._item, "type": "message", "role": "assistant", "status": "in_progress", "content": []}
            out += self._event("response.output_item.added", output_index=0, item=item)
            out += self._event("response.content_part.added", **self._place(), part=_part(""))
        self._text.append(text)
        return out + self._event("response.output_text.delta", **self._place(), delta=text, logprobs=[])

    def closing(self, usage: Usage, handle: Mapping[str, object] | None) -> bytes:
        """Return the events that end the stream."""
        out = b""
        if self._text:
            text = "".join(self._text)
            out += self._event("response.output_text.done", **self._place(), text=text, logprobs=[])
            out += self._event("response.content_part.done", **self._place(), part=_part(text))
            out += self._event("response.output_item.done", output_index=0, item=self._message())
        return out + self._event("response.completed", response=self._final(usage, handle))

    def failure(self, error: ApiError) -> bytes:
        """Return what a stream ends with that failed after its headers were sent."""
        return event(error.to_json())

    def _event(self, kind: str, **fields: object) -> bytes:
        body = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: %s\n" % kind.encode() + event(body)

    def _place(self) -> dict[str, object]:
        return {"item_id": self._item, "output_index": 0, "content_index": 0}

    def _message(self) -> dict[str, object]:
        text = "".join(self._text)
        return {
            "id": self._item,
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [_part(text)] if text else [],
        }

    def _final(self, usage: Usage, handle: Mapping[str, object] | None) -> dict[str, object]:
        body = self._object("incomplete" if self._incomplete else "completed", [self._message()], _usage(usage))
        if self._handles:
            body["kv_transfer_params"] = handle
        return body

    def _object(self, status: str, output: Sequence[object], usage: Usage | None) -> dict[str, object]:
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {**self._head, "status": status, "incomplete_details": details, "output": output, "usage": usage}


def _part(text: str) -> dict[str, object]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}


def _usage(usage: Usage) -> dict[str, object]:
    details = usage["prompt_tokens_details"]
    cached = details["cached_tokens"] if isinstance(details, Mapping) else 0
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": cached,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {
            "reasoning_tokens": 0,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": usage["total_tokens"],
    }
