"""Recognise a stream's usual events by their bytes: all are alike but for one text, and for the token's ids.

A bare quote cannot occur inside a JSON text. So when an event begins and ends with the very bytes of one that was
parsed, and what lies between holds no quote, then it is the same object with another text: nothing needs parsing.
"""

import re

_IDS = b'"token_ids":['
_LIST = re.compile(rb"[0-9]+(?:,[0-9]+)+")


class Usual:
    """The constant parts of a stream's usual event, as it comes and as it goes on."""

    __slots__ = ("end", "head", "ids", "out_head", "out_ids", "out_tail", "same", "start", "tail")

    def __init__(self, came: tuple[bytes, bytes, bytes], goes: tuple[bytes, bytes, bytes]) -> None:
        self.head, self.ids, self.tail = came
        """Up to the text; between text and ids (empty when there are none); after that."""
        self.out_head, self.out_ids, self.out_tail = goes
        self.same = came == goes
        self.start, self.end = len(self.head), -len(self.tail)

    def out(self, text: bytes, ids: bytes) -> bytes:
        """Return the event that goes on, without the blank line that ends it."""
        if self.out_ids:
            return self.out_head + text + self.out_ids + ids + self.out_tail
        return self.out_head + text + self.out_tail


def learn(came: bytes, goes: bytes, *, chat: bool) -> Usual | None:
    """Return the form of an event with plain text, None when it has no such form; both end without a blank line."""
    key = b'"content":"' if chat else b'"text":"'
    first, second = _parts(came, key), _parts(goes, key)
    if first is None or second is None or first[0] != second[0]:
        return None
    return Usual(first[1], second[1])


def _parts(event: bytes, key: bytes) -> tuple[bytes, tuple[bytes, bytes, bytes]] | None:
    start = event.find(key) + len(key)
    if start < len(key) or event.find(key, start) >= 0:
        return None
    end = event.find(b'"', start)
    text = event[start:end]
    if end < 0 or not text or b"\\" in text or _IDS in event[:start]:
        return None
    tail = event[end:]
    at = tail.find(_IDS) + len(_IDS)
    if at < len(_IDS):
        return text, (event[:start], b"", tail)
    close = tail.find(b"]", at)
    if tail.find(_IDS, at) >= 0 or not is_ids(tail[at:close]):
        return None
    return text, (event[:start], tail[:at], tail[close:])


def is_ids(raw: bytes) -> bool:
    """Tell whether this is a list of ids without its brackets, not empty and without spaces."""
    return raw.isdigit() or _LIST.fullmatch(raw) is not None
