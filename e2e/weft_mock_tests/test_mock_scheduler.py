from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_core.parallelism import degree_of
from weft_mock.engine import Engine
from weft_mock.model import answer
from weft_mock.sequence import Sequence
from weft_mock.tokenizer import chat_ids, filler
from weft_mock_tests.engines import config, profile
from weft_mock_tests.machine import REMOTE, Machine


def prompt(n: int, seed: int = 0) -> list[int]:
    return chat_ids([{"role": "user", "content": filler(n - 4, seed)}])


def test_prompts_have_the_length_the_tests_say() -> None:
    assert len(prompt(100)) == 100


def test_one_request_takes_the_profile_s_time() -> None:
    machine = Machine()
    sequence = machine.add(prompt(100), tokens=5)
    machine.run()
    first = 0.001 + 100 * 1e-5
    assert machine.times(sequence) == pytest.approx([first + k * 0.001 for k in range(5)])
    assert machine.tokens(sequence) == answer(prompt(100), 5, ignore_eos=True)
    assert machine.pool.used == 0


def test_a_whole_prefill_pauses_decoding() -> None:
    machine = Machine()
    first = machine.add(prompt(20), tokens=50)
    for _ in range(5):
        machine.step()
    machine.add(prompt(1000, 1), tokens=1)
    machine.run()
    times = machine.times(first)
    gaps = [b - a for a, b in pairwise(times)]
    assert max(gaps) == pytest.approx(0.001 + 0.001 + 1000 * 1e-5)
    assert sum(gap > 0.0011 for gap in gaps) == 1


def test_chunks_bound_the_gap_between_tokens() -> None:
    machine = Machine(chunk=100)
    first = machine.add(prompt(20), tokens=50)
    for _ in range(5):
        machine.step()
    second = machine.add(prompt(1000, 1), tokens=2)
    machine.run()
    times = machine.times(first)
    gaps = [b - a for a, b in pairwise(times)]
    assert max(gaps) == pytest.approx(0.001 + 99 * 1e-5), "the decode takes one of the step's tokens"
    assert sum(gap > 0.0011 for gap in gaps) == 11
    assert machine.tokens(second) == answer(prompt(1000, 1), 2, ignore_eos=True)


def test_decoding_is_batched() -> None:
    machine = Machine()
    for seed in range(8):
        machine.add(prompt(20, seed), tokens=11)
    machine.run()
    prefills = 8 * (0.001 + 20 * 1e-5)
    assert machine.now == pytest.approx(prefills + 10 * 0.001)


def test_the_prefix_cache_shortens_the_next_round() -> None:
    machine = Machine()
    history = prompt(100)
    machine.add(history, tokens=20)
    machine.run()
    following = history + answer(history, 20, ignore_eos=True) + [2, 4, 99, 2, 5]
    sequence = machine.add(following, tokens=1)
    machine.run()
    # 119 tokens had their KV: seven full blocks of it are found again.
    assert sequence.record.cached == 112
    assert sequence.record.computed == len(following) - 112
    assert machine.tokens(sequence) == answer(following, 1)


def test_salts_keep_prefixes_apart() -> None:
    machine = Machine()
    for salt in (0, 7):
        sequence = machine.add(prompt(100), tokens=1, salt=salt)
        machine.run()
        assert sequence.record.cached == 0
    assert machine.add(prompt(100), salt=7) is not None
    machine.run()
    assert machine.ledger.preemptions == 0


def test_admission_waits_in_order_while_the_pool_is_full() -> None:
    machine = Machine(tokens=320)
    first = machine.add(prompt(200), tokens=20)
    second = machine.add(prompt(150, 1), tokens=2)
    small = machine.add(prompt(20, 2), tokens=2)
    machine.step()
    assert list(machine.scheduler.waiting) == [second, small]
    machine.run()
    assert machine.times(second)[0] > machine.times(first)[-1]
    assert machine.times(small)[0] > machine.times(second)[0]
    assert machine.pool.used == 0


def test_the_batch_is_bounded() -> None:
    machine = Machine(batch=2)
    for seed in range(3):
        machine.add(prompt(20, seed), tokens=4)
    machine.step()
    assert len(machine.scheduler.waiting) == 1
    machine.run()


def test_a_dry_pool_preempts_the_youngest_and_answers_stay_right() -> None:
    machine = Machine(tokens=128)
    old = machine.add(prompt(60), tokens=50)
    young = machine.add(prompt(60, 1), tokens=50)
    machine.run()
    assert machine.ledger.preemptions >= 1
    assert machine.ledger.recomputed_after_preemption_tokens > 0
    for sequence, seed in ((old, 0), (young, 1)):
        assert machine.tokens(sequence) == answer(prompt(60, seed), 50, ignore_eos=True)
        assert sequence.record.computed == 60
    assert machine.times(old)[-1] < machine.times(young)[-1]
    assert machine.pool.used == 0


def test_kept_blocks_are_pinned_and_hold_what_was_computed() -> None:
    machine = Machine()
    sequence = machine.add(prompt(40), tokens=20, keep="decode")
    machine.run()
    pin = machine.pins.get(sequence.request_id)
    assert list(pin.ids) == sequence.tokens[:59]
    assert len(pin.blocks) == 4
    assert machine.pool.used == 4
    assert pin.states() == sequence.states[:3]
    machine.pins.release(sequence.request_id)
    assert machine.pool.used == 0


def test_history_is_read_and_only_the_rest_is_computed() -> None:
    machine = Machine()
    sequence = machine.add(prompt(120), tokens=2, source=REMOTE)
    assert machine.scheduler.admit(0.0).fetch == [sequence]
    assert machine.scheduler.plan() is None
    machine.scheduler.fetched(sequence, 90, 0.0)
    machine.run()
    record = sequence.record
    assert (record.read, record.computed, record.cached) == (90, 30, 0)
    assert (record.history, record.history_recomputed) == (90, 0)
    assert machine.tokens(sequence) == answer(prompt(120), 2)
    assert machine.times(sequence)[0] == pytest.approx(0.001 + 30 * 1e-5)


def test_a_step_is_ready_since_its_request_came_or_its_history_was_read() -> None:
    machine = Machine()
    late, read = machine.add(prompt(40), tokens=1), machine.add(prompt(120), tokens=1, source=REMOTE)
    machine.now = 5.0  # the engine looks only now
    machine.scheduler.admit(machine.now)
    first = machine.scheduler.plan()
    assert first is not None
    assert (late.ready, first.ready) == (0.0, 0.0)
    machine.scheduler.finish(first, machine.now)
    machine.scheduler.fetched(read, 90, 3.0)
    second = machine.scheduler.plan()
    assert second is not None
    assert second.ready == read.ready == 3.0


def test_a_step_that_had_to_wait_for_blocks_is_ready_when_it_got_them() -> None:
    machine = Machine(tokens=64)
    machine.add(prompt(60), tokens=1)
    waiting = machine.add(prompt(50, 7), tokens=1)
    machine.step()
    machine.now = 5.0
    machine.scheduler.admit(machine.now)
    step = machine.scheduler.plan()
    assert step is not None
    assert step.ready == waiting.ready == 5.0


def test_an_import_computes_the_last_token_only() -> None:
    machine = Machine()
    sequence = machine.add(prompt(90), tokens=3, source=REMOTE, importing=True)
    machine.scheduler.admit(0.0)
    machine.scheduler.fetched(sequence, 90, 0.0)
    machine.run()
    assert (sequence.record.read, sequence.record.computed) == (89, 1)
    assert machine.times(sequence) == pytest.approx([0.001, 0.002, 0.003])
    assert machine.tokens(sequence) == answer(prompt(90), 3)


def test_a_short_history_is_computed_when_the_threshold_says_so() -> None:
    machine = Machine(threshold=90)
    sequence = machine.add(prompt(120), tokens=1, source=REMOTE)
    admission = machine.scheduler.admit(0.0)
    assert admission.fetch == []
    assert admission.release == [REMOTE]
    machine.run()
    assert sequence.record.history_recomputed == 90


def test_what_was_read_waits_for_a_place_and_goes_before_what_came_later() -> None:
    machine = Machine(batch=1)
    running = machine.add(prompt(20), tokens=6)
    machine.step()
    assert machine.scheduler.admit(machine.now).fetch == [], "no KV is fetched while the batch is full"
    machine.run()
    reads = [machine.add(prompt(90, seed), tokens=2, source=REMOTE, importing=True) for seed in (1, 2)]
    assert machine.scheduler.admit(machine.now).fetch == reads, "reading takes no place"
    late = machine.add(prompt(30, 3), tokens=1)
    machine.step()
    assert machine.scheduler.running == []
    for sequence in reads:
        machine.scheduler.fetched(sequence, 90, machine.now)
    assert (machine.scheduler.running, machine.scheduler.queued) == ([reads[0]], 1)
    machine.scheduler.drop(machine.add(prompt(5), tokens=1))
    machine.run()
    times = [machine.times(sequence) for sequence in (running, late, *reads)]
    assert max(times[2]) < min(times[3])
    assert machine.pool.used == 0


def test_a_long_prefill_leaves_nobody_a_token_until_its_last_chunk() -> None:
    machine = Machine(chunk=100)
    first = machine.add(prompt(250), tokens=3)
    second = machine.add(prompt(20, 1), tokens=3)
    shared = 0.001 + 1e-5 * (50 + 20)
    machine.run()
    start = 2 * (0.001 + 1e-5 * 100)
    for sequence in (first, second):
        assert machine.times(sequence) == pytest.approx([start + shared + k * 0.001 for k in range(3)])


def test_the_steps_of_a_prefill_engine_are_prefills_of_all_their_chunks() -> None:
    machine = Machine(chunk=150, prefill_only=True, costs=profile(decode=0.5))
    several = [machine.add(prompt(60, seed), tokens=1) for seed in range(2)]
    machine.run()
    for sequence in several:
        assert machine.times(sequence) == pytest.approx([0.001 + 120 * 1e-5])


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(5, 90), st.integers(1, 40), st.integers(0, 2), st.booleans()), min_size=1, max_size=8
    ),
    st.sampled_from([None, 1, 16, 50]),
    st.sampled_from([160, 256, 2048]),
    st.lists(st.integers(0, 60), max_size=3),
)
def test_every_answer_is_right_and_no_block_is_lost(
    work: list[tuple[int, int, int, bool]], chunk: int | None, tokens: int, cancels: Iterable[int]
) -> None:
    machine = Machine(tokens=tokens, chunk=chunk)
    sequences: list[Sequence] = []
    for length, count, seed, keep in work:
        sequences.append(machine.add(prompt(length, seed), tokens=count, keep="prefill" if keep else None))
    dropped: set[Sequence] = set()
    for at in sorted(cancels):
        for _ in range(at):
            machine.step()
        victim = sequences[at % len(sequences)]
        if victim.live:
            machine.scheduler.drop(victim)
            dropped.add(victim)
    for _ in range(20):
        machine.run()
        machine.now += 40
        machine.pins.expire(machine.now)
    for sequence, (length, count, seed, _) in zip(sequences, work, strict=True):
        if sequence in dropped:
            continue
        assert machine.tokens(sequence) == answer(prompt(length, seed), count, ignore_eos=True)
        record = sequence.record
        assert record.computed + record.cached + record.read == length
    assert machine.pool.used == 0
    assert not machine.scheduler.waiting
    assert not machine.scheduler.running


def test_what_is_there_when_a_prefill_begins_is_read_meanwhile_and_what_comes_later_is_not() -> None:
    machine = Machine()
    computed = machine.add(prompt(1000, 1), tokens=1)
    early = machine.add(prompt(120), tokens=1, source=REMOTE)
    assert machine.scheduler.admit(0.0).fetch == [early]
    step = machine.scheduler.plan()
    assert step is not None
    assert [sequence for sequence, _ in step.prefills] == [computed]
    late = machine.add(prompt(120, 2), tokens=1, source=REMOTE)
    machine.scheduler.finish(step, step.seconds)
    assert machine.scheduler.admit(step.seconds).fetch == [late]


def of_ranks(**changes: object) -> Machine:
    """Return the machine of an engine of two data-parallel ranks."""
    costs = profile()
    ranks = degree_of(dp=2, ep=True)
    several = replace(costs, degrees={**costs.degrees, ranks: costs.degrees[1]})
    scheduler = Engine(config(profile=several, degree=ranks, **changes)).scheduler
    machine = Machine()
    machine.scheduler = scheduler
    machine.pool = scheduler.pool
    return machine


@pytest.mark.parametrize(("shared", "share"), [(0.0, 1.0), (0.5, 0.75), (1.0, 0.5)])
def test_ranks_wait_for_the_slowest_and_share_the_work_of_experts(shared: float, share: float) -> None:
    machine = of_ranks(shared_work=shared)
    alone = machine.add(prompt(1000), tokens=1)
    machine.run()
    assert machine.now == pytest.approx(share * 0.011), "the other rank has no attention of its own"
    assert alone.rank == 0
    began = machine.now
    both = [machine.add(prompt(1000, seed), tokens=1) for seed in (1, 2)]
    machine.run()
    assert [sequence.rank for sequence in both] == [0, 1]
    assert machine.now - began == pytest.approx(0.011), "as fast as one of them on its rank"


def test_a_prefill_of_one_rank_lengthens_the_steps_of_the_other() -> None:
    machine = of_ranks()
    decoded = machine.add(prompt(20), tokens=20)
    for _ in range(5):
        machine.step()
    prefilled = machine.add(prompt(1000, 1), tokens=1)
    machine.run()
    times = machine.times(decoded)
    gaps = [b - a for a, b in pairwise(times)]
    assert (decoded.rank, prefilled.rank) == (0, 1)
    assert max(gaps) == pytest.approx(0.011), "it decodes meanwhile, and waits for the end"
    assert len(times) == 20


def test_a_full_rank_stops_only_those_that_are_bound_to_it() -> None:
    machine = of_ranks(max_sequences=1)
    first, second = (machine.add(prompt(20, seed), tokens=30, rank=0) for seed in range(2))
    other = machine.add(prompt(20, 3), tokens=2, rank=1)
    machine.run()
    assert machine.times(other)[-1] < machine.times(first)[-1] < machine.times(second)[0]


def test_ranks_have_the_limits_of_a_step_each() -> None:
    machine = of_ranks(max_sequences=3, chunk=8)
    started = [machine.add(prompt(5, seed), tokens=9) for seed in range(7)]
    machine.run()
    first = [machine.times(sequence)[0] for sequence in started]
    assert max(first[:6]) < machine.times(started[0])[-1] < first[6], "six run at a time, three on a rank"
