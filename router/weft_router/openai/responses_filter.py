"""Watch the events of a streamed response pass: bytes go on as they are, the last event tells what the router needs."""

from typing import cast

from weft_router.http.sse import payload
from weft_router.openai.body import Json
from weft_router.openai.event_filter import HANDLE_COMMENT, EventFilter, object_of
from weft_router.openai.reply import ENDS, Reply, head_of, to_event

_DELTA = b".delta"
_OPENING = (b"response.created", b"response.in_progress", b"response.output_item.added", b"response.content_part.added")
_LAST = ("response.completed", "response.incomplete", "response.failed")


class ResponsesFilter(EventFilter):
    """One streamed response on its way."""

    def __init__(self) -> None:
        super().__init__(Reply("responses"))
        self._held: list[bytes] = []

    def feed(self, data: bytes) -> bytes:
        """Add bytes from the engine; return what goes on to the client now: nothing before the first token."""
        out = self._held
        self._held = []
        for event in self._splitter.feed(data):
            kept = self._take(event)
            if kept:
                out.append(kept)
        if out and not self.tokens and not self.done and not self._reply.error:
            self._held = out
            return b""
        return b"".join(out)

    def _take(self, event: bytes) -> bytes:
        if event.startswith(HANDLE_COMMENT):
            handle = object_of(event[len(HANDLE_COMMENT) :])
            self._reply.handle = handle
            return b""
        kind = event[7 : event.find(b"\n")].strip() if event.startswith(b"event: ") else b""
        if kind.endswith(_DELTA):
            self.tokens += 1
            return event
        if kind in _OPENING[1:]:
            return event
        data = payload(event)
        if data is None or data == b"[DONE]":
            self.done = self.done or data is not None
            return event
        chunk = object_of(data)
        return event if chunk is None else self._take_chunk(event, chunk)

    def _take_chunk(self, event: bytes, chunk: Json) -> bytes:
        kind = chunk.get("type")
        if isinstance(kind, str) and kind.endswith(".delta"):
            self.tokens += 1
        if kind == "error" or (kind is None and "error" in chunk):
            self._reply.error = True
            return event
        response = chunk.get("response")
        if not isinstance(response, dict):
            return event
        found = cast(Json, response)
        if self._reply.head is None:
            self._reply.head = head_of(found)
        if kind not in _LAST:
            return event
        self.done = True
        self._reply.error = self._reply.error or kind == "response.failed"
        self._reply.finish_reason = ENDS.get(str(found.get("status")))
        self._reply.take_usage(found.get("usage"))
        self._reply.take_output(found.get("output"))
        if "kv_transfer_params" not in found:
            return event
        params = found.pop("kv_transfer_params")
        if isinstance(params, dict):
            self._reply.handle = cast(Json, params)
        return b"event: " + str(kind).encode() + b"\n" + to_event(chunk)
