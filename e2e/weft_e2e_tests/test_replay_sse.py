"""The event splitter gives the same events whatever the chunk boundaries, and forgets nothing."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from weft_e2e.replay.sse import EventSplitter

PAYLOADS = st.lists(st.binary(max_size=30).filter(lambda b: b"\n" not in b and b"\r" not in b), max_size=12)


def _split(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(c % (len(stream) + 1) for c in cuts), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges)]


@settings(max_examples=200)
@given(PAYLOADS, st.lists(st.integers(0, 4096), max_size=10), st.sampled_from([b"\n", b"\r\n"]))
def test_any_split_gives_the_events_that_were_sent(payloads: list[bytes], cuts: list[int], end: bytes) -> None:
    stream = b"".join(b"data: " + p + end + end for p in payloads)
    splitter = EventSplitter()

    got = [event for piece in _split(stream, cuts) for event in splitter.feed(piece)]

    assert got == payloads
    assert not splitter.unfinished


def test_comments_and_other_fields_are_ignored_and_data_lines_joined() -> None:
    splitter = EventSplitter()

    got = splitter.feed(b': kv_transfer_params {"a":1}\n\nevent: x\ndata: one\ndata: two\n\n: ping\n\ndata:three\n\n')

    assert got == [b"one\ntwo", b"three"]


def test_an_event_without_its_end_is_reported_as_unfinished() -> None:
    splitter = EventSplitter()

    assert splitter.feed(b'data: {"cut') == []
    assert splitter.unfinished
