"""``weft compare POLICIES``: policies on the same layout and sessions, with paired intervals."""

from dataclasses import replace
from typing import Any

import click

from weft_cli.output import emit, output_option
from weft_cli.running import INTERRUPTED
from weft_planner.cli.scenarios import chosen_layout, prepare_service, scenario_options, warn_of_excess_gpus
from weft_planner.cli.service import ServiceFlags, read_service, service_options


@click.command()
@click.argument("policies", nargs=-1, required=True, metavar="POLICY...")
@service_options
@scenario_options
@click.option("--goodput", is_flag=True, help="Also search the most sessions per second within the SLO (slower).")
@output_option
def compare(
    *,
    policies: tuple[str, ...],
    layout: str | None,
    plan_file: str | None,
    goodput: bool,
    seeds: int,
    rounds: int,
    prediction_error: float,
    output: str,
    **given: Any,
) -> int:
    """Compare routing policies on the same sessions.

    A POLICY is NAME[/MODE][+ORDER][@BINDING], such as weft/imd, ampd or remote-jsq+moore-hodgson; several may be given
    with commas too. Differences to the first are paired by seed. Ctrl-C prints what is done.
    """
    from weft_planner.cli.progress import show_progress
    from weft_planner.evaluation.candidates import Candidate, runnable_policies
    from weft_planner.study.comparison import PolicyComparison, compare_policies
    from weft_planner.study.naming import NamingError, policy_from
    from weft_planner.study.scenario import Scenario, Sessions
    from weft_planner.tables import text_of
    from weft_planner.tables.comparison import comparison_body, comparison_parts

    service = read_service(ServiceFlags.taken_from(given), command="compare")
    names = [name.strip() for word in policies for name in word.split(",") if name.strip()]
    own = runnable_policies(service.request)[0]
    try:
        rules = [policy_from(name, like=own) for name in names]
    except NamingError as error:
        raise click.BadParameter(str(error), param_hint="POLICY") from error
    inputs = prepare_service(service)
    kind, groups, _ = chosen_layout(service, inputs, layout=layout, plan_file=plan_file)
    sessions = Sessions(inputs, rounds)
    base = Candidate(kind, groups, rules[0])
    warn_of_excess_gpus(service, base.gpus, command="compare")
    scenarios = [
        (name, Scenario(sessions, replace(base, policy=rule), error=prediction_error))
        for name, rule in zip(names, rules, strict=True)
    ]
    at = service.request.workload.arrival_rate
    done: list[PolicyComparison] = []
    status = 0
    with show_progress() as progress:
        try:
            done.extend(compare_policies(scenarios, rate=at, seeds=seeds, with_goodput=goodput, progress=progress))
        except KeyboardInterrupt:
            status = INTERRUPTED
            click.echo(f"weft compare: interrupted after {len(done)} of {len(names)} policies", err=True)
    if done:
        emit(
            output,
            comparison_body(scenarios[0][1], done, rate=at, complete=status == 0),
            lambda: text_of(comparison_parts(scenarios[0][1], done, rate=at, name=service.name)),
        )
    return status
