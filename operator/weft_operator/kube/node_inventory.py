"""The node inventory: the GPUs of the cluster's nodes, listed once for all services that plan at the same time.

Every pod of the cluster is listed for it; a thousand services that start together must not do so a thousand times.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from weft_operator.api.capacity import Pool
from weft_operator.api.objects import Manifest, ServiceKey
from weft_operator.errors import ForbiddenError
from weft_operator.kube.client import KubeClient
from weft_operator.workers.node_capacity import NodeCapacity, capacity_of, gpu_part, largest_memory

MAX_AGE_S = 2.0
"""Longest age of a list that is reused; creating the pods of a plan takes longer."""

MEMORY_AGE_S = 60.0
"""The same where only the size of nodes counts, which does not change."""

UNFINISHED_PODS = "status.phase!=Succeeded,status.phase!=Failed"

LIST_PAGE_SIZE = 500
"""Pods in one page: about 5 MB of JSON, and ten times as much when parsed."""

log = logging.getLogger(__name__)


class NodeInventory:
    """The nodes and their pods; may be used from several threads."""

    def __init__(self, api: KubeClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._lock = threading.Lock()
        self._listed_at = float("-inf")
        self._nodes: list[Manifest] | None = None
        self._pods: list[Manifest] | None = None
        self._memory_at = float("-inf")
        self._memory_nodes: list[Manifest] | None = None

    def capacity(self, pools: Sequence[Pool], service: ServiceKey) -> NodeCapacity | None:
        """Return the GPUs of the pools' nodes and which of them are free; None when nodes may not be listed.

        Raises:
            ApiError: the API server refused or did not answer.
        """
        with self._lock:
            now = self._clock()
            if now - self._listed_at > MAX_AGE_S:
                self._list()
                self._listed_at = now
            nodes, pods = self._nodes, self._pods
        return None if nodes is None else capacity_of(pools, nodes, pods, service=service)

    def memory(self, pools: Sequence[Pool]) -> Mapping[str, int]:
        """Return the allocatable memory of the largest node of each pool, in bytes; pools without nodes are left out.

        No pool is in it when nodes may not be listed.

        Raises:
            ApiError: the API server refused or did not answer.
        """
        with self._lock:
            now = self._clock()
            if now - self._memory_at > MEMORY_AGE_S:
                self._memory_nodes = self._list_nodes()
                self._memory_at = now
            nodes = self._memory_nodes
        return largest_memory(pools, nodes or ())

    def _list_nodes(self) -> list[Manifest] | None:
        try:
            return self._api.list("v1", "Node")
        except ForbiddenError as error:
            self._api.stats.ignore_missing(error.right)
            log.info("nodes_not_listed")
            return None

    def _list(self) -> None:
        self._pods = None
        self._nodes = self._list_nodes()
        if self._nodes is None:
            return
        try:
            pages = self._api.pages("v1", "Pod", fields=UNFINISHED_PODS, page_size=LIST_PAGE_SIZE)
            pods = [gpu_part(pod) for page in pages for pod in page]
        except ForbiddenError as error:
            self._api.stats.ignore_missing(error.right)  # not allowed with a list of namespaces
            log.info("pods_not_listed")
        else:
            self._pods = pods
