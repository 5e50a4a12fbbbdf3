"""``weft simulate``: one layout and policy at given rates."""

from typing import Any

import click

from weft_cli.output import emit, output_option
from weft_cli.running import INTERRUPTED
from weft_core.kv_tiers import KVTier, KVTierError, check_order
from weft_core.policies.retention import RETENTIONS, Retention
from weft_planner.cli.ranges import RATE, TIER
from weft_planner.cli.scenarios import chosen_layout, prepare_service, scenario_options, warn_of_excess_gpus
from weft_planner.cli.service import ServiceFlags, read_service, service_options

FACTORS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
"""Of the planned rate, where no rate is given."""


@click.command()
@service_options
@scenario_options
@click.option("--policy", metavar="NAME[/MODE][+ORDER]", help="Routing rule (default: the plan's, else the service's).")
@click.option(
    "--rate",
    "rates",
    type=RATE,
    multiple=True,
    metavar="PER_S",
    help="Sessions per second; may be repeated (default: half to twice the planned).",
)
@click.option(
    "--retention",
    type=click.Choice(RETENTIONS),
    default="lru",
    show_default=True,
    help="How engines keep the KV of idle sessions: evict the least recently used, after Continuum's time to live, or "
    "what is worth least.",
)
@click.option(
    "--kv-tier",
    "tiers",
    type=TIER,
    multiple=True,
    metavar="NAME:SIZE[:BYTES_PER_S[:LATENCY_S]]",
    help="Memory below each worker's GPUs that keeps KV, such as cpu:200Gi:25e9; cpu, disk, remote, once each in this "
    "order.",
)
@output_option
def simulate(
    *,
    layout: str | None,
    plan_file: str | None,
    policy: str | None,
    rates: tuple[float, ...],
    seeds: int,
    rounds: int,
    prediction_error: float,
    retention: Retention,
    tiers: tuple[KVTier, ...],
    output: str,
    **given: Any,
) -> int:
    """Simulate one layout and policy at given rates.

    Latencies, sessions within the SLO and use of the workers, with 95 % intervals over the seeds. Ctrl-C prints what
    is done. Exit status: 0 simulated, 1 nothing can be, 2 bad input, 130 interrupted.
    """
    from weft_planner.cli.progress import show_progress
    from weft_planner.evaluation.candidates import Candidate, runnable_policies
    from weft_planner.study.load import LoadRow, load_rows
    from weft_planner.study.naming import NamingError, policy_from, policy_of
    from weft_planner.study.scenario import Scenario, Sessions
    from weft_planner.tables import text_of
    from weft_planner.tables.load import load_body, load_parts

    service = read_service(ServiceFlags.taken_from(given), command="simulate")
    inputs = prepare_service(service)
    kind, groups, planned = chosen_layout(service, inputs, layout=layout, plan_file=plan_file)
    own = policy_of(planned) if planned is not None else runnable_policies(service.request)[0]
    try:
        rules = own if policy is None else policy_from(policy, like=own)
    except NamingError as error:
        raise click.BadParameter(str(error), param_hint="--policy") from error
    try:
        check_order([tier.name for tier in tiers])
    except KVTierError as error:
        raise click.BadParameter(str(error), param_hint="--kv-tier") from error
    scenario = Scenario(
        Sessions(inputs, rounds),
        Candidate(kind, groups, rules),
        error=prediction_error,
        retention=retention,
        tiers=tiers,
    )
    warn_of_excess_gpus(service, scenario.candidate.gpus, command="simulate")
    asked = rates or tuple(factor * service.request.workload.arrival_rate for factor in FACTORS)
    done: list[LoadRow] = []
    status = 0
    with show_progress() as progress:
        try:
            done.extend(
                load_rows(scenario, sorted(asked), seeds=seeds, progress=progress)
            )  # row by row: Ctrl-C keeps them
        except KeyboardInterrupt:
            status = INTERRUPTED
            click.echo(f"weft simulate: interrupted after {len(done)} of {len(asked)} rates", err=True)
    if done:
        emit(
            output,
            load_body(scenario, done, complete=status == 0),
            lambda: text_of(load_parts(scenario, done, name=service.name)),
        )
    return status
