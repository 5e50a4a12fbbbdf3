"""Watch a stream of chat or text completion events pass: forward its bytes and collect what the router needs.

Event bytes go on as they are, but for declared rewrites: the KV handle (a comment of the engine plug-in, or a field of
a chunk), token ids nobody asked for and a usage chunk nobody asked for are taken out; a first token that was shown
before is not shown again; and a stream that goes on from a broken one keeps that one's id and adds up its usage.

Usual events, one piece of text each, are recognised by their bytes and not parsed; their text is read when asked for.
"""

from typing import cast

import orjson

from weft_router.api.body import Json
from weft_router.api.inference import Kind
from weft_router.api.reply import FirstToken, Reply, head_of, ids_of, to_event, without_ids
from weft_router.api.usual import Usual, is_ids, learn
from weft_router.engines.handles import Ids
from weft_router.wire.sse import EventSplitter, payload

HANDLE_COMMENT = b": kv_transfer_params "
MAX_FORMS = 16
"""A stream whose usual event keeps changing is parsed after so many tries."""


class StreamTap:
    """One stream on its way."""

    def __init__(
        self, kind: Kind, *, keep_usage: bool, keep_ids: bool, first: FirstToken | None = None,
        resumed: Reply | None = None, public_id: str | None = None,
    ) -> None:  # fmt: skip
        self.done = False
        self.tokens = 0
        self._reply = resumed if resumed is not None else Reply(kind)
        self._chat = kind == "chat"
        self._keep_usage = keep_usage
        self._keep_ids = keep_ids
        self._first = first
        self._dropped: set[object] = set()
        self._resumed = resumed is not None
        self._replayed = 0
        self._put: Json = {}
        if resumed is not None:
            self._replayed = resumed.shown
            if resumed.output_ids is not None:
                resumed.output_ids = resumed.output_ids[: resumed.shown]
            self._put = dict(resumed.head or {})
        elif first is not None:
            self._put = {key: value for key, value in head_of(first.head).items() if key != "model"}
        if public_id is not None:
            self._put["id"] = public_id
        self._splitter = EventSplitter()
        self._partial = False
        self._held: list[bytes] = []
        self._usual: Usual | None = None
        self._forms = MAX_FORMS
        self._texts: list[bytes] = []
        self._ids: list[bytes] = []

    @property
    def error(self) -> bool:
        """Tell whether the engine sent an error event."""
        return self._reply.error

    @property
    def complete(self) -> bool:
        """Tell whether the stream ended as it should: with its last event, and nothing cut off."""
        return self.done and not self._splitter.rest.strip()

    @property
    def reply(self) -> Reply:
        """Return what is known of the reply so far."""
        if self._texts:
            self._settle()
        return self._reply

    def feed(self, data: bytes) -> bytes:
        """Add bytes from the engine; return what goes on to the client now.

        Whole events only; an opening event without any token waits for the next one, so that nothing
        has been sent as long as the engine has not shown its first token.
        """
        usual = self._usual
        if usual is None or self._partial or b"\r" in data:
            events = self._splitter.feed(data)
            self._partial = self._splitter.rest != b""
            return self._feed(events)
        if data.endswith(usual.tail, 0, -2) and data.startswith(usual.head):
            text = data[usual.start : usual.end - 2]
            ids = b""
            if usual.ids:
                text, _, ids = text.partition(usual.ids)
            if self._pass(usual, text, ids):
                return data if usual.same else usual.out(text, ids) + b"\n\n"
        return self._several(usual, data)

    def _pass(self, usual: Usual, text: bytes, ids: bytes) -> bool:
        """Take what lies between the constant parts of an event, if it is a text and ids and nothing else."""
        if b'"' in text or text[-1:] == b"\\":
            return False
        if usual.ids:
            if not ids.isdigit() and not is_ids(ids):
                return False
            self._ids.append(ids)
            self.tokens += 1 + ids.count(b",")
        elif text:
            self.tokens += 1
        else:
            return False
        self._texts.append(text)
        return True

    def _several(self, usual: Usual, data: bytes) -> bytes:
        events = data.split(b"\n\n")
        rest = events.pop()
        out: list[bytes] = []
        unchanged = True
        head, tail, start, end, separator = usual.head, usual.tail, usual.start, usual.end, usual.ids
        for event in events:
            if event.endswith(tail) and event.startswith(head):
                text = event[start:end]
                ids = b""
                if separator:
                    text, _, ids = text.partition(separator)
                if self._pass(usual, text, ids):
                    if usual.same:
                        out.append(event)
                    else:
                        out.append(usual.out(text, ids))
                        unchanged = False
                    continue
            kept = self._take(event + b"\n\n")[:-2]
            if kept:
                out.append(kept)
            unchanged = unchanged and kept == event
            if self._usual is not usual and self._usual is not None:
                usual = self._usual
                head, tail, start, end, separator = usual.head, usual.tail, usual.start, usual.end, usual.ids
        if rest:
            self._splitter.feed(rest)
            self._partial = True
        elif unchanged:
            return data
        out.append(b"")
        return b"\n\n".join(out)

    def _feed(self, events: list[bytes]) -> bytes:
        out = self._held
        self._held = []
        for event in events:
            kept = self._take(event)
            if kept:
                out.append(kept)
        reply = self._reply
        if out and not self.tokens and not self.done and not reply.error and reply.finish_reason is None:
            self._held = out
            return b""
        return b"".join(out)

    def _take(self, event: bytes) -> bytes:
        if event.startswith(HANDLE_COMMENT):
            self._reply.handle = _object(event[len(HANDLE_COMMENT) :])
            return b""
        data = payload(event)
        if data is None:
            return event
        if data == b"[DONE]":
            self.done = True
            return event
        chunk = _object(data)
        if chunk is None:
            return event
        if self._texts:
            self._settle()
        return self._take_chunk(event, chunk)

    def _take_chunk(self, event: bytes, chunk: Json) -> bytes:
        came = event
        reply = self._reply
        changed = False
        if chunk.get("kv_transfer_params") is not None:  # newer engines put the handle into the last chunk
            params = chunk.pop("kv_transfer_params")
            if isinstance(params, dict):
                reply.handle = cast(Json, params)
            changed = True
        if "error" in chunk:
            reply.error = True
            return event
        if reply.head is None:
            reply.head = {**head_of(chunk), **self._put}
        for key, value in self._put.items():
            if chunk.get(key, value) != value:
                chunk[key] = value
                changed = True
        choices = chunk.get("choices")
        usage = chunk.get("usage")
        if usage is not None:
            changed = self._take_usage(usage) or changed
            if not choices and not self._keep_usage:
                return b""
        has_ids = "prompt_token_ids" in chunk
        ids = chunk.get("prompt_token_ids")
        plain = isinstance(choices, list) and len(choices) == 1 and usage is None and not ids
        empty = isinstance(choices, list) and bool(choices)
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            has_ids = has_ids or "token_ids" in choice or "prompt_token_ids" in choice
            ids = ids or choice.get("prompt_token_ids")
            shows, usual = self._take_choice(cast(Json, choice))
            plain = plain and usual and not choice.get("prompt_token_ids")
            if self._first is not None or self._resumed:
                drop, edited = self._shown_before(cast(Json, choice), shows=shows)
                changed = changed or edited
                empty = empty and drop
            else:
                empty = False
        if ids and reply.prompt_ids is None:
            reply.prompt_ids = ids_of(ids)
        if empty:
            return b""
        event = to_event(chunk) if changed else event
        if has_ids and not self._keep_ids:
            event = without_ids(event, chunk)
        if plain and self._forms and came.endswith(b"\n\n") and b"\r" not in came:
            self._forms -= 1
            self._usual = learn(came[:-2], event[:-2], chat=self._chat) or self._usual
        return event

    def _take_choice(self, choice: Json) -> tuple[bool, bool]:
        """Take one choice; tell whether it shows anything of the answer, and whether it is nothing but text."""
        reply = self._reply
        part: object = choice.get("delta") if self._chat else choice
        texts, calls = len(reply.text), len(reply.tool_calls)
        special = False
        if isinstance(part, dict):
            reply.take_part(cast(Json, part))
            special = bool(part.get("tool_calls") or part.get("reasoning") or part.get("reasoning_content"))
        wrote = len(reply.text) > texts
        shows = wrote or special or len(reply.tool_calls) > calls
        token_ids = choice.get("token_ids")
        if isinstance(token_ids, list):
            self.tokens += len(token_ids)
            found = ids_of(token_ids)
            if found is not None:
                reply.output_ids = found if reply.output_ids is None else reply.output_ids + found
                if shows:
                    reply.shown = len(reply.output_ids)
        elif shows:
            self.tokens += 1
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            reply.finish_reason = reason
        return shows, wrote and not special and reason is None

    def _shown_before(self, choice: Json, *, shows: bool) -> tuple[bool, bool]:
        """Take out what the client has already; tell whether the choice shows nothing now, and whether it changed."""
        index, ends = choice.get("index"), choice.get("finish_reason") is not None
        changed = choice.pop("prompt_token_ids", None) is not None if self._resumed else False
        if not shows:
            return not ends and index not in self._dropped, changed
        if self._resumed or self._first is None or index in self._dropped:
            self._dropped.add(index)
            return False, changed
        self._dropped.add(index)
        part = cast(Json, choice.get("delta") if self._chat else choice)
        key = "content" if self._chat else "text"
        text, before = part.get(key), self._first.text
        if before is None or text == before or not isinstance(text, str):
            rest = ""
        elif text.startswith(before):
            rest = text[len(before) :]
        else:
            self._reply.diverged = True
            rest = ""
        part[key] = rest
        return not rest and not ends, True

    def _take_usage(self, usage: object) -> bool:
        """Take the counts; those of a stream that goes on include what the first engine did."""
        if not self._replayed or not isinstance(usage, dict):
            self._reply.take_usage(usage)
            return False
        for key, more in (("prompt_tokens", -self._replayed), ("completion_tokens", self._replayed)):
            if isinstance(usage.get(key), int):
                usage[key] += more
        self._reply.take_usage(usage)
        return True

    def _settle(self) -> None:
        """Read the texts and ids of the usual events that passed."""
        reply, texts, ids = self._reply, self._texts, self._ids
        reply.text.append(_text(texts))
        found = ids_of([int(one) for group in ids for one in group.split(b",")])
        if ids and found is not None:
            self._add_ids(found, texts, ids)
        texts.clear()
        ids.clear()

    def _add_ids(self, found: Ids, texts: list[bytes], ids: list[bytes]) -> None:
        reply = self._reply
        reply.output_ids = found if reply.output_ids is None else reply.output_ids + found
        unseen = 0
        for text, raw in zip(reversed(texts), reversed(ids), strict=True):
            if text:
                break
            unseen += 1 + raw.count(b",")
        if unseen < len(found):
            reply.shown = len(reply.output_ids) - unseen


def _text(parts: list[bytes]) -> str:
    """Return the text of JSON texts without their quotes."""
    try:
        return str(orjson.loads(b'"' + b"".join(parts) + b'"'))
    except orjson.JSONDecodeError:
        return ""


def _object(raw: bytes) -> Json | None:
    try:
        value: object = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return cast(Json, value) if isinstance(value, dict) else None
