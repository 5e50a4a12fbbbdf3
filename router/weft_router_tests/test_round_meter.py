"""The quick recorders count exactly what the plain ones would: gaps of live streams, SLOs, lengths, whole sessions."""

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.slo import Slo
from weft_router.telemetry.id_generator import IdGenerator
from weft_router.telemetry.metrics import GAPS, Metrics
from weft_router.telemetry.round_meter import RoundMeter
from weft_router.telemetry.session_latency import SessionLatencies, SessionLatency
from weft_router.telemetry.sliding_window import SlidingWindow

TRACE = "a" * 32


def made(**slos: Slo) -> tuple[Metrics, RoundMeter]:
    metrics = Metrics()
    return metrics, RoundMeter(metrics, {"default": Slo(5.0, 0.05), **slos})


def counts(metrics: Metrics, objective: str, class_: str = "default") -> tuple[float, float]:
    slo = metrics.slo
    return slo.labels(objective, "good", class_).value, slo.labels(objective, "bad", class_).value


def test_the_share_that_must_meet_the_slo_is_shown_and_follows_the_configuration() -> None:
    metrics, meter = made(batch=Slo(60.0, 1.0, attainment=0.5))
    target = metrics.slo_target
    assert (target.labels("default").value, target.labels("batch").value) == (0.9, 0.5)
    meter.reload({"default": Slo(5.0, 0.05, attainment=0.99)})
    assert target.labels("default").value == 0.99


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(1, 5)), max_size=40), st.integers(1, 3))
def test_gaps_are_those_between_the_tokens(chunks: list[tuple[float, int]], first: int) -> None:
    metrics, meter = made()
    latency, window = SessionLatency(), SlidingWindow(1e6)
    clock = meter.of("first", "local").first_token(10.0, 0.5, tokens=first, latency=latency, window=window)
    now = 10.0
    expected = [0] * (len(GAPS) + 1)
    expected[0] += first - 1
    over = 0
    for gap, tokens in chunks:
        before, now = now, now + gap
        clock.event(now, tokens)
        expected[bisect_left(GAPS, (now - before) / tokens)] += tokens
        over += now - before > 0.05
        assert metrics.itl.labels("local").counts == expected  # a scrape sees live streams
    clock.settle()
    child = metrics.itl.labels("local", "default")
    total = first + sum(tokens for _, tokens in chunks)
    assert clock.tokens == total
    assert (latency.gaps, latency.over) == (total - 1, over)
    assert latency.seconds == pytest.approx(now - 10.0)
    assert child.total == pytest.approx(now - 10.0)
    if total > 1:
        assert clock.mean() == pytest.approx((now - 10.0) / (total - 1))
        assert window.mean(now) == pytest.approx((now - 10.0) / (total - 1))


def test_what_others_read_of_a_live_stream_is_a_quarter_second_old_at_most() -> None:
    _, meter = made()
    latency, window = SessionLatency(), SlidingWindow(10.0)
    clock = meter.of("first", "remote").first_token(0.0, 0.1, latency=latency, window=window)
    for k in range(1, 100):
        now = k * 0.02
        clock.event(now)
        assert now - latency.seconds < 0.25 + 0.02
    assert window.mean(2.0) == pytest.approx(0.02)


def test_a_slow_gap_shows_its_trace() -> None:
    metrics, meter = made()
    clock = meter.of("later", "remote", "default").first_token(1.0, 7.0, trace=TRACE)
    clock.event(1.02)
    clock.event(1.42, 2)
    page = metrics.render("application/openmetrics-text")[0].decode()
    shown = [line.split(" # ")[0] for line in page.splitlines() if TRACE in line]
    assert shown == [
        'weft_router_ttft_seconds_bucket{phase="later",route="remote",class="default",le="7.5"} 1',
        'weft_router_itl_seconds_bucket{route="remote",class="default",le="0.25"} 3',
    ]


@pytest.mark.parametrize(
    ("ttft", "gap", "ttft_met", "itl_met"),
    [(1.0, 0.04, True, True), (1.5, 0.04, False, True), (1.0, 0.06, True, False), (1.5, 0.06, False, False)],
)
def test_each_class_has_its_own_slo(ttft: float, gap: float, ttft_met: bool, itl_met: bool) -> None:
    metrics, meter = made(gold=Slo(1.0, 0.05))
    series = meter.of("later", "remote", "gold")
    clock = series.first_token(0.0, ttft)
    for k in range(1, 10):
        clock.event(k * gap)
    series.finished(index=2, history=900, increment=100, decode=10, gap_s=3.0, clock=clock)
    assert counts(metrics, "ttft", "gold") == (ttft_met, not ttft_met)
    assert counts(metrics, "itl", "gold") == (itl_met, not itl_met)
    assert counts(metrics, "round", "gold") == (ttft_met and itl_met, not (ttft_met and itl_met))
    assert counts(metrics, "round") == (0, 0)


def test_an_answer_in_one_piece_counts_lengths_but_no_slo() -> None:
    metrics, meter = made()
    meter.of("first", "local").finished(index=1, history=0, increment=300, decode=20)
    meter.of("later", "local").finished(index=2, history=320, increment=30, decode=40, gap_s=0.7)
    assert counts(metrics, "round") == (0, 0)
    assert metrics.rounds.labels("first", "default").value == 1
    assert metrics.round_index.labels().counts[:3] == [1, 1, 0]
    assert metrics.round_history.labels().total == 320  # of later rounds alone
    assert metrics.increment_tokens.labels("first").total == 300
    assert metrics.decode_tokens.labels().total == 60
    assert sum(metrics.round_gap.labels().counts) == 1


def test_a_stream_of_one_token_has_no_gap_to_miss() -> None:
    metrics, meter = made()
    series = meter.of("first", "local")
    series.finished(index=1, history=0, increment=3, decode=1, clock=series.first_token(0.0, 1.0))
    assert counts(metrics, "itl") == (0, 0)
    assert counts(metrics, "round") == (1, 0)


def test_kv_and_history_are_added_up() -> None:
    metrics, meter = made()
    meter.moved(to_decode=100.0, read=7, recomputed=1, reason="evicted")
    meter.moved(to_decode=1.0, to_prefill=50.0, cached=3)
    assert metrics.kv_bytes.labels("prefill_to_decode").value == 101
    assert metrics.kv_bytes.labels("decode_to_prefill").value == 50
    assert [metrics.history.labels(kind).value for kind in ("read", "cached", "recomputed")] == [7, 3, 1]
    assert metrics.recomputed.labels("evicted").value == 1


@pytest.mark.parametrize(
    ("ttfts", "gap", "good"), [((0.1, 0.1), 0.05, True), ((0.1, 9.0), 0.01, False), ((0.1, 0.1), 0.06, False)]
)
def test_a_session_is_held_to_every_ttft_and_its_mean_gap(ttfts: tuple[float, ...], gap: float, good: bool) -> None:
    metrics, meter = made()
    latency = SessionLatency()
    for ttft in ttfts:
        clock = meter.of("first", "local").first_token(0.0, ttft, latency=latency)
        clock.event(gap)
        clock.settle()
    meter.session_ended("default", 2, latency)
    outcomes = metrics.slo_sessions
    assert (outcomes.labels("good").value, outcomes.labels("bad").value) == (good, not good)
    assert metrics.session_rounds.labels().counts[1] == 1


def test_sessions_without_streams_have_no_slo() -> None:
    metrics, meter = made()
    meter.session_ended("default", 4, SessionLatency())
    meter.session_ended("default", 4)
    assert list(metrics.slo_sessions.items()) == []
    assert metrics.session_rounds.labels().total == 8


def test_paces_are_bounded_and_the_least_used_goes_first() -> None:
    latencies = SessionLatencies(limit=2)
    a = latencies.of("a")
    latencies.of("b")
    assert latencies.of("a") is a
    latencies.of("c")
    assert latencies.end("b") is None
    assert latencies.end("a") is a
    assert latencies.of("a") is not a


def test_ids_are_traces_ids_and_never_repeat() -> None:
    ids, others = IdGenerator(), IdGenerator()
    made = [ids.next() for _ in range(1000)] + [others.next() for _ in range(300)]
    assert len(set(made)) == 1300
    assert all(len(one) == 32 and set(one) <= set("0123456789abcdef") for one in made)


@pytest.mark.parametrize(("ended", "over"), [(10.8, 0), (12.0, 20)])
def test_an_answer_in_one_piece_counts_as_a_stream_of_even_gaps(ended: float, over: int) -> None:
    metrics, meter = made()
    latency, window = SessionLatency(), SlidingWindow(10.0)
    series = meter.of("first", "local")
    clock = series.first_token(10.0, 0.5, trace=TRACE, latency=latency, window=window)
    clock.whole(ended, 21)
    series.finished(index=1, history=0, increment=10, decode=21, clock=clock)
    mean = (ended - 10.0) / 20
    assert clock.mean(21) == window.mean(ended) == pytest.approx(mean)
    assert (latency.answers, latency.gaps, latency.over, latency.late) == (1, 20, over, 0)
    assert latency.seconds == metrics.itl.labels("local", "default").total == pytest.approx(ended - 10.0)
    assert metrics.itl.labels("local", "default").counts[bisect_left(GAPS, mean)] == 20
    met = over == 0
    assert counts(metrics, "ttft") == (1, 0)
    assert counts(metrics, "itl") == counts(metrics, "round") == (met, not met)
    meter.session_ended("default", 1, latency)
    assert metrics.slo_sessions.labels("good", "default").value == met


def test_an_answer_of_one_token_has_no_gaps() -> None:
    metrics, meter = made()
    clock = meter.of("first", "local").first_token(10.0, 0.5)
    clock.whole(10.0, 1)
    meter.of("first", "local").finished(index=1, history=0, increment=10, decode=1, clock=clock)
    assert (counts(metrics, "ttft"), counts(metrics, "itl"), counts(metrics, "round")) == ((1, 0), (0, 0), (1, 0))
