"""Watch a stream of chat or text completion events pass: forward its bytes and collect what the router needs.

Event bytes go on as they are, but for declared rewrites: the KV handle (a comment of the engine plug-in, or a field of
a chunk), token ids nobody asked for and a usage chunk nobody asked for are taken out; a first token that was shown
before is not shown again; and a stream that goes on from a broken one keeps that one's id and adds up its usage.

Usual events, one piece of text each, are recognised by their bytes and not parsed; their text is read when asked for.
"""

from collections.abc import Callable
from typing import Any, Final, cast

import orjson

from weft_router.http.sse import CR, MAX_EVENT, EventSplitter, EventTooLargeError, ends_event, payload
from weft_router.openai.body import Json
from weft_router.openai.event_filter import HANDLE_COMMENT, EventFilter, object_of
from weft_router.openai.event_template import BACKSLASH, QUOTE, EventTemplate, learn
from weft_router.openai.inference import Kind
from weft_router.openai.reply import (
    ID_KEYS,
    LONG,
    FirstToken,
    Reply,
    head_of,
    ids_of,
    part_prompt_ids,
    read_ids,
    to_event,
    without_ids,
)

MAX_FORMS: Final = 16
"""A stream whose usual event keeps changing is parsed after so many tries."""
_KEPT: Final = 63
"""So many pieces are kept as they came; then they are put together, for one by one they take ten times the room."""


class StreamFilter(EventFilter):
    """One stream on its way."""

    def __init__(
        self, kind: Kind, *, keep_usage: bool, keep_ids: bool, first: FirstToken | None = None,
        shown: Callable[[], bool] | None = None, resumed: Reply | None = None, public_id: str | None = None,
    ) -> None:  # fmt: skip
        """Take out what the client has: ``first``, unless ``shown`` says not yet, or all of ``resumed``."""
        super().__init__(resumed if resumed is not None else Reply(kind))
        self._chat = kind == "chat"
        self._keep_usage = keep_usage
        self._keep_ids = keep_ids
        self._first = first
        self._shown = shown
        self._dropped: frozenset[object] = frozenset()
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
        self._late = bytearray()
        """The event that is not whole yet, once the usual one is known."""
        self._unseen = 0
        """How many of the kept ids came after the last of the kept texts."""
        self._held: list[bytes] = []
        self._usual: EventTemplate | None = None
        self._forms = MAX_FORMS
        self._texts: list[bytes] = []
        self._ids: list[bytes] = []

    @property
    def complete(self) -> bool:
        """Return whether the stream ended as it should: with its last event, and nothing cut off."""
        return self.done and not (self._late or self._splitter.rest).strip()

    @property
    def reply(self) -> Reply:
        """Return what is known of the reply so far; a first token that was shown is a part of it."""
        if self._texts:
            self._settle()
        first, reply = self._first, self._reply
        if first is not None and first.text and first.prompt_ids and not self.tokens and not reply.text:
            seeded = Reply(reply.kind)
            seeded.head, seeded.text = head_of(first.head), [first.text]
            seeded.prompt_ids, seeded.output_ids, seeded.shown = first.prompt_ids, first.tokens, len(first.tokens)
            return seeded
        return reply

    def feed(self, data: bytes) -> bytes:
        """Add bytes from the engine; return what goes on to the client now.

        Whole events only; an opening event without any token waits for the next one, so that nothing
        has been sent as long as the engine has not shown its first token.
        """
        usual = self._usual
        if self._late:
            late = self._late
            if CR not in data and not ends_event(late, data):
                self._keep(data)  # without a look at what came before, or long events would take the square of it
                return b""
            data = bytes(late) + data
            late.clear()
        if usual is not None and data.startswith(usual.head) and data.endswith(usual.last):
            inner = data[usual.start : usual.end]
            if usual.ids:
                text, joint, ids = inner.partition(usual.ids)
                if text and ids.isdigit() and QUOTE not in text and BACKSLASH not in text:
                    self._texts.append(text)
                    self._ids.append(ids)
                    self._unseen = 0
                    self.tokens += 1
                    if not self.tokens & _KEPT:
                        self._settle()
                    return data if usual.same else usual.out_head + text + usual.out_last
                if not joint and data.find(b"\n\n") == len(data) - 2:
                    return self._take(data)
            elif inner and QUOTE not in inner and BACKSLASH not in inner:
                self._texts.append(inner)
                self.tokens += 1
                if not self.tokens & _KEPT:
                    self._settle()
                return data if usual.same else usual.out_head + inner + usual.out_last
            return self._run(usual, inner.split(usual.joint), data)
        if usual is None or self._splitter.partial or CR in data:
            return self._slowly(data)
        return self._quickly(usual, data)

    def _slowly(self, data: bytes) -> bytes:
        """Parse event by event until the usual one is known."""
        if 0 <= data.find(b"\n\n") == len(data) - 2 and CR not in data and not self._splitter.partial:
            events = [data]
        else:
            events = self._splitter.feed(data)
        out, self._held = self._held, []
        if out and self._shown is not None and self._shown():
            out = []
        for i, event in enumerate(events):
            kept = self._take(event)
            if kept:
                out.append(kept)
            if self._usual is not None:
                rest = b"".join([*events[i + 1 :], self._splitter.rest])
                if not rest:
                    break
                if CR not in rest:
                    self._splitter = EventSplitter()
                    out.append(self._quickly(self._usual, rest))
                    break
        reply = self._reply
        if out and not self.tokens and not self.done and not reply.error and reply.finish_reason is None:
            self._held = out
            return b""
        return b"".join(out)

    def _quickly(self, usual: EventTemplate, data: bytes) -> bytes:
        """Take a read of any events: runs of usual ones at once, others one by one; what is not whole waits."""
        cut = data.rfind(b"\n\n") + 2
        if cut < 2:
            cut = 0
        if cut < len(data):
            self._keep(data[cut:])
            data = data[:cut]
        if data and data.find(b"\n\n") == len(data) - 2:
            return self._take(data)
        out: list[bytes] = []
        if not data.startswith(usual.head):
            at = data.find(b"\n\n" + usual.head) + 2
            out.append(self._each(data[:at] if at >= 2 else data))
            data = data[at:] if at >= 2 else b""
        if data:
            pieces = data[usual.start :].split(usual.joint)
            last = pieces.pop()
            if last.endswith(usual.last):
                pieces.append(last[: -len(usual.last)])
                last = b""
            if pieces:
                out.append(self._run(usual, pieces))
            if last:
                out.append(self._each(usual.head + last))
        return b"".join(out)

    def _keep(self, data: bytes) -> None:
        """Keep bytes of an event that is not whole yet."""
        self._late += data
        if len(self._late) > MAX_EVENT:
            raise EventTooLargeError(f"a server-sent event exceeds {MAX_EVENT} bytes")

    def _run(self, usual: EventTemplate, pieces: list[bytes], data: bytes | None = None) -> bytes:
        """Take events that begin and end as usual; return what goes on, ``data`` itself if that is all of them."""
        texts = usual.read(pieces)
        if texts is None:
            if len(pieces) > 1:
                return b"".join([self._run(usual, [piece]) for piece in pieces])
            return self._each(usual.head + pieces[0] + usual.last)
        self._texts.append(texts.text)
        if texts.ids:
            self._ids.append(texts.ids)
            self.tokens += texts.ids.count(b",") + 1
            if texts.each[-1]:
                self._unseen = 0
            else:
                self._count_unseen(usual, pieces)
        else:
            self.tokens += len(pieces) if all(pieces) else len(pieces) - pieces.count(b"")
        if len(self._texts) > _KEPT:
            self._settle()
        if usual.same:
            return data if data is not None else usual.head + usual.joint.join(pieces) + usual.last
        return usual.out_head + usual.out_joint.join(texts.each) + usual.out_last

    def _count_unseen(self, usual: EventTemplate, pieces: list[bytes]) -> None:
        """Count the ids since the last text, which may stand in a read before: their character is not whole yet."""
        for piece in pieces:
            text, _, ids = piece.partition(usual.ids)
            self._unseen = 0 if text else self._unseen + 1 + ids.count(b",")

    def _each(self, data: bytes) -> bytes:
        """Take whole events one by one."""
        return b"".join([self._take(event) for event in EventSplitter().feed(data)])

    def _take(self, event: bytes) -> bytes:
        if event.startswith(HANDLE_COMMENT):
            self._reply.handle = object_of(event[len(HANDLE_COMMENT) :])
            return b""
        data = payload(event)
        if data is None:
            return event
        if data == b"[DONE]":
            self.done = True
            return event
        if len(data) > LONG and not self._keep_ids and (parted := part_prompt_ids(event)) is not None:
            chunk = object_of(payload(parted[0]) or b"")
            if chunk is not None and chunk.get("prompt_token_ids") is None:
                event = parted[0]
                self._reply.offer_prompt_ids(parted[1])
            else:
                chunk = object_of(data)
        else:
            chunk = object_of(data)
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
        if self._put:
            for key, value in self._put.items():
                if chunk.get(key, value) != value:
                    chunk[key] = value
                    changed = True
        choices: Any = chunk.get("choices")
        if type(choices) is not list:
            choices = ()
        usage = chunk.get("usage")
        if usage is not None:
            changed = self._take_usage(usage) or changed
            if not choices and not self._keep_usage:
                return b""
        ids = chunk.get("prompt_token_ids")
        listed = 1 if "prompt_token_ids" in chunk else 0
        plain = len(choices) == 1 and usage is None and not ids
        empty = len(choices) > 0
        replayed = self._first is not None or self._resumed
        for choice in choices:
            if type(choice) is not dict:
                continue
            if not ID_KEYS.isdisjoint(choice):
                listed += len(choice.keys() & ID_KEYS)
                given = choice.get("prompt_token_ids")
                ids = ids or given
                plain = plain and not given
            shows, usual = self._take_choice(choice)
            plain = plain and usual
            if replayed:
                drop, edited = self._shown_before(choice, shows=shows)
                changed = changed or edited
                empty = empty and drop
        if ids:
            reply.offer_prompt_ids(ids)
        if replayed and empty:
            return b""
        if changed:
            event = to_event(chunk)
        if listed and not self._keep_ids:
            event = without_ids(event, chunk, listed)
        if plain and self._forms and came.endswith(b"\n\n") and CR not in came:
            self._forms -= 1
            self._usual = learn(came[:-2], event[:-2], chat=self._chat) or self._usual
        return event

    def _take_choice(self, choice: Json) -> tuple[bool, bool]:
        """Take one choice; tell whether it shows anything of the answer, and whether it is nothing but text."""
        reply = self._reply
        part = choice.get("delta") if self._chat else choice
        texts, calls = len(reply.text), len(reply.tool_calls)
        special = False
        if type(part) is dict:
            reply.take_part(part)
            special = bool(part.get("tool_calls") or part.get("reasoning") or part.get("reasoning_content"))
        wrote = len(reply.text) > texts
        shows = wrote or special or len(reply.tool_calls) > calls
        token_ids = choice.get("token_ids")
        if type(token_ids) is list:
            self.tokens += len(token_ids)
            found = ids_of(token_ids)
            if found is not None:
                reply.output_ids = found if reply.output_ids is None else reply.output_ids + found
                if shows:
                    reply.shown = len(reply.output_ids)
        elif shows:
            self.tokens += 1
        reason = choice.get("finish_reason")
        if type(reason) is str:
            reply.finish_reason = reason
        return shows, wrote and not special and reason is None

    def _shown_before(self, choice: Json, *, shows: bool) -> tuple[bool, bool]:
        """Take out what the client has already; tell whether the choice shows nothing now, and whether it changed."""
        index, ends = choice.get("index"), choice.get("finish_reason") is not None
        changed = choice.pop("prompt_token_ids", None) is not None if self._resumed else False
        if self._shown is not None and not self._shown():
            if shows:
                self._dropped |= {index}
            return False, changed
        if not shows:
            return not ends and index not in self._dropped, changed
        if self._resumed or self._first is None or index in self._dropped:
            self._dropped |= {index}
            return False, changed
        self._dropped |= {index}
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
        ids = choice.get("token_ids") if self._keep_ids else None
        if isinstance(ids, list):  # the first event had those of the first token
            ids = choice["token_ids"] = ids[len(self._first.tokens) :]
        return not rest and not ends and not ids, True

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
        reply, ids = self._reply, self._ids
        text = _text(self._texts)
        if text:
            reply.text.append(text)
        if ids and (found := read_ids(b",".join(ids))) is not None:
            reply.output_ids = found if reply.output_ids is None else reply.output_ids + found
            if self._unseen < len(found):
                reply.shown = len(reply.output_ids) - self._unseen
        self._unseen = 0
        self._texts.clear()
        ids.clear()


def _text(parts: list[bytes]) -> str:
    """Return the text of JSON texts without their quotes."""
    try:
        return str(orjson.loads(b'"' + b"".join(parts) + b'"'))
    except orjson.JSONDecodeError:
        return ""
