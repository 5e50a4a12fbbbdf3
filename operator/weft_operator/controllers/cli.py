"""The command ``weft operator``: run the control plane."""

import click


@click.command()
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
def operator(*, log_level: str) -> int:
    """Run the operator: plan and deploy DisaggInferenceServices.

    It runs against the cluster of its pod, or of KUBECONFIG. Settings come from the environment: WEFT_ROUTER_IMAGE
    (required), WEFT_ROUTER_UPGRADE (WhenAsked or AtOnce), WEFT_MOCK_IMAGE, WEFT_REDIS_URL (with the password of its
    user in WEFT_REDIS_PASSWORD_FILE) or WEFT_REDIS_URL_FILE, WEFT_REDIS_USERS (auto, required or off: whether services
    get Redis users of their own), WEFT_REDIS_PEERS (where pods reach it: a JSON list of a NetworkPolicy's peers),
    WEFT_WATCH_NAMESPACES, or WEFT_NAMESPACE_ROLE and WEFT_SERVICE_ACCOUNT (the ClusterRole to bind to the operator's
    account NAMESPACE/NAME in namespaces with the label weft.dev/managed=true, to work in these alone),
    WEFT_PLANNER_DEADLINE_SECONDS, WEFT_RESYNC_SECONDS, WEFT_OPERATOR_PORT, WEFT_OPENSHIFT (true: the cluster assigns
    the users of pods), WEFT_PROMETHEUS_URL and, for that server alone, WEFT_PROMETHEUS_HEADERS and
    WEFT_PROMETHEUS_MATCHERS (JSON objects of texts), WEFT_PROMETHEUS_HEADERS_FOLDER (a file for each header),
    WEFT_PROMETHEUS_TOKEN_FILE and WEFT_PROMETHEUS_CA_FILE, WEFT_OPERATOR_INSTANCE (reconcile only services that have it
    as label weft.dev/operator), WEFT_OPERATOR_LEASE (NAMESPACE/NAME of the Lease by which one of several replicas
    leads, and the name under which they claim namespaces; without it this replica runs alone),
    WEFT_OPERATOR_LEASE_SECONDS (15: how long a Lease is valid without renewal), POD_NAME (the replica's identity in
    the Lease). Exit status 2 when a setting is wrong, 1 when there is no cluster.
    """
    import asyncio

    from weft_operator import logs
    from weft_operator.controllers import program
    from weft_operator.errors import ForbiddenError
    from weft_operator.settings import SettingsError, settings_from_env

    logs.configure(log_level)
    try:
        asyncio.run(program.run(settings_from_env()))
    except SettingsError as error:
        click.echo(f"weft operator: {error}", err=True)
        return 2
    except ForbiddenError as error:
        click.echo(f"weft operator: {error}", err=True)
        return 1
    return 0
