"""Sessions are chosen reproducibly, fit the limits, and every cap and fill is said."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_e2e.replay.selection import FRAMING_TOKENS_PER_MESSAGE, Limits, recorded_gaps, select
from weft_e2e.replay.sessions import RecordedRound, RecordedSession, Trace
from weft_e2e.replay.traces import SOURCES, TraceError, load

ROUNDS = st.builds(
    RecordedRound,
    added_tokens=st.integers(1, 20000),
    decode_tokens=st.integers(1, 9000),
    gap_s=st.none() | st.floats(0, 5000),
)


def _trace(rounds: list[list[RecordedRound]]) -> Trace:
    sessions = tuple(RecordedSession(name=f"s{k}", rounds=tuple(r)) for k, r in enumerate(rounds))
    return Trace(name="t", origin="o", licence="l", sessions=sessions)


@settings(max_examples=100)
@given(
    st.lists(st.lists(ROUNDS, min_size=1, max_size=12), min_size=1, max_size=12),
    st.integers(1, 8),
    st.integers(1, 6),
    st.integers(0, 3),
)
def test_whatever_the_trace_the_choice_keeps_the_limits(
    rounds: list[list[RecordedRound]], count: int, most: int, seed: int
) -> None:
    limits = Limits(
        sessions=count, min_rounds=1, max_rounds=most, seed=seed, max_added_tokens=20000, max_context_tokens=16000
    )
    trace = _trace(rounds)
    first_rounds = [s.rounds[0] for s in trace.sessions]
    if all(r.added_tokens + min(r.decode_tokens, 384) + 2 * FRAMING_TOKENS_PER_MESSAGE > 16000 for r in first_rounds):
        with pytest.raises(ValueError, match="fits the limits"):
            select(trace, limits)
        return

    chosen = select(trace, limits, gap_pool=(1.0, 40.0), gap_pool_name="p")

    assert 1 <= len(chosen.sessions) <= count
    assert [s.arrival_s for s in chosen.sessions] == sorted(s.arrival_s for s in chosen.sessions)
    assert chosen.sessions[0].arrival_s == 0
    for session in chosen.sessions:
        assert 1 <= len(session.rounds) <= most
        assert sum(r.added_tokens + r.decode_tokens for r in session.rounds) <= 16000
        assert session.rounds[0].gap_s == 0
        assert all(r.decode_tokens <= 384 and 0 <= r.gap_s <= limits.max_gap_s for r in session.rounds)
    assert chosen == select(trace, limits, gap_pool=(1.0, 40.0), gap_pool_name="p")


def test_every_cap_and_fill_is_said_with_its_count() -> None:
    long = [RecordedRound(100, 9000, None), RecordedRound(10, 5, 100.0), *[RecordedRound(10, 5, None)] * 6]
    short = [RecordedRound(100, 10, None)]
    chosen = select(_trace([long, short]), Limits(max_rounds=4), gap_pool=(5.0,), gap_pool_name="other")

    said = "\n".join(chosen.notes)
    assert "1 of 2 sessions of t (o; l)" in said
    assert "1 sessions have fewer than 3 rounds" in said
    assert "1 sessions were cut to their first rounds (at most 4 rounds" in said
    assert "1 answers were cut to 384 tokens" in said
    assert "2 pauses between rounds are not recorded: drawn from the recorded pauses of other" in said
    assert "scaled by 0.2" in said
    assert "1 pauses were cut to 3 s" in said
    assert [r.gap_s for r in chosen.sessions[0].rounds] == [0.0, 3.0, 1.0, 1.0]


def test_an_uncapped_replay_claims_no_cap() -> None:
    rounds = [RecordedRound(100, 10, 0.0), RecordedRound(10, 5, 1.0), RecordedRound(10, 5, 2.0)]
    chosen = select(_trace([rounds]), Limits(gap_scale=1.0))

    assert not re.search("cut|fewer|scaled|drawn", "\n".join(chosen.notes))
    assert [r.gap_s for r in chosen.sessions[0].rounds] == [0.0, 1.0, 2.0]


def test_limits_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(ValueError, match="max_rounds 2 is below min_rounds 3"):
        Limits(max_rounds=2)
    with pytest.raises(ValueError, match="sessions must be at least 1"):
        Limits(sessions=0)
    with pytest.raises(ValueError, match="gap_scale must be a finite"):
        Limits(gap_scale=float("nan"))


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_the_packaged_traces_load_and_hold_usable_sessions(name: str) -> None:
    trace = load(name)

    chosen = select(trace, Limits(), gap_pool=recorded_gaps(load("claude_code").sessions))

    assert len(trace.sessions) == {"gaia_whowhen": 44, "claude_code": 170}[name]
    assert len(chosen.sessions) >= 30


def test_an_unknown_trace_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(TraceError, match="no trace is called 'nope'; choose one of claude_code, gaia_whowhen"):
        load("nope")
