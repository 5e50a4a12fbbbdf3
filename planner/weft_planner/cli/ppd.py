"""``weft ppd``: the offline table of routing policy ``ppd``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from weft_cli.errors import BadInputError
from weft_planner.cli.scenarios import chosen_layout, prepare_service, scenario_options, warn_of_excess_gpus
from weft_planner.cli.service import ServiceFlags, read_service, service_options

Json = Mapping[str, object]


@click.group()
def ppd() -> None:
    """Learn the table of routing policy ppd."""


@ppd.command()
@service_options
@scenario_options
@click.option(
    "-o", "--output", "target", type=click.Path(), metavar="FILE", help="Write the ConfigMap here, not to stdout."
)
def learn(
    *,
    layout: str | None,
    plan_file: str | None,
    seeds: int,
    rounds: int,
    prediction_error: float,
    target: str | None,
    **given: Any,
) -> int:
    """Learn the table of a service's layout and workload from the simulator, as a ConfigMap.

    Every later round runs once on a prefill worker and once on its decode worker, below, at and above the rate.
    spec.routing.tableConfigMapRef names the ConfigMap; a table in force is not read. Exit status: 0 learned, 1 nothing
    can be, 2 bad input.
    """
    import yaml

    from weft_planner.cli.progress import show_progress
    from weft_planner.evaluation.candidates import Candidate, runnable_policies
    from weft_planner.simulation.layout import SimulationError
    from weft_planner.study.naming import policy_of
    from weft_planner.study.ppd_table import LEAST, learn_table
    from weft_planner.study.scenario import Scenario, Sessions

    service = read_service(ServiceFlags.taken_from(given), command="ppd learn", routing_table=False)
    inputs = prepare_service(service)
    kind, groups, planned = chosen_layout(service, inputs, layout=layout, plan_file=plan_file)
    rules = policy_of(planned) if planned is not None else runnable_policies(service.request)[0]
    scenario = Scenario(Sessions(inputs, rounds), Candidate(kind, groups, rules), error=prediction_error)
    warn_of_excess_gpus(service, scenario.candidate.gpus, command="ppd learn")
    rate = service.request.workload.arrival_rate
    with show_progress() as progress:
        try:
            learned = learn_table(scenario, rate=rate, seeds=seeds, progress=progress)
        except SimulationError as error:
            raise click.ClickException(str(error)) from error
    text = yaml.dump(_config_map(service.document, learned.params), Dumper=_block_dumper(), sort_keys=False)
    few = sum(1 for count in learned.rounds.values() if count < LEAST)
    click.echo(
        f"weft ppd learn: {scenario.name} at {rate:g} sessions/s; {few} of {len(learned.rounds)} cells have fewer "
        f"than {LEAST} rounds and take the figures of their rate",
        err=True,
    )
    if target is None:
        click.echo(text, nl=False)
        return 0
    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInputError(target, f"cannot be written: {error.strerror}") from error
    click.echo(f"wrote {target}", err=True)
    return 0


def _config_map(service: Json, table: Mapping[str, float]) -> Json:
    """Return the manifest that spec.routing.tableConfigMapRef names: that of the service, or one named after it."""
    from weft_core.policies.ppd_file import TABLE_KEY, table_to_json

    metadata, spec = service.get("metadata"), service.get("spec")
    own: Json = metadata if isinstance(metadata, Mapping) else {}
    routing = spec.get("routing") if isinstance(spec, Mapping) else None
    ref = routing.get("tableConfigMapRef") if isinstance(routing, Mapping) else None
    named: Json = ref if isinstance(ref, Mapping) else {"name": f"{own.get('name', 'service')}-ppd", "key": TABLE_KEY}
    namespace = {"namespace": own["namespace"]} if "namespace" in own else {}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": named["name"], **namespace},
        "data": {str(named["key"]): table_to_json(table)},
    }


def _block_dumper() -> Any:
    """Return a YAML dumper that writes texts of several lines as blocks, so that cells can be read and edited."""
    import yaml

    class BlockDumper(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    BlockDumper.add_representer(str, text)
    return BlockDumper
