"""When sessions return, by class and tool, and which handles a full engine gets back for it."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from weft_core.heartbeat import WorkerRecord
from weft_core.kv_tiers import SPEEDS
from weft_core.policies.retention import note_return
from weft_router.engines.handles import KvHandle
from weft_router.openai.prompt_history import history_of
from weft_router.sessions.return_times import (
    LONGEST_NAME,
    MOST_KINDS,
    ReturnTimes,
    awaited_tool,
    handle_value,
)
from weft_router.sessions.session_table import CONSIDERED, SessionTable
from weft_router_tests.test_session_export import Costs
from weft_router_tests.test_session_table import FIRST, Clock, begin, chat, handle

READER = WorkerRecord("p0", "prefill", "http://x", 1, 1000)


def nowhere(_session: str) -> tuple[str, int]:
    return "", 0


def by_rate(_session: str, _tokens: int, rate: float) -> float:
    return rate


def test_sessions_of_one_class_and_tool_are_learned_together() -> None:
    times = ReturnTimes()
    assert times.counts("gold", "search") is times.counts("gold", "search")
    assert times.counts("gold", "search") is not times.counts("gold", "")
    assert times.counts("gold", "search") is not times.counts("default", "search")


def test_tools_beyond_the_bound_count_with_no_tool() -> None:
    times = ReturnTimes()
    for number in range(2 * MOST_KINDS):
        note_return(times.counts("gold", f"tool{number}"), 1.0)
    assert times.counts("gold", f"tool{2 * MOST_KINDS}") is times.counts("gold", "")
    assert times.counts("gold", "tool0") is not times.counts("gold", "")
    assert sum(times.counts("gold", "")) == MOST_KINDS


@pytest.mark.parametrize(
    ("calls", "tool"),
    [
        ({}, ""),
        ({0: {"function": {"name": "read", "arguments": "{}"}}, 1: {"function": {"name": "write"}}}, "read"),
        ({0: {"type": "function_call", "name": "read"}}, "read"),
        ({0: {"function": {"name": 5}}}, ""),
        ({0: {"type": "web_search_call"}}, ""),
        ({0: {"function": {"name": "x" * 100}}}, "x" * LONGEST_NAME),
    ],
)
def test_a_session_waits_for_the_first_tool_that_its_answer_calls(calls: dict[int, Any], tool: str) -> None:
    assert awaited_tool(calls) == tool


@pytest.mark.parametrize(("read_s", "value"), [(0.25, 2.0 * 0.75 / 100), (1.5, 0.0), (None, 2.0)])
def test_a_handle_is_worth_what_reading_saves(read_s: float | None, value: float) -> None:
    """Computing takes a second; what no profile knows is compared by the rate alone."""
    settings: Any = SimpleNamespace(degree=1, profile_of=lambda _: Costs(read_s))
    found = handle_value("a", 100, 2.0, settings=settings, readers=lambda: [READER], in_tier=nowhere)
    assert found == pytest.approx(value)


@pytest.mark.parametrize(
    ("held", "lost_s"),
    [(100, 0.1), (1000, 0.1), (60, 1.0), (0, 1.0)],
    ids=["all", "more than the handle", "a part", "nothing"],
)
def test_what_a_tier_has_is_not_lost_with_the_handle(held: int, lost_s: float) -> None:
    """A load of 100 tokens takes 0.1 s; what the tier does not have takes a second, as all of it does."""
    engine = SimpleNamespace(tier_speeds=lambda: SPEEDS)
    settings: Any = SimpleNamespace(degree=1, profile_of=lambda _: Costs(0.05), config=SimpleNamespace(engine=engine))
    asked: list[str] = []

    def tier(session: str) -> tuple[str, int]:
        asked.append(session)
        return "cpu", held

    found = handle_value("a", 100, 2.0, settings=settings, readers=lambda: [READER], in_tier=tier)
    assert found == pytest.approx(2.0 * (lost_s - 0.05) / 100)
    assert asked == ["a"]


def test_without_a_reader_the_rate_alone_counts() -> None:
    settings: Any = SimpleNamespace()
    assert handle_value("a", 100, 2.0, settings=settings, readers=list, in_tier=nowhere) == 2.0


class Table:
    """Sessions of one worker, each of which has a handle for a minute after its round."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.sessions = SessionTable(ttl_s=600, clock=self.clock)
        self.seen = history_of(chat(FIRST))

    def finish(self, key: str, tool: str = "") -> KvHandle:
        kept = handle(self.clock.now + 60)
        self.sessions.finish(key, prompt_history=self.seen, tokens=1, chars=4, handle=kept, prefilled={}, tool=tool)
        return kept

    def learn(self, tool: str, gap_s: float, times: int = 20) -> None:
        for _ in range(times):
            self.finish("teacher", tool)
            self.clock.now += gap_s
            begin(self.sessions, FIRST, "teacher")


def test_before_anything_is_learned_the_longest_idle_gives_first() -> None:
    table = Table()
    handles = []
    for key in ("a", "b", "c"):
        handles.append(table.finish(key))
        table.clock.now += 3
    assert table.sessions.yield_handles(2, by_rate) == handles[:2]
    assert table.sessions.yield_handles(2, by_rate) == handles[2:]
    assert table.sessions.yield_handles(2, by_rate) == []


def test_sessions_that_wait_for_a_quick_tool_keep_their_handles() -> None:
    table = Table()
    table.learn("search", 4.0)
    table.learn("build", 300.0)
    searching = table.finish("a", "search")
    table.clock.now += 2
    building = table.finish("b", "build")
    table.clock.now += 1
    assert table.sessions.yield_handles(1, by_rate) == [building], "it returns after the handle has ended"
    assert table.sessions.yield_handles(1, by_rate) == [searching]


def test_sessions_that_ended_without_another_round_make_their_kind_worth_less() -> None:
    table = Table()
    table.learn("search", 4.0)
    table.learn("", 4.0)
    for number in range(100):
        table.finish(f"e{number}")
        table.sessions.close(f"e{number}")
    searching = table.finish("a", "search")
    text = table.finish("b")
    assert table.sessions.yield_handles(1, by_rate) == [text]
    assert table.sessions.yield_handles(1, by_rate) == [searching]


def test_a_session_that_expires_did_not_return() -> None:
    table = Table()
    table.finish("a", "search")
    table.clock.now += 601
    table.sessions.expire()
    counts = table.sessions.return_times.counts("", "search")
    assert (sum(counts), counts[-1]) == (1.0, 1.0)


def test_a_return_counts_once() -> None:
    table = Table()
    table.finish("a", "search")
    table.clock.now += 3
    begin(table.sessions, FIRST, "a")
    begin(table.sessions, FIRST, "a")
    table.sessions.close("a")
    counts = table.sessions.return_times.counts("", "search")
    assert (sum(counts), counts[-1]) == (1.0, 0.0)


def test_of_very_many_handles_only_those_of_the_longest_idle_sessions_are_compared() -> None:
    table = Table()
    for number in range(CONSIDERED + 10):
        table.finish(str(number))
    assert len(table.sessions.yield_handles(10 * CONSIDERED, by_rate)) == CONSIDERED


def test_a_handle_that_has_ended_is_not_yielded() -> None:
    table = Table()
    table.finish("a")
    table.clock.now += 61
    assert table.sessions.yield_handles(1, lambda _, __, rate: -math.inf + rate) == []
