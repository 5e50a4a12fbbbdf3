"""What one turn of the loop writes goes out together, but for the first of it."""

import asyncio
from collections.abc import Callable, Iterable
from typing import cast
from unittest import mock

from weft_router.http.write_batch import WriteBatch, write_batch_of


class Wire:
    """A transport that notes what is written."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.closing = False
        self.fails = False

    def abort(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        if self.fails:
            raise RuntimeError("its sending side has ended")
        self.got.append(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.got.append(b"|".join(parts))


def put(turn: WriteBatch, wire: Wire, first: bytes, second: bytes = b"") -> None:
    turn.put(cast(asyncio.Transport, wire), first, second)


async def test_the_first_write_goes_at_once_and_the_others_at_the_end_in_order() -> None:
    turn, one, two = WriteBatch(), Wire(), Wire()
    put(turn, one, b"a")
    put(turn, two, b"b")
    put(turn, one, b"c", b"d")
    assert (one.got, two.got) == ([b"a"], [])
    await asyncio.sleep(0)
    assert (one.got, two.got) == ([b"a", b"c|d"], [b"b"])
    put(turn, two, b"e")  # another turn
    assert two.got == [b"b", b"e"]


async def test_what_is_kept_is_written_before_what_was_added_to_the_loop_later() -> None:
    turn, wire, seen = WriteBatch(), Wire(), list[int]()
    put(turn, wire, b"a")
    asyncio.get_running_loop().call_soon(lambda: seen.append(len(wire.got)))
    put(turn, wire, b"b")
    await asyncio.sleep(0)
    assert seen == [2]


async def test_who_carries_others_is_written_last_and_once() -> None:
    turn, wire, seen = WriteBatch(), Wire(), list[int]()
    turn.at_end(lambda: seen.append(len(wire.got)))
    put(turn, wire, b"a")  # the turn has begun, so this is kept
    assert (wire.got, seen) == ([], [])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (wire.got, seen) == ([b"a"], [1])


async def test_a_flush_leaves_nothing_and_a_closed_connection_gets_nothing() -> None:
    turn, one, gone = WriteBatch(), Wire(), Wire()
    for wire in (one, one, gone):
        put(turn, wire, b"a")
    gone.closing = True
    turn.flush()
    await asyncio.sleep(0)
    assert (one.got, gone.got) == ([b"a", b"a"], [])


async def test_a_write_that_fails_ends_its_connection_and_no_other() -> None:
    turn, one, bad, two = WriteBatch(), Wire(), Wire(), Wire()
    bad.fails = True
    for wire in (one, bad, two):
        put(turn, wire, b"a")
    turn.flush()
    assert (one.got, bad.got, two.got) == ([b"a"], [], [b"a"])
    assert bad.closing


async def test_behind_a_turn_of_one_write_the_next_go_at_once_and_begin_no_turn() -> None:
    turn, wire, turns = WriteBatch(), Wire(), list[Callable[[], None]]()
    put(turn, wire, b"a")
    await asyncio.sleep(0)
    with mock.patch.object(asyncio.get_running_loop(), "call_soon", turns.append):
        for _ in range(16):
            put(turn, wire, b"b")
        assert (len(wire.got), turns) == (17, [])
        put(turn, wire, b"c")  # looks whether others come
        put(turn, wire, b"d")
    assert (len(wire.got), wire.got[-1]) == (18, b"c")
    (end,) = turns
    end()
    put(turn, wire, b"e")
    put(turn, wire, b"f")
    assert wire.got[18:] == [b"d", b"e"], "several came in one turn, so the next has an end again"
    await asyncio.sleep(0)
    assert wire.got[18:] == [b"d", b"e", b"f"]


async def test_much_is_not_kept() -> None:
    turn, wire = WriteBatch(), Wire()
    put(turn, wire, b"first")
    put(turn, wire, b"x" * 200_000)
    assert len(wire.got) == 1
    put(turn, wire, b"x" * 200_000)
    assert len(wire.got) == 3


async def test_all_connections_of_a_loop_share_its_turn() -> None:
    loop = asyncio.get_running_loop()
    assert write_batch_of(loop) is write_batch_of(loop)


def test_each_loop_has_its_own() -> None:
    async def mine() -> WriteBatch:
        return write_batch_of(asyncio.get_running_loop())

    assert asyncio.run(mine()) is not asyncio.run(mine())
