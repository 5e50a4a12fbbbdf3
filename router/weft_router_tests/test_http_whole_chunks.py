"""Chunks that are read without the parser are read as the parser reads them, however the bytes are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_router.http.response import BadResponseError, ResponseReader
from weft_router.http.whole_chunks import chunk_of, read_chunk
from weft_router.http.whole_response import WholeResponseReader

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
FRAMES = (b"%x\r\n%b\r\n", b"%X\r\n%b\r\n", b"00%x\r\n%b\r\n", b"%x;a=b\r\n%b\r\n")
TEXTS = st.lists(
    st.sampled_from([b"a", b"5", b"\r", b"\n", b"\r\n", b"0\r\n", b"5\r\nhello\r\n", b"x" * 200]), min_size=1
)


class Taken:
    """The pieces of a response's body."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def head(self, status: int, headers: dict[str, str]) -> None: ...

    def data(self, chunk: bytes) -> None:
        self.pieces.append(chunk)


def reading() -> tuple[ResponseReader, Taken]:
    """Return a reader in the midst of a streamed response, and what came of it."""
    reader, taken = ResponseReader(WholeResponseReader()), Taken()
    reader.expect(taken)
    reader.feed(HEAD + b"1\r\n-\r\n")
    taken.pieces.clear()
    return reader, taken


@given(
    texts=st.lists(TEXTS.map(b"".join), max_size=8),
    frame=st.sampled_from(FRAMES),
    cuts=st.lists(st.integers(1, 60), min_size=1),
)
def test_a_body_is_the_same_however_it_is_framed_and_cut(texts: list[bytes], frame: bytes, cuts: list[int]) -> None:
    reader, taken = reading()
    raw = b"".join(frame % (len(text), text) for text in texts) + LAST
    at = turn = 0
    while at < len(raw):
        reader.feed(raw[at : at + cuts[turn % len(cuts)]])
        at += cuts[turn % len(cuts)]
        turn += 1
    assert (b"".join(taken.pieces), reader.complete, reader.keeps) == (b"".join(texts), True, True)


def test_whole_chunks_are_read_without_the_parser() -> None:
    reader, taken = reading()
    reader._parser = None
    reader.feed(b"5\r\nhello\r\n")
    reader.feed(b"1\r\na\r\n")
    assert (taken.pieces, reader.complete) == ([b"hello", b"a"], False)


@pytest.mark.parametrize(
    ("first", "last", "body"),
    [
        pytest.param(b"9\r\nx\r\n", b"\r\n", b"x\r\n1\r\nb\r\n", id="behind a line break of a chunk's data"),
        pytest.param(b"1\r\na\r\n6\r\n", b"\r\n", b"a1\r\nb\r\n", id="behind a size"),
        pytest.param(b"1\r\na\r\n1", b"c" * 14 + b"\r\n", b"ab\r\n" + b"c" * 14, id="within a size"),
    ],
)
def test_what_looks_like_a_chunk_is_none_elsewhere(first: bytes, last: bytes, body: bytes) -> None:
    reader, taken = reading()
    for raw in (first, b"1\r\nb\r\n", last):
        reader.feed(raw)
    assert b"".join(taken.pieces) == body


def test_a_response_does_not_begin_with_a_chunk() -> None:
    reader, taken = reading()
    reader.feed(LAST)
    reader.expect(taken)
    with pytest.raises(BadResponseError):
        reader.feed(b"1\r\nb\r\n")
    assert taken.pieces == []


@pytest.mark.parametrize(
    "raw",
    [
        LAST,
        b"5\r\nhello",
        b"5\r\nhello\n\n",
        b"A\r\n0123456789\r\n",
        b"01\r\na\r\n",
        b"5",
        b"\r\n",
        b"1\r\na\r\n1\r\na\r\n",
    ],
)
def test_anything_else_is_left_to_the_parser(raw: bytes) -> None:
    assert read_chunk(raw) == b""


@pytest.mark.parametrize("size", [1, 15, 16, 4095, 4096, 70_000])
def test_a_chunk_is_written_as_it_is_read(size: int) -> None:
    data = b"x" * size
    assert chunk_of(data) == b"%x\r\n%b\r\n" % (size, data)
    assert read_chunk(chunk_of(data)) == (data if size < 4096 else b"")
