"""Tell people what a pass found: events, then the status if it changed; also where no pass could be made."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from weft_operator.api.conditions import ConditionValue
from weft_operator.api.objects import OPERATOR_LABEL, Manifest, ServiceKey, is_terminating, labels_of, timestamp
from weft_operator.errors import ApiError
from weft_operator.kube.diff import Action
from weft_operator.kube.events import Event
from weft_operator.status.blocked import held_up
from weft_operator.status.events import facts

log = logging.getLogger(__name__)


class StatusClient(Protocol):
    """Where it is written."""

    async def read_service(self, key: ServiceKey) -> Manifest | None:
        """Return a service alone, None when it is gone."""

    async def write_status(self, key: ServiceKey, status: dict[str, Any], *, version: str) -> None:
        """Replace the status if the service still has this resource version."""

    async def post_event(self, key: ServiceKey, uid: str, fact: Event) -> None:
        """Post an event."""


async def tell(
    cluster: StatusClient, key: ServiceKey, service: Manifest, after: dict[str, Any], *, actions: Sequence[Action]
) -> None:
    """Post what is new in a status, and what the actions before it were for, and write it if it is another one.

    Raises:
        ApiError: the status could not be written.
    """
    before: Mapping[str, Any] = service.get("status") or {}
    # Events first: after a crash between the two the same facts are found again and have the same names.
    await post(cluster, key, service, facts(before, after, actions=actions))
    if after != before:
        version = str(service["metadata"].get("resourceVersion", ""))
        await cluster.write_status(key, after, version=version)


async def tell_held_up(
    cluster: StatusClient, key: ServiceKey, why: ConditionValue, *, instance: str, now: datetime
) -> None:
    """Say that no pass could be made of a service, as far as that may be written."""
    try:
        service = await cluster.read_service(key)
        if service is None or is_terminating(service) or labels_of(service).get(OPERATOR_LABEL, "") != instance:
            return
        await tell(cluster, key, service, held_up(key, service, why, now=timestamp(now)), actions=())
    except ApiError as error:
        log.warning("not_told", extra={"service": str(key), "reason": why.reason, "error": str(error)})


async def post(cluster: StatusClient, key: ServiceKey, service: Manifest, found: Iterable[Event]) -> None:
    """Post events; one that is refused is only logged."""
    for fact in found:
        try:
            await cluster.post_event(key, service["metadata"]["uid"], fact)
        except ApiError as error:
            # A quota or a missing right must not keep the status back, which says the same.
            log.warning("event_not_posted", extra={"service": str(key), "reason": fact.reason, "error": str(error)})
