"""What an observation says, and that it never makes the load look smaller because something is missing."""

import dataclasses
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from weft_core_tests.property_tests import examples
from weft_operator.metrics.history import sample_of
from weft_operator.metrics.observation import Observation
from weft_operator.metrics.queries import windows_of
from weft_operator.metrics.query_results import QueryResults, read
from weft_operator_tests.fake_prometheus import Prometheus, Router

NOW = 1_800_000_000.0
AT = datetime.fromtimestamp(NOW, UTC)
WINDOWS = windows_of(300)
OLD = NOW - 5000


def scraped(*routers: Router, **more: Any) -> Prometheus:
    return Prometheus(list(routers) or [Router("d0", OLD, 2.0), Router("d1", OLD, 2.0)], NOW, WINDOWS, **more)


def look(prometheus: Prometheus, **more: Any) -> Observation:
    return read(prometheus.answers(), prometheus.subject(**more), at=AT)


def test_a_service_that_is_seen() -> None:
    found = look(scraped())
    assert found.availability.seen
    assert found.workload is not None
    assert found.slo is not None
    assert found.workload.session_rate == pytest.approx(1.0, rel=0.03)
    assert found.workload.round_rate == pytest.approx(4.0, rel=0.03)
    assert found.workload.fast_sessions == pytest.approx(60, rel=0.05)
    assert found.workload.rounds is not None
    assert (found.workload.rounds.mean, found.workload.rounds.p50, found.workload.rounds.p95) == (4.0, 4.0, 4.0)
    assert found.workload.decode is not None
    assert found.workload.decode.mean == pytest.approx(210)
    assert found.workload.decode.p50 == pytest.approx(200)
    assert (found.workload.decode.edges, len(found.workload.decode.weights)) == ((0, 100, 200, 400, 800), 4)
    assert found.slo.attainment == pytest.approx(0.95, abs=0.005)
    assert found.slo.fast.total == pytest.approx(240, rel=0.05)
    assert found.slo.slow.total == pytest.approx(1200, rel=0.03)
    assert found.slo.itl is not None
    assert found.slo.itl.value_s == pytest.approx(0.4)
    assert (found.pressure.queue, found.pressure.sessions, found.pressure.kv_use) == (3, 12, {"decode": 0.4})


def test_what_arrives_at_saturated_workers_is_demand_before_it_is_served() -> None:
    found = look(scraped(unserved=2.0))
    assert found.workload is not None
    assert found.workload.session_rate == pytest.approx(3.0, rel=0.03)
    assert found.workload.round_rate == pytest.approx(6.0, rel=0.03)
    assert found.workload.sessions == pytest.approx(900, rel=0.03)
    assert found.workload.fast_sessions == pytest.approx(180, rel=0.05)
    assert found.workload.decode is not None
    assert found.workload.decode.count == pytest.approx(1200, rel=0.03), "lengths are those of served rounds"


def test_demand_is_known_before_the_first_long_round_ends() -> None:
    found = look(scraped(Router("d0", OLD, 0.0), unserved=2.0))
    assert found.availability.seen
    sample = sample_of(found, attainment=0.9, min_samples=30, burn_rate=1.0)
    assert sample.rate is not None
    assert (sample.rate.value, sample.rate.count, sample.begun) == (2.0, 600, 2.0)
    assert sample.fast_rate == pytest.approx((120 - 1.96 * math.sqrt(120)) / 60)
    assert sample.quiet_s == 0.0


@pytest.mark.parametrize("lacks", [{"unserved": -0.5}, {"dropped": frozenset({"arrivals", "arrivals_fast"})}])
def test_fewer_arrivals_than_served_rounds_are_no_smaller_demand(lacks: dict[str, Any]) -> None:
    found = look(scraped(**lacks))
    assert found.workload is not None
    assert found.workload.session_rate == pytest.approx(1.0, rel=0.03)
    assert found.workload.round_rate == pytest.approx(4.0, rel=0.03)


def test_pods_that_two_jobs_scrape_are_counted_once() -> None:
    once, twice = look(scraped()), look(scraped(copies={"d0": 2, "d1": 2}))
    assert twice.availability.seen
    assert (twice.workload, twice.slo) == (once.workload, once.slo)


def test_pods_of_which_two_jobs_scrape_some_are_not_seen() -> None:
    found = look(scraped(copies={"d0": 2}))
    assert found.availability.reason == "Partial"
    assert "d1" in found.availability.message
    assert "PodMonitor" in found.availability.message


def test_no_load_is_seen_as_no_load() -> None:
    found = look(scraped(Router("d0", OLD, 0.0)))
    assert found.availability.seen
    assert found.workload is not None
    assert (found.workload.session_rate, found.workload.sessions, found.workload.decode) == (0.0, 0, None)
    assert found.slo is not None
    assert found.slo.attainment is None


def test_a_new_pods_rounds_before_its_first_scrape_are_counted() -> None:
    prometheus = scraped(Router("d0", OLD, 2.0), Router("d1", NOW - 35, 20.0), interval=20.0)
    found = look(prometheus)
    assert found.workload is not None
    told = prometheus.routers[1].samples(NOW, 20.0)[-1][1]
    # increase() sees at most two samples of the new pod, and nothing of what it counted before the first.
    assert told is not None
    assert found.workload.round_rate == pytest.approx(2.0 + told / 300, rel=0.05)


def test_a_service_that_just_began_has_its_rate_over_the_time_it_was_seen() -> None:
    found = look(scraped(Router("d0", NOW - 200, 2.0)))
    assert found.workload is not None
    assert found.workload.session_rate == pytest.approx(0.5, rel=0.1)


def gone(begin: float, end: float = 0.0) -> Callable[[float], bool]:
    return lambda at: not NOW - begin <= at <= NOW - end


UNSCRAPED = scraped(Router("d0", OLD, 2.0, told=lambda _at: False))
ADDED = {"pods": {"d0": OLD, "d1": OLD, "d2": OLD}}

CASES: dict[str, tuple[Prometheus, dict[str, Any], str]] = {
    "nothing at all": (UNSCRAPED, {}, "NoSeries"),
    "no pod is ready": (scraped(), {"pods": {}}, "WaitingForMetrics"),
    "ready a moment ago": (UNSCRAPED, {"ready_since": {"d0": NOW - 119}}, "WaitingForMetrics"),
    "ready for long": (UNSCRAPED, {"ready_since": {"d0": NOW - 121}}, "NoSeries"),
    "added a moment ago": (scraped(), {**ADDED, "ready_since": {"d2": NOW - 119}}, "WaitingForMetrics"),
    "added long ago": (scraped(), {**ADDED, "ready_since": {"d2": NOW - 121}}, "Partial"),
    "one added, one lost": (
        scraped(Router("d0", OLD, 2.0), Router("d1", OLD, 2.0, told=gone(1300))),
        {**ADDED, "ready_since": {"d2": NOW - 3}},
        "Partial",
    ),
    "a pod not scraped": (scraped(Router("d0", OLD, 2.0), Router("d1", OLD, 2.0, told=gone(1300))), {}, "Partial"),
    "a pod that came a moment ago": (scraped(), {"pods": {"d0": OLD, "d1": OLD, "d2": NOW - 3}}, "Partial"),
    "one scrape fails": (scraped(Router("d0", OLD, 2.0), Router("d1", OLD, 2.0, seen=gone(90))), {}, "Partial"),
    "scraping stopped": (scraped(Router("d0", OLD, 2.0, told=gone(70))), {}, "Stale"),
    "a hole": (scraped(Router("d0", OLD, 2.0, told=gone(250, 60))), {}, "Stale"),
    "a hole at the beginning": (scraped(Router("d0", OLD, 2.0, seen=gone(290, 60))), {}, "TooFewSamples"),
    "a fresh database": (scraped(Router("d0", OLD, 2.0, told=gone(1300, 100))), {}, "TooFewSamples"),
    "a service of a minute": (scraped(Router("d0", NOW - 60, 2.0)), {}, "TooFewSamples"),
    "another clock": (scraped(clock_off_s=61.0), {}, "ClockSkew"),
    "no histogram of answers": (scraped(dropped=frozenset({"decode"})), {}, "Partial"),
    "no counter of rounds": (scraped(dropped=frozenset({"rounds"})), {}, "Partial"),
    "no sums": (scraped(dropped=frozenset({"gap_sum"})), {}, "Partial"),
    "NaN": (scraped(spoilt={"rounds": math.nan}), {}, "NotANumber"),
    "Inf": (scraped(spoilt={"decode": math.inf}), {}, "NotANumber"),
    "below 0": (scraped(spoilt={"fast": -1.0}), {}, "NotANumber"),
    "times that are none": (scraped(spoilt={"last": math.nan}), {}, "NotANumber"),
    "a sample of the future": (scraped(spoilt={"last": NOW + 30}), {}, "ClockSkew"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_doubtful_metrics_are_not_available(case: str) -> None:
    prometheus, more, reason = CASES[case]
    found = look(prometheus, **more)
    assert found.availability.reason == reason, found.availability.message
    assert (found.workload, found.slo) == (None, None)


def test_messages_have_no_figures_that_change_with_every_query() -> None:
    prometheus = scraped(Router("d0", OLD, 2.0, told=gone(100, -1000)))
    later = dataclasses.replace(prometheus, now=NOW + 10)
    assert look(prometheus).availability == read(later.answers(), later.subject(), at=AT).availability


@pytest.mark.parametrize(
    "result",
    [None, {}, "", [{}], [{"metric": {}}], [{"metric": {}, "value": [0]}], [{"metric": {}, "value": [0, "x"]}], [7]],
)
def test_what_is_no_answer_is_not_read(result: object) -> None:
    subject = scraped().subject()
    assert read(QueryResults([NOW, str(NOW)], [result]), subject, at=AT).availability.reason == "QueryFailed"
    assert read(QueryResults(result, []), subject, at=AT).availability.reason == "QueryFailed"
    assert read(QueryResults([NOW, "NaN"], []), subject, at=AT).availability.reason == "ClockSkew"


@pytest.mark.parametrize("age", [20.0, 70.0])
def test_what_a_new_pod_served_since_its_last_scrape_is_not_lost(age: float) -> None:
    """Its counter is read as it stands, so that ``increase`` makes up for nothing."""
    prometheus = scraped(Router("d0", OLD, 0.0), Router("d1", NOW - age, 17.0, told=gone(10)))
    found = look(prometheus)
    if found.workload is None:
        assert found.availability.reason == "Partial"
        assert "d1" in found.availability.message
    else:
        # Two intervals that nobody can know, and the part of a round that a counter does not show.
        unknown = (2 * prometheus.interval * 17 + 1) / 4 / WINDOWS.whole
        assert found.workload.session_rate >= prometheus.truth() - unknown


def holes(draw: st.DrawFn) -> Callable[[float], bool]:
    """Return a hole anywhere in the last ten minutes, often none."""
    if draw(st.integers(0, 2)):
        return lambda _at: True
    begin = draw(st.sampled_from([3, 10, 61, 90, 200, 299, 301, 400, 1300]))
    length = draw(st.sampled_from([5, 20, 61, 120, 299, 600]))
    return lambda at: not NOW - begin <= at <= NOW - begin + length


@st.composite
def troubled(draw: st.DrawFn) -> Prometheus:
    routers = []
    for number in range(draw(st.integers(1, 4))):
        age = draw(st.sampled_from([5000, 1000, 420, 361, 330, 301, 250, 160, 70, 20, 3]))
        restarts = draw(st.sampled_from([(), (), (), (NOW - 100,), (NOW - 400, NOW - 30)]))
        routers.append(
            Router(
                f"d{number}",
                NOW - age,
                draw(st.sampled_from([0.0, 0.3, 2.0, 17.0])),
                # A container that began anew is no older than that.
                restarts=tuple(moment for moment in restarts if age == 5000 and moment > NOW - age),
                seen=holes(draw),
                told=holes(draw),
            )
        )
    prometheus = scraped(*routers)
    prometheus.interval = draw(st.sampled_from([5.0, 10.0, 15.0]))
    prometheus.clock_off_s = draw(st.sampled_from([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -70.0, 200.0, math.nan]))
    figures = ["rounds", "index", "decode", "decode_sum", "last", "steps", "before", "slow"]
    if not draw(st.integers(0, 4)):
        prometheus.dropped = frozenset(draw(st.lists(st.sampled_from(figures), max_size=2)))
    if not draw(st.integers(0, 4)):
        prometheus.spoilt = draw(
            st.dictionaries(
                st.sampled_from(figures), st.sampled_from([math.nan, math.inf, -math.inf, -1.0]), max_size=2
            )
        )
    return prometheus


@settings(max_examples=examples(5000))
@given(troubled())
def test_missing_data_never_make_the_load_appear_smaller(prometheus: Prometheus) -> None:
    found = look(prometheus)
    if not found.availability.seen:
        assert (found.workload, found.slo) == (None, None)
        return
    event("seen")
    assert found.workload is not None
    # Two intervals that nobody can know, a few rounds of rounding, and holes shorter than the steps they are sought in.
    truth = prometheus.truth()
    unknown = 2 * prometheus.interval * sum(router.rate for router in prometheus.routers) / 4 / WINDOWS.whole
    assert found.workload.session_rate >= truth * 0.96 - unknown - 5 / 4 / WINDOWS.whole * len(prometheus.routers)
