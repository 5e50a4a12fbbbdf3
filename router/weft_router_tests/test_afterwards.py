"""What can wait is done after a turn's bytes were written, and before anything is read in answer to them."""

import asyncio
import socket
from typing import cast

import pytest
import uvloop

from weft_router.express.afterwards import Afterwards


async def test_all_is_done_in_its_order_and_one_that_fails_keeps_nobody(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []
    afterwards = Afterwards()

    def fails() -> None:
        raise ValueError("a book that is torn")

    def more() -> None:
        done.append(2)
        afterwards.add(lambda: done.append(3))

    afterwards.add(lambda: done.append(1))
    afterwards.add(fails)
    afterwards.add(more)
    assert not done
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert done == [1, 2, 3]
    assert [record.message for record in caplog.records] == ["books_failed"]


def test_an_answer_is_written_before_what_waits_and_read_after_it() -> None:
    told: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        here, there = socket.socketpair()
        afterwards, over = Afterwards(), asyncio.Event()

        def books() -> None:
            told.append(f"{there.recv(100, socket.MSG_PEEK).decode()} was written")
            if len(told) == 4:
                over.set()

        class Front(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                self.transport = cast(asyncio.Transport, transport)

            def data_received(self, data: bytes) -> None:
                told.append(data.decode())
                self.transport.write(b"answer")
                afterwards.add(books)
                if data == b"first":
                    there.send(b"second")  # it can be read from now on

        transport, _ = await loop.create_connection(Front, sock=here)
        there.setblocking(False)
        there.send(b"first")
        async with asyncio.timeout(5):
            await over.wait()
        transport.close()
        there.close()
        await asyncio.sleep(0)

    uvloop.run(main())
    assert told == ["first", "answer was written", "second", "answeranswer was written"]
