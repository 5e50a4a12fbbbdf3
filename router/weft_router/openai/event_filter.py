"""What the filters of all streams have in common."""

from abc import ABC, abstractmethod
from typing import cast

import orjson

from weft_router.http.sse import EventSplitter, payload
from weft_router.openai.body import Json
from weft_router.openai.reply import Reply

HANDLE_COMMENT = b": kv_transfer_params "
"""How an engine's plug-in begins the comment that carries the handle."""


class EventFilter(ABC):
    """One stream on its way from an engine to a client: what is known of it so far.

    A base and no protocol: compiled code calls methods of its own classes directly.
    """

    def __init__(self, reply: Reply) -> None:
        self.tokens = 0
        """Tokens seen so far."""
        self.done = False
        """Whether the last event came."""
        self._reply = reply
        self._splitter = EventSplitter()

    @abstractmethod
    def feed(self, data: bytes) -> bytes:
        """Add bytes from the engine; return what goes on to the client now."""

    @property
    def error(self) -> bool:
        """Return whether the engine sent an error event."""
        return self._reply.error

    @property
    def complete(self) -> bool:
        """Return whether the stream ended as it should: with its last event, and nothing cut off."""
        return self.done and not self._splitter.rest.strip()

    @property
    def reply(self) -> Reply:
        """Return what is known of the reply so far."""
        return self._reply


def without_error(events: bytes) -> bytes:
    """Return whole events without those that tell of an error."""
    kept = []
    for event in EventSplitter().feed(events):
        found = object_of(payload(event) or b"")
        if found is None or "error" not in found:
            kept.append(event)
    return b"".join(kept)


def object_of(raw: bytes) -> Json | None:
    """Return the JSON object in an event's data; None when there is none."""
    try:
        value: object = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return cast(Json, value) if type(value) is dict else None
