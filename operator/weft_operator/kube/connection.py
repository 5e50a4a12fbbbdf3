"""Connect to the API server: as a pod's service account, or with a context of the kubeconfig."""

import socket

import urllib3
from kubernetes import config as kube_config
from kubernetes.client import api_client, configuration

from weft_operator.errors import ForbiddenError
from weft_operator.kube.client import KubeClient

UNSENT_S = 4.0
"""TCP user timeout: a write of one lease term must not arrive minutes later, after a network outage."""


def connect(
    *,
    context: str | None = None,
    connect_s: float | None = None,
    read_s: float | None = None,
    honor_retry_after: bool = True,
) -> KubeClient:
    """Connect as the pod's service account, or as the kubeconfig's current context outside a cluster.

    A ``context`` is always one of the kubeconfig. The other arguments are those of ``KubeClient``.

    Raises:
        ForbiddenError: there is neither.
    """
    settings = configuration.Configuration()
    settings.connection_pool_maxsize = 8
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        unsent = (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNSENT_S * 1000))
        settings.socket_options = [*urllib3.connection.HTTPConnection.default_socket_options, unsent]
    try:
        try:
            if context is not None:
                raise kube_config.ConfigException("a context is given")
            kube_config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        except kube_config.ConfigException:
            kube_config.load_kube_config(context=context, client_configuration=settings)  # type: ignore[no-untyped-call]
    except kube_config.ConfigException as error:
        raise ForbiddenError(
            f"no access to a cluster: {str(error).rstrip('.')}; run in a pod with a service account, or set KUBECONFIG"
        ) from error
    client = api_client.ApiClient(configuration=settings)
    return KubeClient(client, connect_s=connect_s, read_s=read_s, honor_retry_after=honor_retry_after)


def namespace_of_context(name: str | None = None) -> str:
    """Return the namespace of a context of the kubeconfig, the current one if absent; default where there is none."""
    try:
        every, current = kube_config.list_kube_config_contexts()  # type: ignore[no-untyped-call]
    except kube_config.ConfigException:
        return "default"
    found = current if name is None else next((item for item in every if item["name"] == name), {})
    return str((found.get("context") or {}).get("namespace") or "default")
