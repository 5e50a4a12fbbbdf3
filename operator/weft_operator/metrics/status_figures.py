"""``status.observed``, and whether a newer observation differs notably: a status must not follow noise."""

from typing import Any, Literal

from weft_core.durations import format_seconds
from weft_operator.api.objects import timestamp
from weft_operator.metrics.observation import (
    ClassTally,
    Latency,
    Observation,
    ObservedSlo,
    ObservedWorkload,
    Spread,
    Tally,
)
from weft_operator.metrics.slo_results import MIN_UNITS

NOTABLE = 0.1
"""Relative change of a figure from which the status shows the new one."""

_DIGITS = 3

NO_METRICS = "there are no current metrics; see the condition MetricsAvailable"

SloReason = Literal["Met", "Missed", "TooFewRounds", "Unknown"]


def figures(observation: Observation) -> dict[str, Any]:
    """Return ``status.observed`` with rounded figures; without figures where metrics are not available."""
    shown: dict[str, Any] = {
        "metricsReason": observation.availability.reason,
        "window": format_seconds(observation.window_s),
    }
    if observation.availability.seen:
        shown["at"] = timestamp(observation.at)
    if observation.workload is not None:
        shown["workload"] = _workload(observation.workload)
    if observation.slo is not None:
        shown["slo"] = _slo(observation.slo)
    if observation.triggers:
        shown["triggers"] = [
            {"metric": metric, "value": _rounded(value)} for metric, value in sorted(observation.triggers.items())
        ]
    return shown


def _workload(load: ObservedWorkload) -> dict[str, Any]:
    spreads = {
        "rounds": load.rounds,
        "firstPrompt": load.first_prompt,
        "increment": load.increment,
        "decode": load.decode,
        "gap": load.gap_s,
    }
    return {
        "sessionRate": _rounded(load.session_rate),
        "roundRate": _rounded(load.round_rate),
        "refusedRate": _rounded(load.refused_rate),
        "sessions": load.sessions,
        **{name: _spread(item) for name, item in spreads.items() if item is not None},
    }


def _spread(item: Spread) -> dict[str, Any]:
    return {"mean": _rounded(item.mean), "p50": _rounded(item.p50), "p95": _rounded(item.p95), "count": item.count}


def _slo(slo: ObservedSlo) -> dict[str, Any]:
    latencies = {"ttftFirst": slo.ttft_first, "ttftLater": slo.ttft_later, "itl": slo.itl}
    return {
        "percentile": slo.percentile,
        "unit": slo.unit,
        **({"attainment": _rounded(slo.attainment)} if slo.attainment is not None else {}),
        "classes": [_class(item) for item in slo.classes],
        **{name: _latency(item) for name, item in latencies.items() if item is not None},
    }


def _class(item: ClassTally) -> dict[str, Any]:
    shares = {
        "attainment": item.slow.attained,
        "recent": item.fast.attained,
        "ttft": item.ttft.attained,
        "itl": item.itl.attained,
        "sessionAttainment": item.sessions.attained,
    }
    return {
        "name": item.name,
        "count": item.slow.total,
        **{name: _rounded(share) for name, share in shares.items() if share is not None},
    }


def _latency(item: Latency) -> dict[str, Any]:
    return {"value": _rounded(item.value_s), "count": item.count}


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def differs(old: Observation, new: Observation) -> bool:
    """Return whether a newer observation differs from the shown one in a reason or in a figure by more than a tenth."""
    if (old.availability, old.window_s, old.fast_window_s) != (new.availability, new.window_s, new.fast_window_s):
        return True
    return slo_reason(old.slo)[0] != slo_reason(new.slo)[0] or moved(figures(old), figures(new))


def moved(old: Any, new: Any) -> bool:
    """Return whether a figure differs by more than a tenth between two values of ``status.observed``."""
    if isinstance(old, dict) and isinstance(new, dict):
        # Numbers of samples change with every query and mean nothing by themselves.
        keys = {*old, *new} - {"at", "count", "sessions"}
        return any(moved(old.get(key), new.get(key)) for key in keys)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) != len(new) or any(map(moved, old, new))
    if isinstance(old, bool | str) or isinstance(new, bool | str) or old is None or new is None:
        return bool(old != new)
    return bool(abs(old - new) > NOTABLE * max(abs(old), abs(new)))


def slo_reason(slo: ObservedSlo | None) -> tuple[SloReason, str]:
    """Return the reason and message of the condition SLOMet."""
    if slo is None:
        return "Unknown", NO_METRICS
    judged = [(item.name, _judged(item, slo)) for item in slo.classes]
    enough = [(name, tally.attained) for name, tally in judged if tally.total >= MIN_UNITS]
    if not enough:
        return "TooFewRounds", f"fewer than {MIN_UNITS} rounds were served in the window"
    missed = [(name, share) for name, share in enough if share is not None and share < slo.target]
    if missed:
        name, share = min(missed, key=lambda item: item[1])
        return (
            "Missed",
            f"{_percent(share)} of the {slo.unit}s of class {name} met the SLO; {_percent(slo.target)} must",
        )
    shares = [share for _, share in enough if share is not None]
    return "Met", f"{_percent(min(shares))} of the {slo.unit}s, or more of every class, met the SLO"


def _judged(item: ClassTally, slo: ObservedSlo) -> Tally:
    return item.sessions if slo.unit == "session" else item.slow


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
