"""Recognise an engine's answer in one piece by its bytes: they are alike but for a few texts and numbers.

A form is an answer that was parsed, with gaps where some members have their values. Another answer that has the same
bytes around a text where there was a text, and a number where there was a number, is the same object with other
values. What these say is made sure of once, by an answer with other values in all gaps, which is parsed, too. Whatever
does not fit is left to the parse.
"""

import re
from typing import Final

import orjson

from weft_router.api.inference import Kind
from weft_router.api.reply import NO_HANDLE, Reply, read_whole

TEXT: Final = 0
"""What a gap holds: the text of an answer, a list of numbers that must not be empty; from WORD on texts of plain
characters: one that nobody asks for, one that must not be empty, and why an answer ended; from NUMBER on numbers: one
that nobody asks for, and those that a reply counts."""
LIST: Final = 1
WORD: Final = 2
NEEDED: Final = 3
REASON: Final = 4
NUMBER: Final = 5
PROMPT: Final = 6
COMPLETION: Final = 7
CACHED: Final = 8
COUNTS: Final = (
    (b'"prompt_tokens":', PROMPT),
    (b'"completion_tokens":', COMPLETION),
    (b'"total_tokens":', NUMBER),
    (b'"cached_tokens":', CACHED),
)
"""Bare quotes stand outside of texts, so each of these is a member's name, and its value follows."""
_ANSWER: Final = (
    (b'"id":"', WORD),
    (b'"created":', NUMBER),
    (b'"content":"', TEXT),
    (b'"text":"', TEXT),
    (b'"finish_reason":"', REASON),
    *COUNTS,
)
_DIGITS: Final = 15
_LETTERS: Final = 256
_QUOTE: Final = 34
_COMMA: Final = 44
_ZERO: Final = 48
_NINE: Final = 57
_OPENS: Final = 91
_CLOSES: Final = 93
_WHOLE: Final = -1
"""In place of where a value began: it is a list that has ended."""
_BACKSLASH: Final = 92
_MARK: Final = 4
"""A text ends at a bare quote, so the first bytes that follow it are found at its end, or it is left to the parse."""
_VALUE: Final = (re.compile(rb'[^"]*'), re.compile(rb"[\[\]0-9,]*(?=\])"), re.compile(rb"[0-9]*"))
LONGEST: Final = 16 * 2**10
"""Bytes of an answer whose form may be learned: it is kept."""
PATIENCE: Final = 8
"""So many answers in a row have another form before it is learned: one that never comes twice is not worth it."""
_loads: Final = orjson.loads
_dumps: Final = orjson.dumps


class Gap:
    """A member's value, which differs, and the bytes that follow it: as they come, and as they go on."""

    __slots__ = ("after", "goes", "mark", "role")

    def __init__(self, role: int, after: bytes) -> None:
        self.role = role
        self.after = after
        self.mark = after[:_MARK]
        self.goes = b""


class Form:
    """What answers, or the same parts of them, have in common."""

    __slots__ = ("gaps", "start")

    def __init__(self, raw: bytes, names: tuple[tuple[bytes, int], ...]) -> None:
        """Take the form of some bytes, with gaps for the values of these members where they are first named.

        Raises:
            ValueError: they have no such form.
        """
        starts = sorted((raw.find(name) + len(name), role) for name, role in names if name in raw)
        begins = [at for at, _ in starts] + [len(raw)]
        self.start = raw[: begins[0]]
        self.gaps: list[Gap] = []
        for (at, role), following in zip(starts, begins[1:], strict=True):
            value = _VALUE[2 if role >= NUMBER else 1 if role == LIST else 0].match(raw, at)
            end = value.end() if value is not None else len(raw)
            if end >= following:
                raise ValueError("a value has no end")
            self.gaps.append(Gap(role, raw[end:following]))

    def fill(self, raw: bytes, at: int, reply: Reply, goes: list[bytes] | None = None) -> int:
        """Take what bytes of this form say into a reply; return where they end, -1 where they have another form.

        ``goes`` gets these bytes as they go on.
        """
        start = self.start
        size, end = len(raw), at + len(start)
        if raw[at:end] != start:
            return -1
        at = end
        for gap in self.gaps:
            role, value = gap.role, ""
            if role >= NUMBER:
                number, most = 0, min(size, at + _DIGITS)
                while end < most:
                    digit = raw[end] - 48
                    if digit < 0 or digit > 9:
                        break
                    number = number * 10 + digit
                    end += 1
                if end == at or (end > at + 1 and raw[at] == 48):
                    return -1
                if role == PROMPT:
                    reply.prompt_tokens = number
                elif role == COMPLETION:
                    reply.completion_tokens = number
                elif role == CACHED:
                    reply.cached_tokens = number
            elif role >= WORD:
                most = min(size, at + _LETTERS)
                while end < most:
                    byte = raw[end]
                    if byte == _QUOTE:
                        break
                    if byte < 32 or byte == _BACKSLASH or byte > 126:
                        return -1
                    end += 1
                if role == REASON:
                    reason = raw[at:end]
                    if reason == b"stop":
                        reply.finish_reason = "stop"
                    elif reason == b"length":
                        reply.finish_reason = "length"
                    else:
                        return -1
                elif role == NEEDED and end == at:
                    return -1
            elif role == LIST and (end := numbers_end(raw, at)) > at:
                pass
            else:
                end = raw.find(gap.mark, at)
                if end < 0:
                    return -1
                try:
                    found: object = _loads(raw[at - 1 : end + 1])
                except orjson.JSONDecodeError:  # not one value: a text ends at its first bare quote
                    return -1
                if type(found) is str:
                    value = found
                    if value:
                        reply.text.append(value)
                elif not found:
                    return -1
            after = gap.after
            following = end + len(after)
            if raw[end:following] != after:
                return -1
            if goes is not None:
                goes.append(_dumps(value)[1:-1] if value else raw[at:end])
                goes.append(gap.goes)
            at = end = following
        return at

    def other(self) -> bytes:
        """Return bytes of this form with other values, each another."""
        parts = [self.start]
        for number, gap in enumerate(self.gaps):
            if gap.role == REASON:
                parts.append(b"stop")
            elif gap.role == LIST:
                parts.append(b"%d,7" % number)
            elif gap.role >= NUMBER:
                parts.append(b"%d" % (987_600 + number))
            else:
                parts.append(b"a gap\\n%d" % number if gap.role == TEXT else b"gap-%d" % number)
            parts.append(gap.after)
        return b"".join(parts)


def numbers_end(raw: bytes, at: int) -> int:
    """Return where a short list of numbers, or of such lists, ends that begins at ``at``; ``at`` for any other.

    Its own brackets are not looked at but for the last. It is gone through byte by byte, for which nothing has to be
    made; what is longer is parsed.
    """
    end, most, began, depth = at, min(len(raw), at + _LETTERS), at, 0
    while end < most:
        byte = raw[end]
        if _ZERO <= byte <= _NINE:
            if began == _WHOLE or end > began + _DIGITS or (end == began + 1 and raw[began] == _ZERO):
                return at
        elif byte == _OPENS:
            if end != began:
                return at
            began = end + 1
            depth += 1
        elif end == began:
            return at
        elif byte == _COMMA:
            began = end + 1
        elif byte != _CLOSES:
            return at
        elif depth:
            began = _WHOLE
            depth -= 1
        else:
            return end
        end += 1
    return at


class _Answer:
    """The form of answers that go on to clients."""

    __slots__ = ("_cut", "_form", "_goes", "_kind")

    def __init__(self, kind: Kind, raw: bytes, data: bytes) -> None:
        """Take the form of an answer that goes on as ``data``.

        Raises:
            ValueError: it has none.
        """
        self._kind = kind
        self._form = form = Form(raw, _ANSWER)
        self._cut = 0
        self._goes: bytes | None = None
        if raw.endswith(NO_HANDLE) and data == raw[: -len(NO_HANDLE)] + b"}":
            self._cut = len(NO_HANDLE)
        elif data != raw:  # it is written anew
            going = Form(data, _ANSWER)
            self._goes = going.start
            for gap, other in zip(form.gaps, going.gaps, strict=True):
                gap.goes = other.after

    def read(self, raw: bytes) -> tuple[Reply, bytes] | None:
        """Return what an answer says and the bytes for the client; None when it has another form."""
        reply = Reply(self._kind)
        goes = [self._goes] if self._goes is not None else None
        if self._form.fill(raw, 0, reply, goes) != len(raw):
            return None
        if goes is not None:
            return reply, b"".join(goes)
        return reply, raw[: -self._cut] + b"}" if self._cut else raw

    def holds(self, raw: bytes) -> bool:
        """Tell whether it reads an answer, and one with other values, as they are when they are parsed."""
        for answer in (raw, self._form.other()):
            found, parsed = self.read(answer), read_whole(self._kind, answer, keep_ids=False)
            if found is None or found[1] != parsed[1] or said(found[0]) != said(parsed[0]):
                return False
        return True


class Answers:
    """Reads the answers of one engine, by the form of those before where it can."""

    __slots__ = ("_forms", "_others")

    def __init__(self) -> None:
        self._forms: dict[str, _Answer] = {}
        """By the kind of request."""
        self._others = PATIENCE
        """Answers in a row that have another form."""

    def read(self, kind: Kind, raw: bytes, *, keep_ids: bool) -> tuple[Reply, bytes]:
        """Read as ``read_whole`` does.

        Raises:
            ValueError: the engine's reply is not a JSON object.
        """
        if keep_ids:
            return read_whole(kind, raw, keep_ids=True)
        form = self._forms.get(kind)
        if form is not None:
            found = form.read(raw)
            if found is not None:
                self._others = 0
                return found
        reply, data = read_whole(kind, raw, keep_ids=False)
        self._others += 1
        if self._others > PATIENCE and len(raw) <= LONGEST:
            self._others = 0
            self._learn(kind, raw, data)
        return reply, data

    def _learn(self, kind: Kind, raw: bytes, data: bytes) -> None:
        try:
            form = _Answer(kind, raw, data)
            if form.holds(raw):
                self._forms[kind] = form
        except ValueError:
            return


def said(reply: Reply) -> tuple[object, ...]:
    """Return all that a reply says."""
    return (
        reply.text, reply.finish_reason, reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens,
        reply.plain, reply.handle, reply.prompt_ids, reply.output_ids, reply.shown, reply.output, reply.head,
    )  # fmt: skip
