"""The services of a cluster: listed once, then watched; while the API server is away, the last known ones stay."""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping
from time import monotonic
from typing import Any, Final

from weft_router.background import guarded
from weft_router.config.gateway import KubernetesConfig
from weft_router.gateway.kube_api import GONE, KubeApi, KubeApiError
from weft_router.gateway.served_service import ServedService, service_of
from weft_router.gateway.service_source import ServiceSource

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0
"""Pause after the first failure; twice as long each time, with some chance in it."""
MAX_RETRY_S: Final = 20.0

Read = Callable[[Mapping[str, Any]], ServedService]


class ServiceWatch(ServiceSource):
    """The services of some namespaces, or of all; ``read`` makes one of an object."""

    def __init__(self, config: KubernetesConfig, api: KubeApi, *, read: Read = service_of) -> None:
        super().__init__()
        self.api = api
        self._scopes = [_Scope(self, namespace, config.selector, read) for namespace in config.namespaces or ("",)]

    @property
    def listed(self) -> bool:
        """Return whether every namespace was listed once."""
        return all(scope.listed for scope in self._scopes)

    def services(self) -> Iterable[ServedService]:
        """Return the services of all namespaces that are watched."""
        return [service for scope in self._scopes for service in scope.known.values()]

    def work(self) -> list[Coroutine[None, None, None]]:
        """Return a watch for each namespace."""
        return [scope.run() for scope in self._scopes]

    async def close(self) -> None:
        """Close the connections to the API server."""
        await self.api.close()


class _Scope:
    """One namespace, or all of them."""

    def __init__(self, owner: ServiceWatch, namespace: str, selector: str, read: Read) -> None:
        self._owner = owner
        self._namespace = namespace
        self._selector = selector
        self._read = read
        self._version = ""
        """The version of the list that is known; empty where it has to be listed again."""
        self._failures = 0
        self.listed = False
        self.known: dict[str, ServedService] = {}

    async def run(self) -> None:
        while True:
            await guarded(self._turn)

    async def _turn(self) -> None:
        began, failure = monotonic(), ""
        try:
            if not self._version:
                await self._list()
            await self._owner.api.watch(self._namespace, self._selector, self._version, self._take)
        except KubeApiError as error:
            failure = str(error)
            if error.gone:
                self._version = ""
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            failure, self._version = f"an answer of another form ({error!r})"[:300], ""
        if failure:
            self._failures += 1
            log.warning("services_unread", extra={"namespace": self._namespace, "error": failure})
            await self._pause()
        elif monotonic() - began < RETRY_S:
            await asyncio.sleep(RETRY_S)  # whoever ends each watch at once is not to be asked without a pause

    async def _pause(self) -> None:
        longest = min(MAX_RETRY_S, RETRY_S * 2 ** min(self._failures - 1, 10))
        await asyncio.sleep(longest * (0.5 + random.random() / 2))  # noqa: S311 - spreads gateways, guards nothing

    async def _list(self) -> None:
        found: dict[str, ServedService] = {}
        version = ""
        async for page in self._owner.api.pages(self._namespace, self._selector):
            for item in page.get("items") or ():
                self._add(found, item)
            version = str((page.get("metadata") or {}).get("resourceVersion") or "")
        changed = found != self.known or not self.listed
        self.known, self._version, self.listed = found, version, True
        self._failures = 0
        self._owner.heard()
        log.info("services_read", extra={"namespace": self._namespace, "services": len(found)})
        if changed:
            self._owner.on_change()

    def _take(self, event: Mapping[str, Any]) -> None:
        """Follow one event.

        Raises:
            KubeApiError: it says that the watch is over.
        """
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            code = item.get("code")
            raise KubeApiError(f"the watch ended with {code}: {str(item.get('message'))[:300]}", gone=code == GONE)
        self._version = str(item["metadata"]["resourceVersion"])
        self._failures = 0
        self._owner.heard()
        if kind == "BOOKMARK":
            return
        key = f"{item['metadata']['namespace']}/{item['metadata']['name']}"
        before = self.known.get(key)
        if kind == "DELETED":
            self.known.pop(key, None)
        else:
            self._add(self.known, item)
        if self.known.get(key) != before:
            self._owner.on_change()

    def _add(self, known: dict[str, ServedService], item: Mapping[str, Any]) -> None:
        """Take a service over; one that cannot be read is not served, and hides no other."""
        metadata = item.get("metadata") or {}
        key = f"{metadata.get('namespace')}/{metadata.get('name')}"
        try:
            known[key] = self._read(item)
        except ValueError as error:
            known.pop(key, None)
            log.warning("service_unreadable", extra={"service": key, "error": str(error)})
