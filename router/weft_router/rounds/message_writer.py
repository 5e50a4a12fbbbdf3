"""Write the answer to a request for a message: whole, or as the events of Anthropic's streams."""

from typing import Any, Final, cast

import orjson

from weft_router.anthropic.reply import message_id, message_of, stop_of, thoughts_of, usage_of
from weft_router.errors import ApiError, engine_error, message_error
from weft_router.http.exchange import Exchange
from weft_router.http.sse import EventSplitter, payload
from weft_router.limits.admission import AdmissionPermit
from weft_router.openai.body import Json
from weft_router.rounds.response_writer import ResponseWriter

_DONE: Final = b"[DONE]"
_EMPTY: Final[dict[str, Json]] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}


def event(kind: str, fields: Json) -> bytes:
    """Return one server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))


_PING: Final = event("ping", {})


class MessageStream:
    """Turns the events of a chat completion into those of a message, block by block."""

    __slots__ = ("_blocks", "_call", "_ended", "_kind", "_started", "_stop", "_usage")

    def __init__(self) -> None:
        self._started = False
        self._ended = False
        self._blocks = 0
        """How many blocks were started."""
        self._kind = ""
        """What the open block holds; nothing while none is open."""
        self._call = -1
        """The number of the call whose block is open."""
        self._stop: tuple[str, str | None] = ("end_turn", None)
        self._usage: object = None

    def feed(self, data: bytes) -> bytes:
        """Return the events that one event of a chat completion stands for."""
        if self._ended:
            return b""
        if data == _DONE:
            return self.end()
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError:
            chunk = {"error": "the engine sent an event that is no JSON"}
        if "error" in chunk:
            self._ended = True
            error = chunk["error"]
            message = error.get("message") if isinstance(error, dict) else error
            return b"event: error\ndata: %b\n\n" % message_error(str(message), 500)
        made = b"" if self._started else self._start(chunk)
        if chunk.get("usage") is not None:
            self._usage = chunk["usage"]
        choices: Any = chunk.get("choices") or ()
        for choice in choices:
            made += self._delta(choice.get("delta") or {})
            if choice.get("finish_reason") is not None:
                self._stop = stop_of(choice)
        return made

    def end(self) -> bytes:
        """Return the events that end a message, once."""
        if self._ended or not self._started:
            return b""
        self._ended = True
        reason, sequence = self._stop
        if self._kind == "tool_use" and reason == "end_turn":
            reason = "tool_use"
        closed = self._close()
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        last = event("message_delta", {"delta": delta, "usage": usage_of(self._usage)})
        return closed + last + event("message_stop", {})

    def _start(self, chunk: Json) -> bytes:
        self._started = True
        message: Json = {
            "id": message_id(chunk.get("id")),
            "type": "message",
            "role": "assistant",
            "model": chunk.get("model"),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_of(chunk.get("usage")),
        }
        return event("message_start", {"message": message})

    def _delta(self, delta: Json) -> bytes:
        made = b""
        thoughts = thoughts_of(delta)
        if thoughts:
            made += self._open("thinking") + self._piece({"type": "thinking_delta", "thinking": thoughts})
        text = delta.get("content")
        if isinstance(text, str) and text:
            made += self._open("text") + self._piece({"type": "text_delta", "text": text})
        calls: Any = delta.get("tool_calls") or ()
        for call in calls:
            made += self._call_piece(call)
        return made

    def _call_piece(self, call: Json) -> bytes:
        number = cast(int, call.get("index", 0))
        function = cast(Json, call.get("function") or {})
        made = b""
        if self._kind != "tool_use" or number != self._call:
            made = self._close()
            self._call = number
            block: Json = {"type": "tool_use", "id": call.get("id"), "name": function.get("name"), "input": {}}
            made += self._begin("tool_use", block)
        arguments = function.get("arguments")
        if isinstance(arguments, str) and arguments:
            made += self._piece({"type": "input_json_delta", "partial_json": arguments})
        return made

    def _open(self, kind: str) -> bytes:
        """Return the events after which a block of a kind is open."""
        return b"" if self._kind == kind else self._close() + self._begin(kind, _EMPTY[kind])

    def _begin(self, kind: str, block: Json) -> bytes:
        self._kind = kind
        self._blocks += 1
        return event("content_block_start", {"index": self._blocks - 1, "content_block": block})

    def _piece(self, delta: Json) -> bytes:
        return event("content_block_delta", {"index": self._blocks - 1, "delta": delta})

    def _close(self) -> bytes:
        if not self._kind:
            return b""
        self._kind = ""
        return event("content_block_stop", {"index": self._blocks - 1})


class MessageWriter(ResponseWriter):
    """Writes to a client of the Messages API."""

    __slots__ = ("_splitter", "_stream")

    def __init__(self, exchange: Exchange, shown: str, admitted: AdmissionPermit | None = None) -> None:
        super().__init__(exchange, shown, admitted)
        self._splitter = EventSplitter()
        self._stream = MessageStream()

    def whole(self, status: int, body: bytes, lines: str, *, content_type: str = "application/json") -> None:
        """Write a whole answer, or an engine's error, always as JSON."""
        del content_type
        if status != 200:
            super().whole(status, engine_error(status, body).message_body(), lines)
            return
        try:
            made = message_of(body)
        except ValueError as error:
            raise ApiError(str(error), status=502, kind="server_error") from error
        super().whole(status, made, lines)

    def write(self, data: bytes) -> None:
        """Send what whole events of a chat completion stand for."""
        super().write(self._converted(data))

    def end(self, data: bytes = b"") -> None:
        """End the stream, with its last events."""
        super().end(self._converted(data) + self._stream.end())

    def _converted(self, data: bytes) -> bytes:
        made: list[bytes] = []
        for one in self._splitter.feed(data):
            given = payload(one)
            if given is not None:
                made.append(self._stream.feed(given))
            elif one.startswith(b":"):
                made.append(_PING)
        return b"".join(made)
