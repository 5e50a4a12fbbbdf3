"""Bounds on one request: what is too long or too large is refused early, cheaply, and beside it others are served."""

import asyncio
import gc
import tracemalloc
from time import monotonic, process_time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from weft_router.http.chunks import MAX_TRAILERS, ChunkDecoder
from weft_router.http.head import FramingError, Request
from weft_router.http.limits import HttpLimits
from weft_router.http.request import RequestReader
from weft_router_tests.http_kit import QUICK, connected, echo, listening, on_uvloop

MIB = 2**20
HEAD = b"POST /x HTTP/1.1\r\nHost: a\r\n"


def status_of(reader: RequestReader, data: bytes) -> int:
    """Feed bytes; return the status they are refused with, 200 when they make a request, 0 for neither."""
    try:
        return 200 if reader.feed(data) else 0
    except FramingError as error:
        return error.error.status


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /" + b"x" * (256 - 14) + b" HTTP/1.1\r\nHost: a\r\n\r\n", 200),
        (b"GET /" + b"x" * (256 - 13) + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * (256 - 3) + b"\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * (256 - 2) + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 9 + b"\r\n", 200),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 10 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + (b"X: " + b"x" * 200 + b"\r\n") * 5 + b"\r\n", 431),
        (HEAD + b"Content-Length: 1000\r\n\r\n" + b"x" * 1000, 200),
        (HEAD + b"Content-Length: 1001\r\n\r\n", 413),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n3e8\r\n" + b"x" * 1000 + b"\r\n0\r\n\r\n", 200),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n3e9\r\n", 413),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n3e8\r\n" + b"x" * 1000 + b"\r\n1\r\n", 413),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: " + b"y" * MAX_TRAILERS + b"\r\n\r\n", 431),
    ],
)
@pytest.mark.parametrize("step", [1, 100, 100_000])
def test_each_bound_is_exact_however_the_bytes_come(data: bytes, status: int, step: int) -> None:
    reader = RequestReader(HttpLimits(max_line=256, max_headers=10, max_head=1000, max_body=1000))
    seen = [status_of(reader, data[at : at + step]) for at in range(0, len(data), step)]
    assert next((each for each in seen if each), 0) == status


@pytest.mark.parametrize(
    "data", [b"GET /" + b"x" * 300, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200, b"GET / HTTP/1.1\r\nX" + b"y" * 2000]
)
def test_a_head_without_an_end_is_refused_at_its_bound(data: bytes) -> None:
    reader = RequestReader(HttpLimits(max_line=256, max_headers=1000, max_head=1000))
    assert status_of(reader, data) in (414, 431)
    assert reader.idle


def test_trailers_are_bounded_together_before_their_last_line_ends() -> None:
    whole = b"X: " + b"y" * (MAX_TRAILERS - 105) + b"\r\n"
    decoder = ChunkDecoder(10)
    assert decoder.feed(b"0\r\n" + whole + b"Z" * 100) == b""
    with pytest.raises(FramingError) as caught:
        decoder.feed(b"Z")
    assert caught.value.error.status == 431
    last = ChunkDecoder(10)
    assert last.feed(b"0\r\n" + whole + b"Z: " + b"y" * 95 + b"\r\n\r\nnext") == b"next"
    assert last.done


def test_what_is_kept_of_a_request_is_its_bytes_so_far() -> None:
    reader = RequestReader(HttpLimits())
    assert (reader.kept, reader.received, reader.idle, reader.in_body) == (0, 0, True, False)
    reader.feed(HEAD)
    assert (reader.kept, reader.received, reader.idle, reader.in_body) == (len(HEAD), 0, False, False)
    reader.feed(b"Content-Length: 9\r\n\r\nabc")
    size = len(HEAD) + len(b"Content-Length: 9\r\n\r\n")
    assert (reader.kept, reader.received, reader.idle, reader.in_body) == (size + 3, 3, False, True)
    assert reader.feed(b"defghi")[0].body == b"abcdefghi"
    assert (reader.kept, reader.received, reader.idle, reader.in_body) == (0, 0, True, False)
    reader.feed(HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
    assert (reader.received, reader.in_body) == (3, True)
    reader.drop()
    assert (reader.kept, reader.idle) == (0, True)


@given(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=30))
def test_small_pieces_of_a_body_take_no_more_than_the_body(sizes: list[int]) -> None:
    reader = RequestReader(HttpLimits())
    reader.feed(HEAD + b"Content-Length: 200000\r\n\r\n")
    sent = 0
    for at in range(3000):
        part = b"xyz"[: sizes[at % len(sizes)]]
        assert not reader.feed(part)
        sent += len(part)
    assert reader.received == sent


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_takes_less_than_three_times_its_size(*, chunked: bool) -> None:
    size = 8 * MIB
    part = b"x" * 65536
    frame = b"10000\r\n" + part + b"\r\n" if chunked else part
    reader = RequestReader(HttpLimits(max_body=size))
    head = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % size
    requests: list[Request] = []
    gc.collect()
    tracemalloc.start()
    try:
        reader.feed(HEAD + head + b"\r\n\r\n")
        for _ in range(size // len(part)):
            requests += reader.feed(frame[:30000])
            requests += reader.feed(frame[30000:])
        if chunked:
            requests += reader.feed(b"0\r\n\r\n")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(requests[0].body) == size
    assert peak < 3 * size


@pytest.mark.parametrize(
    "flood",
    [
        b"1\r\nx\r\n",
        b"10\r\n" + b"x" * 16 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 90 + b"\r\n",
    ],
)
def test_a_read_takes_time_in_proportion_to_its_length(flood: bytes) -> None:
    """The largest read of a socket is 256 KiB: sixteen times 16 KiB takes no more than sixteen times as long.

    A parser that copies what is left after each part would take 256 times as long. What the
    longest read takes `bench/wire.py` tells.
    """

    def seconds(size: int) -> float:
        data = (flood * (size // len(flood) + 1))[:size]
        times = []
        for _ in range(5):
            reader = RequestReader(HttpLimits())
            if not flood.startswith(b"GET"):
                reader.feed(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
            began = process_time()
            status_of(reader, data)
            times.append(process_time() - began)
        return min(times)

    assert seconds(2**18) < 64 * seconds(2**14)


PIECES = (
    b"3\r\nabc\r\n",
    b"3\r\nabcd\r\n",
    b"3\r\nab\r\n",
    b"3;a=b\r\nabc\r\n",
    b"3\r\n",
    b"0\r\n",
    b"\r\n",
    b"X: y\r\n",
)


@example([PIECES[0], b"0\r\n", PIECES[0], b"\r\n"])
@given(st.lists(st.sampled_from(PIECES), max_size=8))
def test_chunks_that_come_together_are_judged_as_byte_by_byte(pieces: list[bytes]) -> None:
    """Chunks of the size of the one before are read in one step: never a trailer, never one longer than it says."""
    data = b"".join(pieces)

    def verdict(parts: list[bytes]) -> tuple[bytes, bytes, bool] | str:
        decoder = ChunkDecoder(12)
        rest = b""
        try:
            for part in parts:
                rest += part if decoder.done else decoder.feed(part)
        except FramingError as error:
            return str(error.error)
        return bytes(decoder.body), rest, decoder.done

    single = verdict([data[i : i + 1] for i in range(len(data))])
    assert verdict([data]) == single


@pytest.mark.component
@pytest.mark.alone
@on_uvloop
async def test_a_large_upload_beside_small_requests_does_not_hold_them_up() -> None:
    async with (
        listening(echo, HttpLimits(max_body=32 * MIB)) as listener,
        connected(listener.port) as large,
        connected(listener.port) as small,
    ):

        async def upload() -> int:
            await large.send(HEAD + b"Content-Length: %d\r\n\r\n" % (32 * MIB))
            for _ in range(32):
                await large.send(b"x" * MIB)
            return (await large.response())[0]

        uploading = asyncio.ensure_future(upload())
        times = []
        while not uploading.done():
            began = monotonic()
            await small.send(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await small.response())[0] == 200
            times.append(monotonic() - began)
        assert await uploading == 200
        assert sorted(times)[len(times) * 9 // 10] < 0.25


@pytest.mark.component
@pytest.mark.alone
@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Content-Length: 99999999", 413),
        (b"Transfer-Encoding: chunked", 413),
        (b"X: " + b"y" * 9000, 431),
    ],
)
@on_uvloop
async def test_what_is_too_large_is_refused_and_the_client_can_read_it(head: bytes, status: int) -> None:
    async with listening(echo, QUICK) as listener, connected(listener.port) as client:
        client.writer.write(HEAD + head + b"\r\n\r\n")
        if head.startswith(b"Transfer"):
            client.writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n1\r\nx\r\n")
        assert (await client.response())[0] == status
        assert await client.rest() == b""
