"""Read running services as documents, for commands of other packages."""

from weft_operator.api.objects import Manifest
from weft_operator.commands import cluster


def service_document(name: str, namespace: str | None) -> Manifest:
    """Return a service's object; ``namespace`` None is that of the kubeconfig's context.

    Raises:
        click.ClickException: there is no cluster, or no such service.
    """
    return cluster.service(cluster.connect_to_cluster(), name, cluster.namespace_of(namespace))
