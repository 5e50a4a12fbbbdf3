"""The figures of a report are counted as their names say."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_core.slo import Reading
from weft_e2e.demo.measures import distribution, most_at_once, readings, sessions_of, summarise
from weft_e2e.metrics import KvFlow, MetricMissing, growth, kv_flow
from weft_e2e_tests.demo_samples import SLO, a_round, many_rounds


def test_a_session_is_met_only_if_every_round_is() -> None:
    records = [
        a_round("good", 0),
        a_round("good", 1),
        a_round("slow", 0),
        a_round("slow", 1, ttft_s=2.5),
        a_round("jerky", 0, gaps_s=(0.01, 0.2)),
    ]

    summary = summarise(records, SLO)
    met = {(a.reading.unit, a.reading.itl): (a.met, a.total) for a in summary.attained}

    assert summary.default_attained.reading == Reading("session", "mean")
    assert met["session", "mean"] == (1, 3)
    assert met["round", "mean"] == (3, 5)
    assert len(met) == len(readings()) == 6


def test_a_failed_round_counts_as_missed_and_is_in_every_total() -> None:
    records = [
        a_round("s", 0),
        a_round("s", 1, outcome="stream_error", ttft_s=0.1, completion_tokens=None, error="died"),
        a_round("s", 2, outcome="not_sent", ttft_s=None, gaps_s=(), route=None),
    ]

    summary = summarise(records, SLO)

    assert (summary.sessions, summary.sessions_complete) == (1, 0)
    assert (summary.rounds, summary.rounds_ok) == (3, 1)
    assert summary.outcomes == {"ok": 1, "stream_error": 1, "not_sent": 1}
    assert summary.default_attained.met == 0
    assert summary.routes == {"remote": 1}
    assert summary.ttft_later is not None
    assert summary.ttft_later.count == 1


def test_nothing_measured_gives_nothing() -> None:
    assert distribution([]) is None
    with pytest.raises(ValueError, match="no rounds were recorded"):
        summarise([], SLO)


def test_sessions_keep_their_rounds_in_order() -> None:
    records = list(many_rounds(12))

    grouped = sessions_of(list(reversed(records)))

    assert sum(len(rounds) for rounds in grouped.values()) == len(records)
    for name, rounds in grouped.items():
        assert [r.index for r in rounds] == list(range(len(rounds)))
        assert {r.session for r in rounds} == {name}


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), max_size=30))
def test_most_at_once_is_the_largest_overlap(spans: list[tuple[int, int]]) -> None:
    intervals = [(float(start), float(start + length)) for start, length in spans]

    brute = max((sum(a <= t + 0.5 < b for a, b in intervals) for t in range(101)), default=0)

    assert most_at_once(intervals) == brute


PAGE = """# TYPE weft_router_kv_bytes_total counter
weft_router_kv_bytes_total{direction="prefill_to_decode"} %d
weft_router_kv_bytes_total{direction="decode_to_prefill"} %d
# TYPE weft_router_history_tokens_total counter
weft_router_history_tokens_total{kind="read"} %d
"""


def test_counters_are_compared_page_by_page_and_restarts_count_from_zero() -> None:
    before = {"a": PAGE % (100, 10, 5), "b": PAGE % (70, 7, 7)}
    after = {"a": PAGE % (150, 10, 9), "b": PAGE % (20, 1, 2), "new": PAGE % (3, 0, 0)}

    flow = kv_flow(growth(before, after))

    assert flow == KvFlow(
        prefill_to_decode_bytes=50 + 20 + 3,
        decode_to_prefill_bytes=0 + 1 + 0,
        history_read_tokens=4 + 2 + 0,
        history_cached_tokens=0,
        history_recomputed_tokens=0,
    )


def test_a_counter_that_no_page_declares_is_missing_and_never_zero() -> None:
    grown = growth({}, {"a": PAGE % (1, 1, 1)})

    assert grown.total("weft_router_history_tokens_total", kind="recomputed") == 0
    with pytest.raises(MetricMissing, match="no metrics page declares weft_router_ttft_total; pages read: a"):
        grown.total("weft_router_ttft_total")


HISTOGRAM = """# TYPE gap_seconds histogram
gap_seconds_bucket{route="local",le="+Inf"} %d
gap_seconds_count{route="local"} %d
gap_seconds_sum{route="local"} %f
gap_seconds_count{route="remote"} 2
gap_seconds_sum{route="remote"} 8.0
"""


def test_the_mean_of_a_histogram_is_that_of_what_came_between_the_readings() -> None:
    grown = growth({"a": HISTOGRAM % (3, 3, 9.0)}, {"a": HISTOGRAM % (5, 5, 10.0), "b": HISTOGRAM % (0, 0, 0.0)})

    assert grown.mean("gap_seconds", route="local") == 0.5
    assert grown.mean("gap_seconds") == (1.0 + 8.0) / (2 + 2)
    assert math.isnan(grown.mean("gap_seconds", route="none"))
    with pytest.raises(MetricMissing, match="no metrics page declares other_seconds"):
        grown.mean("other_seconds")


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60))
@settings(max_examples=50)
def test_a_distribution_is_ordered(values: list[float]) -> None:
    found = distribution(values)

    assert found is not None
    assert min(values) <= found.p50 <= found.p95 <= found.p99 <= found.largest == max(values)
    assert math.isclose(found.mean, sum(values) / len(values), abs_tol=1e-6)
