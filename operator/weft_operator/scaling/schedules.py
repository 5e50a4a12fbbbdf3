"""Which of a service's schedules is active at a time, and when that changes next. Pure.

Times of day are in the schedule's time zone. A time that daylight saving skips is an hour later; of a time that occurs
twice the first one counts.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from weft_operator.api.scaling import DAYS, Schedule
from weft_operator.api.service import DisaggInferenceServiceSpec

_DAY = timedelta(days=1)
_AHEAD = 9
"""Days ahead in which every schedule starts or ends, because each has a day of the week."""


def unknown_zone(schedules: Iterable[Schedule]) -> str:
    """Return the error for an unknown time zone, "" where all are known."""
    for item in schedules:
        try:
            ZoneInfo(item.time_zone)
        except (KeyError, ValueError, OSError):
            return (
                f"spec.planning.schedules[{item.name}].timeZone: {item.time_zone} is not in the time zone database; "
                "use a name such as Europe/Berlin or UTC"
            )
    return ""


def in_force(schedules: Sequence[Schedule], now: datetime) -> Schedule | None:
    """Return the first schedule that is active, None where none is."""
    return next(
        (item for item in schedules if any(begin <= now < end for begin, end in _hours(item, now))),
        None,
    )


def next_edge(schedules: Sequence[Schedule], now: datetime) -> datetime | None:
    """Return when the active schedule changes next; None where it never does."""
    present = in_force(schedules, now)
    edges = {edge for item in schedules for hours in _hours(item, now) for edge in hours if edge > now}
    return next((edge for edge in sorted(edges) if in_force(schedules, edge) != present), None)


def bounded(spec: DisaggInferenceServiceSpec, schedule: Schedule | None) -> DisaggInferenceServiceSpec:
    """Return a spec with the bounds of a schedule in place of its own."""
    if schedule is None:
        return spec
    planning = spec.planning.model_copy(
        update={name: bounds for name, bounds in (("prefill", schedule.prefill), ("decode", schedule.decode)) if bounds}
    )
    capacity = spec.capacity if schedule.gpus is None else spec.capacity.model_copy(update={"gpus": schedule.gpus})
    return spec.model_copy(update={"planning": planning, "capacity": capacity})


def manifest_at(manifest: Mapping[str, Any], now: datetime) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """Return a manifest with the bounds of the active schedule, and the schedule: name, ``until`` and bounds.

    For ``weft plan``, whose request must equal the operator's. The name is "" while no schedule is active, and
    ``until`` is absent where that never changes. Returns None for a service without schedules.

    Raises:
        ValueError: a time zone is unknown; the message names the field.
    """
    spec = manifest["spec"]
    planning = spec.get("planning") or {}
    schedules = [Schedule.model_validate(item) for item in planning.get("schedules") or ()]
    if not schedules:
        return None
    fault = unknown_zone(schedules)
    if fault:
        raise ValueError(fault)
    present, until = in_force(schedules, now), next_edge(schedules, now)
    shown: dict[str, Any] = {"name": ""} if present is None else _schedule_json(present)
    roles = {role: shown[role] for role in ("prefill", "decode") if role in shown}
    budget = {"gpus": shown["gpus"]} if "gpus" in shown else {}
    bounds = {"planning": {**planning, **roles}, "capacity": {**spec["capacity"], **budget}}
    return {**manifest, "spec": {**spec, **bounds}}, {**shown, **({"until": until} if until is not None else {})}


def _schedule_json(schedule: Schedule) -> dict[str, Any]:
    return schedule.model_dump(mode="json", exclude_none=True, include={"name", "prefill", "decode", "gpus"})


def wants_workers(schedule: Schedule | None) -> bool:
    """Return whether a schedule sets bounds on workers, so that an idle service keeps them."""
    return schedule is not None and (schedule.prefill is not None or schedule.decode is not None)


def _hours(schedule: Schedule, now: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Yield the begin and end (UTC) of a schedule's hours around a moment."""
    zone = ZoneInfo(schedule.time_zone)
    begin, end = time.fromisoformat(schedule.begin), time.fromisoformat(schedule.end)
    today = now.astimezone(zone).date()
    for ahead in range(-2, _AHEAD):
        day = today + ahead * _DAY
        if DAYS[day.weekday()] in schedule.days:
            yield _moment(day, begin, zone), _moment(day if end > begin else day + _DAY, end, zone)


def _moment(day: date, at: time, zone: ZoneInfo) -> datetime:
    return datetime.combine(day, at, tzinfo=zone).astimezone(UTC)
