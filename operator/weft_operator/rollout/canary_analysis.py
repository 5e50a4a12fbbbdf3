"""Canary analysis: compare the workers of a new plan with the predictions and with the old workers. Pure.

A canary fails when its workers are, beyond chance, worse than predicted, worse than the SLO, and no better than the
old workers. Missing, stale or invalid metrics decide nothing: the canary runs on, and fails at ``maxWindow``.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from weft_core.durations import format_seconds, parse_duration
from weft_core.plan import Plan
from weft_operator.api.canary import Canary as Settings
from weft_operator.api.objects import (
    ABORT,
    DEGREE_LABEL,
    POOL_LABEL,
    PROMOTE,
    REVISION_LABEL,
    Manifest,
    labels_of,
    name_of,
    pod_role,
)
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.metrics.history import surely_above
from weft_operator.metrics.observation import Observation, PodTally, Tally
from weft_operator.render.plan_baseline import time_text
from weft_operator.render.plan_summary import plan_summary
from weft_operator.rollout.canary import CanaryRequest, CanaryShare, fresh_groups
from weft_operator.rollout.groups import GroupIdentity, GroupTarget
from weft_operator.rollout.ledger import CanaryRun, Ledger, target_hash

EARLY = 2.0
"""Before the end of the window a canary fails at this many times the share of bad rounds that fails it at the end."""


@dataclass(frozen=True, slots=True)
class CanaryAnalysis:
    """The inputs of a canary analysis; ``annotation`` is the service's weft.dev/canary, "" for none."""

    spec: DisaggInferenceServiceSpec
    plan: Plan
    seen: Observation | None
    pods: Sequence[Manifest]
    annotation: str = ""

    def request(self, ledger: Ledger | None, target: Sequence[GroupTarget], *, now: datetime) -> CanaryRequest | None:
        """Return the canary that a plan needs, with the current result of its analysis; None where it needs none."""
        settings = self.spec.rollout.canary
        if settings is None:
            return None
        canary = None if ledger is None else ledger.canary
        if ledger is None or canary is None or canary.state != "Running" or canary.plan != target_hash(target):
            return CanaryRequest(settings.percent)
        passed, message = self._verdict(canary, ledger, target, now=now)
        return CanaryRequest(settings.percent, passed, message)

    def _verdict(
        self, canary: CanaryRun, ledger: Ledger, target: Sequence[GroupTarget], *, now: datetime
    ) -> tuple[bool | None, str]:
        word, _, name = self.annotation.partition(" ")
        if name == canary.plan and word in (PROMOTE, ABORT):
            return word == PROMOTE, f"requested by `weft rollout {word}`"
        if canary.since is None:
            return None, ""
        tried = fresh_groups(ledger.base, target) if canary.kind == "Share" else target
        return analyze(self.spec, self.plan, canary.since, self.seen, pods_of(self.pods, tried), now=now)


def analyze(
    spec: DisaggInferenceServiceSpec,
    plan: Plan,
    since: datetime,
    seen: Observation | None,
    tried: frozenset[str],
    *,
    now: datetime,
) -> tuple[bool | None, str]:
    """Return whether the canary that runs ``since`` then passes (None: undecided), and why.

    ``tried`` are the pods of its decode workers; all other decode pods are the old plan's.
    """
    settings = spec.rollout.canary
    if settings is None:
        return None, ""
    unobserved = why_unobserved(spec, since, seen, now=now)
    window_over, bound_over = (now >= end for end in ends(settings, since))
    if not unobserved and seen is not None:
        mine = _together(tally for pod, tally in seen.pods.items() if pod in tried)
        theirs = _together(tally for pod, tally in seen.pods.items() if pod not in tried)
        if mine.rounds.total >= settings.min_samples:
            worse = _missing_slo(spec, plan, settings, mine, theirs, final=window_over)
            if not worse and window_over:
                worse = _slower(spec, plan, settings, mine, theirs)
            if worse:
                return False, worse
            if window_over:
                return True, f"{_share(mine.rounds)} of its {mine.rounds.total} rounds met the SLO"
        unobserved = (
            f"{mine.rounds.total} rounds were observed, spec.rollout.canary.minSamples is {settings.min_samples}"
        )
    if bound_over:
        return False, f"no result within {format_seconds(bound_s(settings))}: {unobserved}"
    return None, ""


def why_unobserved(
    spec: DisaggInferenceServiceSpec, since: datetime, seen: Observation | None, *, now: datetime
) -> str:
    """Return why an observation cannot be used for a canary, "" where it can."""
    if seen is None or (seen.availability.seen and seen.canary_since != since):
        return "there are no metrics since it started"
    if not seen.availability.seen:
        return f"{seen.availability.reason}: {seen.availability.message}"
    planning = spec.planning
    old = parse_duration(planning.prometheus.stale_after) + parse_duration(planning.interval)
    if now - seen.at > timedelta(seconds=old):
        return f"the last metrics are {format_seconds((now - seen.at).total_seconds())} old"
    return ""


def bound_s(settings: Settings) -> float:
    """Return the longest duration of a canary in seconds."""
    window = parse_duration(settings.window)
    return 3 * window if settings.max_window is None else max(window, parse_duration(settings.max_window))


def ends(settings: Settings, since: datetime) -> tuple[datetime, datetime]:
    """Return when a canary is analyzed, and when at the latest."""
    return (
        since + timedelta(seconds=parse_duration(settings.window)),
        since + timedelta(seconds=bound_s(settings)),
    )


def pods_of(pods: Iterable[Manifest], groups: Iterable[GroupIdentity]) -> frozenset[str]:
    """Return the pods of some groups by name."""
    places = {(group.role, str(group.degree), group.pool, group.revision) for group in groups}
    keys = (DEGREE_LABEL, POOL_LABEL, REVISION_LABEL)
    return frozenset(
        name_of(pod) for pod in pods if (pod_role(pod), *(labels_of(pod).get(key, "") for key in keys)) in places
    )


def canary_status(
    settings: Settings, canary: CanaryRun, share: CanaryShare | None, plan: Plan, *, now: datetime
) -> tuple[dict[str, Any], str]:
    """Return ``status.canary`` and a message; both change only when the canary does."""
    percent = 100 if share is None else share.percent
    summary = plan_summary(plan)
    row: dict[str, Any] = {"plan": summary, "hash": canary.plan, "state": canary.state, "percent": percent}
    who = "all sessions go to it" if share is None else f"{percent} % of new sessions go to it"
    if canary.message:
        row["message"] = canary.message
    if canary.since is None:
        return row, f"canary of {summary}: its workers are starting"
    due, last = ends(settings, canary.since)
    row |= {"since": time_text(canary.since), "until": time_text(due if now < due else last)}
    if now < due:
        return row, f"canary of {summary}: {who}; it is analyzed at {due:%H:%M:%S} UTC (spec.rollout.canary)"
    return row, f"canary of {summary}: {who}; there are too few samples yet, and it is aborted at {last:%H:%M:%S} UTC"


def _together(tallies: Iterable[PodTally]) -> PodTally:
    """Return the sum over several pods."""
    good = bad = 0
    ttft: dict[float, float] = {}
    itl: dict[float, float] = {}
    for tally in tallies:
        good, bad = good + tally.rounds.good, bad + tally.rounds.bad
        for total, part in ((ttft, tally.ttft), (itl, tally.itl)):
            for bound, count in part.items():
                total[bound] = total.get(bound, 0.0) + count
    return PodTally(Tally(good, bad), ttft, itl)


def _missing_slo(
    spec: DisaggInferenceServiceSpec, plan: Plan, settings: Settings, mine: PodTally, theirs: PodTally, *, final: bool
) -> str:
    predicted = plan.predicted.attainment
    expected = spec.slo.attainment if predicted is None else predicted.value
    allowed = max(1 - expected + settings.tolerance, 1 - spec.slo.attainment)
    bad, total = mine.rounds.bad, mine.rounds.total
    if not surely_above(bad, total, allowed if final else EARLY * allowed):
        return ""
    if _no_worse(bad / total, theirs.rounds.bad, theirs.rounds.total, settings):
        return ""
    beside = f", and {_share(theirs.rounds)} of those of the old plan" if theirs.rounds.total else ""
    return f"{_share(mine.rounds)} of its {total} rounds met the SLO{beside}; {expected:.1%} were predicted"


def _slower(spec: DisaggInferenceServiceSpec, plan: Plan, settings: Settings, mine: PodTally, theirs: PodTally) -> str:
    """Return which latency is above its prediction beyond chance; one within the SLO passes, as for drift."""
    late = 1 - spec.slo.percentile / 100
    figures = (
        ("TTFT", mine.ttft, theirs.ttft, plan.predicted.ttft_p95_s, parse_duration(spec.slo.ttft)),
        ("ITL", mine.itl, theirs.itl, plan.predicted.itl_p95_s, parse_duration(spec.slo.itl)),
    )
    for name, own, other, predicted, promised in figures:
        if not math.isfinite(predicted) or predicted <= 0:
            continue
        bound = max(predicted * (1 + spec.planning.drift.residual), promised)
        above, total = _above(own, bound)
        if total < settings.min_samples or not surely_above(above, total, late):
            continue
        if _no_worse(above / total, *_above(other, bound), settings):
            continue
        return (
            f"{above / total:.1%} of its {total} {name}s are above {format_seconds(bound)}, and "
            f"{format_seconds(predicted)} was predicted for P{spec.slo.percentile}"
        )
    return ""


def _above(buckets: Mapping[float, float], bound: float) -> tuple[int, int]:
    """Return how many samples are certainly above a bound, given the buckets, and how many there are."""
    total = max(buckets.values(), default=0.0)
    below = min((count for edge, count in buckets.items() if edge >= bound), default=total)
    return round(total - below), round(total)


def _no_worse(share: float, bad: int, total: int, settings: Settings) -> bool:
    """Return whether the old plan is as bad: then the new plan is not the cause, and a rollback gains nothing."""
    return total >= settings.min_samples and share <= bad / total


def _share(tally: Tally) -> str:
    """Return the share of good samples, of which there is at least one."""
    return f"{tally.good / tally.total:.1%}"
