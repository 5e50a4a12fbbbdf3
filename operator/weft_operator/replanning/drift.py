"""Drift of a service from what its plan was made for: SLO burn rate, traffic, prediction errors, and loads. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from weft_core.durations import format_seconds, parse_duration
from weft_core.plan import Plan
from weft_operator.api.planning import Planning
from weft_operator.api.workload import Slo
from weft_operator.metrics.history import CONFIDENCE, FIGURES, History, Mean, Sample, surely_above
from weft_operator.metrics.observation import Observation, ObservedSlo, Tally

DriftKind = Literal["SloBurn", "Rate", "Rounds", "Lengths", "Residual", "Trigger"]
Direction = Literal["more", "less"]

THRESHOLD = 0.1
"""CUSUM threshold: a rate of 3x the bound reaches it in a tenth of a window, one 20 % above it in half of one. Noise
does not, because the standard error is subtracted from each sample."""

MOST_GROWTH = 2.0
"""A trigger asks for at most so many times the traffic at once: what a load is above its target says little about how
much more traffic it stands for."""

PROFILE_TOO_FAST = "at this traffic: the cost profile is too fast; measure it again with `weft profile`"

_WORDS = {
    "rounds": ("rounds a session", 1),
    "first_prompt": ("tokens of a first prompt", 0),
    "increment": ("new tokens of a later round", 0),
    "decode": ("tokens of an answer", 0),
}


@dataclass(frozen=True, slots=True)
class DetectedDrift:
    """One kind of drift; direction ``less`` needs no more capacity and may wait.

    ``figures`` are those of the sentence: rates per second, tokens, shares, seconds.
    """

    kind: DriftKind
    direction: Direction
    figures: Mapping[str, float]
    sentence: str
    traffic_changes: bool = False
    """For a residual: the traffic is changing too, so the cost profile is not to blame."""
    growth: float = 1.0
    """Times the observed traffic that the planner is asked for: a trigger's load over its target."""
    cooldown_s: float | None = None
    """A trigger's own cooldown; None: the service's."""


def detect_drifts(
    plan: Plan,
    slo: Slo,
    planning: Planning,
    *,
    history: History,
    observation: Observation,
    changed_at: datetime | None,
) -> tuple[DetectedDrift, ...]:
    """Return all drifts, those that need more capacity first; none without current metrics.

    ``changed_at`` is when workers last changed; earlier samples say nothing about the plan.
    """
    newest = history.newest
    if newest is None or not newest.seen or not observation.availability.seen:
        return ()
    found: list[DetectedDrift] = []
    window_s, drift = observation.window_s, planning.drift
    age_s = math.inf if changed_at is None else (observation.at - changed_at).total_seconds()
    shrink_after = parse_duration(drift.shrink_after)
    found += _rate(plan, history, newest, window_s=window_s, shrink_after=shrink_after)
    found += _shape(plan, history, newest, drift.workload, window_s=window_s, shrink_after=shrink_after)
    if age_s >= observation.fast_window_s:
        if not found:
            # Predictions for the planned traffic do not apply to other traffic.
            found += _residual(plan, slo, planning, history, newest, window_s=window_s)
        found += _burn(slo, planning, observation)
    found += _triggers(planning, observation, age_s=age_s)
    found = [one for one in found if one.direction == "more" or age_s >= shrink_after]
    return tuple(sorted(found, key=lambda one: (one.direction == "less", one.kind != "SloBurn")))


def burn_rate(tally: Tally, attainment: float) -> float | None:
    """Return the burn rate of the error budget: 1 uses it up exactly; None without samples.

    A target of 1 has no budget: any miss is an infinite burn rate.
    """
    attained = tally.attained
    if attained is None:
        return None
    budget = 1 - attainment
    missed = 1 - attained
    return missed / budget if budget > 0 else (math.inf if missed > 0 else 0.0)


def _burn(slo: Slo, planning: Planning, observation: Observation) -> list[DetectedDrift]:
    """Return a burning SLO, by two windows as in Google's SRE workbook: the fast one shows that it still burns.

    Both need enough samples, and more misses than chance explains.
    """
    seen = observation.slo
    if seen is None:
        return []
    limit, allowed = planning.drift.burn_rate, 1 - slo.attainment
    slow, units, of_a_round = seen.slow, "rounds", allowed
    if seen.unit == "session":
        # Few sessions end in the fast window, so its target for rounds is the session target's n-th root.
        slow, units = _sessions(seen), "sessions"
        rounds = observation.workload.rounds if observation.workload is not None else None
        of_a_round = 1 - slo.attainment ** (1 / max(1.0, rounds.mean if rounds is not None else 1.0))
    for tally, share in ((seen.fast, of_a_round), (slow, allowed)):
        if tally.total < planning.drift.min_samples or not surely_above(tally.bad, tally.total, limit * share):
            return []
    fast_burn, slow_burn = burn_rate(seen.fast, 1 - of_a_round), burn_rate(slow, slo.attainment)
    if fast_burn is None or slow_burn is None:
        return []
    return [
        DetectedDrift(
            kind="SloBurn",
            direction="more",
            figures={"fast": fast_burn, "slow": slow_burn, "limit": limit},
            sentence=f"{slow.bad} of {slow.total} {units} missed the SLO in {format_seconds(observation.window_s)}, "
            f"{slow_burn:.1f} times what {slo.attainment:.0%} attainment allows, and {seen.fast.bad} of "
            f"{seen.fast.total} rounds in the last {format_seconds(observation.fast_window_s)}",
        )
    ]


def _triggers(planning: Planning, observation: Observation, *, age_s: float) -> list[DetectedDrift]:
    """Return the loads that are above their targets; a window in which the workers changed says nothing."""
    found = []
    for trigger in planning.triggers or ():
        value = observation.triggers.get(trigger.metric)
        if value is None or value <= trigger.target or age_s < parse_duration(trigger.window):
            continue
        found.append(
            DetectedDrift(
                kind="Trigger",
                direction="more",
                figures={"seen": value, "target": trigger.target},
                sentence=f"{trigger.metric} is {value:.3g} on average over {trigger.window} and its target is "
                f"{trigger.target:.3g}",
                growth=min(MOST_GROWTH, value / trigger.target),
                cooldown_s=parse_duration(trigger.cooldown),
            )
        )
    return found


def holds_workers(planning: Planning, observation: Observation) -> str:
    """Say which trigger forbids a smaller plan: its load is unknown, or not below its lower bound; "" for none."""
    for trigger in planning.triggers or ():
        value = observation.triggers.get(trigger.metric)
        if value is None:
            return f"{trigger.metric} (spec.planning.triggers) has no metrics"
        if value >= trigger.least:
            return f"{trigger.metric} is {value:.3g}, and its lower bound is {trigger.least:.3g}"
    return ""


def _sessions(seen: ObservedSlo) -> Tally:
    return Tally(
        sum(item.sessions.good for item in seen.classes),
        sum(item.sessions.bad for item in seen.classes),
    )


def _rate(plan: Plan, history: History, newest: Sample, *, window_s: float, shrink_after: float) -> list[DetectedDrift]:
    valid = plan.validity
    if valid is None or newest.rate is None:
        return []
    rate = newest.rate.value
    figures = {"rate": rate, "low": valid.rate_low, "high": valid.rate_high, "sessions": float(newest.rate.count)}
    # If the newest sample is within the bound, the rest is not computed.
    if (
        rate > valid.rate_high
        and history.evidence(lambda s: _above(s.rate, valid.rate_high), window_s=window_s) > THRESHOLD
    ):
        words = f"{rate:.3g} sessions/s arrive ({newest.rate.count} counted) and the plan holds the SLO up to"
        return [DetectedDrift("Rate", "more", figures, f"{words} {valid.rate_high:.3g}")]
    if valid.rate_low > 0 and history.throughout(shrink_after, lambda s: _below(s.rate, valid.rate_low)):
        peak = history.peak_rate(shrink_after) or rate
        words = f"at most {peak:.3g} sessions/s arrived for {format_seconds(shrink_after)} and the plan is for"
        return [
            DetectedDrift("Rate", "less", figures, f"{words} {valid.arrival_rate:.3g}: fewer than {valid.rate_low:.3g}")
        ]
    return []


def _shape(
    plan: Plan, history: History, newest: Sample, tolerance: float, *, window_s: float, shrink_after: float
) -> list[DetectedDrift]:
    if plan.validity is None:
        return []
    found = []
    for name in FIGURES:
        planned: float = getattr(plan.validity, name)
        seen = newest.figures.get(name)
        if seen is None or planned <= 0:
            continue
        high, low = planned * (1 + tolerance), planned / (1 + tolerance)

        def above(sample: Sample, name: str = name, bound: float = high) -> float | None:
            return _above(sample.figures.get(name), bound)

        def below(sample: Sample, name: str = name, bound: float = low) -> bool:
            return _below(sample.figures.get(name), bound)

        longer = seen.value > high and history.evidence(above, window_s=window_s) > THRESHOLD
        if not longer and not history.throughout(shrink_after, below):
            continue
        words, digits = _WORDS[name]
        found.append(
            DetectedDrift(
                kind="Rounds" if name == "rounds" else "Lengths",
                direction="more" if longer else "less",
                figures={"seen": seen.value, "planned": planned, "samples": float(seen.count)},
                sentence=f"{seen.value:.{digits}f} {words} are observed (mean of {seen.count}) and the plan is for "
                f"{planned:.{digits}f}",
            )
        )
    return found


def _residual(
    plan: Plan, slo: Slo, planning: Planning, history: History, newest: Sample, *, window_s: float
) -> list[DetectedDrift]:
    """Return latencies above both the prediction and the SLO.

    An observed ITL is of single gaps and a predicted one of rounds' means, so the SLO is needed as a second bound.
    """
    found = []
    other = _unproven_change(plan, newest, planning.drift.workload)
    figures = (
        ("TTFT", "ttft_s", plan.predicted.ttft_p95_s, parse_duration(slo.ttft)),
        ("ITL", "itl_s", plan.predicted.itl_p95_s, parse_duration(slo.itl)),
    )
    for name, field, predicted, threshold in figures:
        seen: float | None = getattr(newest, field)
        if seen is None or not math.isfinite(predicted) or predicted <= 0:
            continue
        bound = max(predicted * (1 + planning.drift.residual), threshold)

        def beyond(sample: Sample, field: str = field, bound: float = bound) -> float | None:
            value: float | None = getattr(sample, field)
            return math.log(value / bound) if value is not None and value > 0 else None

        if seen > bound and history.evidence(beyond, window_s=window_s) > THRESHOLD:
            found.append(
                DetectedDrift(
                    kind="Residual",
                    direction="more",
                    figures={"seen": seen, "predicted": predicted},
                    sentence=f"P{slo.percentile} {name} is {format_seconds(seen)} and {format_seconds(predicted)} was "
                    f"predicted {other or PROFILE_TOO_FAST}",
                    traffic_changes=bool(other),
                )
            )
    return found


def _unproven_change(plan: Plan, newest: Sample, tolerance: float) -> str:
    """Return which figure of the newest sample is not as planned although it is no drift yet, "" for none.

    The cost profile is to blame only at the planned traffic.
    """
    valid = plan.validity
    if valid is None:
        return ""
    if newest.rate is not None and newest.rate.value > valid.rate_high:
        seen, planned = f"{newest.rate.value:.3g} sessions/s arrive", f"up to {valid.rate_high:.3g}"
        return f"for the traffic of the plan: {seen} and it is for {planned}"
    for name, mean in newest.figures.items():
        was: float = getattr(valid, name)
        words, digits = _WORDS[name]
        if mean.value > was * (1 + tolerance):
            seen, planned = f"{mean.value:.{digits}f} {words} are observed", f"{was:.{digits}f}"
            return f"for the traffic of the plan: {seen} and it is for {planned}"
    return ""


def _above(mean: Mean | None, bound: float) -> float | None:
    """Return the log of the ratio of a mean's lower confidence end to a bound; None where the mean is unknown."""
    if mean is None or mean.value <= 0 or bound <= 0:
        return None
    return math.log(mean.value / bound) - CONFIDENCE * mean.error


def _below(mean: Mean | None, bound: float) -> bool:
    """Return whether a mean is below a bound with 95 % confidence; an unknown mean is not."""
    return mean is not None and mean.value * (1 + CONFIDENCE * mean.error) < bound
