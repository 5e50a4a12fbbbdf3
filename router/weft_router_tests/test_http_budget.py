"""What all clients together make a process hold is bounded, and given back however a connection ends."""

import asyncio
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_router.errors import ApiError, UnauthorizedError
from weft_router.http.budget import COPIES, EACH, Budget
from weft_router.http.connection import Connection
from weft_router.http.connections import Connections
from weft_router.http.exchange import Exchange
from weft_router.http.head import Peer, Request
from weft_router.http.limits import HttpLimits
from weft_router_tests.http_kit import feed

POST = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
GET = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
KIB = 2**10
LIMITS = HttpLimits(max_body=256 * KIB, ungated=64 * KIB, max_unread=64 * KIB)


class Wire(asyncio.Transport):
    """What a connection writes to; ``unread`` is what its client left there."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.unread = 0
        self.lost: Callable[[], None] | None = None

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def write(self, data: Any) -> None:
        self.sent += data

    def writelines(self, list_of_data: Any) -> None:
        self.sent += b"".join(list_of_data)

    def is_closing(self) -> bool:
        return self.lost is None

    def get_write_buffer_size(self) -> int:
        return self.unread

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None: ...

    def close(self) -> None:
        self._end()

    def abort(self) -> None:
        self._end()

    def _end(self) -> None:
        self.unread = 0
        lost, self.lost = self.lost, None
        if lost is not None:
            asyncio.get_running_loop().call_soon(lost)


class Clients:
    """Clients of one process, whose requests are served when the test says so."""

    def __init__(self, limit: int, *, known: bool = True) -> None:
        self.budget = Budget(limit)
        self.known = known
        self.served: list[Exchange] = []
        self.owner = Connections(self._serve, self._refused, LIMITS, self.budget)
        self.all: list[tuple[Connection, Wire]] = []

    async def _serve(self, exchange: Exchange) -> None:
        self.served.append(exchange)
        await asyncio.get_running_loop().create_future()

    def _refused(self, exchange: Exchange, error: ApiError) -> None:
        headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
        exchange.reply(error.status, error.body(), headers=headers)

    def _gate(self, request: Request, _peer: Peer) -> ApiError | None:
        return None if self.known or request.path == "/healthz" else UnauthorizedError("who are you?")

    def add(self) -> tuple[Connection, Wire]:
        wire = Wire()
        connection = Connection(self.owner, LIMITS, gate=self._gate)
        wire.lost = lambda: connection.connection_lost(None)
        connection.connection_made(wire)
        self.all.append((connection, wire))
        return connection, wire

    @property
    def held(self) -> int:
        """Return what the connections say that they hold."""
        return sum(
            connection._memory.kept
            + connection._memory.held
            + connection._memory.unread
            + sum(each.held for each in connection._waiting)
            for connection, _ in self.all
        )

    def answer(self) -> None:
        for exchange in self.served:
            exchange.reply(200, b"{}")
        self.served.clear()


async def test_a_thousand_half_bodies_stay_within_the_budget_and_a_whole_one_finds_room_among_them() -> None:
    size = 64 * KIB
    clients = Clients(8 * size * 16)
    tracemalloc.start()
    try:
        for n in range(1000):
            connection, _ = clients.add()
            feed(connection, POST % size)
            for _ in range(16):
                feed(connection, b"x" * (size // 16 - 1))
            assert clients.budget.used <= clients.budget.limit
            if n % 100 == 99:
                await asyncio.sleep(0)  # so that those that were ended are lost
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert clients.budget.shed > 800
    assert peak < 1.5 * clients.budget.limit + 1000 * 16 * KIB
    assert b"503 Service Unavailable" in clients.all[0][1].sent
    assert b"Retry-After: 1" in clients.all[0][1].sent
    assert clients.all[-1][1].sent == b""
    connection, wire = clients.add()
    feed(connection, POST % size + b"x" * size)
    clients.answer()
    await asyncio.sleep(0)
    assert wire.sent.startswith(b"HTTP/1.1 200")


async def test_half_heads_count_as_half_bodies_do() -> None:
    clients = Clients(64 * KIB)
    for _ in range(100):
        connection, _ = clients.add()
        feed(connection, GET[:-2] + (b"X: " + b"x" * 4000 + b"\r\n") * 2)
        assert 0 < clients.budget.used <= clients.budget.limit
    assert clients.budget.shed > 90


async def test_nothing_is_kept_of_the_body_of_somebody_unknown_whose_connection_goes_on() -> None:
    clients = Clients(64 * KIB, known=False)
    connection, wire = clients.add()
    feed(connection, POST % 60_000)
    feed(connection, b"x" * 59_999)
    assert (clients.budget.used, wire.sent) == (0, b"")
    feed(connection, b"x" + GET)
    await asyncio.sleep(0)
    assert wire.sent.startswith(b"HTTP/1.1 401")
    assert b"Connection: close" not in wire.sent
    assert [exchange.path for exchange in clients.served] == ["/healthz"]


async def test_a_body_that_is_served_counts_until_its_answer_is_there() -> None:
    clients = Clients(200 * KIB)
    connection, wire = clients.add()
    feed(connection, POST % 20_000 + b"x" * 20_000)
    assert clients.budget.used == EACH + COPIES * 20_000
    assert connection.hold(50_000)
    assert not connection.hold(100_000)
    assert clients.budget.used == clients.held == EACH + COPIES * 20_000 + 50_000
    clients.answer()
    assert (clients.budget.used, wire.sent[:12]) == (0, b"HTTP/1.1 200")


async def test_a_request_without_room_is_refused_with_its_connection_kept_and_health_is_told() -> None:
    clients = Clients(140 * KIB)
    feed(clients.add()[0], POST % 40_000 + b"x" * 40_000)
    connection, wire = clients.add()
    feed(connection, POST % 40_000 + b"x" * 40_000)
    assert wire.sent.startswith(b"HTTP/1.1 503")
    assert b"Connection: close" not in wire.sent
    assert len(clients.served) == 1
    await asyncio.sleep(0)
    feed(connection, GET)
    clients.answer()
    await asyncio.sleep(0)
    assert wire.sent.count(b"HTTP/1.1 200") == 1


async def test_answers_that_nobody_reads_count_and_those_that_nobody_will_read_make_room() -> None:
    clients = Clients(140 * KIB)
    connection, wire = clients.add()
    feed(connection, GET)
    wire.unread = 60_000
    for now in (1.0, 2.0):
        connection.check(now)
    assert clients.budget.used == 60_000
    other, _ = clients.add()
    feed(other, POST % 40_000 + b"x" * 40_000)
    assert len(clients.served) == 2
    assert wire.is_closing()
    assert clients.budget.used == clients.held == EACH + COPIES * 40_000


DEEDS = ["part", "rest", "whole", "get", "lose", "unread", "sweep", "answer", "hold"]
ACTIONS = st.tuples(st.integers(0, 5), st.sampled_from(DEEDS), st.integers(1, 30_000))


@settings(max_examples=60)
@given(actions=st.lists(ACTIONS, max_size=60), known=st.booleans())
async def test_what_is_counted_is_what_is_held_and_all_of_it_is_given_back(
    actions: list[tuple[int, str, int]], *, known: bool
) -> None:
    clients = Clients(120_000, known=known)
    missing: dict[int, int] = {}
    for _ in range(6):
        clients.add()
    for now, (who, what, size) in enumerate(actions):
        connection, wire = clients.all[who]
        if wire.is_closing():
            connection, wire = clients.add()
            clients.all[who] = clients.all.pop()
            missing.pop(who, None)
        if what == "part" and not missing.get(who):
            feed(connection, POST % (2 * size) + b"x" * size)
            missing[who] = size
        elif what == "rest" and missing.get(who):
            feed(connection, b"x" * missing.pop(who))
        elif what == "whole" and not missing.get(who):
            feed(connection, POST % size + b"x" * size)
        elif what == "get" and not missing.get(who):
            feed(connection, GET)
        elif what == "lose":
            wire.abort()
        elif what == "unread":
            wire.unread = size if wire.unread == 0 else 0
        elif what == "sweep":
            for each, _ in list(clients.all):
                each.check(float(now))
        elif what == "answer":
            clients.answer()
        elif what == "hold" and connection._exchange is not None:
            connection.hold(size)
        await asyncio.sleep(0)
        assert clients.budget.used == clients.held
        assert clients.budget._loose == sum(clients.budget._unfinished.values()) <= clients.budget.used
    for _, wire in clients.all:
        wire.abort()
    await asyncio.sleep(0)
    assert (clients.budget.used, clients.budget._loose, len(clients.budget._unfinished)) == (0, 0, 0)


@pytest.mark.parametrize(("length", "fits"), [(10_000, True), (60_000, False)])
def test_whether_a_body_will_fit_is_known_from_its_length(length: int, *, fits: bool) -> None:
    budget = Budget(100_000)
    assert budget.fits(length) is fits
    assert (length <= budget.largest) is fits


async def test_large_requests_leave_room_for_small_ones() -> None:
    clients = Clients(400 * KIB)
    for n in range(20):
        connection, _ = clients.add()
        feed(connection, POST % 20_000 + b"x" * 20_000)
        assert (len(clients.served) == n + 1) is (clients.budget.used == (n + 1) * (EACH + COPIES * 20_000))
    assert 0.6 * clients.budget.limit < clients.budget.used <= 0.75 * clients.budget.limit
    served = len(clients.served)
    for _ in range(10):
        feed(clients.add()[0], POST % 1000 + b"x" * 1000)
    assert len(clients.served) == served + 10


@pytest.mark.parametrize("share", [0.24, 0.26, 0.37])
async def test_a_body_that_comes_in_pieces_counts_once_when_it_is_whole(share: float) -> None:
    clients = Clients(400 * KIB)
    size = int(clients.budget.limit * share)
    assert clients.budget.fits(size)
    connection, wire = clients.add()
    feed(connection, POST % size)
    for at in range(0, size, 16 * KIB):
        feed(connection, b"x" * min(16 * KIB, size - at))
    assert clients.budget.used == clients.held == EACH + COPIES * size
    clients.answer()
    assert wire.sent.startswith(b"HTTP/1.1 200")
    assert (clients.budget.used, clients.budget.refused) == (0, 0)


LONG = b"".join(b"X-%d: %b\r\n" % (n, b"y" * 600) for n in range(90))


async def test_long_heads_count_with_their_requests_whole_or_not_and_those_of_somebody_unknown_are_dropped() -> None:
    clients = Clients(8 * 2**20)
    get = GET[:-2] + LONG + b"\r\n"
    connection, _ = clients.add()
    feed(connection, get)
    assert clients.budget.used == clients.held == EACH + len(get)
    clients.served[0].forget()
    assert clients.budget.used == clients.held == 0
    clients.answer()
    post = POST[:-2] % 10 + LONG + b"\r\n"
    feed(connection, post)
    assert clients.budget.used == clients.held == len(post)
    clients.known = False
    other, wire = clients.add()
    feed(other, post)
    assert clients.budget.used == len(post)
    assert other._reader._request is not None
    assert other._reader._request.headers == {}
    feed(other, b"x" * 10)
    await asyncio.sleep(0)
    assert wire.sent.startswith(b"HTTP/1.1 401")


async def test_what_waits_behind_an_open_path_counts_and_is_kept_of_nobody_unknown() -> None:
    clients = Clients(8 * 2**20)
    connection, _ = clients.add()
    feed(connection, GET * 4)
    assert clients.budget.used == clients.held == 3 * EACH
    clients.known = False
    other, wire = clients.add()
    feed(other, GET)
    for _ in range(10):
        feed(other, POST % 60_000 + b"x" * 60_000)
    feed(other, (POST % 9 + b"x" * 9) * 2)
    assert clients.budget.used == 3 * EACH
    for _ in range(20):
        clients.answer()
        await asyncio.sleep(0)
    assert wire.sent.count(b"HTTP/1.1 401") == 12
