"""What a body's texts take in memory is counted before they are made."""

import json
import sys
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from weft_router.errors import UnavailableError
from weft_router.http.budget import COPIES, EACH
from weft_router.http.exchange import Exchange
from weft_router.http.limits import HttpLimits
from weft_router.openai.nodes import AT_ONCE, MAX_NODES, SLICE
from weft_router.openai.widths import widening, widening_in_turns
from weft_router.roles.body_reader import read_body
from weft_router_tests import test_http_budget
from weft_router_tests.http_kit import feed
from weft_router_tests.test_http_budget import POST, Clients

MIB = 2**20
PLAIN = b"a" * 20_000
KINDS = [(b"", 0), ("é".encode(), 1), ("漢".encode(), 1), ("😀".encode(), 3), (rb"\u6f22", 1), (rb"\ud83d\ude00", 3)]
KINDS += [(rb"\uD83D\uDE00", 3), (rb"\ud55c", 1), (rb"\n", 0)]


def body(content: bytes) -> bytes:
    return b'{"prompt":"' + content + b'"}'


@pytest.fixture(autouse=True)
def long_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_http_budget, "LIMITS", HttpLimits())


def served(raw: bytes, limit: int = 64 * MIB) -> tuple[Clients, Exchange]:
    clients = Clients(limit)
    connection, _ = clients.add()
    feed(connection, POST % len(raw) + raw)
    return clients, clients.served[0]


@given(text=st.text(max_size=50), escaped=st.booleans())
@example(text="😀", escaped=True)
@example(text="\U0010ffff", escaped=False)
def test_no_text_is_wider_than_it_is_told_to_be(text: str, *, escaped: bool) -> None:
    text += "a" * 200
    raw = json.dumps(text, ensure_ascii=escaped).encode()
    assert sys.getsizeof(text) - 80 <= (1 + widening(raw)) * len(raw)


@pytest.mark.parametrize(("content", "wider"), KINDS)
async def test_what_one_character_makes_of_a_body_is_counted_until_the_answer(content: bytes, wider: int) -> None:
    for raw in (body(PLAIN + content), body(b"a" * AT_ONCE + content)):
        clients, exchange = served(raw)
        assert (await read_body(exchange, MAX_NODES))["prompt"]
        assert clients.budget.used == clients.held == EACH + (COPIES + wider) * len(raw)
        clients.answer()
        assert clients.budget.used == 0


async def test_a_body_whose_texts_have_no_room_is_refused_before_they_are_made() -> None:
    for size in (2 * MIB, AT_ONCE * 3 // 4):  # looked through in steps, and in one
        _, exchange = served(body(b"a" * size + "😀".encode()), 4 * size)
        tracemalloc.start()
        try:
            with pytest.raises(UnavailableError):
                await read_body(exchange, MAX_NODES)
            assert tracemalloc.get_traced_memory()[1] < size / 2
        finally:
            tracemalloc.stop()


async def test_short_bodies_are_not_looked_through() -> None:
    raw = body(b"a" * 1000 + "😀".encode())
    clients, exchange = served(raw)
    await read_body(exchange, MAX_NODES)
    assert clients.budget.used == EACH + COPIES * len(raw)


async def test_an_escape_across_two_slices_is_seen() -> None:
    for before in range(SLICE - 8, SLICE + 1):
        assert await widening_in_turns(b"a" * before + rb"\ud83d\ude00" + PLAIN) == 3
        assert await widening_in_turns(b"a" * before + "😀".encode() + PLAIN) == 3
