"""Slices of a local prefill: sized by the ITL SLO, ending at blocks, and always getting on."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.policies.live import Routing
from weft_core.policies.policy import PolicyError
from weft_core.policies.slices import Slicing, next_slice
from weft_core.policies.snapshot import Circumstances, DecodeWorkerView, PrefillTask, PrefillWorkerView
from weft_core.slo import Slo
from weft_core.timing import largest_chunk, step_seconds
from weft_core_tests.profiles import simple_profile

STEP = (0.01, 0.0, 0.0, 0.0, 0.0, 1e-4, 0.0, 0.0, 0.0, 0.0)
"""10 ms and 0.1 ms a token."""


def view(*, batch: int = 4, queue: float = 0.0, itl: float = math.nan) -> DecodeWorkerView:
    return DecodeWorkerView(
        "d", 1, 0.0, 0, None, 0, 100_000, batch, 0, queue_tokens=queue, queue_work=queue * queue / 2, itl_slo=itl
    )


def routing(mode: str = "imd", *, slicing: Slicing | None = Slicing()) -> Routing:  # noqa: B008 - frozen
    return Routing(
        "weft", mode=mode, overrides={}, profile=simple_profile(), slo=Slo(ttft_s=2.0, itl_s=0.2), slicing=slicing
    )


def test_a_slice_worked_by_hand() -> None:
    assert next_slice(STEP, 1.0, 0.0, 100, 5000, 0.04505, 4096, 32, 16) == 348
    assert next_slice(STEP, 1.0, 0.0, 100, 350, 0.04505, 4096, 32, 16) == 350  # all of it fits
    assert next_slice(STEP, 1.0, 0.0, 100, 5000, 0.04505, 200, 32, 16) == 188  # 288 is the last border before 300
    assert next_slice(STEP, 1.0, 0.0, 96, 5000, 0.005, 4096, 32, 16) == 32  # too slow already: it still gets on


@given(
    st.integers(0, 5000), st.integers(1, 20_000), st.floats(0.001, 0.3), st.integers(16, 4096), st.integers(1, 600),
    st.sampled_from([1, 16, 128]),
)  # fmt: skip
def test_slices_end_at_blocks_within_the_limit_and_come_to_an_end(
    start: int, tokens: int, limit: float, most: int, least: int, block: int
) -> None:
    at, remaining, slices = start, tokens, 0
    floor = min(least, most)
    while True:
        taken = next_slice(STEP, 1.0, 0.0, at, remaining, limit, most, floor, block)
        assert 0 < taken <= remaining
        if taken == remaining:
            break
        assert (at + taken) % block == 0
        allowed = largest_chunk(STEP, 1.0, 0.0, float(at), limit, min(most, remaining))
        assert taken <= max(allowed, floor, block - at % block)
        at, remaining, slices = at + taken, remaining - taken, slices + 1
    assert slices <= tokens // max(1, min(floor, most) - block) + 1 if floor > block else slices <= tokens


@given(st.integers(1, 9000), st.integers(1, 40), st.floats(0.01, 0.2))
def test_without_blocks_and_overhead_a_slice_is_the_simulators(remaining: int, batch: int, limit: float) -> None:
    most = min(4096, remaining)
    expected = max(largest_chunk(STEP, batch, 0.0, 77.0, limit, most), min(32, most))
    assert next_slice(STEP, batch, 0.0, 77, remaining, limit, 4096, 32, 1) == expected


def test_a_slice_computes_at_least_as_long_as_its_way_takes() -> None:
    assert Slicing(overhead_s=0.02).least_tokens(STEP) == pytest.approx(200, abs=1)
    assert Slicing(overhead_s=0.0).least_tokens(STEP) == 32
    least = Slicing(overhead_s=0.02).least_tokens(STEP)
    assert step_seconds(STEP, 0.0, 0.0, float(least)) - step_seconds(STEP, 0.0, 0.0) <= 0.02


def test_the_shortest_slice_is_that_of_an_engine_that_decodes_nothing() -> None:
    """10 ms a step, 50 ms a sequence and 10 us a token of context would hide 0.1 ms a token of the slice."""
    pieces = (0.01, 0.05, 1e-5, 0.0, 0.0, 1e-4, 0.0, 0.0, 0.0, 0.0)
    assert Slicing(overhead_s=0.02).least_tokens(pieces) == pytest.approx(200, abs=1)


@pytest.mark.parametrize(
    "wrong", [{"share": 0.0}, {"idle_share": 0.0}, {"overhead_s": -1.0}, {"least": 0}, {"least": 9, "most": 8}]
)
def test_slices_that_would_never_end_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(PolicyError, match="slicing"):
        Slicing(**wrong)  # type: ignore[arg-type]


def test_a_local_decision_asks_for_slices_sized_by_the_batch_of_the_moment() -> None:
    # A step takes 10 ms + 1 ms per sequence + 1 ms per chunk token; 0.9 x 200 ms leaves 166 tokens beside 4.
    rule = routing()
    busy = [PrefillWorkerView("p", 1, 9.0, 3, None)]
    found = rule.decide(PrefillTask(0, 1000), decode=view(), prefill=busy)
    assert (found.remote, found.reason, found.chunked) == (None, "local-chunked", True)
    assert found.ttft_s == pytest.approx(6 * 0.18 + 0.014 + 0.004)
    assert rule.next_slice(at=0, remaining=1000, decode=view()) == 160
    assert rule.next_slice(at=160, remaining=840, decode=view(batch=64)) == 96
    assert rule.next_slice(at=160, remaining=840, decode=view(itl=0.1)) == 64  # a stricter class decodes here
    assert rule.next_slice(at=960, remaining=40, decode=view()) is None
    assert rule.next_slice(at=0, remaining=4000, decode=view(batch=0)) is None  # nobody would wait
    assert rule.next_slice(at=0, remaining=9000, decode=view(batch=0)) == 4096


def test_a_busy_engine_decodes_a_step_between_two_slices() -> None:
    # Six slices beside 4, as above; a step without any takes 14 ms, longer than the way of the next one.
    busy = [PrefillWorkerView("p", 1, 9.0, 3, None)]
    rule = routing(slicing=Slicing(overhead_s=0.005))
    found = rule.decide(PrefillTask(0, 1000), decode=view(), prefill=busy)
    assert found.ttft_s == pytest.approx(6 * 0.18 + 0.014 + 0.004 + 6 * 0.014)
    far = routing(slicing=Slicing(overhead_s=0.1))
    assert far.decide(PrefillTask(0, 1000), decode=view(), prefill=busy).ttft_s == pytest.approx(
        6 * 0.18 + 0.014 + 0.004 + 6 * 0.1
    )
    idle = rule.decide(PrefillTask(0, 9000), decode=view(batch=0), prefill=[])
    assert idle.ttft_s == pytest.approx(3 * 0.01 + 9.0 + 2 * 0.005)


def test_what_cannot_be_sliced_is_decided_as_ia_does() -> None:
    busy = [PrefillWorkerView("p", 1, 9.0, 3, None)]
    for rule, known in ((routing(), Circumstances(sliceable=False)), (routing(slicing=None), Circumstances())):
        ia = routing("ia")
        for decode in (view(), replace(view(), gap_sums=[0.05] * 4, gap_counts=[1.0] * 4)):
            mine = rule.decide(PrefillTask(0, 1000), decode=decode, prefill=busy, known=known)
            theirs = ia.decide(PrefillTask(0, 1000), decode=decode, prefill=busy)
            assert (mine.short, mine.ttft_s, mine.chunked) == (theirs.short, theirs.ttft_s, False)
    assert routing(slicing=None).next_slice(at=0, remaining=9000, decode=view()) is None
    assert [routing().slices, routing("ia").slices, routing(slicing=None).slices] == [True, False, False]


def test_the_queue_before_it_counts_in_slices() -> None:
    rule = routing()
    alone = rule.decide(PrefillTask(0, 100), decode=view(), prefill=[])
    behind = rule.decide(PrefillTask(0, 100), decode=view(queue=830.0), prefill=[])
    assert behind.ttft_s - alone.ttft_s == pytest.approx(5 * 0.18)


def test_nobody_slices_for_another_workers_sessions() -> None:
    rule = routing()
    helper = PrefillWorkerView("h", 1, 0.166, 1, None)
    found = rule.decide(PrefillTask(0, 166), decode=view(queue=9000.0), prefill=[helper])
    assert (found.remote, found.chunked) == ("h", False)
    assert found.ttft_s == pytest.approx(0.166 + 0.166 + 0.1 + 0.0166)  # its queue, T_pre, T_kv of 166 tokens back


def test_both_local_ways_are_among_the_alternatives() -> None:
    rule = routing("whole-or-chunked")
    found = rule.decide(PrefillTask(0, 100), decode=view(queue=830.0), prefill=[], known=Circumstances(waited_s=0.25))
    told = {option.option: option.ttft_s for option in found.alternatives()}
    assert told == pytest.approx({"local": 0.25 + 0.1, "local-chunked": 0.25 + 5 * 0.18 + 0.114})
    assert found.ttft_s == pytest.approx(min(told.values()))
