"""Tiers below the GPUs: what is evicted is found again, in the time that a load takes, with the same answers."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.kv_tiers import KVTier, KVWrites
from weft_mock.faults import Faults
from weft_mock.model import answer
from weft_mock.tiers import Tiers
from weft_mock.tokenizer import chat_ids, filler
from weft_mock_tests.engines import config, engines, profile
from weft_mock_tests.machine import SIZE, Machine

BYTES = profile().kv_bytes_per_token
BLOCK = SIZE * BYTES


def prompt(n: int, seed: int = 0) -> list[int]:
    return chat_ids([{"role": "user", "content": filler(n - 4, seed)}])


def cpu(blocks: int, *, tokens_per_s: float = 1e6, latency_s: float = 0.0) -> KVTier:
    return KVTier("cpu", blocks * BLOCK, tokens_per_s * BYTES, latency_s)


def disk(blocks: int, *, tokens_per_s: float = 1e5) -> KVTier:
    return KVTier("disk", blocks * BLOCK, tokens_per_s * BYTES)


def tiers(*which: KVTier) -> Tiers:
    return Tiers(which, block_size=SIZE, kv_bytes_per_token=BYTES)


def evicted_and_asked_again(
    *which: KVTier, faults: Faults | None = None, writes: KVWrites = "through"
) -> tuple[Machine, list[float], float]:
    """Fill a cache of 40 blocks with a prompt of 20, then with others, and send the first one again."""
    machine = Machine(tokens=40 * SIZE, tiers=which, writes=writes)
    machine.scheduler.tiers.faults = faults or Faults()
    first = machine.add(prompt(20 * SIZE), tokens=4)
    machine.run()
    for seed in (1, 2):
        machine.add(prompt(20 * SIZE, seed), tokens=4)
        machine.run()
    sent = machine.now
    again = machine.add(prompt(20 * SIZE), tokens=4)
    machine.run()
    assert machine.tokens(again) == machine.tokens(first) == answer(prompt(20 * SIZE), 4, ignore_eos=True)
    record = again.record
    assert record.computed + record.cached + record.loaded == record.prompt
    return machine, [record.loaded, record.history_recomputed], machine.times(again)[0] - sent


def test_without_a_tier_what_was_evicted_is_computed_again() -> None:
    _, (loaded, _), first_token_s = evicted_and_asked_again()
    assert loaded == 0
    assert first_token_s == pytest.approx(0.001 + 20 * SIZE * 1e-5)


def test_a_tier_gives_back_what_was_evicted_in_the_time_of_a_load() -> None:
    machine, (loaded, recomputed), first_token_s = evicted_and_asked_again(cpu(1000, latency_s=0.0002))
    assert (loaded, recomputed) == (19 * SIZE, 0), "the last block is computed: its step makes the first token"
    assert first_token_s == pytest.approx(0.0002 + 19 * SIZE * 1e-6 + 0.001 + SIZE * 1e-5)
    assert machine.scheduler.tiers.loaded == {"cpu": 19 * SIZE}


def test_written_on_eviction_a_tier_has_what_the_gpus_lost_and_nothing_else() -> None:
    """Room for what was evicted is enough; written through, the two prompts after it need the room, too."""
    machine, (loaded, _), first_token_s = evicted_and_asked_again(cpu(25), writes="eviction")
    assert loaded == 19 * SIZE
    assert first_token_s == pytest.approx(19 * SIZE * 1e-6 + 0.001 + SIZE * 1e-5)
    below = machine.scheduler.tiers
    assert not set(machine.pool._cached) & {key for one in below._tiers for key in one.states}
    _, (through, _), _ = evicted_and_asked_again(cpu(25))
    assert through == 0


def test_a_tier_that_takes_no_more_gives_nothing_back() -> None:
    machine, (loaded, _), first_token_s = evicted_and_asked_again(cpu(1000), faults=Faults(full_tiers=True))
    assert (loaded, machine.scheduler.tiers.stored.total()) == (0, 0)
    assert first_token_s == pytest.approx(0.001 + 20 * SIZE * 1e-5)


def test_a_load_that_fails_takes_its_time_and_the_tokens_are_computed() -> None:
    machine, (loaded, _), first_token_s = evicted_and_asked_again(cpu(1000), faults=Faults(fail_loads=True))
    assert (loaded, machine.scheduler.tiers.loaded.total()) == (0, 0)
    assert first_token_s == pytest.approx(19 * SIZE * 1e-6 + 0.001 + 20 * SIZE * 1e-5)


def test_a_slow_tier_gives_back_the_same() -> None:
    _, (loaded, _), first_token_s = evicted_and_asked_again(cpu(1000), faults=Faults(slow_loads=50))
    assert loaded == 19 * SIZE
    assert first_token_s == pytest.approx(50 * 19 * SIZE * 1e-6 + 0.001 + SIZE * 1e-5)


def test_what_does_not_fit_into_a_tier_goes_to_the_next() -> None:
    machine, (loaded, _), first_token_s = evicted_and_asked_again(cpu(5), disk(1000))
    assert loaded == 19 * SIZE
    assert machine.scheduler.tiers.loaded == {"disk": 19 * SIZE}
    assert first_token_s == pytest.approx(19 * SIZE * 1e-5 + 0.001 + SIZE * 1e-5)


def test_what_is_written_to_a_tier_is_counted_once() -> None:
    below = tiers(cpu(2), disk(10))
    for key in (1, 2, 3, 3, 2):
        below.put(key, key)
    assert below.stored == {"cpu": 3 * SIZE, "disk": SIZE}, "1 had to make room for 3; 3 and 2 were there"


def test_a_prompt_that_the_gpus_have_is_used_in_the_tier_too() -> None:
    """As vLLM's connector does: otherwise a session that stays on the GPUs for long would be the first to go."""
    machine = Machine(tokens=200 * SIZE, tiers=(cpu(45),))
    sent = []
    for seed in (0, 1, 0, 2):
        sent.append(machine.add(prompt(20 * SIZE, seed), tokens=1))
        machine.run()
    assert not machine.scheduler.tiers.loaded
    held = [len(machine.scheduler.tiers.prefix([one.key(k) for k in range(20)])) for one in sent]
    assert held == [20, 0, 20, 20]


def test_what_the_last_tier_has_no_room_for_is_computed_again() -> None:
    machine, (loaded, _), _ = evicted_and_asked_again(cpu(5))
    assert loaded == 0
    assert machine.scheduler.tiers.blocks() == {"cpu": 5}
    assert machine.scheduler.tiers.dropped > 0


def test_others_decode_while_a_load_lasts() -> None:
    machine = Machine(tokens=60 * SIZE, tiers=(cpu(1000, tokens_per_s=1e4),))
    machine.add(prompt(20 * SIZE), tokens=1)
    machine.run()
    machine.add(prompt(50 * SIZE, 1), tokens=1)
    machine.run()
    other = machine.add(prompt(2 * SIZE, 2), tokens=400)
    machine.step()
    again = machine.add(prompt(20 * SIZE), tokens=1)
    machine.run()
    assert again.record.loaded > 0
    times = machine.times(other)
    assert max(b - a for a, b in pairwise(times)) < 0.003, "a load stops nobody"


def test_a_request_that_is_dropped_while_it_loads_leaves_nothing_behind() -> None:
    machine = Machine(tokens=40 * SIZE, tiers=(cpu(1000, tokens_per_s=10.0),))
    for seed in (0, 1, 2):
        machine.add(prompt(20 * SIZE, seed), tokens=1)
        machine.run()
    again = machine.add(prompt(20 * SIZE), tokens=1)
    machine.scheduler.admit(machine.now)
    assert again in machine.scheduler.loading
    machine.scheduler.drop(again)
    machine.run()
    assert not machine.scheduler.loading
    assert machine.pool.used == 0


def test_loads_from_one_tier_come_one_after_the_other() -> None:
    below = tiers(cpu(100), disk(100))
    for key in range(10):
        below.put(key, key)
    assert below.load(below.prefix([0, 1]), 5.0, scale=2.0) == pytest.approx(5.0 + 2 * 2 * SIZE * 1e-6)
    assert below.load(below.prefix([2]), 5.0, scale=2.0) == pytest.approx(5.0 + 2 * 3 * SIZE * 1e-6)
    assert below.prefix([0, 99, 1]) == [0], "a run ends where a block is missing"


@given(st.lists(st.integers(0, 30), max_size=200), st.integers(1, 5), st.integers(1, 5))
def test_tiers_hold_the_blocks_that_were_last_used(keys: Sequence[int], above: int, under: int) -> None:
    below = tiers(cpu(above), disk(under))
    for key in keys:
        below.put(key, key)
    held = below.blocks()
    assert held["cpu"] <= above
    assert held["disk"] <= under
    latest = list(dict.fromkeys(reversed(keys)))
    assert all(below.prefix([key]) == [0] for key in latest[:above])
    assert all(below.prefix([key]) for key in latest[: above + min(under, 1)])


@pytest.mark.parametrize(
    ("which", "words"),
    [
        ((disk(10), cpu(10)), "each of cpu, disk, remote at most once, in this order"),
        ((cpu(10), cpu(10)), "each of cpu, disk, remote at most once, in this order"),
        ((KVTier("cpu", BYTES, 1.0),), "--kv-tier cpu: less than one block of 16 tokens"),
    ],
)
def test_tiers_that_cannot_be_are_refused_at_start(which: tuple[KVTier, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        config(kv_tiers=which)


@pytest.mark.component
async def test_pages_have_what_vllm_counts_of_its_tiers() -> None:
    which = (cpu(4), disk(100))
    async with engines(config(kv_tiers=which)) as (engine,):
        await engine.chat([{"role": "user", "content": "x " * 600}], max_tokens=4, ignore_eos=True)
        page = (await engine.get("/metrics"))[1].decode()
    found = {line.partition("{")[0] for line in page.splitlines()}
    names = {
        *("prompt_tokens_cached_by_source_total", "kv_offload_load_bytes_total", "kv_offload_store_bytes_total"),
        *("kv_offload_tiering_read_bytes_total", "kv_offload_tiering_write_bytes_total"),
    }
    assert {f"vllm:{name}" for name in names} <= found
    assert all(f'source="{source}"' in page for source in ("device", "host", "p2p", "disk", "external_unspecified"))
    assert 'tier="1:fs"' in page
