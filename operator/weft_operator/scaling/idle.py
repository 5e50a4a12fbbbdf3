"""Decide when an idle service is scaled to zero, and when it is scaled up again. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from weft_core.durations import format_seconds, parse_duration
from weft_core.heartbeat import WorkerRecord
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.metrics.history import quiet, quiet_for
from weft_operator.metrics.observation import Observation
from weft_operator.render.inputs import PlanRecord

Demand = Literal["None", "Waiting", "Unknown"]
"""What coordinators say: nobody waits, somebody does, or it could not be read for a while."""


@dataclass(frozen=True, slots=True)
class ScaleToZeroDecision:
    """The plan record, scaled to zero or not, with a reason and message for the condition Planned ("" for none)."""

    record: PlanRecord
    reason: str = ""
    message: str = ""


def has_demand(record: PlanRecord, seen: Observation | None, demand: Demand) -> bool:
    """Tell whether a service at zero has requests, so that it must be scaled up whatever its spec says.

    Coordinators say so at once; requests in Prometheus since then count too, should that have been lost.
    """
    scaled_to_zero_at = record.baseline.scaled_to_zero_at
    if scaled_to_zero_at is None:
        return False
    asked = seen is not None and seen.availability.seen and seen.at > scaled_to_zero_at and not quiet(seen)
    return demand == "Waiting" or asked


def scaled_up(record: PlanRecord, now: datetime) -> PlanRecord:
    """Return the record scaled up, from now on."""
    return replace(record, baseline=replace(record.baseline, scaled_to_zero_at=None, changed_at=now))


def may_scale_to_zero(spec: DisaggInferenceServiceSpec) -> bool:
    """Tell whether a spec allows scale to zero."""
    planning = spec.planning
    return planning.scale_to_zero is not None and planning.mode == "Auto" and planning.objective == "cost"


def is_idle(
    spec: DisaggInferenceServiceSpec, record: PlanRecord, *, quiet_since: datetime | None, now: datetime
) -> bool:
    """Tell whether no request was seen for long enough, all of it since the workers last changed."""
    settings, changed_at = spec.planning.scale_to_zero, record.baseline.changed_at
    if settings is None or quiet_since is None or not may_scale_to_zero(spec):
        return False
    since = quiet_since if changed_at is None else max(quiet_since, changed_at)
    return quiet_for(since, now, parse_duration(settings.after))


def why_unobserved(spec: DisaggInferenceServiceSpec, seen: Observation | None) -> str:
    """Return why idleness cannot be observed, "" where it can."""
    if not may_scale_to_zero(spec) or seen is None or seen.availability.reason != "NotConfigured":
        return ""
    return (
        "spec.planning.scaleToZero needs to see that no request comes, and no Prometheus is known: give "
        "spec.planning.prometheus.url, or the chart's prometheus.url, or remove scaleToZero"
    )


def scale_to_zero(
    spec: DisaggInferenceServiceSpec,
    record: PlanRecord,
    *,
    workers: Mapping[str, WorkerRecord],
    ready: Iterable[str],
    now: datetime,
) -> ScaleToZeroDecision:
    """Return an idle service scaled to zero, unless a worker is busy, or a ready one has no heartbeat.

    ``workers`` are the newest heartbeats, ``ready`` the names of workers whose pods are ready.
    """
    settings = spec.planning.scale_to_zero
    silent = sorted(name for name in ready if name not in workers)
    if settings is None or any(_busy(one) for one in workers.values()):
        return ScaleToZeroDecision(record)
    if silent:
        return ScaleToZeroDecision(
            record,
            "ScaleToZeroBlocked",
            f"no request was seen for {format_seconds(parse_duration(settings.after))}, and the workers stay: Redis "
            f"does not tell that {', '.join(silent[:3])} {'is' if len(silent) == 1 else 'are'} idle; let operator and "
            "routers reach the Redis of the chart's redis.url",
        )
    return ScaleToZeroDecision(replace(record, baseline=replace(record.baseline, scaled_to_zero_at=now)))


def _busy(worker: WorkerRecord) -> bool:
    return bool(worker.live_rounds or worker.queue or worker.batch)
