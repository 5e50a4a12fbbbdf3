"""Decide when a service that nobody asks anything has no workers, and when it has them again. Pure."""

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
    """The record, asleep or not, and what there is to tell of it beside that: a reason of Planned, "" for nothing."""

    record: PlanRecord
    reason: str = ""
    message: str = ""


def wakes(record: PlanRecord, seen: Observation | None, demand: Demand) -> bool:
    """Tell whether a service at zero must have its workers back, whatever its spec says: somebody asks something.

    Coordinators say so at once; what Prometheus saw since counts too, should their word have been lost.
    """
    asleep_at = record.standing.asleep_at
    if asleep_at is None:
        return False
    asked = seen is not None and seen.sight.seen and seen.at > asleep_at and not quiet(seen)
    return demand == "Waiting" or asked


def awake(record: PlanRecord, now: datetime) -> PlanRecord:
    """Return the record with its workers wanted again, from now on."""
    return replace(record, standing=replace(record.standing, asleep_at=None, changed_at=now))


def may_sleep(spec: DisaggInferenceServiceSpec) -> bool:
    """Tell whether a spec lets all workers leave."""
    planning = spec.planning
    return planning.scale_to_zero is not None and planning.mode == "Auto" and planning.objective == "cost"


def tired(spec: DisaggInferenceServiceSpec, record: PlanRecord, *, quiet_since: datetime | None, now: datetime) -> bool:
    """Tell whether nobody was seen to ask anything for long enough, all of it since the workers last changed."""
    settings, changed_at = spec.planning.scale_to_zero, record.standing.changed_at
    if settings is None or quiet_since is None or not may_sleep(spec):
        return False
    since = quiet_since if changed_at is None else max(quiet_since, changed_at)
    return quiet_for(since, now, parse_duration(settings.after))


def blind(spec: DisaggInferenceServiceSpec, seen: Observation | None) -> str:
    """Return why it will never be seen that nobody asks anything, "" where it will be."""
    if not may_sleep(spec) or seen is None or seen.sight.reason != "NotConfigured":
        return ""
    return (
        "spec.planning.scaleToZero needs to see that no request comes, and no Prometheus is known: give "
        "spec.planning.prometheus.url, or the chart's prometheus.url, or remove scaleToZero"
    )


def settle(
    spec: DisaggInferenceServiceSpec,
    record: PlanRecord,
    *,
    workers: Mapping[str, WorkerRecord],
    ready: Iterable[str],
    now: datetime,
) -> ScaleToZeroDecision:
    """Return a tired service asleep, unless a worker still does something, or one that is ready does not say.

    ``workers`` are the newest words of the workers, ``ready`` the names of those whose pods are.
    """
    settings = spec.planning.scale_to_zero
    silent = sorted(name for name in ready if name not in workers)
    if settings is None or any(_busy(one) for one in workers.values()):
        return ScaleToZeroDecision(record)
    if silent:
        return ScaleToZeroDecision(
            record,
            "KeptAwake",
            f"no request was seen for {format_seconds(parse_duration(settings.after))}, and the workers stay: Redis "
            f"does not tell that {', '.join(silent[:3])} {'is' if len(silent) == 1 else 'are'} idle; let operator and "
            "routers reach the Redis of the chart's redis.url",
        )
    return ScaleToZeroDecision(replace(record, standing=replace(record.standing, asleep_at=now)))


def _busy(worker: WorkerRecord) -> bool:
    return bool(worker.live_rounds or worker.queue or worker.batch)
