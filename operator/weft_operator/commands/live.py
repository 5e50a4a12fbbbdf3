"""Running services as documents, for verbs of other parts."""

from weft_operator.api.objects import Manifest
from weft_operator.commands import cluster


def service_document(name: str, namespace: str | None) -> Manifest:
    """Return a service as the cluster has it; None is the namespace of the kubeconfig's context.

    Raises:
        click.ClickException: there is no cluster, or it has no such service.
    """
    return cluster.service(cluster.reach(), name, cluster.namespace_of(namespace))
