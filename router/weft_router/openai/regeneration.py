"""Remove what the client has from a stream that another engine generates from the start."""

from typing import Any, Final, cast

from weft_router.http.sse import payload
from weft_router.openai.body import Json
from weft_router.openai.event_filter import object_of
from weft_router.openai.reply import Reply, to_event

_REASONING: Final = ("reasoning", "reasoning_content")


class SentText:
    """One text of an answer: what the client has of it, and how much of that was generated again."""

    __slots__ = ("_again", "_more", "_sent")

    def __init__(self, sent: str = "") -> None:
        self._sent = sent
        self._again = 0
        self._more: list[str] = []
        """What was sent after that."""

    @property
    def complete(self) -> bool:
        """Return whether all that the client has was generated again."""
        return self._again == len(self._sent)

    def remainder(self, piece: str) -> str | None:
        """Return what the client does not have of the next piece; None if it has something else in its place."""
        left = len(self._sent) - self._again
        if not self._sent.startswith(piece[:left], self._again):
            return None
        self._again += min(left, len(piece))
        fresh = piece[left:]
        if fresh:
            self._more.append(fresh)
        return fresh

    def restart(self) -> None:
        """Compare with everything that the client has from now on."""
        self._sent += "".join(self._more)
        self._more.clear()
        self._again = 0


class SentCall:
    """One tool call of an answer: what the client has of it, and whether it was generated again."""

    __slots__ = ("again", "arguments", "name")

    def __init__(self, name: object, arguments: str = "", *, again: bool = False) -> None:
        self.name = name
        self.arguments = SentText(arguments)
        self.again = again

    @property
    def complete(self) -> bool:
        """Return whether all that the client has was generated again."""
        return self.again and self.arguments.complete


class Regeneration:
    """The events of an engine that generates an answer again, of which the client has the beginning.

    A greedy engine generates the same answer, and its parsers of tool calls, grammars and reasoning read all of it.
    Every piece is compared with what the client has.
    """

    def __init__(self, sent: Reply) -> None:
        self.diverged = False
        """Whether this engine generates another answer."""
        self._chat = sent.kind == "chat"
        self._head = dict(sent.head or {})
        self._text = SentText("".join(sent.text))
        self._reasoning = SentText("".join(sent.reasoning_text or ()))
        self._calls = {index: _sent_call(call) for index, call in sent.tool_calls.items()}
        self._finished = sent.finish_reason is not None

    def restart(self) -> None:
        """Begin again, with another engine."""
        self._text.restart()
        self._reasoning.restart()
        for call in self._calls.values():
            call.again = False
            call.arguments.restart()

    def filter(self, event: bytes) -> bytes:
        """Return what goes on to the client of a whole event."""
        data = payload(event)
        chunk = object_of(data) if data is not None and data != b"[DONE]" else None
        if chunk is None or "error" in chunk:
            return event
        choices: Any = chunk.get("choices")
        shows = not choices
        for choice in choices or ():
            shows = self._take_choice(choice) or shows
        if self.diverged or not (shows or chunk.get("usage")):
            return b""
        for key, value in self._head.items():
            if key in chunk:
                chunk[key] = value
        return to_event(chunk)

    def _take_choice(self, choice: Json) -> bool:
        """Remove what the client has of a choice; return whether anything is left."""
        part: Any = choice.get("delta") if self._chat else choice
        shows = isinstance(part, dict) and (self._take_delta(part) if self._chat else self._take_text(part, ("text",)))
        if choice.get("finish_reason") is not None:
            shows = shows or not self._finished
            self._finished = True
        if shows and not self._complete():  # something new, or the end, in place of what the client has
            self.diverged = True
        return shows

    def _take_delta(self, delta: Json) -> bool:
        shows = self._take_text(delta, ("content",))
        shows = self._take_text(delta, _REASONING) or shows
        calls: Any = delta.get("tool_calls")
        if calls:
            fresh = [call for position, call in enumerate(calls) if self._take_call(position, call)]
            delta["tool_calls"] = fresh
            shows = shows or bool(fresh)
        return shows

    def _take_text(self, part: Json, keys: tuple[str, ...]) -> bool:
        """Remove what the client has of a text, which a part may hold under more than one key."""
        piece = next((part[key] for key in keys if part.get(key)), None)
        if not isinstance(piece, str):
            return False
        fresh = (self._reasoning if keys is _REASONING else self._text).remainder(piece)
        if fresh is None:
            self.diverged = True
            return False
        for key in keys:
            if key in part:
                part[key] = fresh
        return fresh != ""

    def _take_call(self, position: int, call: Json) -> bool:
        index = call.get("index")
        key = index if isinstance(index, int) else position
        sent = self._calls.get(key)
        given = call.get("function")
        function = cast(Json, given) if isinstance(given, dict) else {}
        name, arguments = function.get("name"), function.get("arguments")
        if sent is None:
            self._calls[key] = fresh_call = SentCall(name, again=True)
            fresh_call.arguments.remainder(str(arguments or ""))
            return True
        if name is not None:
            if sent.name != name:
                self.diverged = True
                return False
            sent.again = True
            for known in ("id", "type"):
                call.pop(known, None)
            del function["name"]
        if not isinstance(arguments, str) or not arguments:
            return False
        fresh = sent.arguments.remainder(arguments)
        if fresh is None:
            self.diverged = True
            return False
        function["arguments"] = fresh
        return fresh != ""

    def _complete(self) -> bool:
        texts = self._text.complete and self._reasoning.complete
        return texts and all(call.complete for call in self._calls.values())


def _sent_call(call: Json) -> SentCall:
    function = call.get("function")
    fields = cast(Json, function) if isinstance(function, dict) else {}
    return SentCall(fields.get("name"), str(fields.get("arguments") or ""))
