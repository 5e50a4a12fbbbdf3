"""The command ``weft approve``: approve the operator's proposed plan."""

import click

from weft_cli.output import emit, output_option
from weft_operator.commands import cluster


@click.command()
@cluster.service_argument
@cluster.namespace_options
@click.option("--hash", "expected", help="Approve only this proposal; fail if there is a newer one.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@output_option
def approve(*, name: str, namespace: str | None, expected: str | None, yes: bool, output: str) -> int:
    """Approve the proposed plan of a service in mode Manual, after showing what it changes."""
    from rich.console import Console

    from weft_operator.api.objects import APPROVE_ANNOTATION, ObjectKey
    from weft_operator.commands import page
    from weft_operator.errors import ApiError, ConflictError

    api = cluster.connect_to_cluster()
    where = cluster.namespace_of(namespace)
    found = cluster.service(api, name, where)
    proposed = (found.get("status") or {}).get("proposedPlan")
    if proposed is None:
        raise click.ClickException(f"{name} proposes no plan: there is nothing to approve")
    mode = (found["spec"].get("planning") or {}).get("mode", "Auto")
    if mode != "Manual":
        raise click.ClickException(f"{name} has spec.planning.mode {mode}: approvals count in mode Manual only; set it")
    if expected is not None and expected != proposed["hash"]:
        raise click.ClickException(
            f"the proposal is {proposed['hash']} now, not {expected}: look at it with `weft status {name}`"
        )
    asking = output != "table"  # standard output has only the result for programs
    Console(stderr=asking).print(page.proposal(found))
    if not yes and not click.confirm("Carry it out?", err=asking):
        return 1
    try:
        api.annotate(
            ObjectKey(cluster.API_VERSION, str(found["kind"]), where, name),
            {APPROVE_ANNOTATION: proposed["hash"]},
            version=str(found["metadata"]["resourceVersion"]),
        )
    except ConflictError as error:
        raise click.ClickException(f"{name} was changed meanwhile; look at it and approve again") from error
    except ApiError as error:
        raise click.ClickException(str(error)) from error
    body = {"service": name, "namespace": where, "approved": proposed["hash"], "summary": proposed.get("summary")}
    emit(output, body, lambda: f"approved {proposed['hash']}")
    return 0
