"""How a canary is analyzed: by confident differences, never by missing, old or invalid metrics."""

import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from weft_operator.api.objects import Manifest
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.api.status import CanaryStatus
from weft_operator.metrics.observation import MetricsAvailability, Observation, PodTally, Tally, UnavailableReason
from weft_operator.metrics.queries import queries, windows_of
from weft_operator.metrics.query_results import FRESH
from weft_operator.rollout.canary import CanaryRequest, CanaryShare
from weft_operator.rollout.canary_analysis import CanaryAnalysis, analyze, canary_status, why_unobserved
from weft_operator.rollout.groups import GroupIdentity
from weft_operator.rollout.ledger import CanaryRun, Ledger, target_hash
from weft_operator_tests.rollout_world import group
from weft_operator_tests.samples import plan
from weft_operator_tests.valid import changed, service, spec

SINCE = datetime(2026, 1, 1, tzinfo=UTC)
"""When the canary began to run."""
TRIED = frozenset({"new-0", "new-1"})
SECONDS = (0.01, 0.1, 1.0, 10.0, float("inf"))


def _service(**more: Any) -> Manifest:
    given = {"percent": 10, "window": "10m", "minSamples": 30, "tolerance": 0.05, **more}
    return changed(service(), "spec.rollout.canary", given)


def _spec(**more: Any) -> DisaggInferenceServiceSpec:
    return spec(_service(**more))


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


STALE_S = 70.0
"""spec.planning.prometheus.staleAfter (1m), and one interval (10s)."""


@pytest.mark.parametrize(
    ("seen", "age_s", "expected"),
    [
        (None, 0, "there are no metrics since it started"),
        (replace(_look(timedelta(0), GOOD), canary_since=None), 0, "there are no metrics since it started"),
        (_look(timedelta(0), GOOD, MetricsAvailability("Stale", "old samples")), 0, "Stale: old samples"),
        (_look(timedelta(0), GOOD), STALE_S, ""),
        (_look(timedelta(0), GOOD), STALE_S + 1, "the last metrics are 71 s old"),
    ],
)
def test_why_metrics_cannot_be_used(seen: Observation | None, age_s: float, expected: str) -> None:
    assert why_unobserved(SPEC, SINCE, seen, now=SINCE + timedelta(seconds=age_s)) == expected


ROUNDS: dict[str, tuple[Mapping[str, PodTally], bool | None]] = {
    # 90 % are expected, and tolerance is 5 %: what counts is whether surely more than 15 % of the rounds are bad
    "as many as are tolerated": ({"new-0": _pod(8800, 1200)}, True),
    "more than are tolerated": ({"new-0": _pod(8300, 1700)}, False),
    "just enough rounds, all good": ({"new-0": _pod(30, 0)}, True),
    "just enough rounds, all bad": ({"new-0": _pod(0, 30)}, False),
    "too few rounds": ({"new-0": _pod(0, 29)}, None),
    "just enough rounds of the old plan, as bad": ({"new-0": _pod(0, 30), "old-0": _pod(0, 30)}, True),
    "too few rounds of the old plan, as bad": ({"new-0": _pod(0, 30), "old-0": _pod(0, 29)}, False),
}


@pytest.mark.parametrize(("pods", "expected"), ROUNDS.values(), ids=ROUNDS)
def test_the_rounds_of_a_window_decide(pods: Mapping[str, PodTally], expected: bool | None) -> None:
    assert _verdict(_look(timedelta(0), pods), 10)[0] is expected


def _samples(within: int, above: int, *, edges: tuple[float, float] = (0.75, 1.0)) -> dict[float, float]:
    """Return the buckets of so many samples up to the first edge, and so many up to the second."""
    return {edges[0]: within, edges[1]: within + above, float("inf"): within + above}


LATENCIES: dict[str, tuple[dict[float, float], dict[float, float], float, int, bool]] = {
    # the samples of the new and of the old plan, what was predicted, the percentile, and whether the canary passes;
    # 0.5 s were predicted, so that with spec.planning.drift.residual (50 %) 0.75 s are the bound
    "within the bound": (_samples(700, 300, edges=(0.5, 0.75)), {}, 0.5, 95, True),
    "above the bound": (_samples(700, 300), {}, 0.5, 95, False),
    "fewer than 5 % above the bound of P95": (_samples(970, 30), {}, 0.5, 95, True),
    "surely more than 5 % above the bound of P95": (_samples(930, 70), {}, 0.5, 95, False),
    "surely more than 1 % above the bound of P99": (_samples(970, 30), {}, 0.5, 99, False),
    "without a prediction": (_samples(0, 1000), {}, 0.0, 95, True),
    "predicted without a bound": (_samples(0, 1000), {}, float("inf"), 95, True),
    "just enough samples": (_samples(0, 30), {}, 0.5, 95, False),
    "too few samples": (_samples(0, 29), {}, 0.5, 95, True),
    "as many of the old plan above the bound": (_samples(700, 300), _samples(700, 300), 0.5, 95, True),
    "fewer of the old plan above the bound": (_samples(700, 300), _samples(701, 299), 0.5, 95, False),
}


@pytest.mark.parametrize("which", ["ttft", "itl"])
@pytest.mark.parametrize(("new", "old", "predicted_s", "percentile", "passes"), LATENCIES.values(), ids=LATENCIES)
def test_the_latencies_of_a_window_decide(
    which: str,
    new: dict[float, float],
    old: dict[float, float],
    predicted_s: float,
    percentile: int,
    passes: bool,
) -> None:
    slo = {"ttft": "600ms", "itl": "60ms", "percentile": percentile}
    given = spec(changed(_service(), "spec.slo", slo))
    figure: dict[str, Any] = {f"{which}_p95_s": predicted_s}
    samples: list[dict[str, Any]] = [{which: new}, {which: old}]
    now = SINCE + timedelta(minutes=10)
    pods = {name: replace(_pod(100, 0), **its) for name, its in zip(("new-0", "old-0"), samples, strict=True)}
    seen = replace(_look(timedelta(0), pods), at=now)
    found, message = analyze(
        given, replace(PLAN, predicted=replace(PLAN.predicted, **figure)), SINCE, seen, TRIED, now=now
    )
    assert found is passes, message
    assert passes or f"{which.upper()}s are above 750 ms, and 500 ms was predicted for P{percentile}" in message


def test_a_latency_within_the_slo_passes_however_short_the_prediction_was() -> None:
    seen = _look(timedelta(0), {"new-0": _pod(100, 0, itl=_buckets(0, 0, 1000))})
    assert _verdict(seen, 10, spec(changed(_service(), "spec.slo", {"ttft": "2s", "itl": "1s"})))[0] is True
    assert _verdict(seen, 10)[0] is False


def test_a_service_without_canaries_has_nothing_to_analyze() -> None:
    now = SINCE + timedelta(minutes=10)
    assert analyze(spec(), PLAN, SINCE, _look(timedelta(minutes=10), BAD), TRIED, now=now) == (None, "")
    assert CanaryAnalysis(spec(), PLAN, None, ()).request(None, [], now=now) is None


OLD = (group("prefill", 4, 2), group("decode", 8, 1))
NEW = (group("prefill", 4, 2), group("decode", 4, 2))
HASH = target_hash(NEW)
RUNNING = CanaryRun(HASH, "Share", SINCE)


def _pods_of(of: GroupIdentity, count: int) -> list[Manifest]:
    """Return the pods of a group."""
    labels = {
        "app.kubernetes.io/component": of.role,
        "weft.dev/degree": str(of.degree),
        "weft.dev/pool": of.pool,
        "weft.dev/revision": of.revision,
    }
    return [{"metadata": {"name": f"{of.key}-{number}", "labels": labels}} for number in range(count)]


PODS = [*_pods_of(OLD[0], 2), *_pods_of(OLD[1], 1), *_pods_of(NEW[1], 2)]

REQUESTS: dict[str, tuple[Ledger | None, str, CanaryRequest]] = {
    # the ledger, the annotation weft.dev/canary, and the canary that the plan needs
    "no rollout yet": (None, "", CanaryRequest(10)),
    "no canary yet": (Ledger(base=OLD), "", CanaryRequest(10)),
    "a canary whose workers start": (Ledger(base=OLD, canary=replace(RUNNING, since=None)), "", CanaryRequest(10)),
    "a canary of another plan": (
        Ledger(base=OLD, canary=replace(RUNNING, plan="another")), f"promote {HASH}", CanaryRequest(10),
    ),
    "a canary that failed": (
        Ledger(base=OLD, canary=replace(RUNNING, state="Failed")), f"promote {HASH}", CanaryRequest(10),
    ),
    "promoted": (
        Ledger(base=OLD, canary=RUNNING), f"promote {HASH}",
        CanaryRequest(10, passed=True, message="requested by `weft rollout promote`"),
    ),
    "aborted before its workers started": (
        Ledger(base=OLD, canary=replace(RUNNING, since=None)), f"abort {HASH}",
        CanaryRequest(10, passed=False, message="requested by `weft rollout abort`"),
    ),
    "another one was promoted": (Ledger(base=OLD, canary=RUNNING), "promote another", CanaryRequest(10)),
    "an unknown word": (Ledger(base=OLD, canary=RUNNING), f"stop {HASH}", CanaryRequest(10)),
}  # fmt: skip


@pytest.mark.parametrize(("ledger", "annotation", "expected"), REQUESTS.values(), ids=REQUESTS)
def test_the_canary_that_a_plan_needs(ledger: Ledger | None, annotation: str, expected: CanaryRequest) -> None:
    analysis = CanaryAnalysis(SPEC, PLAN, None, PODS, annotation=annotation)
    assert analysis.request(ledger, NEW, now=SINCE + timedelta(minutes=1)) == expected


@pytest.mark.parametrize(("kind", "bad_role"), [("Share", "decode"), ("Whole", "decode"), ("Whole", "prefill")])
def test_the_pods_of_a_canary_are_those_of_its_new_groups_or_of_the_whole_plan(kind: Any, bad_role: str) -> None:
    """In a canary of all sessions, the groups that the old plan has too are the new plan's."""
    now = SINCE + timedelta(minutes=10)
    bad = NEW[1] if bad_role == "decode" else NEW[0]
    tallies = {
        pod["metadata"]["name"]: _pod(0, 100) if pod in _pods_of(bad, 2) else _pod(200, 0)
        for pod in PODS
        if kind == "Share" or pod not in _pods_of(OLD[1], 1)
    }
    seen = replace(_look(timedelta(0), tallies), at=now)
    ledger = Ledger(base=OLD, canary=replace(RUNNING, kind=kind))
    found = CanaryAnalysis(SPEC, PLAN, seen, PODS).request(ledger, NEW, now=now)
    assert found is not None
    rounds = 200 if kind == "Share" else 600
    assert (found.passed, f"of its {rounds} rounds met the SLO" in found.message) == (False, True)
    assert ("of those of the old plan" in found.message) == (kind == "Share")


ON_SHARE = CanaryShare(goal=(*OLD, *NEW), canary=NEW, percent=7)
START_TEXT, WINDOW_END, LAST_END = "2026-01-01T00:00:00Z", "2026-01-01T00:10:00Z", "2026-01-01T00:30:00Z"
STATUS: dict[str, tuple[CanaryRun, CanaryShare | None, float, dict[str, Any], str]] = {
    # the canary, its share, the minutes since it runs, its row in the status less plan and hash, and the message
    "its workers start": (
        replace(RUNNING, since=None), ON_SHARE, 0, {"state": "Running", "percent": 7}, "its workers are starting",
    ),
    "a share before the end of its window": (
        RUNNING, ON_SHARE, 9.9,
        {"state": "Running", "percent": 7, "since": START_TEXT, "until": WINDOW_END},
        "7 % of new sessions go to it; it is analyzed at 00:10:00 UTC (spec.rollout.canary)",
    ),
    "all sessions before the end of its window": (
        replace(RUNNING, kind="Whole"), None, 9.9,
        {"state": "Running", "percent": 100, "since": START_TEXT, "until": WINDOW_END},
        "all sessions go to it; it is analyzed at 00:10:00 UTC (spec.rollout.canary)",
    ),
    "too few samples at the end of its window": (
        RUNNING, ON_SHARE, 10, {"state": "Running", "percent": 7, "since": START_TEXT, "until": LAST_END},
        "7 % of new sessions go to it; there are too few samples yet, and it is aborted at 00:30:00 UTC",
    ),
    "failed": (
        replace(RUNNING, since=None, state="Failed", message="it did worse"), None, 0,
        {"state": "Failed", "percent": 100, "message": "it did worse"}, "its workers are starting",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("canary", "share", "minutes", "row", "words"), STATUS.values(), ids=STATUS)
def test_the_status_of_a_canary(
    canary: CanaryRun, share: CanaryShare | None, minutes: float, row: dict[str, Any], words: str
) -> None:
    settings = SPEC.rollout.canary
    assert settings is not None
    found = canary_status(settings, canary, share, PLAN, now=SINCE + timedelta(minutes=minutes))
    assert found == ({"plan": "P4x2 D8x1", "hash": HASH, **row}, f"canary of P4x2 D8x1: {words}")
    CanaryStatus.model_validate(found[0])
