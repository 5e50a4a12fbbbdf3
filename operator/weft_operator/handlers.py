"""kopf handlers: they only translate an event into the name of the service that must be looked at."""

import logging
from collections.abc import Callable
from typing import Any

import kopf

from weft_operator.api.service import GROUP, PLURAL, VERSION
from weft_operator.manifest import SERVICE_LABEL, ServiceKey

WATCHED_CHILDREN = (("apps", "v1", "statefulsets"), ("apps", "v1", "deployments"), ("", "v1", "pods"))

Wake = Callable[[ServiceKey], None]


def register(registry: kopf.OperatorRegistry, *, wake: Wake, services_using: Callable[[str], list[ServiceKey]]) -> None:
    """Add the handlers; ``services_using`` lists the services of a namespace, for objects several may refer to."""

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def service_event(namespace: str | None, name: str | None, **_: Any) -> None:
        wake(ServiceKey(namespace or "", name or ""))

    @kopf.on.event(GROUP, VERSION, "costprofiles", registry=registry)
    async def profile_event(namespace: str | None, **_: Any) -> None:
        for key in services_using(namespace or ""):
            wake(key)

    async def child_event(namespace: str | None, labels: Any, **_: Any) -> None:
        wake(ServiceKey(namespace or "", labels[SERVICE_LABEL]))

    for group, version, plural in WATCHED_CHILDREN:
        kopf.on.event(group, version, plural, labels={SERVICE_LABEL: kopf.PRESENT}, registry=registry)(child_event)

    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)


def watch_settings() -> kopf.OperatorSettings:
    """Return kopf's settings: watches that notice silence, nothing written to objects, no events of kopf's own."""
    settings = kopf.OperatorSettings()
    # The server ends a watch after 300 s; a client that hears nothing 10 s later has lost it.
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.connect_timeout = 30
    settings.peering.standalone = True
    settings.posting.enabled = False
    # Without the scan for new kinds and namespaces, the operator needs no right to list either.
    settings.scanning.disabled = True
    settings.persistence.finalizer = "weft.dev/none"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix="kopf.weft.dev")
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix="kopf.weft.dev")
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    return settings
