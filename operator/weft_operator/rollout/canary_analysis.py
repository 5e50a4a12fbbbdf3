"""Canary analysis: compare the workers of a new plan with the predictions and with the old workers. Pure.

A plan fails when it surely does worse than predicted, and than the SLO wants, and no better than the old plan beside
it. It is never judged by what is missing, old or no number: then the trial goes on, up to a bound, and fails at that.
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
    COMPONENT_LABEL,
    DEGREE_LABEL,
    POOL_LABEL,
    PROMOTE,
    REVISION_LABEL,
    Manifest,
    labels_of,
    name_of,
)
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.metrics.history import surely_above
from weft_operator.metrics.observation import Observation, PodTally, Tally
from weft_operator.render.plan_baseline import time_text
from weft_operator.render.plan_summary import plan_summary
from weft_operator.rollout.canary import CanaryRequest, CanaryShare, fresh_groups
from weft_operator.rollout.groups import GroupIdentity, GroupTarget
from weft_operator.rollout.ledger import CanaryTrial, Ledger, target_hash

EARLY = 2.0
"""Before the window is over a plan fails at this many times the share of bad rounds that it fails at in the end."""


@dataclass(frozen=True, slots=True)
class CanaryAnalysis:
    """The inputs of a canary analysis; ``said`` is the service's annotation weft.dev/canary, "" for none."""

    spec: DisaggInferenceServiceSpec
    plan: Plan
    seen: Observation | None
    pods: Sequence[Manifest]
    said: str = ""

    def canary(self, ledger: Ledger | None, target: Sequence[GroupTarget], *, now: datetime) -> CanaryRequest | None:
        """Return the trial that a plan change needs, with the judgement of this moment; None where it needs none."""
        settings = self.spec.rollout.canary
        if settings is None:
            return None
        trial = None if ledger is None else ledger.trial
        if ledger is None or trial is None or trial.state != "Running" or trial.plan != target_hash(target):
            return CanaryRequest(settings.percent)
        passed, message = self._verdict(trial, ledger, target, now=now)
        return CanaryRequest(settings.percent, passed, message)

    def _verdict(
        self, trial: CanaryTrial, ledger: Ledger, target: Sequence[GroupTarget], *, now: datetime
    ) -> tuple[bool | None, str]:
        word, _, name = self.said.partition(" ")
        if name == trial.plan and word in (PROMOTE, ABORT):
            return word == PROMOTE, f"`weft rollout {word}` said so"
        if trial.since is None:
            return None, ""
        tried = fresh_groups(ledger.base, target) if trial.kind == "Share" else target
        return analyze(self.spec, self.plan, trial.since, self.seen, pods_of(self.pods, tried), now=now)


def analyze(
    spec: DisaggInferenceServiceSpec,
    plan: Plan,
    since: datetime,
    seen: Observation | None,
    tried: frozenset[str],
    *,
    now: datetime,
) -> tuple[bool | None, str]:
    """Return whether a plan on trial ``since`` then passes (None: not known yet), and why.

    ``tried`` are the pods of its decode workers; all other decode pods are the old plan's.
    """
    settings = spec.rollout.canary
    if settings is None:
        return None, ""
    blind = why_unobserved(spec, since, seen, now=now)
    window_over, bound_over = (now >= end for end in ends(settings, since))
    if not blind and seen is not None:
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
        blind = f"{mine.rounds.total} rounds were seen and spec.rollout.canary.minSamples is {settings.min_samples}"
    if bound_over:
        return False, f"nothing could be told of it within {format_seconds(bound_s(settings))}: {blind}"
    return None, ""


def why_unobserved(
    spec: DisaggInferenceServiceSpec, since: datetime, seen: Observation | None, *, now: datetime
) -> str:
    """Return why a look tells nothing of a trial, "" where it does."""
    if seen is None or (seen.availability.seen and seen.trial_since != since):
        return "the service was not looked at since"
    if not seen.availability.seen:
        return f"{seen.availability.reason}: {seen.availability.message}"
    planning = spec.planning
    old = parse_duration(planning.prometheus.stale_after) + parse_duration(planning.interval)
    if now - seen.at > timedelta(seconds=old):
        return f"the last look is {format_seconds((now - seen.at).total_seconds())} ago"
    return ""


def bound_s(settings: Settings) -> float:
    """Return how many seconds a trial may take at most."""
    window = parse_duration(settings.window)
    return 3 * window if settings.max_window is None else max(window, parse_duration(settings.max_window))


def ends(settings: Settings, since: datetime) -> tuple[datetime, datetime]:
    """Return when a trial is judged, and when at the latest."""
    return (
        since + timedelta(seconds=parse_duration(settings.window)),
        since + timedelta(seconds=bound_s(settings)),
    )


def pods_of(pods: Iterable[Manifest], groups: Iterable[GroupIdentity]) -> frozenset[str]:
    """Return the pods of some groups by name."""
    places = {(group.role, str(group.degree), group.pool, group.revision) for group in groups}
    keys = (COMPONENT_LABEL, DEGREE_LABEL, POOL_LABEL, REVISION_LABEL)
    return frozenset(name_of(pod) for pod in pods if tuple(labels_of(pod).get(key, "") for key in keys) in places)


def canary_status(
    settings: Settings, trial: CanaryTrial, share: CanaryShare | None, plan: Plan, *, now: datetime
) -> tuple[dict[str, Any], str]:
    """Return a trial as the status shows it, and in words; they change only with what happens."""
    percent = 100 if share is None else share.percent
    summary = plan_summary(plan)
    row: dict[str, Any] = {"plan": summary, "hash": trial.plan, "state": trial.state, "percent": percent}
    who = "all sessions go to it" if share is None else f"{percent} % of new sessions go to it"
    if trial.message:
        row["message"] = trial.message
    if trial.since is None:
        return row, f"{summary} is to be tried: its workers come up"
    due, last = ends(settings, trial.since)
    row |= {"since": time_text(trial.since), "until": time_text(due if now < due else last)}
    if now < due:
        return row, f"{summary} is tried: {who}, and it is judged at {due:%H:%M:%S} UTC (spec.rollout.canary)"
    return row, f"{summary} is tried: {who}; too little is known yet, and at {last:%H:%M:%S} UTC it is given up"


def _together(tallies: Iterable[PodTally]) -> PodTally:
    """Return what several pods did as if they were one."""
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
    if not surely_above(bad, total, min(1.0, allowed if final else EARLY * allowed)):
        return ""
    if _no_worse(bad / total, theirs.rounds.bad, theirs.rounds.total, settings):
        return ""
    beside = f", and {_share(theirs.rounds)} of those of the plan before" if theirs.rounds.total else ""
    return f"{_share(mine.rounds)} of its {total} rounds met the SLO{beside}; {expected:.1%} were predicted"


def _slower(spec: DisaggInferenceServiceSpec, plan: Plan, settings: Settings, mine: PodTally, theirs: PodTally) -> str:
    """Return which latency is surely above what was predicted; those within the SLO are good enough, as for drift."""
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
    """Return how many samples are surely above a bound, and how many there are."""
    total = max(buckets.values(), default=0.0)
    below = min((count for edge, count in buckets.items() if edge >= bound), default=total)
    return round(total - below), round(total)


def _no_worse(share: float, bad: int, total: int, settings: Settings) -> bool:
    """Tell whether the old plan does as badly: then it is not the plan, and nothing is won by going back."""
    return total >= settings.min_samples and share <= bad / total


def _share(tally: Tally) -> str:
    attained = tally.attained
    return "none" if attained is None else f"{attained:.1%}"
