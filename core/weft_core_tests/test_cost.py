from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.cost import CostProfile, CostProfileError, DecodePiece, with_chunk_costs
from weft_core.timing import PREFILL_FIELDS, STEP_FIELDS
from weft_core_tests.profiles import profiles, simple_profile

lengths = st.integers(min_value=0, max_value=100_000)


@given(profiles(), lengths, lengths, lengths)
def test_prefill_never_gets_faster_with_more_tokens(
    profile: CostProfile, history: int, increment: int, more: int
) -> None:
    for degree in profile.degrees:
        base = profile.t_pre(history=history, increment=increment, degree=degree)
        assert profile.t_pre(history=history + more, increment=increment, degree=degree) >= base
        assert profile.t_pre(history=history, increment=increment + more, degree=degree) >= base


@given(profiles(), st.integers(1, 500), lengths, st.integers(0, 500))
def test_a_decode_step_never_gets_faster_with_a_larger_batch(
    profile: CostProfile, batch: int, context: int, more: int
) -> None:
    for degree in profile.degrees:
        base = profile.t_dec(batch=batch, context=context, degree=degree)
        assert profile.t_dec(batch=batch + more, context=context + more, degree=degree) >= base * (1 - 1e-12)


@given(profiles(), st.integers(0, 500), lengths, lengths, lengths, lengths)
def test_a_chunk_never_makes_a_step_faster(
    profile: CostProfile, batch: int, context: int, chunk: int, history: int, more: int
) -> None:
    for degree in profile.degrees:
        step = profile.t_step(batch=batch, context=context, chunk=chunk, chunk_history=history, degree=degree)
        assert step >= profile.t_dec(batch=batch, context=context, degree=degree)
        for longer in ({"chunk": chunk + more}, {"context": context + more}, {"chunk_history": history + more}):
            lengths = {"batch": batch, "context": context, "chunk": chunk, "chunk_history": history} | longer
            assert profile.t_step(**lengths, degree=degree) >= step * (1 - 1e-12)


@given(profiles(), st.integers(0, 500), lengths, lengths, lengths)
def test_a_mixed_step_that_nobody_measured_is_estimated_from_above(
    profile: CostProfile, batch: int, context: int, chunk: int, history: int
) -> None:
    for costs in profile.degrees.values():
        none = {"per_chunk_token": 0, "per_chunk_pair": 0, "per_chunk_context": 0, "per_chunk": 0}
        bare = tuple(replace(piece, **none) for piece in costs.decode)
        estimated = replace(profile, degrees={1: replace(costs, decode=with_chunk_costs(bare, costs.prefill))})
        alone = estimated.t_pre(history=history, increment=chunk, degree=1)
        fixed = estimated.t_pre(history=history, increment=0, degree=1)
        decode = estimated.t_dec(batch=batch, context=context, degree=1)
        step = estimated.t_step(batch=batch, context=context, chunk=chunk, chunk_history=history, degree=1)
        assert step >= decode + (alone - fixed) - 1e-9 * (decode + alone)  # no closer than differences of floats are


@given(profiles(), st.floats(0.1, 10), st.integers(0, 500), lengths, lengths)
def test_a_slower_worker_takes_so_many_times_as_long(
    profile: CostProfile, factor: float, batch: int, context: int, tokens: int
) -> None:
    slow = replace(profile, degrees={n: costs.slower(factor) for n, costs in profile.degrees.items()})
    for degree in profile.degrees:
        prefill = profile.t_pre(history=context, increment=tokens, degree=degree)
        assert slow.t_pre(history=context, increment=tokens, degree=degree) == pytest.approx(factor * prefill)
        step = profile.t_step(batch=batch, context=context, chunk=tokens, chunk_history=context, degree=degree)
        found = slow.t_step(batch=batch, context=context, chunk=tokens, chunk_history=context, degree=degree)
        assert found == pytest.approx(factor * step)


def test_the_flat_figures_are_the_pieces() -> None:
    profile = simple_profile()
    assert profile.prefill_figures(2) == (0.0, 0.0005, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert profile.step_figures(2) == (0.005, 0.001, 0.0, 0.0, 0.0, 0.0005, 0.0, 0.0, 0.0, 0.0)
    assert len(profile.prefill_figures(1)) == PREFILL_FIELDS
    assert len(profile.step_figures(1)) == STEP_FIELDS
    assert profile.t_step(batch=2, context=100, chunk=10, chunk_history=0, degree=1) == pytest.approx(0.022)


def test_a_batch_reads_only_the_experts_its_tokens_chose() -> None:
    piece = DecodePiece(alpha=0.0, experts_seconds=0.008, expert_share=0.25)
    assert piece.seconds(1, 0) == pytest.approx(0.002)
    assert piece.seconds(2, 0) == pytest.approx(0.008 * (1 - 0.75**2))
    assert piece.seconds(64, 0) == pytest.approx(0.008, rel=1e-6)


def test_a_regime_of_large_batches_leaves_small_ones_alone() -> None:
    profile = simple_profile()
    costs = profile.degrees[1]
    large = DecodePiece(alpha=0.5, from_batch=32)
    changed = replace(profile, degrees={1: replace(costs, decode=(*costs.decode, large))})
    assert changed.t_dec(batch=31, context=0, degree=1) == profile.t_dec(batch=31, context=0, degree=1)
    assert changed.t_dec(batch=32, context=0, degree=1) == 0.5
    assert large.slower(2.0) == DecodePiece(alpha=1.0, from_batch=32)


def test_nothing_to_move_takes_no_time() -> None:
    assert simple_profile().t_kv(0, source=1, destination=2) == 0
    assert simple_profile().t_kv(1000, source=1, destination=2) == pytest.approx(0.2)


def test_a_missing_degree_and_a_missing_transfer_are_named() -> None:
    profile = simple_profile()
    with pytest.raises(CostProfileError, match=r"degrees: .* no degree 8 \(it has 1, 2\)"):
        profile.t_pre(history=0, increment=1, degree=8)
    with pytest.raises(CostProfileError, match=r"transfers: .* from degree 1 to degree 8"):
        profile.t_kv(5, source=1, destination=8)
