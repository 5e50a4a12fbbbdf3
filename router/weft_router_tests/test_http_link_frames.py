"""The frames of one link between two ends in memory: order, windows, ends, and frames that break the rules."""

import asyncio
import random
import struct
from collections.abc import Callable
from time import monotonic
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_router.http.link import Link
from weft_router.http.stream import DATA, END, GRANT, RESET, WINDOW, Stream


class Pipe:
    """A transport that gives what is written to the other end, in pieces of at most so many bytes, when it is told."""

    def __init__(self, most: Callable[[], int]) -> None:
        self.other: Link
        self.most = most
        self.sent = bytearray()
        self.writes = 0
        self.closed = False
        self.high = 0
        self.on_write: Callable[[], None] = lambda: None

    def write(self, data: bytes) -> None:
        self.writes += 1
        self.sent += data
        self.on_write()

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True

    close = abort

    def flow(self) -> bool:
        """Pass on what was written; tell whether anything was."""
        data, self.sent = bytes(self.sent), bytearray()
        at = 0
        while at < len(data):
            size = self.most()
            self.other.data_received(data[at : at + size])
            at += size
        return bool(data)


class End:
    """A stream's protocol: notes what it is told."""

    def __init__(self) -> None:
        self.transport: Stream
        self.got = bytearray()
        self.said: list[str] = []
        self.lost: list[Exception | None] = []
        self.fails = False
        self.fails_at = ""
        self.pauses = False

    def connection_made(self, transport: Stream) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.fails:
            raise RuntimeError("it cannot take that")
        self.got += data
        if self.pauses:
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        self.said.append("full")

    def resume_writing(self) -> None:
        self._say("go on")

    def eof_received(self) -> None:
        self._say("eof")

    def _say(self, what: str) -> None:
        self.said.append(what)
        if self.fails_at == what:
            raise RuntimeError("it cannot go on")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class Pair:
    """Two ends of a link."""

    def __init__(self, most: Callable[[], int] = lambda: 2**30) -> None:
        self.accepted: list[End] = []
        self.over: list[Link] = []
        self.there, self.back = Pipe(most), Pipe(most)
        self.near = Link(accept=None, on_lost=self.over.append)
        self.far = Link(accept=self._accept, on_lost=self.over.append)
        self.there.other, self.back.other = self.far, self.near
        self.near.connection_made(cast(asyncio.Transport, self.there))
        self.far.connection_made(cast(asyncio.Transport, self.back))

    def _accept(self) -> asyncio.Protocol:
        self.accepted.append(End())
        return cast(asyncio.Protocol, self.accepted[-1])

    def open(self) -> End:
        end = End()
        self.near.open(cast(asyncio.Protocol, end))
        return end

    async def settle(self) -> None:
        """Pass bytes on until nobody has any."""
        idle = 0
        while idle < 2:
            await asyncio.sleep(0)
            idle = 0 if self.there.flow() or self.back.flow() else idle + 1

    async def met(self) -> tuple[End, End]:
        """Return the two ends of a stream, which begins with a byte."""
        near = self.open()
        near.transport.write(b"!")
        await self.settle()
        far = self.accepted[-1]
        assert bytes(far.got) == b"!"
        far.got.clear()
        return near, far


async def test_what_a_turn_has_for_many_streams_is_one_write() -> None:
    pair = Pair()
    ends = [pair.open() for _ in range(20)]
    for n, end in enumerate(ends):
        end.transport.write(b"%d" % n)
        end.transport.writelines((b"a", b"b"))
    await pair.settle()
    assert pair.there.writes == 1
    assert [bytes(end.got) for end in pair.accepted] == [b"%dab" % n for n in range(20)]
    for end in pair.accepted:
        end.transport.write(bytes(end.got).upper())
    await pair.settle()
    assert pair.back.writes == 1
    assert [bytes(end.got) for end in ends] == [b"%dAB" % n for n in range(20)]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(1, 3 * WINDOW)), max_size=30),
    st.integers(0, 2**32),
)
def test_every_stream_gets_its_bytes_in_order_however_they_are_cut(
    writes: list[tuple[int, bool, int]], seed: int
) -> None:
    chance = random.Random(seed)

    async def run() -> None:
        pair = Pair(lambda: chance.choice((1, 7, 8, 9, 4000, 100_000)))
        near, far = [], []
        for _ in range(5):
            one, other = await pair.met()
            near.append(one)
            far.append(other)
        sent: dict[End, bytearray] = {}
        for place, forth, size in writes:
            one, other = (near[place], far[place]) if forth else (far[place], near[place])
            data = chance.randbytes(size)
            sent.setdefault(other, bytearray()).extend(data)
            one.transport.write(data)
            if chance.random() < 0.2:
                other.transport.pause_reading()
            if chance.random() < 0.3:
                await pair.settle()
        for end in (*near, *far):
            end.transport.resume_reading()
        await pair.settle()
        for end in (*near, *far):
            assert end.got == sent.get(end, b""), "bytes are lost or out of order"
            assert not end.transport.get_write_buffer_size()
            assert end.said.count("full") == end.said.count("go on")
        assert not pair.there.closed

    asyncio.run(run())


async def test_a_reader_that_waits_stops_its_writer_at_the_window_and_nobody_else() -> None:
    pair = Pair()
    slow, reader = await pair.met()
    other, its = await pair.met()
    slow.transport.set_write_buffer_limits(high=1000)
    reader.transport.pause_reading()
    for _ in range(5):
        slow.transport.write(b"x" * WINDOW)
        await pair.settle()
    assert (len(reader.got), slow.said) == (0, ["full"])
    assert slow.transport.get_write_buffer_size() == 4 * WINDOW + 1  # the byte it began with is not granted anew yet
    other.transport.write(b"y" * 10)
    await pair.settle()
    assert bytes(its.got) == b"y" * 10
    reader.transport.resume_reading()
    await pair.settle()
    assert (len(reader.got), slow.said) == (5 * WINDOW, ["full", "go on"])
    assert not slow.transport.get_write_buffer_size()


async def test_a_link_that_is_full_keeps_its_streams_waiting() -> None:
    pair = Pair()
    near, far = await pair.met()
    near.transport.set_write_buffer_limits(high=10)
    pair.near.pause_writing()
    assert not pair.near.usable
    near.transport.write(b"z" * 100)
    await pair.settle()
    assert (bytes(far.got), near.said) == (b"", ["full"])
    pair.near.resume_writing()
    await pair.settle()
    assert (bytes(far.got), near.said) == (b"z" * 100, ["full", "go on"])


async def test_streams_that_wait_for_a_link_have_it_in_turn() -> None:
    pair = Pair()
    many = [await pair.met() for _ in range(6)]
    small, its = await pair.met()
    pair.near.pause_writing()
    for near, _ in many:
        near.transport.write(b"x" * (8 * WINDOW))
    small.transport.write(b"small")
    pair.there.on_write = pair.near.pause_writing  # one write, and it is full again
    for _ in range(len(many) + 1):
        pair.near.resume_writing()
        await pair.settle()
    assert bytes(its.got) == b"small"
    sizes = [len(far.got) for _, far in many]
    assert max(sizes) - min(sizes) <= WINDOW
    for _ in range(8 * len(many)):
        pair.near.resume_writing()
        await pair.settle()
    assert [len(far.got) for _, far in many] == [8 * WINDOW] * 6


async def test_a_closed_stream_sends_what_it_has_and_both_ends_hear() -> None:
    pair = Pair()
    near, far = await pair.met()
    near.transport.write(b"x" * (2 * WINDOW))
    near.transport.close()
    near.transport.write(b"nobody sends that")
    assert near.transport.is_closing()
    await pair.settle()
    assert (len(far.got), far.said, far.lost, near.lost) == (2 * WINDOW, ["eof"], [None], [None])
    assert (pair.near.streams, pair.far.streams) == (0, 0)


async def test_an_end_that_waits_hears_of_the_other_end_once_it_has_read_all() -> None:
    pair = Pair()
    near, far = await pair.met()
    far.transport.pause_reading()
    near.transport.write(b"last words")
    near.transport.close()
    await pair.settle()
    assert (bytes(far.got), far.said, far.lost) == (b"", [], [])
    far.transport.resume_reading()
    await pair.settle()
    assert (bytes(far.got), far.said, far.lost) == (b"last words", ["eof"], [None])


@pytest.mark.parametrize("ended", [False, True], ids=["cut short", "ended before"])
@pytest.mark.parametrize("by", ["the link's end", "a reset"])
async def test_what_came_before_a_stream_was_lost_is_still_read(by: str, *, ended: bool) -> None:
    pair = Pair()
    near, far = await pair.met()
    far.transport.pause_reading()
    near.transport.write(b"last words")
    if ended:
        near.transport.close()
    await pair.settle()
    assert far.transport.is_closing() == ended
    if by == "a reset":
        pair.far.data_received(frame(1, RESET, 0))
    else:
        pair.far.connection_lost(None)
    await pair.settle()
    assert (bytes(far.got), far.lost, far.transport.is_closing()) == (b"", [], True)
    far.transport.write(b"nobody reads that")
    far.transport.resume_reading()
    await pair.settle()
    assert (bytes(far.got), far.said) == (b"last words", ["eof"] if ended else [])
    assert [type(error) for error in far.lost] == [type(None) if ended else ConnectionResetError]
    assert pair.far.streams == 0


async def test_one_that_ended_without_a_word_before_it_was_lost_has_ended() -> None:
    pair = Pair()
    near, far = await pair.met()
    far.transport.pause_reading()
    near.transport.close()
    await pair.settle()
    pair.far.connection_lost(None)
    await pair.settle()
    assert far.lost == []
    far.transport.resume_reading()
    await pair.settle()
    assert (far.said, far.lost) == (["eof"], [None])


async def test_one_that_pauses_at_the_last_word_hears_of_the_end_later() -> None:
    pair = Pair()
    near, far = await pair.met()
    far.transport.pause_reading()
    near.transport.write(b"last words")
    near.transport.close()
    await pair.settle()
    far.pauses = True
    far.transport.resume_reading()
    await pair.settle()
    assert (bytes(far.got), far.said, far.lost) == (b"last words", [], [])
    far.transport.resume_reading()
    await pair.settle()
    assert (far.said, far.lost) == (["eof"], [None])


async def test_one_that_closes_keeps_nothing_for_an_end_that_reads_no_more() -> None:
    pair = Pair()
    near, far = await pair.met()
    near.transport.pause_reading()
    near.transport.write(b"x" * (2 * WINDOW))
    pair.near.data_received(frame(1, END, 0))
    assert near.transport.get_write_buffer_size()
    near.transport.close()
    assert pair.near.streams == 0
    await pair.settle()
    assert (near.lost, far.lost) == ([None], [None])


@pytest.mark.parametrize("way", ["abort", "close"])
async def test_one_that_was_lost_can_be_left_unread(way: str) -> None:
    pair = Pair()
    near, far = await pair.met()
    far.transport.pause_reading()
    near.transport.write(b"last words")
    await pair.settle()
    pair.far.connection_lost(None)
    getattr(far.transport, way)()
    far.transport.resume_reading()
    await pair.settle()
    assert (bytes(far.got), far.lost) == (b"", [None])


async def test_what_comes_before_a_reader_has_caught_up_waits_behind_what_it_missed() -> None:
    pair = Pair()
    near, far = await pair.met()
    far.transport.pause_reading()
    for part in (b"one ", b"two "):
        near.transport.write(part)
        await pair.settle()
    far.transport.resume_reading()
    pair.far.data_received(frame(1, DATA, 5, b"three") + frame(1, END, 0))
    assert bytes(far.got) == b""
    await pair.settle()
    assert (bytes(far.got), far.said) == (b"one two three", ["eof"])


async def test_a_stream_that_is_over_here_is_not_begun_anew_by_what_was_on_its_way() -> None:
    pair = Pair()
    near, far = await pair.met()
    near.transport.write(b"late")
    far.transport.abort()
    await pair.settle()
    assert (bytes(far.got), len(pair.accepted), pair.near.streams, pair.far.streams) == (b"", 1, 0, 0)


async def test_the_rest_of_a_frame_is_nobodys_once_its_stream_is_over() -> None:
    pair = Pair()
    _, far = await pair.met()
    other, its = await pair.met()
    pair.far.data_received(frame(1, DATA, 6, b"abc"))
    far.transport.abort()
    pair.far.data_received(b"def" + frame(2, DATA, 1, b"x"))
    assert (bytes(far.got), bytes(its.got), other.lost) == (b"abc", b"x", [])


async def test_an_aborted_stream_is_reset_and_what_was_on_its_way_is_nobodys() -> None:
    pair = Pair()
    near, far = await pair.met()
    far.transport.write(b"too late")
    near.transport.abort()
    near.transport.abort()
    await pair.settle()
    assert (bytes(near.got), near.lost) == (b"", [None])
    assert len(far.lost) == 1
    assert isinstance(far.lost[0], ConnectionResetError)
    far.transport.write(b"to nobody")
    await pair.settle()
    assert (pair.near.streams, pair.far.streams, len(pair.accepted)) == (0, 0, 1)
    assert not pair.there.closed


async def test_a_stream_that_closes_lets_the_other_end_finish_what_nobody_reads() -> None:
    pair = Pair()
    near, far = await pair.met()
    far.transport.pause_reading()
    near.transport.write(b"x" * (2 * WINDOW))
    near.transport.close()  # which waits for its window
    far.transport.write(b"y" * (5 * WINDOW))
    await pair.settle()
    assert (far.transport.get_write_buffer_size(), bytes(near.got)) == (0, b"")
    far.transport.resume_reading()
    await pair.settle()
    assert (len(far.got), far.lost, near.lost) == (2 * WINDOW, [None], [None])
    assert not pair.there.closed


async def test_all_streams_end_with_their_link_in_error() -> None:
    pair = Pair()
    ends = [end for _ in range(3) for end in await pair.met()]
    pair.near.connection_lost(None)
    pair.far.connection_lost(OSError("gone"))
    await asyncio.sleep(0)
    for end in ends:
        assert len(end.lost) == 1
        assert isinstance(end.lost[0], ConnectionResetError)
        end.transport.write(b"nowhere")
        end.transport.abort()
        end.transport.close()
    await asyncio.sleep(0)
    assert [len(end.lost) for end in ends] == [1] * 6
    assert pair.over == [pair.near, pair.far]
    assert not pair.near.usable


async def test_one_whose_protocol_fails_is_reset_and_no_other() -> None:
    pair = Pair()
    near, far = await pair.met()
    other, its = await pair.met()
    far.fails = True
    near.transport.write(b"oops")
    other.transport.write(b"well")
    await pair.settle()
    assert (len(near.lost), far.lost, bytes(its.got)) == (1, [None], b"well")
    assert (its.lost, other.lost, pair.far.streams) == ([], [], 1)


@pytest.mark.parametrize(("step", "closing"), [("go on", False), ("go on", True), ("eof", False)])
async def test_one_whose_protocol_fails_at_a_step_ends_by_itself(step: str, *, closing: bool) -> None:
    pair = Pair()
    near, far = await pair.met()
    other, its = await pair.met()
    near.transport.set_write_buffer_limits(high=10)
    pair.near.pause_writing()
    near.fails_at = step
    near.transport.write(b"z" * 100)
    other.transport.write(b"well")
    if closing:
        near.transport.close()
    if step == "eof":
        far.transport.close()
        await pair.settle()
    pair.near.resume_writing()
    await pair.settle()
    assert (near.said[-1], near.lost, len(far.lost)) == (step, [None], 1)
    assert (bytes(its.got), its.lost, other.lost, pair.near.streams) == (b"well", [], [], 1)


def frame(number: int, kind: int, value: int, data: bytes = b"") -> bytes:
    return struct.pack("!II", number, kind << 24 | value) + data


@pytest.mark.parametrize(
    "wrong",
    [
        frame(1, 9, 0),
        frame(1, GRANT, 10),
        frame(1, DATA, WINDOW + 1, bytes(WINDOW + 1)),
        frame(1, DATA, WINDOW, bytes(WINDOW)) + frame(1, DATA, 1, b"x"),
    ],
    ids=["a kind nobody knows", "more granted than sent", "more than the window", "more than the window, in two"],
)
async def test_frames_against_the_rules_end_the_link(wrong: bytes) -> None:
    pair = Pair()
    _, far = await pair.met()
    far.transport.pause_reading()
    pair.far.data_received(wrong)
    assert pair.back.closed


frames = st.builds(
    frame,
    st.integers(0, 4), st.integers(0, 7), st.integers(0, 5) | st.integers(0, 2**24 - 1), st.binary(max_size=9),
)  # fmt: skip


@given(st.lists(st.one_of(frames, st.binary(max_size=20)), max_size=20), st.integers(1, 40))
def test_whatever_comes_ends_the_link_at_most(pieces: list[bytes], size: int) -> None:
    async def run() -> None:
        pair = Pair()
        near, far = await pair.met()
        data = b"".join(pieces)
        for link in (pair.near, pair.far):
            for at in range(0, len(data), size):
                link.data_received(data[at : at + size])
        await asyncio.sleep(0)
        for pipe, link in ((pair.there, pair.near), (pair.back, pair.far)):
            pipe.sent.clear()
            link.connection_lost(None)
        await asyncio.sleep(0)
        for end in (near, *pair.accepted):
            assert len(end.lost) == 1, "each hears of its end, once"
        assert far in pair.accepted

    asyncio.run(run())


async def test_an_end_that_does_not_answer_is_doubted_until_it_is_heard() -> None:
    pair = Pair()
    await pair.met()
    now = monotonic()
    pair.near.look(now)
    assert not pair.there.sent  # it was heard just now
    pair.near.look(now + 1.1)
    await pair.settle()  # it answers
    for after in (3.4, 3.9, 4.3):  # asked once more, and not answered
        pair.near.look(now + after)
        assert pair.near.usable
    pair.near.look(now + 4.5)
    assert pair.near.doubted
    await pair.settle()
    assert (pair.near.usable, pair.near.streams) == (True, 1)


async def test_a_link_without_streams_asks_nothing() -> None:
    pair = Pair()
    near, _ = await pair.met()
    near.transport.close()
    await pair.settle()
    pair.near.look(monotonic() + 60)
    await pair.settle()
    assert (pair.near.usable, pair.there.writes) == (True, 2)


async def test_frames_for_streams_that_are_over_or_never_were_go_nowhere() -> None:
    pair = Pair()
    near, _ = await pair.met()
    for kind in (GRANT, END, RESET):
        pair.near.data_received(frame(77, kind, 0))
        pair.far.data_received(frame(77, kind, 0))
    pair.near.data_received(frame(78, DATA, 3, b"abc"))  # this end accepts none
    assert (bytes(near.got), pair.near.streams, pair.far.streams) == (b"", 1, 1)
    assert not pair.there.closed
    assert not pair.back.closed
