"""Run the operator: watches and probes always, reconcilers while this replica leads."""

import asyncio
import logging
import os
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from weft_operator.api.objects import GroupKey, PassKey, ServiceKey
from weft_operator.controllers import probes
from weft_operator.controllers.result import ReconcileResult
from weft_operator.controllers.setup import ReconcileOnce, controllers
from weft_operator.controllers.work_queue import WorkQueue
from weft_operator.errors import NotLeaderError
from weft_operator.kube.client import KubeClient
from weft_operator.kube.cluster import KubeCluster
from weft_operator.kube.connection import connect
from weft_operator.kube.leader_election.elector import LeaderElector
from weft_operator.kube.leader_election.lease_record import LeaseTiming
from weft_operator.kube.managed_namespaces import MANAGED_LABEL, ManagedNamespaces
from weft_operator.kube.observe_many import Snapshot, batches
from weft_operator.kube.startup import await_kinds
from weft_operator.kube.watch_handlers import WatchEvent
from weft_operator.kube.watch_rights import try_watches
from weft_operator.kube.watches import Watches
from weft_operator.settings import Settings

LEASE_CONNECT_S = 2.0
LEASE_READ_S = 3.0
WRITES_DONE_S = 3.0
"""How long a leader that stops waits for its last writes before it releases the Lease."""

Key = TypeVar("Key")
Result = TypeVar("Result")

log = logging.getLogger(__name__)


async def run(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT.

    Raises:
        ForbiddenError: there is no access to a cluster.
    """
    api = await asyncio.to_thread(connect)
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    if not settings.namespace_role:
        await _serve(api, settings, stopping)
        return
    managed = ManagedNamespaces(api, role=settings.namespace_role, account=settings.service_account)
    names = await _unless_stopped(managed.first_names(), stopping)
    while names is not None and not stopping.is_set():
        # A change of the namespaces is rare: everything restarts, which takes a second or two.
        changed = asyncio.create_task(managed.changed(names), name="namespaces")
        try:
            await _serve(api, replace(settings, watch_namespaces=names), stopping, changed)
            names = changed.result() if changed.done() else None
        finally:
            changed.cancel()
            await asyncio.gather(changed, return_exceptions=True)


async def _unless_stopped(coming: Coroutine[Any, Any, Result], stopping: asyncio.Event) -> Result | None:
    """Return the result, None where the operator stops before."""
    first, stop = asyncio.ensure_future(coming), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((first, stop), return_when=asyncio.FIRST_COMPLETED)
        return first.result() if first.done() else None
    finally:
        for task in (first, stop):
            task.cancel()
        await asyncio.gather(first, stop, return_exceptions=True)


async def _serve(
    api: KubeClient, settings: Settings, stopping: asyncio.Event, changed: "asyncio.Task[tuple[str, ...]] | None" = None
) -> None:
    """Run until the operator stops or its namespaces change."""
    loop = asyncio.get_running_loop()
    replica = Replica(api, settings, elector=await _elector(settings))
    idle = changed is not None and not settings.watch_namespaces

    watches = Watches(on_event=lambda event: _from_thread(loop, replica.on_event, event))
    replica.metrics.watch_restarts = lambda: watches.restarts

    def ready() -> str | None:
        if idle:
            return f"waits for a namespace with the label {MANAGED_LABEL}=true"
        return replica.leadership() if watches.ready else None

    runner = await probes.serve(port=settings.port, alive=replica.alive, ready=ready, metrics=replica.metrics)
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(stopping.wait(), name="signals")]
    try:
        if not idle:
            tasks.append(asyncio.create_task(_work(api, settings, replica, watches), name="work"))
        await asyncio.wait([*tasks, *([] if changed is None else [changed])], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        await runner.cleanup()
        log.info("stopped")
    for end in ends:
        if isinstance(end, Exception):
            raise end


async def _work(api: KubeClient, settings: Settings, replica: "Replica", watches: Watches) -> None:
    await await_kinds(api, settings.watch_namespaces)
    log.info("started", extra={"namespaces": ",".join(settings.watch_namespaces) or "all"})
    async with asyncio.TaskGroup() as group:
        group.create_task(watches.run(settings.watch_namespaces), name="watches")
        group.create_task(try_watches(api, settings.watch_namespaces), name="rights to watch")
        group.create_task(replica.run(), name="replica")


class Replica:
    """One operator process: it always watches, and reconciles while it leads."""

    def __init__(self, api: KubeClient, settings: Settings, *, elector: LeaderElector | None) -> None:
        """Create it; without an elector it always leads."""
        self._api = api
        self._settings = settings
        self._elector = elector
        self._reconcile: ReconcileOnce | None = None
        self._groups: dict[ServiceKey, set[GroupKey]] = {}
        """The groups of each service, from watch events."""
        reader = KubeCluster(api)
        self.work_queue: WorkQueue[PassKey, Snapshot] = WorkQueue(
            self._reconcile_once,
            resync=settings.resync,
            list_keys=lambda: reader.list_keys(settings.watch_namespaces),
            observe=reader.observe_many,
            batches=batches,
        )
        self.metrics = probes.OperatorMetrics(
            stats=api.stats, work_queue=self.work_queue, leading=lambda: self.leading, elector=elector
        )

    @property
    def leading(self) -> bool:
        """Return whether this replica leads."""
        return self._reconcile is not None

    def alive(self) -> bool:
        """Return whether the event loop and the resync loop run, for the liveness probe."""
        last = self.work_queue.last_resync
        return last is None or asyncio.get_running_loop().time() - last < 3 * self._settings.resync

    def leadership(self) -> str | None:
        """Return who leads, for the readiness probe; None while there is no leader, or the Lease cannot be read."""
        if self._elector is None:
            return "leads, alone"
        if self.leading:
            return f"leads as {self._elector.me}"
        leader = self._elector.leader
        return f"stands by for {leader}" if leader and not self._elector.last_error else None

    def on_event(self, event: WatchEvent) -> None:
        """Enqueue the services and groups that an event concerns."""
        keys = self._keys_of(event)
        if event.listed:
            self.work_queue.enqueue_resync(keys)
            return
        for key in keys:
            self.work_queue.enqueue(key, changed=event.changed)

    def _keys_of(self, event: WatchEvent) -> set[PassKey]:
        if event.service is None:
            services = (key for key in self.work_queue.known if isinstance(key, ServiceKey))
            return {key for key in services if key.namespace == event.namespace}
        if event.group is not None:
            groups = self._groups.setdefault(event.service, set())
            (groups.discard if event.gone else groups.add)(event.group)
            if not groups:
                del self._groups[event.service]
            return {event.service, event.group}
        return {event.service, *(self._groups.get(event.service, ()) if event.affects_groups else ())}

    async def run(self) -> None:
        """Acquire the Lease, lead while it lasts, again and again until cancelled; then release it."""
        if self._elector is None:
            await self._lead(self._api, asyncio.get_running_loop().create_future())
            return
        while True:
            term = await self._elector.campaign()
            try:
                await self._lead(self._api.fenced(term.check), self._elector.renew_until_lost(term))
            finally:
                # In this order: no new writes start, those in flight end, and only then another replica may lead.
                term.end()
                if await _writes_done(self._api):
                    await self._elector.release()

    async def _lead(self, api: KubeClient, until: Awaitable[object]) -> None:
        """Run passes until ``until`` is done."""
        async with controllers(
            api, self._settings, enqueue=self.work_queue.enqueue, metrics=self.metrics
        ) as self._reconcile:
            work = asyncio.ensure_future(self.work_queue.run())
            end = asyncio.ensure_future(until)
            try:
                await asyncio.wait((work, end), return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._reconcile = None
                for task in (work, end):
                    task.cancel()
                ends = await asyncio.gather(work, end, return_exceptions=True)
            for error in ends:
                if isinstance(error, Exception):
                    raise error

    async def _reconcile_once(self, key: PassKey, listed: Snapshot | None) -> ReconcileResult:
        if self._reconcile is None:
            raise NotLeaderError("this replica does not lead")
        return await self._reconcile(key, listed)


async def _elector(settings: Settings) -> LeaderElector | None:
    if not settings.lease:
        return None
    namespace, _, name = settings.lease.partition("/")
    # A separate connection: requests that hang or are throttled must not delay the renewal of the Lease.
    leases = await asyncio.to_thread(connect, connect_s=LEASE_CONNECT_S, read_s=LEASE_READ_S, honor_retry_after=False)
    me = settings.identity or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
    return LeaderElector(leases, key=(namespace, name), me=me, timing=LeaseTiming.of(settings.lease_seconds))


async def _writes_done(api: KubeClient) -> bool:
    """Wait until no write is in flight; return False on a timeout."""
    deadline = asyncio.get_running_loop().time() + WRITES_DONE_S
    while api.stats.writes_in_flight:
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True


def _from_thread(loop: asyncio.AbstractEventLoop, call: Callable[[Key], None], key: Key) -> None:
    with suppress(RuntimeError):  # the loop is closed: the operator stops
        loop.call_soon_threadsafe(call, key)
