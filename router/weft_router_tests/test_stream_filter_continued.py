"""A stream that goes on elsewhere says what the unbroken one would have said, wherever its characters are split.

A character may need several tokens, and an engine holds its text back until the last of them is there. A stream must
go on from the last token whose text was shown: from a later one, the other engine would begin within a character.
"""

import re
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from weft_router.openai.inference import Kind
from weft_router.openai.reply import Reply
from weft_router.openai.stream_filter import StreamFilter

HEAD = {"id": "c1", "object": "chunk", "created": 5, "model": "m"}
characters = st.text(st.sampled_from('ab "\\\nßé語🦊'), min_size=1, max_size=24)
Broken = tuple[int, list[int], list[int], bool]
"""Where a stream breaks, events and bytes that its reads begin with, and whether another process goes on with it."""
breaks = st.lists(
    st.tuples(
        st.integers(0, 6_000),
        st.lists(st.integers(0, 60), max_size=40),
        st.lists(st.integers(0, 6_000), max_size=4),
        st.booleans(),
    ),
    max_size=3,
)


def tokens_of(text: str, cuts: list[int]) -> list[bytes]:
    """Return the text in tokens of a byte or more, its characters cut anywhere."""
    raw = text.encode()
    edges = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    return [raw[a:b] for a, b in pairwise(edges)]


def answer(kind: Kind, tokens: list[bytes], known: int, sizes: list[int]) -> bytes:
    """Return the stream of an engine that is given the first ``known`` tokens in its prompt."""

    def event(text: str, ids: list[int] | None, **more: Any) -> bytes:
        part = {"delta": {"content": text}} if kind == "chat" else {"text": text}
        given = {} if ids is None else {"token_ids": ids}
        return _event({**HEAD, "choices": [{"index": 0, **part, "finish_reason": None, **given}], **more})

    made = [event("", None, prompt_token_ids=[9_000, *range(known)])]
    held, at = b"", known
    while at < len(tokens):
        size = sizes[at % len(sizes)]
        ids = list(range(at, min(at + size, len(tokens))))
        held += b"".join(tokens[i] for i in ids)
        text = ""
        if _whole(held):
            text, held = held.decode(errors="ignore"), b""
        made.append(event(text, ids))
        at += size
    return b"".join([*made, _event({**HEAD, "choices": [], "usage": {"completion_tokens": at - known}}), END])


END = b"data: [DONE]\n\n"


def _event(chunk: object) -> bytes:
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def _whole(held: bytes) -> bool:
    """Return whether the last character is whole; bytes that continue one before them are no character's."""
    rest = held.lstrip(bytes(range(0x80, 0xC0)))
    try:
        rest.decode()
    except UnicodeDecodeError:
        return False
    return True


def text_in(out: bytes, kind: Kind) -> str:
    chunks = [orjson.loads(part[6:]) for part in out.split(b"\n\n") if part.startswith(b"data: {")]
    choices = [one for chunk in chunks for one in chunk["choices"]]
    return "".join((one["delta"]["content"] if kind == "chat" else one["text"]) for one in choices)


@pytest.mark.parametrize("kind", ["chat", "text"])
@settings(max_examples=300)
@given(characters, st.lists(st.integers(0, 200), max_size=60), st.lists(st.integers(1, 3), min_size=1), breaks)
@example("aa語b", list(range(7)), [1], [(740, list(range(9)), [], False)])
def test_a_stream_that_goes_on_says_what_the_unbroken_one_says(
    kind: Kind, text: str, cuts: list[int], sizes: list[int], broken: list[Broken]
) -> None:
    tokens = tokens_of(text, cuts)
    reply: Reply | None = None
    seen = ""
    for place, events, reads, elsewhere in broken:
        stream = answer(kind, tokens, 0 if reply is None else reply.shown, sizes)
        out, sse_filter = read(kind, stream[: place % len(stream)], events, reads, reply)
        seen += text_in(out, kind)
        if not sse_filter.reply.output_ids:
            return  # nothing to go on from
        reply = Reply.load(orjson.loads(orjson.dumps(sse_filter.reply.dump()))) if elsewhere else sse_filter.reply
        assert b"".join(tokens[: reply.shown]).decode() == seen
    out, sse_filter = read(kind, answer(kind, tokens, 0 if reply is None else reply.shown, sizes), [2, 5], [900], reply)
    assert seen + text_in(out, kind) == text
    assert "".join(sse_filter.reply.text) == text
    assert list(sse_filter.reply.output_ids or ()) == list(range(len(tokens)))


def read(
    kind: Kind, stream: bytes, events: list[int], places: list[int], resumed: Reply | None
) -> tuple[bytes, StreamFilter]:
    sse_filter = StreamFilter(kind, keep_usage=False, keep_ids=False, resumed=resumed)
    starts = [found.end() for found in re.finditer(rb"\n\n", stream)]
    aligned = {starts[i] for i in events if i < len(starts)}
    edges = sorted({0, len(stream), *aligned, *(place % (len(stream) + 1) for place in places)})
    return b"".join(sse_filter.feed(stream[a:b]) for a, b in pairwise(edges)), sse_filter
