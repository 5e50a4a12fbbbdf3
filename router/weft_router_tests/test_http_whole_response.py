"""Responses read without a parser, and heads read by what is known of the one before: never otherwise than with."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from weft_router.http.head import CredentialCache, FramingError, Request
from weft_router.http.head_cache import HeadReader
from weft_router.http.limits import HttpLimits
from weft_router.http.request import RequestReader
from weft_router.http.whole_response import WholeResponseReader
from weft_router_tests.http_invariants import requests_are_read_alike, responses_are_read_alike

UVICORN = (
    b"HTTP/1.1 200 OK\r\ndate: Sun, 22 Nov 2026 13:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: 4\r\n"
    b"content-type: application/json\r\nx-request-id: a\r\n\r\n{  }"
)
PLAIN = (
    UVICORN,
    UVICORN.replace(b"content-l", b"Content-L"),
    UVICORN.replace(b": 4", b": 0")[:-4],
    b"HTTP/1.1 400 Bad Request\r\nContent-length: 1\r\n\r\nx",
    b"HTTP/1.1 200\r\ncontent-length: 1\r\n\r\nx",
)
NOT_PLAIN = (
    b"",
    b"\r\n\r\n",
    UVICORN[:-1],
    UVICORN + b"x",
    UVICORN[:-10],
    UVICORN.replace(b": 4", b": 04"),
    UVICORN.replace(b": 4", b": +4"),
    UVICORN.replace(b": 4", b": 4 "),
    UVICORN.replace(b": 4", b": 4, 4"),
    UVICORN.replace(b": 4", b":  4"),
    UVICORN.replace(b"content-length: 4\r\n", b""),
    UVICORN.replace(b"x-request-id: a", b"content-length: 4"),
    UVICORN.replace(b"x-request-id: a", b"Content-Length: 5"),
    UVICORN.replace(b"x-request-id: a", b"x-content-length: 4").replace(b"content-length: 4\r\nc", b"c"),
    UVICORN.replace(b"x-request-id: a", b"transfer-encoding: chunked"),
    UVICORN.replace(b"x-request-id: a", b"connection: close"),
    UVICORN.replace(b"x-request-id: a", b"x-request-id : a"),
    UVICORN.replace(b"x-request-id: a", b" x-request-id: a"),
    UVICORN.replace(b"x-request-id: a", b"x-request-id: a\nb: c"),
    UVICORN.replace(b"x-request-id: a", b"x-request-id: \xff"),
    UVICORN.replace(b"x-request-id: a", b"server: a"),
    UVICORN.replace(b"200 OK", b"204 No Content"),
    UVICORN.replace(b"200 OK", b"304 Not Modified"),
    UVICORN.replace(b"200 OK", b"100 Continue"),
    UVICORN.replace(b"HTTP/1.1", b"HTTP/1.0"),
    UVICORN.replace(b"HTTP/1.1", b"\r\nHTTP/1.1"),
    b"HTTP/1.1 200 OK ontent-length: 1\r\n\r\nx",
    b"HTTP/1.1 200 OK\r\ncontent-length: 38\r\nx: y",
)


@pytest.mark.parametrize("raw", PLAIN)
def test_what_engines_send_is_read_plainly_and_as_llhttp_reads_it(raw: bytes) -> None:
    assert responses_are_read_alike(raw)


@pytest.mark.parametrize("raw", NOT_PLAIN)
def test_what_is_not_plain_is_left_to_llhttp(raw: bytes) -> None:
    assert WholeResponseReader().read(raw) is None


@pytest.mark.parametrize("size", [1, 8, 9, 10, 98, 99, 100, 101, 102, 999])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_length_is_what_the_head_says_however_many_digits_it_has(size: int, more: int) -> None:
    reader = WholeResponseReader()
    reader.read(UVICORN)
    found = reader.read(UVICORN.replace(b": 4", b": %d" % size)[:-4] + b"x" * (size + more))
    assert (found is not None) == (more == 0)
    assert found is None or found[2] == b"x" * size


@given(raws=st.lists(st.sampled_from([*PLAIN, *NOT_PLAIN, UVICORN.replace(b": 4", b": 00")[:-4]]), max_size=8))
def test_a_response_is_read_as_if_none_came_before(raws: list[bytes]) -> None:
    reader = WholeResponseReader()
    for raw in raws:
        assert reader.read(raw) == WholeResponseReader().read(raw)


_NOT_PLAIN_LINES = (
    b"HTTP/1.1 200 OK", b"HTTP/1.1 500 Internal Server Error", b"HTTP/1.1 204 No Content", b"HTTP/1.0 200 OK",
    b"content-length:2", b"content-length: 02", b"CONTENT-LENGTH: 2", b"transfer-encoding: chunked",
    b"connection: close", b"connection: keep-alive", b"x:y", b"x: ", b"x:  y", b"x: y ", b"\x00: a", b"a: \x7f",
    b"a: \xe4", b"upgrade: h2c",
)  # fmt: skip
_LINES = st.sampled_from(
    [
        *_NOT_PLAIN_LINES, b"content-length: 0", b"content-length: 1", b"Content-Length: 2", b"Server: a b",
        b"server: c", b"date: 1", b"", b"ontent-length: 2", b"xcontent-length: 2", b"a: content-length: 2",
    ]
)  # fmt: skip


@given(
    lines=st.lists(_LINES, max_size=6),
    first=st.sampled_from([b"HTTP/1.1 200 OK", b"HTTP/1.1 404", b"HTTP/1.1 200 ", b""]),
    body=st.sampled_from([b"", b"x", b"xy", b"\r\n", b"\r\n\r\n"]),
)
@example(lines=[b"content-length: 2"], first=b"HTTP/1.1 200 OK", body=b"xy")
def test_what_is_read_plainly_is_read_alike_by_the_others(lines: list[bytes], first: bytes, body: bytes) -> None:
    responses_are_read_alike(b"\r\n".join([first, *lines]) + b"\r\n\r\n" + body)


@given(
    fields=st.dictionaries(
        st.sampled_from([b"server", b"Date", b"x", b"a-b"]), st.sampled_from([b"a", b"b, c d", b"1"])
    ),
    other=st.none() | st.sampled_from(_NOT_PLAIN_LINES),
    first=st.sampled_from([b"HTTP/1.1 200 OK", b"HTTP/1.1 404", b"HTTP/1.1 500 Internal Server Error"]),
    body=st.sampled_from([b"", b"x", b"xy", b"\r\n", b"x" * 1000]),
    at=st.integers(0, 4),
)
def test_a_response_is_read_plainly_unless_a_line_is_not(
    fields: dict[bytes, bytes], other: bytes | None, first: bytes, body: bytes, at: int
) -> None:
    lines = [b"%s: %s" % field for field in fields.items()]
    lines.insert(at, b"content-length: %d" % len(body))
    if other is not None:
        lines.insert(at, other)
    raw = b"\r\n".join([first, *lines]) + b"\r\n\r\n" + body
    assert responses_are_read_alike(raw) == (other is None)


HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nUser-Agent: b\r\n"
    b"X-Session-Id: one\r\nAuthorization: Bearer c"
)


def outcome(reader: HeadReader, head: bytes, limits: HttpLimits) -> tuple[Request, int] | tuple[int, str]:
    """Return what a head is read as, or refused with."""
    try:
        known = reader.read_like_previous(head + b"\r\n\r\nbody", 0, limits)
        if known is None:
            return reader.read(head, limits)
        assert known[2] == len(head) + 4
        known[0].credential_cache = None  # which say nothing of the head
        return known[:2]
    except FramingError as error:
        return error.error.status, error.error.message


_CHANGED_LINES = (
    b"POST /v1/completions HTTP/1.1", b"GET /x?y HTTP/1.1", b"POST /v1/completions HTTP/1.0", b"GET x",
    b"Host: a", b"Host: b", b"Host: a/", b"Content-Length: 1", b"Content-Length: 77", b"Content-Length: -1",
    b"Content-Length:  5", b"content-length: 5", b"Content-Length: 99999999999", b"X-Session-Id: two",
    b"X-Session-Id:  two ", b"X-Session-Id:two", b"X-Session-Id: \x01", b"X-Session-Id: \x7f", b"X-Session-Id: \xe4",
    b"X-Session-Id: \t", b"X-Session-Id: ~!", b"X-Session-Id: ", b"X-Session-Id", b"X-Session-Id : a",
    b"Authorization: Bearer d", b"Transfer-Encoding: chunked", b"Connection: close", b"Expect: 100-continue",
    b"Expect: x", b"User-Agent: e", b"Other: 1", b"Other: 2", b" folded", b"",
)  # fmt: skip
_CHANGES = st.lists(st.tuples(st.integers(0, 6), st.sampled_from(_CHANGED_LINES)), max_size=3)


@pytest.mark.parametrize("line", _CHANGED_LINES)
def test_a_head_with_one_other_line_is_read_as_if_none_came_before(line: bytes) -> None:
    limits = HttpLimits(max_body=10_000)
    for at in range(7):
        reader = HeadReader()
        for _ in range(2):
            reader.read(HEAD, limits)
        lines = HEAD.split(b"\r\n")
        lines[at : at + 1] = [line]
        head = (b"\r\n".join(lines) + b"\r\n\r\n").partition(b"\r\n\r\n")[0]
        assert outcome(reader, head, limits) == outcome(HeadReader(), head, limits)


@given(heads=st.lists(_CHANGES, min_size=1, max_size=5))
def test_a_head_is_read_as_if_none_came_before(heads: list[list[tuple[int, bytes]]]) -> None:
    limits, reader = HttpLimits(max_body=10_000), HeadReader()
    for _ in range(2):
        reader.read(HEAD, limits)
    for changes in heads:
        lines = HEAD.split(b"\r\n")
        for at, line in changes:
            lines[at : at + 1] = [line]
        head = (b"\r\n".join(lines) + b"\r\n\r\n").partition(b"\r\n\r\n")[0]
        assert outcome(reader, head, limits) == outcome(HeadReader(), head, limits)


def test_a_head_that_differs_in_what_varies_is_read_by_the_last_and_keys_vary_once_they_did() -> None:
    limits, reader = HttpLimits(), HeadReader()
    body, other = b"\r\n\r\nx", HEAD.replace(b"Bearer c", b"Bearer d")
    for _ in range(2):
        reader.read(HEAD, limits)
    assert reader.read_like_previous(HEAD.replace(b"one", b"two") + body, 0, limits) is not None
    assert reader.read_like_previous(other + body, 0, limits) is None
    reader.read(other, limits)
    assert reader.read_like_previous(b"x" + HEAD + body, 1, limits) is not None


@given(keys=st.lists(st.tuples(st.sampled_from(["c", "d"]), st.sampled_from(["one", "two"])), max_size=9))
def test_requests_have_notes_in_common_only_with_those_of_the_same_key(keys: list[tuple[str, str]]) -> None:
    reader = RequestReader(HttpLimits())
    known: list[tuple[CredentialCache, str]] = []
    for key, session in keys:
        head = HEAD.replace(b"Bearer c", b"Bearer " + key.encode()).replace(b"one", session.encode())
        (request,) = reader.feed(head + b"\r\n\r\nx")
        if (credential_cache := request.credential_cache) is not None:
            assert request.headers["authorization"] == f"Bearer {key}"
            assert all(key == other for shared, other in known if shared is credential_cache)
            known.append((credential_cache, key))
    steady = len(keys) > 2 and len({key for key, _ in keys}) == 1
    assert len(known) == (len(keys) - 2 if steady else len(known))


def test_what_is_read_belongs_to_its_request() -> None:
    reader = RequestReader(HttpLimits())
    (first,) = reader.feed(HEAD + b"\r\n\r\nx")
    first.headers["host"] = "changed"
    (second,) = reader.feed(HEAD.replace(b"one", b"two") + b"\r\n\r\ny")
    second.headers["host"] = "changed"
    (third,) = reader.feed(HEAD + b"\r\n\r\nz")
    assert [request.body for request in (first, second, third)] == [b"x", b"y", b"z"]
    assert (third.headers["host"], third.headers["x-session-id"]) == ("a", "one")


def test_long_heads_are_not_kept_and_are_bounded_as_ever() -> None:
    limits, reader = HttpLimits(max_line=200, max_head=400), HeadReader()
    head = HEAD + b"y" * 20
    for _ in range(2):
        assert isinstance(outcome(reader, head, limits)[0], Request)
    assert outcome(reader, HEAD + b"y" * 300, limits) == outcome(HeadReader(), HEAD + b"y" * 300, limits)
    assert isinstance(outcome(HeadReader(), HEAD + b"y" * 300, limits)[0], int)


@given(ids=st.lists(st.binary(max_size=4), min_size=2, max_size=5), step=st.integers(0, 9))
def test_requests_that_differ_in_a_header_are_read_alike(ids: list[bytes], step: int) -> None:
    requests_are_read_alike(b"".join(HEAD.replace(b"one", b"o" + one) + b"\r\n\r\nx" for one in ids), step=step)


@given(sizes=st.lists(st.sampled_from([1, 2, 100, 4095, 4096, 10_000]), min_size=1, max_size=12), after=st.booleans())
def test_a_body_is_joined_from_large_and_small_pieces(sizes: list[int], after: bool) -> None:
    body = b"".join(bytes([65 + n]) * size for n, size in enumerate(sizes))
    reader = RequestReader(HttpLimits())
    assert reader.feed(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)) == []
    at, done = 0, []
    for size in sizes:
        assert reader.received == at
        last = after and at + size == len(body)
        done += reader.feed(body[at : at + size] + (HEAD + b"\r\n\r\nz" if last else b""))
        at += size
    assert [request.body for request in done] == [body, b"z"][: 1 + after]
