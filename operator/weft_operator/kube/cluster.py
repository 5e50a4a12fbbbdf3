"""The API server as the reconcilers use it: blocking calls in threads, with rate-limited writes."""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from weft_operator.api.capacity import Pool
from weft_operator.api.objects import GroupKey, Manifest, PassKey, ServiceKey, timestamp
from weft_operator.api.service import GROUP, KIND, VERSION
from weft_operator.api.worker_group import GROUP_KIND
from weft_operator.errors import ForbiddenError, StaleListError
from weft_operator.kube import apply, observe
from weft_operator.kube.client import KubeClient
from weft_operator.kube.diff import Action
from weft_operator.kube.events import Event
from weft_operator.kube.image_volumes import ImageVolumes
from weft_operator.kube.node_inventory import NodeInventory
from weft_operator.kube.observe import Observed
from weft_operator.kube.observe_group import ObservedGroup, observe_group
from weft_operator.kube.observe_many import Snapshot, observe_many
from weft_operator.kube.rate_limiter import RateLimiter
from weft_operator.workers.node_capacity import NodeCapacity

log = logging.getLogger(__name__)


class KubeCluster:
    """Reads for passes and carries out their actions against a real API server."""

    def __init__(self, api: KubeClient) -> None:
        self._api = api
        self._rate_limiter = RateLimiter()
        self._node_inventory = NodeInventory(api)
        self._image_volumes = ImageVolumes(api)
        self._listings: dict[PassKey, Snapshot] = {}
        self._listing_tasks: set[asyncio.Task[object] | None] = set()

    @contextmanager
    def use_listing(self, key: PassKey, listed: Snapshot) -> Iterator[None]:
        """Let this task's pass read from a list of many services, which may be stale: its writes are refused."""
        task = asyncio.current_task()
        self._listings[key] = listed
        self._listing_tasks.add(task)
        try:
            yield
        finally:
            self._listings.pop(key, None)
            self._listing_tasks.discard(task)

    async def observe_many(self, keys: Sequence[PassKey]) -> Mapping[PassKey, Snapshot]:
        """Return snapshots of the existing services of one namespace and of their groups."""
        names = frozenset(key.name for key in keys if isinstance(key, ServiceKey))
        return await asyncio.to_thread(observe_many, self._api, keys[0].namespace, names) if names else {}

    async def observe(self, key: ServiceKey) -> Observed | None:
        """Return everything about a service, None when it is gone."""
        use_listing = self._listings.pop(key, None)
        if isinstance(use_listing, Observed):
            return use_listing
        return await asyncio.to_thread(observe.observe, self._api, key)

    async def list_keys(self, namespaces: Sequence[str]) -> list[PassKey]:
        """Return all services and groups in some namespaces, in all when none is named."""
        found: list[PassKey] = []
        for namespace in namespaces or ("",):
            for kind, key in ((KIND, ServiceKey), (GROUP_KIND, GroupKey)):
                try:
                    names = await asyncio.to_thread(self._api.names, f"{GROUP}/{VERSION}", kind, namespace=namespace)
                except ForbiddenError as error:
                    log.warning("not_listed", extra={"error": str(error)})  # the other namespaces are
                    continue
                found += [key(*name) for name in names]
        return found

    async def observe_group(self, key: GroupKey) -> ObservedGroup | None:
        """Return a group with the workers of its component, None when it is gone."""
        use_listing = self._listings.pop(key, None)
        if isinstance(use_listing, ObservedGroup):
            return use_listing
        return await asyncio.to_thread(observe_group, self._api, key)

    async def write_group_status(self, key: GroupKey, status: dict[str, Any], *, version: str) -> None:
        """Replace a group's status if the group still has this resource version."""
        self._refuse_stale()
        await self._rate_limiter.wait(f"status of group {key}")
        await asyncio.to_thread(apply.write_status, self._api, key, status, version=version)

    async def read_service(self, key: ServiceKey) -> Manifest | None:
        """Return a service alone, None when it is gone."""
        return await asyncio.to_thread(observe.read_service, self._api, key)

    async def read_capacity(self, pools: Sequence[Pool], key: ServiceKey) -> NodeCapacity | None:
        """Return the GPUs of the pools' nodes, None when nodes may not be listed."""
        return await asyncio.to_thread(self._node_inventory.capacity, pools, key)

    async def read_node_memory(self, pools: Sequence[Pool]) -> Mapping[str, int]:
        """Return the allocatable memory of the largest node of each pool, in bytes, as far as it is known."""
        return await asyncio.to_thread(self._node_inventory.memory, pools)

    async def image_volumes_refusal(self, namespace: str, image: str) -> str:
        """Return why pods may have no image volumes, "" where they may."""
        return await asyncio.to_thread(self._image_volumes.refusal, namespace, image)

    async def read_secret(self, key: ServiceKey, name: str) -> Manifest | None:
        """Return a Secret that a service's spec names, None when it does not exist."""
        return await asyncio.to_thread(observe.read_secret, self._api, key, name)

    async def carry_out(self, action: Action, *, owner_uid: str) -> Manifest | None:
        """Carry out one action; return the object as it is now, None when it is deleted."""
        self._refuse_stale()
        await self._rate_limiter.wait(str(action.key))
        return await asyncio.to_thread(apply.carry_out, self._api, action, owner_uid=owner_uid)

    async def write_status(self, key: ServiceKey, status: dict[str, Any], *, version: str) -> None:
        """Replace the status if the service still has this resource version."""
        self._refuse_stale()
        await self._rate_limiter.wait(f"status of {key}")
        await asyncio.to_thread(apply.write_status, self._api, key, status, version=version)

    async def post_event(self, key: ServiceKey, uid: str, event: Event) -> None:
        """Post an event."""
        self._refuse_stale()
        now = timestamp(datetime.now(UTC))
        await asyncio.to_thread(apply.post_event, self._api, key, uid, event, now=now)

    def _refuse_stale(self) -> None:
        """Refuse a write that is based on a list of many services.

        Raises:
            StaleListError: the pass reads from such a list.
        """
        if asyncio.current_task() in self._listing_tasks:
            raise StaleListError("objects from a list of many services must be observed again before they are changed")
