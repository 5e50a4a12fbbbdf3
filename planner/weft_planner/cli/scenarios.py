"""Choose what ``weft simulate`` and ``weft compare`` run: a layout by name, that of a stored plan, or of a new one."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar, cast

import click

from weft_cli.errors import BadInputError
from weft_planner.cli.ranges import Finite
from weft_planner.cli.service import Service

if TYPE_CHECKING:
    from weft_core.layouts import LayoutKind, PlannedGroup, PlannedPolicy
    from weft_planner.programs.inputs import PlanInputs

Function = TypeVar("Function", bound=Callable[..., object])
Json = Mapping[str, object]
Chosen = tuple["LayoutKind", tuple["PlannedGroup", ...], "PlannedPolicy | None"]


def scenario_options(function: Function) -> Function:
    """Add the options that choose the layout and how much is simulated."""
    options = (
        click.option(
            "--layout",
            metavar="TEXT",
            help="For example 'P4x2 D8x1', 'C4x4' or 'P4x1 D4x2 B4x1' (default: the plan's).",
        ),
        click.option(
            "--plan", "plan_file", type=click.Path(), metavar="FILE", help="Take the layout of this stored plan."
        ),
        click.option(
            "--seeds", type=click.IntRange(1, 100), default=3, show_default=True, help="Independent runs of each case."
        ),
        click.option(
            "--rounds",
            type=click.IntRange(200, 200_000),
            default=4000,
            show_default=True,
            help="Rounds of a run; more make intervals smaller.",
        ),
        click.option(
            "--prediction-error",
            type=Finite(min=0, max=2),
            default=0.0,
            metavar="SIGMA",
            help="Let prefills and slices take other times than the rules predict: lognormal sigma, such as 0.3.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def prepare_service(service: Service) -> "PlanInputs":
    """Return the service's request made ready to simulate.

    Raises:
        ClickException: the model or its profile cannot be used at all.
    """
    from weft_planner.programs.inputs import prepare_inputs
    from weft_planner.request.infeasible import Infeasible

    try:
        return prepare_inputs(service.request)
    except Infeasible as error:
        raise click.ClickException(f"{error.reason}: {error}") from error


def chosen_layout(service: Service, inputs: "PlanInputs", *, layout: str | None, plan_file: str | None) -> Chosen:
    """Return kind, groups and, where a plan says them, rules.

    Raises:
        UsageError: the layout cannot be read, or a degree cannot run.
        ClickException: no plan is possible.
    """
    from weft_planner.study.naming import NamingError, layout_from

    if layout is not None and plan_file is not None:
        raise click.UsageError("--layout and --plan: give one of them")
    if layout is not None:
        try:
            kind, groups = layout_from(layout, pools=[pool.name for pool in service.request.capacity.pools])
        except NamingError as error:
            raise click.BadParameter(str(error), param_hint="--layout") from error
        _check_degrees(inputs, groups, "--layout")
        return kind, groups, None
    if plan_file is not None:
        from weft_planner.cli.stored import stored_plan

        stored = stored_plan(plan_file, name=service.name).plan
        unknown = {group.pool for group in stored.groups} - set(inputs.degrees)
        if unknown:
            raise BadInputError(
                plan_file, f"plan.groups: pool {sorted(unknown)[0]} is none of the service's; correct one"
            )
        _check_degrees(inputs, stored.groups, "--plan")
        return stored.layout, stored.groups, stored.policy
    return _planned(service)


def warn_of_excess_gpus(service: Service, gpus: int, *, command: str) -> None:
    """Say on stderr that a layout takes more GPUs than the service may use: simulated all the same, to look ahead."""
    most = service.request.capacity.gpus
    if gpus > most:
        click.echo(f"weft {command}: the layout takes {gpus} GPUs, spec.capacity.gpus is {most}", err=True)


def _planned(service: Service) -> Chosen:
    from weft_core.plan import plan_from_json
    from weft_planner.cli.progress import show_progress
    from weft_planner.plan.solve import answer

    if service.hours is not None:
        click.echo(service.hours.words(), err=True)
    with show_progress() as progress:
        result = answer(service.request, top=0, progress=progress)
    if result["status"] != "ok":
        raise click.ClickException(f"no plan, so no layout: {result['reason']}: {result['message']}; give --layout")
    plan = plan_from_json(cast(Json, result["plan"]))
    return plan.layout, plan.groups, plan.policy


def _check_degrees(inputs: "PlanInputs", groups: tuple["PlannedGroup", ...], flag: str) -> None:
    for group in groups:
        usable = inputs.degrees[group.pool]
        if group.degree not in usable:
            listed = ", ".join(str(n) for n in usable) or "none"
            raise click.BadParameter(
                f"degree {group.degree} cannot run this model on pool {group.pool}; usable are {listed}",
                param_hint=flag,
            )
