"""The parsers of HTTP at their borders: chunks, heads that come in pieces, gates, and one response after another."""

import secrets
from collections.abc import Callable

import pytest

from weft_router.errors import ApiError
from weft_router.http import head, response, sse
from weft_router.http.chunks import FREE_CHUNKS, LEAST_CHUNK, MAX_LINE, MAX_TRAILERS, ChunkDecoder
from weft_router.http.head import FramingError, Peer, Request
from weft_router.http.header_lines import checked, encoded, header_lines
from weft_router.http.limits import HttpLimits
from weft_router.http.request import RequestReader
from weft_router.http.response import MAX_HEAD, BadResponseError, ResponseReader
from weft_router.http.sse import EventSplitter, EventTooLargeError
from weft_router.http.whole_response import WholeResponseReader

LIMITS = HttpLimits(max_line=200, max_head=1000, max_body=10_000, ungated=8)
GET = b"GET / HTTP/1.1\r\nhost: a\r\n"


def feed(raw: bytes, *, step: int = 1, limits: HttpLimits = LIMITS) -> list[Request]:
    """Read bytes, some at a time."""
    reader = RequestReader(limits)
    return [request for at in range(0, len(raw), step) for request in reader.feed(raw[at : at + step])]


def refusal(read: Callable[[], object]) -> int:
    """Return the status that reading is refused with; 0 where it is not."""
    try:
        read()
    except FramingError as error:
        return error.error.status
    return 0


# Chunks.


@pytest.mark.parametrize("step", [1, 5, 100])
def test_chunks_of_one_size_after_another_end_where_they_say(step: int) -> None:
    decoder = ChunkDecoder(100)
    raw = b"4\r\nabcd\r\n4\r\nefgh\r\n4\r\nijkl\r\n0\r\n\r\nnext"
    rest = b"".join(decoder.feed(raw[at : at + step]) for at in range(0, len(raw), step) if not decoder.done)
    assert (bytes(decoder.body), decoder.done) == (b"abcdefghijkl", True)
    assert b"next".startswith(rest)


@pytest.mark.parametrize("raw", [b"4\r\nabcd4\r\nabcd\r\n\r\n0\r\n\r\n", b"4\r\nabcd\r\n4\r\nabcde\r\n", b"4\r\nabcdx"])
@pytest.mark.parametrize("step", [1, 100])
def test_a_chunk_longer_than_it_says_is_refused(raw: bytes, step: int) -> None:
    decoder = ChunkDecoder(100)
    assert refusal(lambda: [decoder.feed(raw[at : at + step]) for at in range(0, len(raw), step)]) == 400


@pytest.mark.parametrize("sizes", [[10], [4, 6], [5, 5], [1] * 10])
def test_a_body_may_be_as_long_as_the_limit_and_no_longer(sizes: list[int]) -> None:
    raw = b"".join(b"%x\r\n%b\r\n" % (size, b"x" * size) for size in sizes) + b"0\r\n\r\n"
    decoder = ChunkDecoder(10)
    assert decoder.feed(raw) == b""
    assert len(decoder.body) == 10
    assert refusal(lambda: ChunkDecoder(9).feed(raw)) == 413


@pytest.mark.parametrize("step", [1, 10_000])
@pytest.mark.parametrize(("length", "status"), [(MAX_LINE, 0), (MAX_LINE + 1, 400)])
def test_the_line_of_a_size_is_bounded(length: int, status: int, step: int) -> None:
    raw = b"1;" + b"x" * (length - 2) + b"\r\nx\r\n0\r\n\r\n"
    decoder = ChunkDecoder(100)
    assert refusal(lambda: [decoder.feed(raw[at : at + step]) for at in range(0, len(raw), step)]) == status


@pytest.mark.parametrize("step", [1, 10_000])
@pytest.mark.parametrize(("count", "status"), [(MAX_TRAILERS // 1000, 0), (MAX_TRAILERS // 1000 + 1, 431)])
def test_trailers_are_bounded_together(count: int, status: int, step: int) -> None:
    raw = b"0\r\n" + (b"a: " + b"x" * 995 + b"\r\n") * count + b"\r\n"
    decoder = ChunkDecoder(100)
    assert refusal(lambda: [decoder.feed(raw[at : at + step]) for at in range(0, len(raw), step)]) == status


def test_a_trailer_without_an_end_is_bounded() -> None:
    assert refusal(lambda: ChunkDecoder(100).feed(b"0\r\na: " + b"x" * MAX_TRAILERS)) == 431


def test_a_trailer_is_a_header_line() -> None:
    assert refusal(lambda: ChunkDecoder(100).feed(b"0\r\nno header\r\n\r\n")) == 400
    assert refusal(lambda: ChunkDecoder(100).feed(b"0\r\na: b\n\r\n")) == 400


def test_small_chunks_are_bounded_by_their_number() -> None:
    one = b"1\r\nx\r\n"
    assert refusal(lambda: ChunkDecoder(10**6).feed(one * FREE_CHUNKS)) == 0
    assert refusal(lambda: ChunkDecoder(10**6).feed(one * (FREE_CHUNKS + 200))) == 400
    fair = b"%x\r\n%b\r\n" % (LEAST_CHUNK, b"x" * LEAST_CHUNK)
    assert refusal(lambda: ChunkDecoder(10**6).feed(fair * (2 * FREE_CHUNKS))) == 0


# Heads.


@pytest.mark.parametrize("first", [b"{", b" GET", b"\n", b"a", b"[", b"@"])
def test_what_does_not_begin_with_a_method_is_refused_at_its_first_byte(first: bytes) -> None:
    assert refusal(lambda: RequestReader(LIMITS).feed(first)) == 400


@pytest.mark.parametrize("first", [b"A", b"Z", b"\r"])
def test_what_may_become_a_request_is_waited_for(first: bytes) -> None:
    reader = RequestReader(LIMITS)
    assert reader.feed(first) == []
    assert (reader.idle, reader.kept) == (False, 1)


@pytest.mark.parametrize("step", [1, 2, 3, 100])
def test_one_empty_line_before_a_request_is_let_pass(step: int) -> None:
    (request,) = feed(b"\r\n" + GET + b"\r\n", step=step)
    assert (request.path, request.head) == ("/", len(GET) + 4)
    assert refusal(lambda: feed(b"\r\n\r\n", step=step)) == 400


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_a_head_is_bounded_to_the_byte_however_it_comes(step: int) -> None:
    def line(length: int) -> bytes:
        return b"GET /" + b"x" * (length - len(b"GET / HTTP/1.1")) + b" HTTP/1.1\r\nhost: a\r\n"

    def header(length: int) -> bytes:
        return GET + b"a: " + b"x" * (length - 3) + b"\r\n"

    def whole(length: int) -> bytes:
        lines = b"".join(b"a%d: %b\r\n" % (i, b"x" * 94) for i in range(9))
        return GET + lines + b"b: " + b"x" * (length - len(GET) - len(lines) - 3) + b"\r\n"

    for write, most, status in ((line, 200, 414), (header, 200, 431), (whole, 1000, 431)):
        (request,) = feed(write(most) + b"\r\n", step=step)
        assert request.method == "GET"
        assert refusal(lambda write=write, most=most: feed(write(most + 1) + b"\r\n", step=step)) == status  # type: ignore[misc]


def test_a_head_that_grows_beyond_its_bounds_is_refused_before_it_ends() -> None:
    assert refusal(lambda: feed(b"GET /" + b"x" * 200)) == 414
    assert refusal(lambda: feed(GET + b"".join(b"a%d: x\r\n" % i for i in range(200)))) == 431


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"GET / HTTP/2.0", 505),
        (b"GET / HTTP/1.2", 505),
        (b"GET * HTTP/1.1", 400),
        (b"GET * HTTP/1.0", 400),
        (b"GET  / HTTP/1.1", 400),
        (b"BREW / HTTP/1.1", 501),
    ],
)
def test_another_request_line_is_refused(line: bytes, status: int) -> None:
    assert refusal(lambda: feed(line + b"\r\nhost: a\r\n\r\n", step=1000)) == status


def test_headers_are_bounded_by_number() -> None:
    few = HttpLimits(max_headers=3)
    assert len(feed(GET + b"a: 1\r\nb: 2\r\n\r\n", limits=few)) == 1
    assert refusal(lambda: feed(GET + b"a: 1\r\nb: 2\r\nc: 3\r\n\r\n", limits=few)) == 431


def test_a_header_that_comes_twice_is_joined_in_every_request() -> None:
    reader = RequestReader(LIMITS)
    raw = GET + b"x-a: 1\r\nx-a: 2\r\n\r\n"
    assert [reader.feed(raw)[0].headers["x-a"] for _ in range(4)] == ["1, 2"] * 4


def test_a_head_that_is_like_the_one_before_is_read_with_its_own_figures() -> None:
    reader = RequestReader(LIMITS)
    for length, path in ((3, "a"), (3, "a"), (5, "a"), (0, "a"), (12, "a"), (12, "b")):
        raw = b"POST /%b HTTP/1.1\r\nhost: a\r\nx-id: %d\r\ncontent-length: %d\r\n\r\n" % (
            path.encode(),
            length,
            length,
        )
        (request,) = reader.feed(raw + b"y" * length)
        assert (request.path, request.headers["x-id"], request.body) == (f"/{path}", str(length), b"y" * length)
        assert request.head == len(raw)
    bad = b"POST /b HTTP/1.1\r\nhost: a\r\nx-id: 12\r\ncontent-length: 1x\r\n\r\n"
    assert refusal(lambda: reader.feed(bad)) == 400


def test_each_of_several_requests_has_its_own_head() -> None:
    second = b"POST /b HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n"
    requests = feed(GET + b"\r\n" + second + b"xy" + GET + b"\r\n", step=1000)
    assert [(one.path, one.head, one.body) for one in requests] == [
        ("/", len(GET) + 2, b""),
        ("/b", len(second), b"xy"),
        ("/", len(GET) + 2, b""),
    ]


@pytest.mark.parametrize(
    ("line", "http10", "keeps"),
    [
        (b"", False, True),
        (b"", True, False),
        (b"connection: keep-alive\r\n", True, True),
        (b"connection: Keep-Alive, TE\r\n", True, True),
        (b"connection: TE\r\n", True, False),
        (b"connection: TE\r\n", False, True),
        (b"connection: close\r\n", False, False),
        (b"connection: keep-alive, Close\r\n", True, False),
    ],
)
def test_whether_a_connection_is_kept(line: bytes, http10: bool, keeps: bool) -> None:
    raw = (GET.replace(b"1.1", b"1.0") if http10 else GET) + line + b"\r\n"
    reader = RequestReader(LIMITS)
    (request,) = reader.feed(raw)
    assert (request.http10, request.keep_alive, reader.ended) == (http10, keeps, not keeps)
    assert bool(reader.feed(raw)) == keeps, "what follows the last request is dropped"


def test_what_is_remembered_of_lines_is_bounded() -> None:
    for i in range(2000):
        feed(b"GET /%d HTTP/1.1\r\nhost: a%d\r\nx-%d: b\r\n\r\n" % (i, i, i), step=1000)
        assert max(len(head._firsts), len(head._fields), len(head._names)) <= 512
    assert "X-" + "y" * 300 not in head._names
    feed(GET + b"X-" + b"y" * 300 + b": b\r\n\r\n", step=1000, limits=HttpLimits())
    assert "X-" + "y" * 300 not in head._names, "long names are not remembered"


# Gates.


def gated(raw: bytes) -> tuple[int, list[bool]]:
    """Read bytes behind a gate that lets nobody in; return the status of a refusal, and which requests have one."""
    reader = RequestReader(LIMITS, gate=lambda _request, _peer: ApiError("no", status=401), peer=Peer())
    found: list[Request] = []
    status = refusal(
        lambda: found.extend(request for i in range(0, len(raw), 7) for request in reader.feed(raw[i : i + 7]))
    )
    return status, [request.refusal is not None for request in found]


def test_a_short_body_is_dropped_behind_a_gate_and_a_long_one_refused() -> None:
    post = b"POST / HTTP/1.1\r\nhost: a\r\n"
    assert gated(post + b"content-length: 8\r\n\r\n" + b"x" * 8 + GET + b"\r\n") == (0, [True, False])
    assert gated(post + b"content-length: 9\r\n\r\n" + b"x" * 9) == (401, [])
    assert gated(post + b"content-length: 8\r\nexpect: 100-continue\r\n\r\n") == (401, []), "a client that asks is told"
    assert gated(post + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n") == (401, [])


def test_a_refused_requests_bytes_are_not_kept() -> None:
    reader = RequestReader(LIMITS, gate=lambda _request, _peer: ApiError("no", status=401))
    assert reader.feed(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 8\r\n\r\nxxxx") == []
    assert (reader.kept, reader.received, reader.in_body) == (0, 4, True)
    (request,) = reader.feed(b"yyyy")
    assert (request.body, request.headers) == (b"", {})
    assert request.refusal is not None
    assert reader.idle


@pytest.mark.parametrize(
    ("first", "waits"),
    [
        (b"HTTP/1.1\r\nhost: a\r\nexpect: 100-Continue", True),
        (b"HTTP/1.1\r\nhost: a", False),
        (b"HTTP/1.0\r\nexpect: 100-continue", False),  # it has no such word
    ],
)
def test_a_client_may_wait_for_a_word_before_its_body(first: bytes, waits: bool) -> None:
    reader = RequestReader(LIMITS)
    reader.feed(b"POST / " + first + b"\r\ncontent-length: 4\r\n\r\n")
    before = reader.wants_continue
    assert [request.body for request in reader.feed(b"body")] == [b"body"]
    assert (before, reader.wants_continue) == (waits, False)


# Responses.


class Taken:
    """What came of responses."""

    def __init__(self) -> None:
        self.heads: list[tuple[int, dict[str, str]]] = []
        self.body = b""

    def head(self, status: int, headers: dict[str, str]) -> None:
        self.heads.append((status, dict(headers)))

    def data(self, chunk: bytes) -> None:
        self.body += chunk


def expecting(taker: Taken) -> ResponseReader:
    """Return a reader that expects a response."""
    reader = ResponseReader(WholeResponseReader())
    reader.expect(taker)
    return reader


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nx-%b: 1\r\n\r\n2\r\nab\r\n0\r\n\r\n"


@pytest.mark.parametrize("step", [1, 1000])
def test_each_response_has_its_own_headers_and_body(step: int) -> None:
    reader = ResponseReader(WholeResponseReader())
    for name in (b"a", b"b", b"c"):
        taken, raw = Taken(), CHUNKED % name
        reader.expect(taken)
        for at in range(0, len(raw), step):
            reader.feed(raw[at : at + step])
        assert taken.heads == [(200, {"transfer-encoding": "chunked", f"x-{name.decode()}": "1"})]
        assert (taken.body, reader.complete, reader.keeps) == (b"ab", True, True)


@pytest.mark.parametrize("raw", [CHUNKED % b"a", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nab"])
def test_bytes_that_belong_to_no_response_are_refused(raw: bytes) -> None:
    with pytest.raises(BadResponseError, match="after the end"):
        ResponseReader(WholeResponseReader()).feed(raw)
    reader = expecting(Taken())
    reader.feed(raw)
    with pytest.raises(BadResponseError, match="after the end"):
        reader.feed(b"H")
    followed = expecting(taken := Taken())
    followed.feed(raw + b"HTTP/1.1 200 OK\r\n\r\n")
    assert (taken.body, followed.complete, followed.keeps) == (b"ab", True, False), "the connection is not used again"


def test_an_interim_response_is_passed_over() -> None:
    reader = expecting(taken := Taken())
    reader.feed(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + CHUNKED % b"a")
    assert taken.heads == [(200, {"transfer-encoding": "chunked", "x-a": "1"})]
    assert reader.complete


def test_what_the_taker_raises_comes_out_as_it_is() -> None:
    class Refusing(Taken):
        def head(self, status: int, headers: dict[str, str]) -> None:
            raise LookupError(status, headers)

    with pytest.raises(LookupError, match=r"^\(200, "):
        expecting(Refusing()).feed(CHUNKED % b"a")
    with pytest.raises(BadResponseError):
        expecting(Taken()).feed(b"nonsense\r\n\r\n")


def test_the_head_of_a_response_is_bounded() -> None:
    start = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nx: "
    fits = start + b"y" * (MAX_HEAD - len(start))
    reader = expecting(Taken())
    reader.feed(fits)
    with pytest.raises(BadResponseError, match="too long"):
        reader.feed(b"y")
    reader = expecting(taken := Taken())
    reader.feed(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (2 * MAX_HEAD))
    reader.feed(b"y" * (2 * MAX_HEAD))
    assert (len(taken.body), reader.complete) == (2 * MAX_HEAD, True), "a body is not"


@pytest.mark.parametrize(
    ("raw", "proper"),
    [
        (b"", False),
        (b"HTTP/1.1 200 OK\r\n", False),
        (b"HTTP/1.1 200 OK\r\n\r\nabc", True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", False),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc", False),
    ],
)
def test_a_close_ends_a_response_that_had_no_other_end(raw: bytes, proper: bool) -> None:
    reader = expecting(Taken())
    if raw:
        reader.feed(raw)
    assert reader.eof() is proper


def test_a_trailer_is_no_header() -> None:
    reader = expecting(taken := Taken())
    reader.feed((CHUNKED % b"a")[:-2])
    reader.feed(b"x-late: 1\r\n\r\n")
    assert taken.heads == [(200, {"transfer-encoding": "chunked", "x-a": "1"})]
    assert reader.complete


def test_a_response_like_the_one_before_is_read_by_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = WholeResponseReader()
    one = b"HTTP/1.1 200 OK\r\nx: y\r\ncontent-length: %d\r\ndate: now\r\n\r\n%b"
    assert plain.read(one % (4, b"abcd")) == (200, {"x": "y", "date": "now"}, b"abcd")
    monkeypatch.setattr(WholeResponseReader, "_read", lambda *_: pytest.fail("its head was read again"))
    for size in (0, 1, 8, 9, 10, 99, 100, 900, 12345):
        assert plain.read(one % (size, b"z" * size)) == (200, {"x": "y", "date": "now"}, b"z" * size)


def test_a_line_that_was_never_read_is_read_like_any_other() -> None:
    value = secrets.token_hex(8)
    raw = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nX-%b: %b\r\n\r\n" % (value.encode(), value.encode())
    assert WholeResponseReader().read(raw) == (200, {f"x-{value}": value}, b"")


def test_what_is_remembered_of_a_responses_headers_is_bounded() -> None:
    for i in range(600):
        expecting(Taken()).feed(CHUNKED % b"%d" % i)
        assert len(response._names) <= response._REMEMBERED


def test_a_length_with_a_leading_zero_is_not_read_by_the_head_before() -> None:
    plain = WholeResponseReader()
    one = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nabcd"
    assert plain.read(one) == (200, {}, b"abcd")
    assert plain.read(one) == (200, {}, b"abcd")
    assert plain.read(one.replace(b": 4", b": 04")) is None
    assert plain.read(one.replace(b": 4", b": 0")[:-4]) == (200, {}, b"")


# Header lines.


def test_header_lines_are_one_a_header() -> None:
    assert header_lines({"a": "1", "b": ""}) == "a: 1\r\nb: \r\n"
    assert checked("1") == "1"
    assert encoded("a: é\r\n") == b"a: \xe9\r\n"
    assert encoded("a: 世\r\n") == b"a: ?\r\n"


@pytest.mark.parametrize("value", ["1\r\nb: 2", "1\nb: 2", "1\rb", "\n"])
def test_a_value_that_would_end_its_line_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        header_lines({"a": "1", "b": value})
    with pytest.raises(ValueError, match="line break"):
        checked(value)


# Events.


def test_events_begin_where_the_one_before_ends() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"\n\ndata: a\n\n\r\n\r\ndata: b") == [b"\n\n", b"data: a\n\n", b"\r\n\r\n"]
    assert splitter.feed(b"\n\r") == []
    assert splitter.feed(b"\n") == [b"data: b\n\r\n"]
    assert not splitter.partial


@pytest.mark.parametrize("pieces", [[b"data: a\n\n" + b"x" * 101], [b"x" * 100, b"x"], [b"x" * 101]])
def test_an_unfinished_event_is_bounded(pieces: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT", 100)
    splitter = EventSplitter()
    *first, last = pieces
    assert not any(splitter.feed(piece) for piece in first)
    with pytest.raises(EventTooLargeError):
        splitter.feed(last)
    assert EventSplitter().feed(b"x" * 98 + b"\n\n" + b"y" * 100) == [b"x" * 98 + b"\n\n"]
