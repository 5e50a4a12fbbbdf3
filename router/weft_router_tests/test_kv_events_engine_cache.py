"""A worker's cache by events: which prompts it announces, and when it does not trust the events."""

import asyncio
from typing import Any

import msgspec
import pytest

from weft_core.heartbeat import WorkerRecord
from weft_core.kv_block_keys import START, block_keys, id_bytes, prompt_extras
from weft_core.kv_tiers import EVENTS_BLOCK_SIZE, EVENTS_DIFFER, EVENTS_LOST, EVENTS_MISSING
from weft_core.prefix_sketch import contains, covered, link_digest
from weft_router.kv_events.engine_cache import CHECK_S, DISAGREEMENTS, UNSIZED, EngineCache
from weft_router.kv_events.event_faults import SPREAD_S, TIMES, WINDOW_S
from weft_router.kv_events.prompt_links import MAX_OF_PROMPT, PromptLinks, ServedPrompt
from weft_router.kv_events.session_blocks import STRIDE, SessionBlocks
from weft_router.kv_events.wire import MalformedError
from weft_router.openai.token_ids import TokenIds
from weft_router.telemetry.metrics import Metrics
from weft_router_tests.stack import is_so, until

SIZE = 4
RECORD = WorkerRecord("w", "decode", "http://127.0.0.1:1", 1, 1000)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def prompt(ids: list[int], *links: str, scope: str = "t", salt: str | None = None, cached: int = 0) -> ServedPrompt:
    """Return a prompt whose links have equal shares of its tokens."""
    tokens = [len(ids) * (i + 1) // len(links) for i in range(len(links))]
    return ServedPrompt(
        f"session of {links[0]}", scope, links, tokens, TokenIds("I", ids), len(ids), prompt_extras(None, salt),
        len(ids) - cached,
    )  # fmt: skip


class Worker:
    """An engine cache without sockets: batches are handed to its ranks."""

    def __init__(self, *, ranks: int = 1) -> None:
        self.clock = Clock()
        self.cache = EngineCache(port=5400, ranks=ranks, metrics=Metrics(), limit=1000, clock=self.clock)

    def batch(self, *events: dict[str, Any], rank: int = 0) -> None:
        one = self.cache.ranks[rank]
        for _ in one.take(one.expected, msgspec.msgpack.encode([1.0, list(events)])):
            pass

    def store(self, ids: list[int], *, rank: int = 0, salt: str | None = None) -> list[int]:
        """Let the engine say that it stores a prompt; return the blocks' hashes."""
        hashes = block_keys(START, id_bytes(ids), SIZE, prompt_extras(None, salt))
        extras: list[list[str] | None] = [[salt] if salt else None, *[None] * (len(hashes) - 1)]
        self.batch(
            {
                "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None,
                "token_ids": ids[: len(hashes) * SIZE], "block_size": SIZE, "medium": "GPU", "extra_keys": extras,
            },
            rank=rank,
        )  # fmt: skip
        return hashes

    async def serve(self, served: ServedPrompt) -> None:
        await self.cache._take(served)

    def links(self, *links: str, scope: str = "t") -> int | None:
        """Return how many links of a prompt the next heartbeat has; None where it says nothing."""
        self.clock.now += CHECK_S
        sketch = self.cache.describe(RECORD).kv_prefixes
        return None if sketch is None else covered(sketch, [link_digest(scope, link) for link in links])


IDS = list(range(40))


async def test_prompts_that_the_engine_keeps_are_announced() -> None:
    worker = Worker()
    assert worker.links("system", "question") is None, "nothing is known yet"
    hashes = worker.store(IDS)
    await worker.serve(prompt(IDS, "system", "question"))
    assert worker.links("system", "question") == 2
    assert worker.links("system", "other") == 1
    assert worker.links("system", "question", scope="other tenant") == 0
    worker.batch({"type": "BlockRemoved", "block_hashes": hashes[:5:-1], "medium": "GPU"})
    assert worker.links("system", "question") == 1
    worker.batch({"type": "AllBlocksCleared"})
    assert worker.links("system", "question") == 0


async def test_salts_count() -> None:
    worker = Worker()
    worker.store(IDS, salt="pepper")
    await worker.serve(prompt(IDS, "system", salt="salt"))
    await worker.serve(prompt(IDS, "question", salt="pepper"))
    assert worker.links("system") == 0
    assert worker.links("question") == 1


async def test_events_that_disagree_with_the_rounds_do_not_count(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker()
    worker.store(IDS)
    await worker.serve(prompt(IDS, "a"))
    assert worker.links("a") == 1
    for number in range(DISAGREEMENTS):
        assert worker.links("a") == 1
        await worker.serve(prompt([100 + number] * 8, "b"))  # no event says that it is stored
    assert worker.links("a") is None
    assert "kv_events_disagree" in caplog.messages
    worker.store([7] * 8)
    await worker.serve(prompt([7] * 8, "c"))
    assert worker.links("a") == 1


def faults(worker: Worker) -> list[str]:
    worker.clock.now += SPREAD_S / 2
    return [kind for kind, _ in worker.cache.describe(RECORD).kv_tier_faults]


async def test_an_engine_that_publishes_nothing_is_a_fault_once_it_serves() -> None:
    worker, long = Worker(), list(range(UNSIZED))
    for _ in range(DISAGREEMENTS):
        await worker.serve(prompt([1] * 20, "short"))
        await worker.serve(prompt(long, "again", cached=UNSIZED - 1))
        assert faults(worker) == [], "neither makes a new block for sure"
    for number in range(DISAGREEMENTS):
        assert faults(worker) == []
        await worker.serve(prompt(long, f"s{number}"))
    assert faults(worker) == [EVENTS_MISSING]
    worker.cache.lost()
    assert faults(worker) == [], "another engine"
    await worker.serve(prompt(long, "first"))
    worker.store(long)
    assert faults(worker) == [], "its events come a moment after the first prompt"


async def test_prompts_that_are_missing_for_a_moment_are_no_fault() -> None:
    worker = Worker()
    worker.store(IDS)
    for number in range(2 * DISAGREEMENTS):
        await worker.serve(prompt([100 + number] * 8, "b"))
    for _ in range(TIMES):
        assert faults(worker) == [], "all were served in one moment"


async def test_events_that_stop_and_events_of_other_prompts_are_different_faults() -> None:
    worker = Worker()
    worker.store(IDS)
    await worker.serve(prompt(IDS, "a"))
    for number in range(DISAGREEMENTS):
        assert faults(worker) == []
        await worker.serve(prompt([100 + number] * 8, "b"))
    assert faults(worker) == [EVENTS_MISSING]
    worker.store([200] * 8)
    assert faults(worker) == [EVENTS_DIFFER]
    await worker.serve(prompt([200] * 8, "c"))
    assert faults(worker) == []


async def test_blocks_of_several_sizes_are_a_fault_while_they_come() -> None:
    worker = Worker()
    worker.store(IDS)
    other = {
        "type": "BlockStored", "block_hashes": [9], "parent_block_hash": None, "token_ids": [7] * 8,
        "block_size": 8, "medium": "GPU", "extra_keys": [None],
    }  # fmt: skip
    for _ in range(TIMES):
        assert faults(worker) == []
        worker.batch(other)
    assert faults(worker) == [EVENTS_BLOCK_SIZE]
    ((_, words),) = worker.cache.describe(RECORD).kv_tier_faults
    assert words == f"{SIZE} tokens"
    worker.clock.now += WINDOW_S
    assert faults(worker) == []


async def test_events_that_are_lost_again_and_again_are_a_fault() -> None:
    worker = Worker(ranks=2)
    first, second = worker.cache.ranks
    first.forget(5)
    worker.batch({"type": "AllBlocksCleared"})
    worker.cache.lost()
    first.restart(7)
    assert faults(worker) == [], "a new engine, and a cache that was cleared, are none"
    with pytest.raises(MalformedError):
        next(second.take(1, b"?"))
    assert faults(worker) == [EVENTS_LOST]
    worker.clock.now += WINDOW_S
    assert faults(worker) == []


async def test_an_engine_that_is_gone_keeps_nothing() -> None:
    worker = Worker()
    worker.store(IDS)
    await worker.serve(prompt(IDS, "a"))
    assert worker.links("a") == 1
    worker.cache.lost()
    assert worker.links("a") is None
    assert worker.cache.ranks[0].place(5) == "gap", "whatever engine comes, it is asked for all it has"


async def test_of_several_ranks_all_must_keep_a_prompt() -> None:
    worker = Worker(ranks=2)
    worker.store(IDS, rank=1)
    await worker.serve(prompt(IDS, "a"))
    assert worker.links("a") == 0, "the next session may come to the other rank"
    worker.store(IDS, rank=0)
    assert worker.links("a") == 1


async def test_gauges_say_what_is_kept() -> None:
    worker = Worker()
    metrics = worker.cache._metrics
    worker.store(IDS)
    worker.cache.observe()
    assert metrics.kv_events_blocks.labels("gpu").value == 10
    assert metrics.kv_events_trusted.labels().value == 0
    worker.batch({"type": "BlockMoved"})
    assert metrics.kv_events_refused.labels("unknown-event").value == 1


async def test_of_each_session_it_is_known_how_much_is_kept() -> None:
    worker = Worker()
    ids = list(range(100))
    hashes = worker.store(ids)
    await worker.serve(prompt(ids, "a"))
    session = "session of a"
    assert worker.cache.kept_tokens(session) is None, "events are not trusted yet"
    assert worker.links("a") == 1
    assert worker.cache.kept_tokens(session) is None, "nothing is gone"
    assert worker.cache.kept_tokens("another") is None
    worker.batch({"type": "BlockRemoved", "block_hashes": hashes[:19:-1], "medium": "GPU"})
    assert worker.cache.kept_tokens(session) == 20 * SIZE, "20 of 25 blocks"
    worker.batch({"type": "BlockRemoved", "block_hashes": hashes[19::-1], "medium": "GPU"})
    assert worker.cache.kept_tokens(session) == 0
    short = prompt(ids[:8], "short")
    await worker.serve(short)
    assert worker.cache.kept_tokens("session of short") is None, "too short to be remembered"


async def test_of_each_session_it_is_known_what_a_tier_would_give_back() -> None:
    worker = Worker(ranks=2)
    ids, session = list(range(100)), "session of a"
    hashes = worker.store(ids, rank=1)
    await worker.serve(prompt(ids, "a"))
    assert worker.links("a") == 0, "rank 0 has it not"
    assert worker.cache.in_tiers(session) == ("gpu", 0)
    for medium, count in (("CPU", 8), ("STORAGE", 19)):
        stored = {"type": "BlockStored", "block_hashes": hashes[:count], "parent_block_hash": None, "token_ids": []}
        worker.batch({**stored, "block_size": 0, "medium": medium}, rank=1)
    assert worker.cache.in_tiers(session) == ("disk", 2 * STRIDE * SIZE), "19 of 25 blocks, to a multiple of 8"
    assert worker.cache.in_tiers(session, 1) == ("disk", 2 * STRIDE * SIZE)
    assert worker.cache.in_tiers(session, 0) == ("gpu", 0)
    worker.batch({"type": "BlockRemoved", "block_hashes": hashes[8:], "medium": "STORAGE"}, rank=1)
    assert worker.cache.in_tiers(session) == ("cpu", STRIDE * SIZE)
    assert worker.cache.in_tiers("another") == ("gpu", 0)


async def test_where_each_token_of_a_session_is() -> None:
    """Worked by hand: 25 whole blocks and 2 tokens, of which 5 blocks are dropped and 12 moved to the CPU's memory."""
    worker = Worker()
    ids, session = list(range(102)), "session of a"
    hashes = worker.store(ids)
    await worker.serve(prompt(ids, "a"))
    assert await worker.cache.places(session, tokens=102, pinned=True) is None, "events are not trusted yet"
    assert worker.links("a") == 1
    whole = {"gpu": 100, "cpu": 0, "disk": 0, "remote": 0, "none": 2}
    assert await worker.cache.places(session, tokens=102, pinned=False) == whole
    assert await worker.cache.places(session, tokens=102, pinned=True) == {**whole, "gpu": 102, "none": 0}
    assert await worker.cache.places(session, tokens=104, pinned=True) is None, "not the prompt that is remembered"
    assert await worker.cache.places("another", tokens=102, pinned=True) is None
    worker.batch(
        {"type": "BlockStored", "block_hashes": hashes[:20], "parent_block_hash": None, "token_ids": [],
         "block_size": 0, "medium": "CPU"},
        {"type": "BlockRemoved", "block_hashes": hashes[8:], "medium": "GPU"},
    )  # fmt: skip
    assert await worker.cache.places(session, tokens=102, pinned=False) == {
        "gpu": 32, "cpu": 48, "disk": 0, "remote": 0, "none": 22,
    }  # fmt: skip


async def test_what_has_to_be_loaded_is_told_by_tier() -> None:
    """The sketch of a tier has the links whose last block is there; a session's tokens count in steps of 8 blocks."""
    worker = Worker()
    ids = list(range(100))
    hashes = worker.store(ids)
    await worker.serve(prompt(ids, "system", "question"))
    assert worker.links("system", "question") == 2
    assert worker.cache.below("session of system") == {}
    tier: dict[str, Any] = {"type": "BlockStored", "parent_block_hash": None, "token_ids": [], "block_size": 0}
    worker.batch(
        {**tier, "block_hashes": hashes[:20], "medium": "CPU"},
        {**tier, "block_hashes": hashes[20:], "medium": "STORAGE", "locality": "LOCAL"},
        {"type": "BlockRemoved", "block_hashes": hashes[8:], "medium": "GPU"},
    )
    record = worker.cache.describe(RECORD)
    links = [link_digest("t", link) for link in ("system", "question")]
    assert covered(record.kv_prefixes or "", links) == 2
    assert [(name, [contains(sketch, link) for link in links]) for name, sketch in record.kv_tier_prefixes] == [
        ("cpu", [True, False]), ("disk", [False, True]),
    ]  # fmt: skip
    assert worker.cache.below("session of system") == {"cpu": 32, "disk": 32}, "blocks 16 and 24 of 25"
    worker.batch({"type": "BlockRemoved", "block_hashes": hashes[15:16], "medium": "CPU"})
    assert worker.cache.below("session of system") == {}, "what is behind a gap cannot be loaded"


async def test_a_session_is_counted_on_its_rank() -> None:
    worker = Worker(ranks=2)
    worker.store(IDS[:16], rank=0)
    worker.store(IDS, rank=1)
    await worker.serve(prompt(IDS, "a"))
    worker.links("a")
    found = [await worker.cache.places("session of a", tokens=40, pinned=False, rank=rank) for rank in (0, 1, None)]
    assert [one and one["gpu"] for one in found] == [16, 40, 40]
    assert [worker.cache.kept_tokens("session of a", rank) for rank in (0, 1, None)] == [16, None, None]


def test_sessions_are_bounded() -> None:
    sessions = SessionBlocks(limit=2)
    for name in ("a", "b", "a", "c"):
        sessions.record(name, range(1, 100))
    assert [sessions.kept(name, lambda _: False) for name in "abc"] == [0, None, 0]


def test_of_older_sessions_fewer_blocks_are_remembered() -> None:
    sessions = SessionBlocks(limit=3, keys=250)
    for name in "abc":
        sessions.record(name, range(1, 101))
    assert [len(sessions.keys(name) or ()) for name in "abc"] == [0, 100, 100]
    assert [sessions.kept(name, lambda key: key <= 50) for name in "abc"] == [48, 50, 50]
    sessions.record("a", range(1, 21))
    assert [len(sessions.keys(name) or ()) for name in "abc"] == [20, 100, 100]
    sessions.record("d", range(1, 20))
    assert [len(sessions.keys(name) or ()) for name in "abcd"] == [20, 0, 100, 19], "b was used longest ago"
    sessions.record("e", range(1, 1000))
    assert sessions.keys("e") is None, "too long by itself"


@pytest.mark.component
async def test_served_prompts_are_taken_in_beside_events() -> None:
    worker = Worker()
    worker.store(IDS)
    task = asyncio.create_task(worker.cache.run())
    worker.cache.served(prompt(IDS, "a"))
    await until(lambda: is_so(len(worker.cache._links) == 1))
    task.cancel()
    await asyncio.wait([task])
    assert worker.links("a") == 1


def of_no_session(_: str) -> None:
    return None


def test_links_are_bounded_and_go_from_the_ends_of_old_prompts() -> None:
    links = PromptLinks(limit=3)
    keys = block_keys(START, id_bytes(IDS), SIZE)
    links.record(prompt(IDS, "s", "a", "b"), keys, SIZE, of_no_session)
    links.record(prompt(IDS, "s", "c"), keys, SIZE, of_no_session)
    known = set(links.cached(lambda _: True))
    assert known == {link_digest("t", link) for link in "sac"}
    links.record(prompt(IDS, *map(str, range(100))), keys, SIZE, of_no_session)
    assert len(links) == 3
    long = PromptLinks()
    long.record(prompt(IDS, *map(str, range(100))), keys, SIZE, of_no_session)
    assert len(long) == MAX_OF_PROMPT


def test_a_message_ends_a_little_before_its_share_of_the_tokens() -> None:
    keys = block_keys(START, id_bytes(IDS), SIZE)
    asked: list[int] = []
    links = PromptLinks()
    links.record(prompt(IDS, "s", "q"), keys, SIZE, of_no_session)

    def kept(key: int) -> bool:
        asked.append(key)
        return True

    links.cached(kept)
    assert asked == [keys[9], keys[3]], "19 of 20 tokens: 4 blocks; 40 of 40: 10"


def others(first: int, *links: str, session: str) -> ServedPrompt:
    """Return a prompt of 100 tokens of which the first so many are those of every prompt alike."""
    ids = [*range(first), *([1000 + sum(session.encode())] * (100 - first))]
    return prompt(ids, *links)._replace(session=session)


def end_of_system(links: PromptLinks) -> int:
    """Return how many blocks are before the end of the system prompt."""
    return links.cached_blocks("t", ["system", "?"], of_no_session, kept=len, whole=lambda _: True)


def test_a_message_ends_where_the_ids_of_two_sessions_part() -> None:
    links, sessions = PromptLinks(), SessionBlocks()

    def record(served: ServedPrompt) -> None:
        keys = block_keys(START, id_bytes(served.ids), SIZE)
        links.record(served, keys, SIZE, sessions.keys)
        sessions.record(served.session, keys)

    record(others(70, "system", "a", session="a"))
    assert end_of_system(links) == 11, "by its share of the characters, a half, less 5 %: 47 tokens"
    record(others(70, "system", "a", "more", session="a"))
    assert end_of_system(links) == 7, "a third of the tokens; its own session says nothing"
    record(others(70, "system", "b", session="b"))
    assert end_of_system(links) == 17, "70 tokens"
    record(others(80, "system", "c", session="c"))
    assert end_of_system(links) == 17
    record(others(72, "system", "c", "d", session="d"))
    assert end_of_system(links) == 17, "what two questions share is not of the system prompt"
    record(others(60, "system", "e", session="e"))
    assert end_of_system(links) == 15, "its last ids were those of a question"
    record(others(20, "system", session="f")._replace(tokens=[100]))
    assert end_of_system(links) == 25, "other ids under the same digest, as of a new chat template"


async def test_what_the_engine_will_find_cached_is_known_to_a_block() -> None:
    worker = Worker()
    ids = list(range(100))
    hashes = worker.store(ids)
    await worker.serve(prompt(ids, "system", "question"))

    def expected(*chain: str, session: str = "session of system", continues: bool = False) -> int | None:
        return worker.cache.expected_tokens(session, "t", chain, continues=continues)

    assert expected("system") is None, "events are not trusted yet"
    assert worker.links("system", "question") == 2
    assert expected(continues=True) == 100
    assert expected("system", "other", session="new") == 44, "a half of the tokens, less 5 %"
    assert expected("other", session="new") == 0
    worker.batch({"type": "BlockRemoved", "block_hashes": hashes[:12:-1], "medium": "GPU"})
    assert expected(continues=True) == 52
    assert expected("system", "question", session="new") == 52, "the question is not whole any more"
    worker.batch({"type": "BlockRemoved", "block_hashes": hashes[12::-1], "medium": "GPU"})
    assert expected(continues=True) == 0
    assert expected("system", session="new") == 0


async def test_of_ranks_with_different_caches_a_new_session_counts_on_the_least() -> None:
    worker = Worker(ranks=2)
    worker.store(IDS[:16], rank=0)
    worker.store(IDS, rank=1)
    await worker.serve(prompt(IDS, "a"))
    worker.links("a")

    def expected(rank: int | None, session: str, *chain: str) -> int | None:
        return worker.cache.expected_tokens(session, "t", chain, continues=not chain, rank=rank)

    assert [expected(rank, "session of a") for rank in (0, 1, None)] == [16, 40, 40]
    assert [expected(rank, "new", "a") for rank in (0, 1, None)] == [16, 40, 16]
