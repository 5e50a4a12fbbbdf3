"""Event streams pass as they are: split anywhere, in any chunks, through the whole wire."""

import asyncio
import random
from collections.abc import Callable
from time import monotonic, process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_router.http.response import ResponseReader
from weft_router.http.sse import MAX_EVENT, EventSplitter, EventTooLargeError, payload
from weft_router.http.upstream_request import BufferedResponse, UpstreamRequest
from weft_router.http.whole_response import WholeResponseReader
from weft_router.openai.responses_filter import ResponsesFilter
from weft_router.openai.stream_filter import StreamFilter
from weft_router_tests.http_invariants import events_are_cut_alike
from weft_router_tests.http_kit import Backend, connected, fronted, on_uvloop

CHAT = (
    'data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n'
    'data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"Grüße, "}}]}\n\n'
    'data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"世界 🌍\\n\\n"}}]}\n\n'
    'data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    "data: [DONE]\n\n"
).encode()
RECORDED = {
    "chat": (CHAT, 5),
    "with CR LF": (CHAT.replace(b"\n\n", b"\r\n\r\n"), 5),
    "mixed line ends": (b"data: a\n\r\ndata: b\r\n\ndata: c\r\n\r\ndata: d\n\ndata: [DONE]\n\r\n", 5),
    "data of several lines": (b"data: {\ndata:  1}\n\nevent: x\ndata: a\ndata:\ndata: b\n\ndata: [DONE]\n\n", 3),
    "comments and other fields": (
        b": ping\n\nid: 7\nretry: 10\nevent: response.created\ndata: {}\n\n:\n\ndata: [DONE]\n\n",
        4,
    ),
    "responses": (
        'event: response.output_text.delta\ndata: {"delta":"é"}\n\nevent: response.completed\ndata: {}\n\n'.encode(),
        2,
    ),
    "without an end": (b'data: {"x": 1}\n\ndata: {"half', 1),
}
SPLITS = 5000


def cut(raw: bytes, dice: random.Random) -> list[bytes]:
    """Return the bytes in pieces, some of them single bytes."""
    points = sorted(dice.choices(range(len(raw) + 1), k=dice.choice((1, 2, 5, 20, 200))))
    return [raw[a:b] for a, b in zip([0, *points], [*points, len(raw)], strict=True)]


def test_five_thousand_splits_of_recorded_streams_give_the_same_events() -> None:
    dice = random.Random(14)
    streams = [(raw, EventSplitter().feed(raw), count) for raw, count in RECORDED.values()]
    for n in range(SPLITS):
        raw, events, count = streams[n % len(streams)]
        splitter = EventSplitter()
        got = [event for piece in cut(raw, dice) for event in splitter.feed(piece)]
        assert got == events
        assert len(got) == count
        assert b"".join(got) + splitter.rest == raw
        assert sum(payload(event) == b"[DONE]" for event in got) == raw.count(b"[DONE]")


@given(
    raw=st.lists(
        st.sampled_from(
            [b"data: x", b"data:", b"\n", b"\n", b"\r\n", b"\r", b": c", b"event: e", b"\xe4\xb8\x96", b" "]
        )
    ).map(b"".join),
    step=st.integers(1, 7),
)
def test_any_stream_is_cut_alike(raw: bytes, step: int) -> None:
    events_are_cut_alike(raw, step=step)


def test_chunks_of_any_size_split_anywhere_give_the_body() -> None:
    dice = random.Random(15)
    leg = UpstreamRequest(first_s=1.0)
    for n in range(500):
        raw = list(RECORDED.values())[n % len(RECORDED)][0]
        framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in cut(raw, dice) if part) + b"0\r\n\r\n"
        reader, whole = ResponseReader(WholeResponseReader()), BufferedResponse(leg, 2**20)
        reader.expect(whole)
        for piece in cut(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + framed, dice):
            if piece:
                reader.feed(piece)
        assert whole.body == raw
        assert reader.complete
        assert reader.keeps


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: x\n\n", b"x"),
        (b"data: x\r\n\r\n", b"x"),
        (b"data:x\n\n", b"x"),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b"event: e\ndata: a\n\n", b"a"),
        (b": data: x\n\n", None),
        (b"event: e\n\n", None),
        (b"data: \n\n", b""),
    ],
)
def test_the_data_of_an_event(event: bytes, data: bytes | None) -> None:
    assert payload(event) == data


def test_an_event_is_bounded() -> None:
    splitter = EventSplitter()
    splitter.feed(b"x" * MAX_EVENT)
    with pytest.raises(EventTooLargeError):
        splitter.feed(b"x")


@pytest.mark.component
@on_uvloop
async def test_streams_pass_server_and_pool_byte_for_byte() -> None:
    dice = random.Random(16)
    sent: list[bytes] = []

    async def answer(backend: Backend, writer: asyncio.StreamWriter) -> None:
        raw = sent[len(backend.seen) - 1]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for part in cut(raw, dice):
            if part:
                writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            if dice.random() < 0.3:
                await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")

    async with fronted(Backend(answer)) as (listener, front), connected(listener.port) as client:
        for n in range(200):
            sent.append(list(RECORDED.values())[n % len(RECORDED)][0])
            await client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
            assert await client.response() == (200, sent[-1])
        assert (front.failures, len(listener.connections)) == ([], 1)


@pytest.mark.component
@on_uvloop
async def test_no_event_waits_for_the_next() -> None:
    """The backend sends an event only when the client has the one before it."""
    got = asyncio.Semaphore(1)
    events = [b"data: %d\n\n" % n for n in range(100)]

    async def answer(backend: Backend, writer: asyncio.StreamWriter) -> None:
        del backend
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for event in events:
            await got.acquire()
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        writer.write(b"0\r\n\r\n")

    async with fronted(Backend(answer)) as (listener, _), connected(listener.port) as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
        await client.head()
        times = []
        for event in events:
            began = monotonic()
            assert await client.chunk() == event
            times.append(monotonic() - began)
            got.release()
        assert await client.chunk() == b""
        assert sorted(times)[len(times) // 2] < 0.005


def splitter() -> Callable[[bytes], object]:
    return EventSplitter().feed


def opening_tap() -> Callable[[bytes], object]:
    return StreamFilter("chat", keep_usage=True, keep_ids=True).feed


def usual_tap() -> Callable[[bytes], object]:
    sse_filter = StreamFilter("chat", keep_usage=True, keep_ids=True)
    for word in (b"a", b"b", b"c"):
        sse_filter.feed(
            b'data: {"id":"1","model":"m","created":1,"object":"chat.completion.chunk",'
            b'"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % word
        )
    assert sse_filter.tokens == 3
    return sse_filter.feed


def responses_tap() -> Callable[[bytes], object]:
    return ResponsesFilter().feed


@pytest.mark.alone
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("make", [splitter, opening_tap, usual_tap, responses_tap])
def test_an_event_in_small_pieces_takes_time_in_proportion_to_its_length(
    make: Callable[[], Callable[[bytes], object]], line_end: bytes
) -> None:
    """An event of eight times the length takes eight times as long; looked at anew for each piece, 64 times."""

    def seconds(size: int) -> float:
        times = []
        for _ in range(3):
            feed = make()
            began = process_time()
            feed(b"data: ")
            for _ in range(size // 1024):
                feed(b"x" * 1024)
            feed(line_end * 2)
            times.append(process_time() - began)
        return min(times)

    assert seconds(4 * 2**20) < 24 * seconds(2**19)


@pytest.mark.alone
def test_many_events_in_one_piece_take_time_in_proportion_to_their_number() -> None:
    """Where no two LF follow each other, they are not looked for again behind each event."""

    def seconds(count: int) -> float:
        times = []
        for _ in range(3):
            began = process_time()
            assert len(EventSplitter().feed(b"data: x\r\n\r\n" * count)) == count
            times.append(process_time() - began)
        return min(times)

    assert seconds(64_000) < 48 * seconds(4_000)
