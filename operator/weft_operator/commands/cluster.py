"""Connect commands to the cluster with the caller's rights: a context of the kubeconfig, or the pod's account."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click
import urllib3
import yaml
from click.shell_completion import CompletionItem

from weft_operator.api.objects import (
    SERVICE_LABEL,
    WORKER_LABEL,
    Manifest,
    ObjectKey,
    name_of,
    pod_role,
)
from weft_operator.api.service import GROUP, KIND, VERSION
from weft_operator.errors import ApiError, ForbiddenError, NotFoundError, OperatorError
from weft_operator.kube.client import KubeClient
from weft_operator.kube.connection import connect, namespace_of_context

API_VERSION = f"{GROUP}/{VERSION}"
CONTEXT = "weft.context"
"""Key of the value of ``--context`` in click's ``meta``."""
COMPLETION_S = 2.0
"""Timeout of requests for shell completion."""

Command = TypeVar("Command", bound=Callable[..., object])


def connect_to_cluster() -> KubeClient:
    """Connect to the cluster.

    Raises:
        click.ClickException: there is none to connect to.
    """
    try:
        return connect(context=_context())
    except (ForbiddenError, yaml.YAMLError, urllib3.exceptions.HTTPError) as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def api_errors() -> Iterator[None]:
    """Translate errors of the API server into error messages of the command.

    Raises:
        click.ClickException: the API server refused or did not answer.
    """
    try:
        yield
    except ForbiddenError as error:
        raise click.ClickException(f"{error}; ask for this right, or use another kubeconfig context") from error
    except ApiError as error:
        raise click.ClickException(str(error)) from error


def namespace_of(given: str | None) -> str:
    """Return the given namespace, else that of the kubeconfig's context, else default."""
    return given if given is not None else namespace_of_context(_context())


def namespace_options(command: Command) -> Command:
    """Add ``-n/--namespace`` and ``--context`` to a command; ``connect_to_cluster`` and ``namespace_of`` use them."""
    context = click.option(
        "--context",
        metavar="NAME",
        help="Context of the kubeconfig; the current one if absent.",
        expose_value=False,
        is_eager=True,  # so that completions of later arguments use it
        callback=lambda ctx, _param, name: ctx.meta.update({CONTEXT: name}),
    )
    return click.option("-n", "--namespace", help="Namespace; that of the context if absent.")(context(command))


def _context() -> str | None:
    """Return the given context, None for the current one."""
    found = click.get_current_context(silent=True)
    return None if found is None else found.meta.get(CONTEXT)


def service_argument(command: Command) -> Command:
    """Add the argument NAME, a service, with shell completion."""
    return click.argument("name", shell_complete=complete_services)(command)


def worker_argument(command: Command) -> Command:
    """Add the argument POD, a worker or one of its pods, with shell completion."""
    return click.argument("pod", shell_complete=_complete_workers)(command)


def service(api: KubeClient, name: str, namespace: str) -> Manifest:
    """Return a service.

    Raises:
        click.ClickException: it does not exist, or may not be read.
    """
    try:
        return api.get(service_key(name, namespace))
    except NotFoundError as error:
        raise click.ClickException(
            f"there is no service {name!r} in namespace {namespace!r}; `weft status -A` lists all"
        ) from error
    except ApiError as error:
        raise click.ClickException(str(error)) from error


def service_key(name: str, namespace: str) -> ObjectKey:
    """Return the key of a service's object."""
    return ObjectKey(API_VERSION, KIND, namespace, name)


def services(api: KubeClient, namespace: str) -> list[Manifest]:
    """Return all services of a namespace, of all namespaces if it is empty.

    Raises:
        click.ClickException: they may not be read, or Weft is not installed.
    """
    try:
        return api.list(API_VERSION, KIND, namespace=namespace)
    except NotFoundError as error:
        raise click.ClickException(
            "this cluster has no DisaggInferenceServices: install Weft's chart, or the files in crds/"
        ) from error
    except ApiError as error:
        raise click.ClickException(str(error)) from error


def of_service(
    api: KubeClient, api_version: str, kind: str, name: str, namespace: str, *, also: str = ""
) -> list[Manifest]:
    """Return the objects of one kind with a service's label, by name; none where the kind is not installed.

    Raises:
        ApiError: they may not be read.
    """
    selector = f"{SERVICE_LABEL}={name}" + (f",{also}" if also else "")
    try:
        found = api.list(api_version, kind, namespace=namespace, selector=selector)
    except NotFoundError:
        return []
    return sorted(found, key=name_of)


def pods_of(api: KubeClient, name: str, namespace: str, *, role: str | None = None) -> list[Manifest]:
    """Return the pods of a service, or of one of its roles, by name; the coordinator counts as a role."""
    pods = of_service(api, "v1", "Pod", name, namespace)
    return [pod for pod in pods if role in (None, pod_role(pod))]


def complete_services(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the services whose names begin with ``incomplete``."""
    return _complete(ctx, incomplete, API_VERSION, KIND, "")


def _complete_workers(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _complete(ctx, incomplete, "v1", "Pod", WORKER_LABEL)


def _complete(ctx: click.Context, incomplete: str, version: str, kind: str, label: str) -> list[CompletionItem]:
    """Return the names that begin with ``incomplete``; none, without a message, if the cluster does not answer soon."""
    try:
        context, namespace = ctx.meta.get(CONTEXT), ctx.params.get("namespace")
        api = connect(context=context, connect_s=COMPLETION_S, read_s=COMPLETION_S)
        where = namespace_of_context(context) if namespace is None else namespace
        found = api.list(version, kind, namespace=where, selector=label)
    except (OperatorError, yaml.YAMLError, urllib3.exceptions.HTTPError, OSError):
        return []
    return [CompletionItem(name_of(item)) for item in found if name_of(item).startswith(incomplete)]


def role_of(pod: Manifest) -> str:
    """Return the role of a pod: coordinator, picker, prefill, decode or both."""
    return pod_role(pod)


def is_ready(manifest: Any) -> bool:
    """Return whether the condition Ready of an object is True."""
    conditions = (manifest.get("status") or {}).get("conditions") or ()
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
