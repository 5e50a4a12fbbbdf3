"""The command ``weft status``: the status of a service on one screen."""

import json

import click

from weft_cli.output import output_option
from weft_operator.commands import cluster


@click.command()
@click.argument("name", required=False, shell_complete=cluster.complete_services)
@cluster.namespace_options
@click.option("-A", "--all-namespaces", is_flag=True, help="List the services of all namespaces.")
@output_option
def status(*, name: str | None, namespace: str | None, all_namespaces: bool, output: str) -> int:
    """Show a service's conditions, plan, workers, observed traffic, and a plan that waits for approval.

    Without NAME all services are listed, those that are not ready first. Exit status 3 when a service is not ready.
    """
    import yaml
    from rich.console import Console

    from weft_operator.commands import page

    if name is not None and all_namespaces:
        raise click.UsageError("give NAME or --all-namespaces, not both")
    api = cluster.connect_to_cluster()
    where = "" if all_namespaces else cluster.namespace_of(namespace)
    found = cluster.services(api, where) if name is None else [cluster.service(api, name, where)]
    if output != "table":
        shown = found if name is None else found[0]
        if output == "json":
            click.echo(json.dumps(shown, indent=2))
        else:
            click.echo(yaml.safe_dump(shown, sort_keys=False), nl=False)
    elif not found:
        click.echo(f"there is no service in {f'namespace {where!r}' if where else 'this cluster'}")
    else:
        console = Console(soft_wrap=False)
        console.print(
            page.service_page(found[0]) if name is not None else page.services_table(found, namespaces=all_namespaces)
        )
    return 0 if all(is_ready(item) for item in found) else 3


def is_ready(service: dict[str, object]) -> bool:
    """Return whether the condition Ready of a service is True."""
    status_ = service.get("status")
    conditions = status_.get("conditions") if isinstance(status_, dict) else None
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions or ())
