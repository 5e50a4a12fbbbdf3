"""kopf handlers: they only translate watch events into keys to reconcile."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import kopf

from weft_operator.api.objects import COMPONENT_LABEL, PICKER_COMPONENT, SERVICE_LABEL, GroupKey, ServiceKey
from weft_operator.api.service import GROUP, KIND, PLURAL, VERSION
from weft_operator.api.worker_group import GROUP_KIND, GROUP_PLURAL

WATCHED_CHILDREN = (("apps", "v1", "statefulsets"), ("apps", "v1", "deployments"), ("", "v1", "pods"))

WATCHED_KINDS = (
    (f"{GROUP}/{VERSION}", KIND),
    (f"{GROUP}/{VERSION}", "CostProfile"),
    (f"{GROUP}/{VERSION}", GROUP_KIND),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "Deployment"),
    ("v1", "Pod"),
)
"""All watched kinds, as (apiVersion, kind)."""


LIST_PAGE_SIZE = 100
"""Objects in one page of the list with which a watch begins: 10 KB of JSON each, and ten times as much when parsed."""

IDLE_TIMEOUT_S = 0.2
"""How long kopf's worker for an object waits for another event before it ends."""


class NoDiffBase(kopf.DiffBaseStorage):
    """Storage without last-handled state: Weft uses kopf's events, not its diffs.

    kopf's own storage deep-copies every object for each event: two thirds of the cost of an event.
    """

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:  # noqa: ARG002
        """Return an empty essence."""
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:  # noqa: ARG002
        """Return None: nothing was stored."""
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Store nothing."""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """The meaning of a watch event: its namespace, and the service and worker group that it concerns, if any."""

    namespace: str
    service: ServiceKey | None = None
    group: GroupKey | None = None
    affects_groups: bool = False
    """Whether the service's worker groups must be reconciled, too."""
    listed: bool = False
    """Whether it comes from the list of existing objects with which a watch starts."""
    changed: bool = False
    """Whether the service's spec is newer than its status."""
    gone: bool = False
    """Whether the object that the event is about was deleted."""


API_BACKOFFS_S = (1, 1, 2, 3, 5, 8, *(10,) * 28)
"""Pauses between kopf's attempts while the API server fails; after five minutes the watches are restarted."""


def register(registry: kopf.OperatorRegistry, *, on_event: Callable[[WatchEvent], None]) -> None:
    """Register the handlers; each calls ``on_event`` with its event."""

    def emit(kind: str | None, namespace: str | None, **meaning: Any) -> None:
        """Forward an event; listed objects have no event type in kopf."""
        on_event(WatchEvent(namespace or "", **meaning, listed=kind is None, gone=kind == "DELETED"))

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def service_event(namespace: str | None, name: str | None, **kwargs: Any) -> None:
        service = ServiceKey(namespace or "", name or "")
        changed = kwargs["meta"].get("generation") != kwargs["status"].get("observedGeneration")
        emit(kwargs["type"], namespace, service=service, changed=changed)

    @kopf.on.event(GROUP, VERSION, "costprofiles", registry=registry)
    async def profile_event(namespace: str | None, **kwargs: Any) -> None:
        emit(kwargs["type"], namespace)

    @kopf.on.event(GROUP, VERSION, GROUP_PLURAL, labels={SERVICE_LABEL: kopf.PRESENT}, registry=registry)
    async def group_event(namespace: str | None, name: str | None, labels: Any, **kwargs: Any) -> None:
        service = ServiceKey(namespace or "", labels[SERVICE_LABEL])
        group = GroupKey(namespace or "", name or "")
        emit(kwargs["type"], namespace, service=service, group=group)

    async def child_event(namespace: str | None, labels: Any, **kwargs: Any) -> None:
        service = ServiceKey(namespace or "", labels[SERVICE_LABEL])
        # Workers of other groups may wait for this worker; no worker waits for a coordinator.
        affects_groups = labels.get(COMPONENT_LABEL) not in ("coordinator", PICKER_COMPONENT)
        emit(kwargs["type"], namespace, service=service, affects_groups=affects_groups)

    for group, version, plural in WATCHED_CHILDREN:
        kopf.on.event(group, version, plural, labels={SERVICE_LABEL: kopf.PRESENT}, registry=registry)(child_event)

    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)


def watch_settings() -> kopf.OperatorSettings:
    """Return kopf's settings: watches with timeouts, no writes to objects, no Events by kopf."""
    settings = kopf.OperatorSettings()
    # The server ends a watch after 300 s; 10 s later the client considers the connection lost.
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.connect_timeout = 30
    settings.networking.connect_timeout = 5
    settings.networking.request_timeout = 60
    settings.networking.error_backoffs = API_BACKOFFS_S
    # Leader election is done with a Lease (weft_operator.kube.leader_election); kopf's peering can freeze both
    # replicas.
    settings.peering.standalone = True
    settings.posting.enabled = False
    # Without the scan for new kinds and namespaces, the operator needs no right to list either.
    settings.scanning.disabled = True
    settings.persistence.finalizer = "weft.dev/none"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix="kopf.weft.dev")
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.queueing.idle_timeout = IDLE_TIMEOUT_S
    settings.watching.chunk_size = LIST_PAGE_SIZE
    # The handlers' label selectors are applied here only, after the API server has sent every pod of the cluster.
    for group, _, plural in (*WATCHED_CHILDREN, (GROUP, VERSION, GROUP_PLURAL)):
        settings.watching.label_selectors[f"{plural}.{group}" if group else plural] = SERVICE_LABEL
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    return settings
