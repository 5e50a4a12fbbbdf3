"""``--at``: which of a service's schedules is active then, and the manifest with its bounds, as the operator asks.

The operator's part implements schedules; it is called through an entry point, because the planner does not import it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import entry_points
from typing import Any, cast

import click

from weft_cli.errors import BadInputError

GROUP = "weft.hours"
"""Entry points: a function from a manifest and a moment to the manifest with the bounds of the hour and the schedule
(its name, "" for none; ``until``; ``prefill``, ``decode``, ``gpus`` where it bounds them), None without schedules."""

Json = Mapping[str, object]


class Timestamp(click.ParamType[datetime]):
    """A moment with its offset from UTC; without one, it would be another moment on every machine."""

    name = "moment"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return the moment, or fail with the form."""
        if isinstance(value, datetime):
            return value
        try:
            found = datetime.fromisoformat(str(value))
        except ValueError:
            found = None
        if found is None or found.tzinfo is None:
            self.fail(f"{value!r} is no moment with an offset; write 2026-11-22T09:00+01:00 or …T08:00Z", param, ctx)
        return found


def this_moment() -> datetime:
    """Return the time now, with the offset of this machine."""
    return datetime.now(UTC).astimezone()


@dataclass(frozen=True, slots=True)
class ActiveSchedule:
    """The active schedule at a moment; ``name`` is "" for none, ``until`` None where that never changes."""

    at: datetime
    name: str
    until: datetime | None
    bounds: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return it for programs, as ``status.schedule`` has it, with the moment and the bounds."""
        named = {"name": self.name} if self.name else {}
        end = {"until": self.until.isoformat()} if self.until is not None else {}
        return {"at": self.at.isoformat(), **named, **end, **self.bounds}

    def words(self) -> str:
        """Return it for people."""
        until = "" if self.until is None else f" until {_written(self.until)}"
        if not self.name:
            return f"At {_written(self.at)} no schedule is active{until}: planned within the bounds of the spec."
        bounds = ", ".join(_bound(key, value) for key, value in self.bounds.items())
        return f"At {_written(self.at)} schedule {self.name} is active{until}: planned within {bounds}."


def within_hours(path: str, service: Json, at: datetime, *, command: str) -> tuple[Json, ActiveSchedule | None]:
    """Return a service with the bounds of the hour in its spec, and the hour; as it is where it has no schedules.

    Raises:
        BadInputError: a time zone is not known.
    """
    if not _has_schedules(service):
        return service, None
    for point in entry_points(group=GROUP):
        try:
            ask = cast(Callable[[Json, datetime], tuple[Json, Mapping[str, Any]] | None], point.load())
        except ImportError:  # an image holds only the parts it runs
            continue
        try:
            found = ask(service, at)
        except ValueError as error:
            raise BadInputError(path, str(error)) from error
        if found is None:
            return service, None
        bounded, schedule = found
        until = schedule.get("until")
        bounds = {key: schedule[key] for key in ("prefill", "decode", "gpus") if key in schedule}
        return bounded, ActiveSchedule(
            at, schedule["name"], None if until is None else until.astimezone(at.tzinfo), bounds
        )
    click.echo(
        f"weft {command}: spec.planning.schedules were not looked at, so the plan is for the spec's own bounds; "
        "install weft[operator] to plan for an hour",
        err=True,
    )
    return service, None


def _has_schedules(service: Json) -> bool:
    spec = service.get("spec")
    planning = spec.get("planning") if isinstance(spec, Mapping) else None
    return isinstance(planning, Mapping) and bool(planning.get("schedules"))


def _written(moment: datetime) -> str:
    return moment.isoformat(timespec="minutes")


def _bound(key: str, value: Any) -> str:
    if key == "gpus":
        return f"{value} GPUs"
    least, most = value["min"], value.get("max")
    if most is None:
        return f"{least} {key} workers or more"
    return f"{least} {key} workers" if least == most else f"{least} to {most} {key} workers"
