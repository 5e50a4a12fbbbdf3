"""The status writer and event recorder: Events first, then the status if it changed."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from weft_operator.api.conditions import ConditionValue
from weft_operator.api.objects import OPERATOR_LABEL, Manifest, ServiceKey, is_terminating, labels_of, timestamp
from weft_operator.errors import ApiError
from weft_operator.kube.diff import Action
from weft_operator.kube.events import Event
from weft_operator.status.blocked import blocked_status
from weft_operator.status.events import status_events

log = logging.getLogger(__name__)


class StatusClient(Protocol):
    """The part of the API server that statuses and Events need."""

    async def read_service(self, key: ServiceKey) -> Manifest | None:
        """Return a service alone, None when it is gone."""

    async def write_status(self, key: ServiceKey, status: dict[str, Any], *, version: str) -> None:
        """Replace the status if the service still has this resource version."""

    async def post_event(self, key: ServiceKey, uid: str, event: Event) -> None:
        """Post an event."""


async def record_status(
    cluster: StatusClient, key: ServiceKey, service: Manifest, after: dict[str, Any], *, actions: Sequence[Action]
) -> None:
    """Post the Events of a new status and of the actions before it, and write the status if it changed.

    Raises:
        ApiError: the status could not be written.
    """
    before: Mapping[str, Any] = service.get("status") or {}
    # Events first: after a crash between the two the same Events are found again and have the same names.
    await record_events(cluster, key, service, status_events(before, after, actions=actions))
    if after != before:
        version = str(service["metadata"].get("resourceVersion", ""))
        await cluster.write_status(key, after, version=version)


async def record_blocked(
    cluster: StatusClient, key: ServiceKey, why: ConditionValue, *, instance: str, now: datetime
) -> None:
    """Write the status of a service whose pass is blocked, as far as the API server allows."""
    try:
        service = await cluster.read_service(key)
        if service is None or is_terminating(service) or labels_of(service).get(OPERATOR_LABEL, "") != instance:
            return
        await record_status(cluster, key, service, blocked_status(key, service, why, now=timestamp(now)), actions=())
    except ApiError as error:
        log.warning("status_not_written", extra={"service": str(key), "reason": why.reason, "error": str(error)})


async def record_events(cluster: StatusClient, key: ServiceKey, service: Manifest, found: Iterable[Event]) -> None:
    """Post Events; one that is refused is only logged."""
    for event in found:
        try:
            await cluster.post_event(key, service["metadata"]["uid"], event)
        except ApiError as error:
            # A quota or a missing right must not prevent the status, which says the same.
            log.warning("event_not_posted", extra={"service": str(key), "reason": event.reason, "error": str(error)})
