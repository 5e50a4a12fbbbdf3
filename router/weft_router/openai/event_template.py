"""Recognise a stream's plain events by their bytes: all are alike but for one text, and for the token's ids.

A bare quote cannot occur inside a JSON text. So when an event begins and ends with the very bytes of one that was
parsed, and what lies between holds no quote, then it is the same object with another text: nothing needs parsing.
"""

import re
from typing import Final, NamedTuple

QUOTE: Final = 0x22
"""Looked for as a number: for bytes in bytes CPython raises and drops an error before it looks."""
BACKSLASH: Final = 0x5C
_IDS = b'"token_ids":['
_MEMBER = b"," + _IDS
_LIST = re.compile(rb"[0-9]+(?:,[0-9]+)+")


class EventTemplate:
    """The constant parts of a stream's usual event, as it comes and as it goes on; ``last`` has the blank line."""

    __slots__ = ("end", "head", "ids", "last", "out_head", "out_last", "same", "start")

    def __init__(self, came: tuple[bytes, bytes, bytes], goes: tuple[bytes, bytes, bytes]) -> None:
        self.head, self.ids, tail = came
        """Up to the text; between text and ids (empty when there are none)."""
        self.last = tail + b"\n\n"
        self.out_head = goes[0]
        self.out_last = goes[2] + b"\n\n"
        self.same = came == goes
        self.start, self.end = len(self.head), -len(self.last)

    @property
    def joint(self) -> bytes:
        """Return what stands between the texts of two usual events; it spans a blank line, so it stands nowhere else.

        It is made when it is needed, for every stream would keep one.
        """
        return self.last + self.head

    @property
    def out_joint(self) -> bytes:
        """Return the same of the events as they go on."""
        return self.out_last + self.out_head

    def read(self, pieces: list[bytes]) -> "Texts | None":
        """Return what stands between the constant parts of usual events, None when one of them is no usual event."""
        if not self.ids:
            text = b"".join(pieces)
            return None if QUOTE in text or _open(text, pieces) else Texts(text, pieces, b"")
        parts = [piece.partition(self.ids) for piece in pieces]
        texts, groups = [part[0] for part in parts], [part[2] for part in parts]
        text, ids = b"".join(texts), b",".join(groups)
        if QUOTE in text or _open(text, texts) or not all(groups) or not is_ids(ids):
            return None
        return Texts(text, texts, ids)


class Texts(NamedTuple):
    """Several usual events: their text in one, each one's, and all their ids."""

    text: bytes
    each: list[bytes]
    ids: bytes


def _open(text: bytes, texts: list[bytes]) -> bool:
    """Return whether one of the texts may end within an escape, so that the quote after it would not end it."""
    return BACKSLASH in text and any(one.endswith(b"\\") for one in texts)


def learn(came: bytes, goes: bytes, *, chat: bool) -> EventTemplate | None:
    """Return the form of an event with plain text, None when it has no such form; both end without a blank line."""
    key = b'"content":"' if chat else b'"text":"'
    first = _parts(came, key)
    if first is None:
        return None
    text, form = first
    if came == goes:
        return EventTemplate(form, form)
    head, ids, tail = form
    cut = ids[: -len(_MEMBER)] + tail[1:]
    if ids.endswith(_MEMBER) and len(goes) == len(head) + len(text) + len(cut) and goes == head + text + cut:
        return EventTemplate(form, (head, b"", cut))
    second = _parts(goes, key)
    if second is None or text != second[0]:
        return None
    if second[1][1] and form != second[1]:
        return None  # ids that go on, within an event that is changed otherwise: too seldom to be worth it
    return EventTemplate(form, second[1])


def _parts(event: bytes, key: bytes) -> tuple[bytes, tuple[bytes, bytes, bytes]] | None:
    start = event.find(key) + len(key)
    if start < len(key) or event.find(key, start) >= 0:
        return None
    end = event.find(b'"', start)
    text = event[start:end]
    if end <= start or BACKSLASH in text:
        return None
    at = event.find(_IDS)
    if at < 0:
        return text, (event[:start], b"", event[end:])
    at += len(_IDS)
    close = event.find(b"]", at)
    if at <= end or event.find(_IDS, at) >= 0 or not is_ids(event[at:close]):
        return None
    return text, (event[:start], event[end:at], event[close:])


def is_ids(raw: bytes) -> bool:
    """Return whether this is a list of ids without its brackets, not empty and without spaces."""
    return raw.isdigit() or _LIST.fullmatch(raw) is not None
