"""Decide when an idle service is scaled to zero, and when it is scaled up again. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from weft_core.durations import format_seconds, parse_duration
from weft_core.heartbeat import WorkerRecord
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.metrics.history import quiet, quiet_for
from weft_operator.metrics.observation import Demand, Observation
from weft_operator.render.inputs import PlanRecord


@dataclass(frozen=True, slots=True)
class ScaleToZeroDecision:
    """The plan record, scaled to zero or not, with a reason and message for the condition Planned ("" for none)."""

    record: PlanRecord
    reason: str = ""
    message: str = ""


def has_demand(record: PlanRecord, seen: Observation | None, demand: Demand) -> bool:
    """Return whether a service at zero has requests, so that it must be scaled up whatever its spec says.

    Coordinators publish demand at once; requests in Prometheus count too, in case that was lost.
    """
    scaled_to_zero_at = record.baseline.scaled_to_zero_at
    if scaled_to_zero_at is None:
        return False
    requested = seen is not None and seen.availability.seen and seen.at > scaled_to_zero_at and not quiet(seen)
    return demand == "Waiting" or requested


def scaled_up(record: PlanRecord, now: datetime) -> PlanRecord:
    """Return the record scaled up."""
    return replace(record, baseline=replace(record.baseline, scaled_to_zero_at=None, changed_at=now))


def may_scale_to_zero(spec: DisaggInferenceServiceSpec) -> bool:
    """Return whether a spec allows scale to zero."""
    planning = spec.planning
    return planning.scale_to_zero is not None and planning.mode == "Auto" and planning.objective == "cost"


def is_idle(
    spec: DisaggInferenceServiceSpec, record: PlanRecord, *, quiet_since: datetime | None, now: datetime
) -> bool:
    """Return whether there was no request for ``scaleToZero.after``, counted from the last change of workers."""
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
        "spec.planning.scaleToZero needs metrics, and no Prometheus is known: give "
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
    without_heartbeat = sorted(name for name in ready if name not in workers)
    if settings is None or any(_busy(one) for one in workers.values()):
        return ScaleToZeroDecision(record)
    if without_heartbeat:
        return ScaleToZeroDecision(
            record,
            "ScaleToZeroBlocked",
            f"no request for {format_seconds(parse_duration(settings.after))}, but the workers stay: there is no "
            f"heartbeat of {', '.join(without_heartbeat[:3])} in Redis; let operator and routers reach the Redis of "
            "the chart's redis.url",
        )
    return ScaleToZeroDecision(replace(record, baseline=replace(record.baseline, scaled_to_zero_at=now)))


def _busy(worker: WorkerRecord) -> bool:
    return bool(worker.live_rounds or worker.queue or worker.batch)
