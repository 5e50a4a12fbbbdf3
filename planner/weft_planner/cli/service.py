"""Read the service of a command: its manifest, checked as the API server does, with the changes of the flags."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from weft_cli.errors import BadInputError
from weft_planner.cli.hours import ActiveSchedule, Timestamp, this_moment, within_hours
from weft_planner.cli.ranges import RATE

if TYPE_CHECKING:
    from weft_planner.request.reading import Request

Json = Mapping[str, object]
Function = TypeVar("Function", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class ServiceFlags:
    """What the command line says about the service."""

    file: str
    name: str | None
    profiles: Sequence[str]
    capacity: str | None
    trace: str | None
    gpus: int | None
    arrival_rate: float | None
    seed: int | None
    at: datetime | None = None
    """The moment whose schedule bounds the plan; None: the spec's own bounds do."""

    @classmethod
    def taken_from(cls, given: dict[str, Any]) -> "ServiceFlags":
        """Take these flags out of a command's parameters."""
        return cls(**{field.name: given.pop(field.name) for field in fields(cls)})


def service_options(function: Function) -> Function:
    """Add the options of ``ServiceFlags`` to a command."""
    options = (
        click.option(
            "-f", "--file", required=True, type=click.Path(), metavar="FILE", help="The manifest (YAML), - for stdin."
        ),
        click.option("--name", help="Which service, when the file has several."),
        click.option(
            "--profile",
            "profiles",
            multiple=True,
            type=click.Path(),
            metavar="FILE",
            help="A CostProfile that spec.profile.ref names.",
        ),
        click.option(
            "--capacity",
            type=click.Path(),
            metavar="FILE",
            help="Take the GPUs from this file instead: YAML of the form of spec.capacity, or a manifest with one.",
        ),
        click.option(
            "--trace",
            type=click.Path(),
            metavar="FILE",
            help="Take the workload from this trace or workload file, not spec.workload.",
        ),
        click.option("--gpus", type=click.IntRange(1, 4096), help="Use this many GPUs instead of spec.capacity.gpus."),
        click.option(
            "--arrival-rate",
            type=RATE,
            metavar="PER_S",
            help="Sessions per second instead of spec.workload.arrivalRate.",
        ),
        click.option(
            "--seed", type=click.IntRange(min=0), help="Seed of the simulated sessions, instead of spec.planning.seed."
        ),
        click.option(
            "--at",
            type=Timestamp(),
            default=this_moment,
            show_default="now",
            metavar="TIME",
            help="Plan within the schedule of spec.planning.schedules that is active then: 2026-11-22T09:00+01:00.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


@dataclass(frozen=True, slots=True)
class Service:
    """A service and the planning request that its manifest and the flags make.

    ``document`` is the manifest as written; ``hours`` the schedule that bounds the request, None without schedules.
    """

    name: str
    document: Json
    request: "Request"
    hours: ActiveSchedule | None = None


def read_service(
    flags: ServiceFlags, *, command: str, changes: Mapping[str, object] | None = None, routing_table: bool = True
) -> Service:
    """Read, check and put together; ``changes`` replace top-level fields of the request.

    ``routing_table``: whether the table of spec.routing.tableConfigMapRef is needed, too.

    Raises:
        BadInputError: a file cannot be read or is refused; each line names file, field, value and fix.
    """
    from weft_planner.request.manifest import choose_service, name_of, request_from_service
    from weft_planner.request.reading import RequestError, request_of
    from weft_planner.request.service import in_spec

    documents = documents_of(flags.file)
    try:
        service = choose_service(documents, flags.name)
        service = _with_capacity(service, flags.capacity)
        _check(flags.file, service, command=command, capacity=flags.capacity)
        profiles = [document for path in flags.profiles for document in _profiles(path, service, command=command)]
        bounded, hours = (
            (service, None) if flags.at is None else within_hours(flags.file, service, flags.at, command=command)
        )
        request = request_from_service(bounded, [*documents, *profiles], routing_table=routing_table)
        plain = request.model_dump(by_alias=True)
    except RequestError as error:
        raise BadInputError(flags.file, *error.faults) from error
    body = {**plain, "capacity": {**plain["capacity"]}, **(changes or {})}
    if flags.trace is not None:
        body["workload"] = _workload_of(flags.trace, plain["workload"])
    if flags.arrival_rate is not None:
        body["workload"] = {**body["workload"], "arrivalRate": flags.arrival_rate}
    if flags.gpus is not None:
        body["capacity"]["gpus"] = flags.gpus
    if flags.seed is not None:
        body["seed"] = flags.seed
    try:
        return Service(name_of(service), service, request if body == plain else request_of(body), hours)
    except RequestError as error:
        raise BadInputError(flags.trace or flags.file, *(in_spec(fault) for fault in error.faults)) from error


def documents_of(path: str) -> Sequence[Json]:
    """Return the objects of a YAML or JSON file, or of stdin for ``-``.

    Raises:
        BadInputError: it cannot be read, or is not YAML.
    """
    from weft_planner.request.manifest import read_documents
    from weft_planner.request.reading import RequestError

    try:
        return read_documents(sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInputError(path, error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise BadInputError(path, f"not UTF-8 text: {error.reason} at byte {error.start}") from error
    except RequestError as error:
        raise BadInputError(path, str(error)) from error


def _workload_of(path: str, service: Json) -> Json:
    """Return the workload of a trace or workload file; what it does not record is the service's.

    Raises:
        BadInputError: it cannot be read or used; the message names the line.
    """
    from weft_planner.traces.lines import read_bytes
    from weft_planner.workload.resolving import workload_instead

    name = Path(path).name
    try:
        return workload_instead(read_bytes(Path(path)), name=name, service=service)
    except ValueError as error:
        raise BadInputError(path, str(error).removeprefix(name).lstrip(": ")) from error


def _with_capacity(service: Json, path: str | None) -> Json:
    """Return the service with the capacity of another file."""
    if path is None:
        return service
    documents = documents_of(path)
    found = [capacity for document in documents if (capacity := _capacity_in(document)) is not None]
    if len(found) != 1:
        raise BadInputError(
            path,
            f"capacity: {len(found)} in the file; give one object of the form of spec.capacity: "
            "{gpus: 16, pools: [{name: h100, gpuType: nvidia-h100, …}]}",
        )
    spec = service.get("spec")
    return {**service, "spec": {**(spec if isinstance(spec, Mapping) else {}), "capacity": found[0]}}


def _capacity_in(document: Json) -> object | None:
    if "pools" in document:
        return document
    spec = document.get("spec")
    return document.get("capacity") or (spec.get("capacity") if isinstance(spec, Mapping) else None)


def _check(path: str, document: Json, *, command: str, capacity: str | None = None) -> None:
    """Refuse what the API server would refuse; say so where no installed part can tell.

    ``capacity`` is the file that spec.capacity came from.
    """
    from weft_planner.request.checks import manifest_faults

    kind = str(document.get("kind"))
    faults = manifest_faults(kind, document)
    if faults is None:
        click.echo(
            f"weft {command}: only the fields of the {kind} that the planner reads were checked; "
            "install weft[operator] to check all of them",
            err=True,
        )
    elif faults:
        theirs = [] if capacity is None else [fault for fault in faults if fault.startswith("spec.capacity")]
        own = [fault for fault in faults if fault not in theirs]
        raise BadInputError(path, *own, elsewhere=[(str(capacity), fault) for fault in theirs])


def _profiles(path: str, service: Json, *, command: str) -> list[Json]:
    """Return the CostProfile of a --profile file that the service refers to; a file without it is refused."""
    from weft_planner.request.manifest import PROFILE_KIND, name_of, profile_names

    profiles = [document for document in documents_of(path) if document.get("kind") == PROFILE_KIND]
    if not profiles:
        raise BadInputError(path, f"holds no {PROFILE_KIND}; give --profile the file of one")
    names = ", ".join(sorted(name_of(profile) for profile in profiles))
    wanted = profile_names(service)
    if not wanted:
        raise BadInputError(
            path,
            f"--profile has no effect, because the service refers to no {PROFILE_KIND}; "
            f"set spec.profile.ref.name to {names} or leave --profile out",
        )
    used = [profile for profile in profiles if name_of(profile) in wanted]
    if not used:
        raise BadInputError(
            path,
            f"holds {PROFILE_KIND} {names}, and the service's spec.profile refers to {', '.join(wanted)}; correct one",
        )
    for profile in used:
        _check(path, profile, command=command)
    return used
