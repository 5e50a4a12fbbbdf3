"""The seam between passes and the API server, in its real form: blocking calls in threads."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from weft_operator import apply, observe
from weft_operator.api.capacity import Pool
from weft_operator.apiserver import ApiServer
from weft_operator.diff import Action
from weft_operator.events import Fact
from weft_operator.manifest import Manifest, ServiceKey
from weft_operator.observe import Observed
from weft_operator.planning.nodes import Capacity


class LiveCluster:
    """Carries out what a pass asks for against a real API server."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api

    async def observe(self, key: ServiceKey) -> Observed | None:
        """Return everything about a service, None when it is gone."""
        return await asyncio.to_thread(observe.observe, self._api, key)

    async def read_capacity(self, pools: Sequence[Pool], key: ServiceKey) -> Capacity | None:
        """Return the GPUs of the pools' nodes, None when nodes may not be listed."""
        return await asyncio.to_thread(observe.read_capacity, self._api, pools, key)

    async def carry_out(self, action: Action, *, owner_uid: str) -> Manifest | None:
        """Carry out one action; return the object as it is now, None when it is deleted."""
        return await asyncio.to_thread(apply.carry_out, self._api, action, owner_uid=owner_uid)

    async def write_status(self, key: ServiceKey, status: dict[str, Any], *, version: str) -> None:
        """Replace the status if the service still has this resource version."""
        await asyncio.to_thread(apply.write_status, self._api, key, status, version=version)

    async def post_event(self, key: ServiceKey, uid: str, fact: Fact) -> None:
        """Post an event."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        await asyncio.to_thread(apply.post_event, self._api, key, uid, fact, now=now)
