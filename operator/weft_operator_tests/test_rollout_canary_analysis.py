"""How a canary is analyzed: by confident differences, never by missing, old or invalid metrics."""

import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.metrics.observation import MetricsAvailability, Observation, PodTally, Tally, UnavailableReason
from weft_operator.metrics.queries import queries, windows_of
from weft_operator.metrics.query_results import FRESH
from weft_operator.rollout.canary_analysis import analyze
from weft_operator_tests.samples import plan
from weft_operator_tests.valid import changed, service, spec

SINCE = datetime(2026, 1, 1, tzinfo=UTC)
TRIED = frozenset({"new-0", "new-1"})
SECONDS = (0.01, 0.1, 1.0, 10.0, float("inf"))


def _spec(**more: Any) -> DisaggInferenceServiceSpec:
    given = {"percent": 10, "window": "10m", "minSamples": 30, "tolerance": 0.05, **more}
    return spec(changed(service(), "spec.rollout.canary", given))


SPEC, PLAN = _spec(), plan()


def _buckets(*counts: float) -> dict[float, float]:
    """Return buckets by how many samples are up to 10 ms, 100 ms, 1 s, 10 s and above."""
    return {bound: sum(counts[: number + 1]) for number, bound in enumerate(SECONDS)}


def _pod(good: int, bad: int, *, itl: Mapping[float, float] | None = None) -> PodTally:
    return PodTally(Tally(good, bad), {}, itl or {})


def _look(at: timedelta, pods: Mapping[str, PodTally], availability: MetricsAvailability = FRESH) -> Observation:
    return Observation(
        at=SINCE + at, window_s=300, fast_window_s=60, availability=availability, canary_since=SINCE, pods=pods
    )


def _verdict(
    seen: Observation | None, minutes: float, settings: DisaggInferenceServiceSpec | None = None
) -> tuple[bool | None, str]:
    now = SINCE + timedelta(minutes=minutes)
    given = replace(seen, at=now) if seen is not None else None
    return analyze(settings or SPEC, PLAN, SINCE, given, TRIED, now=now)


GOOD = {"new-0": _pod(60, 1), "new-1": _pod(50, 2), "old-0": _pod(900, 30)}
BAD = {"new-0": _pod(10, 50), "new-1": _pod(10, 50), "old-0": _pod(900, 30)}
FEW = {"new-0": _pod(2, 20), "old-0": _pod(900, 30)}


def test_a_good_plan_passes_at_the_end_of_its_window_and_not_before() -> None:
    assert _verdict(_look(timedelta(0), GOOD), 9.9)[0] is None
    passed, message = _verdict(_look(timedelta(0), GOOD), 10)
    assert passed is True
    assert message == "97.3% of its 113 rounds met the SLO"


def test_a_bad_plan_fails_as_soon_as_that_is_clear() -> None:
    failed, message = _verdict(_look(timedelta(0), BAD), 1)
    assert failed is False
    assert "16.7% of its 120 rounds met the SLO, and 96.8% of those of the old plan" in message


def test_few_rounds_say_nothing_and_in_the_end_that_is_the_reason() -> None:
    assert _verdict(_look(timedelta(0), FEW), 10)[0] is None
    assert _verdict(_look(timedelta(0), FEW), 29.9)[0] is None
    failed, message = _verdict(_look(timedelta(0), FEW), 30)
    assert failed is False
    assert "22 rounds were observed, spec.rollout.canary.minSamples is 30" in message
    assert _verdict(_look(timedelta(0), FEW), 11, _spec(maxWindow="11m"))[0] is False


def test_what_the_old_plan_suffers_too_is_not_the_new_ones_fault() -> None:
    both = {**BAD, "old-0": _pod(100, 900)}
    assert _verdict(_look(timedelta(0), both), 1)[0] is None
    assert _verdict(_look(timedelta(0), both), 10)[0] is True


def test_a_latency_far_above_the_prediction_fails_although_most_rounds_meet_the_slo() -> None:
    slow, fast = _buckets(0, 700, 300), _buckets(400, 600, 0)
    pods = {"new-0": _pod(100, 2, itl=slow), "old-0": _pod(900, 30, itl=fast)}
    failed, message = _verdict(_look(timedelta(0), pods), 10)
    assert failed is False
    assert "30.0% of its 1000 ITLs are above" in message
    assert _verdict(_look(timedelta(0), pods), 5)[0] is None, "judged at the end only"
    alike = {**pods, "old-0": _pod(900, 30, itl=slow)}
    assert _verdict(_look(timedelta(0), alike), 10)[0] is True


def test_metrics_of_another_canary_or_old_ones_are_not_used() -> None:
    now = SINCE + timedelta(minutes=10)
    before = replace(_look(timedelta(0), BAD), at=now, canary_since=SINCE - timedelta(hours=1))
    assert analyze(SPEC, PLAN, SINCE, before, TRIED, now=now)[0] is None
    old = _look(timedelta(minutes=5), BAD)
    assert analyze(SPEC, PLAN, SINCE, old, TRIED, now=now)[0] is None
    late = now + timedelta(minutes=20)
    assert "the last metrics are 1500 s old" in analyze(SPEC, PLAN, SINCE, old, TRIED, now=late)[1]


BLIND: tuple[UnavailableReason, ...] = (
    "PrometheusUnreachable",
    "Stale",
    "NotANumber",
    "Partial",
    "NoSeries",
    "ClockSkew",
)


@pytest.mark.parametrize("chunk", range(10))
def test_sequences_of_bad_metrics_decide_nothing(chunk: int) -> None:
    for seed in range(chunk, 2000, 10):
        rng = random.Random(seed)
        for minutes in sorted(rng.uniform(0, 29.9) for _ in range(8)):
            pods = rng.choice([GOOD, BAD, {}])
            availability = MetricsAvailability(rng.choice(BLIND), "bad")
            seen = rng.choice(
                [None, _look(timedelta(0), pods, availability), _look(timedelta(0), FEW), _look(timedelta(0), {})]
            )
            assert _verdict(seen, minutes)[0] is None, seed
        assert _verdict(_look(timedelta(0), GOOD, MetricsAvailability(rng.choice(BLIND), "bad")), 31)[0] is False, seed


def test_pods_are_queried_only_during_a_canary() -> None:
    assert not any("pod_rounds" in query for query in queries("ns", "svc", windows_of(300)))
    asked = [query for query in queries("ns", "svc", windows_of(300), canary_s=90) if "pod_rounds" in query]
    assert len(asked) == 1
    assert "sum by (pod, outcome)" in asked[0]
    assert "[90s]" in asked[0]
