"""Build the reconcilers at the start of a lease term, and close them at its end."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

from weft_operator.api.objects import GroupKey, ObjectKey, PassKey, ServiceKey
from weft_operator.api.service_token import TOKEN_BYTES
from weft_operator.controllers.probes import OperatorMetrics
from weft_operator.controllers.redis_users import RedisUsers
from weft_operator.controllers.result import ReconcileResult
from weft_operator.controllers.service import ServiceReconciler
from weft_operator.controllers.worker_group import WorkerGroupReconciler
from weft_operator.errors import StaleListError
from weft_operator.kube.client import KubeClient
from weft_operator.kube.cluster import KubeCluster
from weft_operator.kube.leader_election.lease_record import LEASE_API
from weft_operator.kube.leader_election.namespace_claims import NamespaceClaims, no_other_operator
from weft_operator.kube.observe_many import Snapshot
from weft_operator.metrics.demand import DemandWatch
from weft_operator.metrics.heartbeats import HeartbeatReader
from weft_operator.metrics.poller import MetricsPoller
from weft_operator.metrics.state_keys import StateKeys
from weft_operator.planning.client import PlannerClient
from weft_operator.planning.planner_process import Answer, Refused, solve
from weft_operator.planning.request import Request
from weft_operator.replanning.state import ReplanningState
from weft_operator.scaling.scale_to_zero import IdleScaler
from weft_operator.settings import Settings
from weft_operator.weights.progress import ProgressReader

ReconcileOnce = Callable[[PassKey, Snapshot | None], Awaitable[ReconcileResult]]
"""Reconciles a service or a worker group once, on a snapshot that was listed a moment ago where one is given."""


@asynccontextmanager
async def controllers(
    api: KubeClient, settings: Settings, *, enqueue: Callable[[PassKey], None], metrics: OperatorMetrics
) -> AsyncIterator[ReconcileOnce]:
    """Yield the function that reconciles a service or a group once; ``api`` is fenced by the lease term."""

    async def run_planner(request: Request) -> Answer:
        answer = await solve(request, deadline=settings.planner_deadline)
        outcome = answer.reason if isinstance(answer, Refused) else "ok"
        metrics.planner_runs[outcome] = metrics.planner_runs.get(outcome, 0) + 1
        return answer

    planner_client = PlannerClient(solve=run_planner, enqueue=enqueue, clock=asyncio.get_running_loop().time)
    cluster = KubeCluster(api)
    replanning_state = ReplanningState()
    metrics_poller = MetricsPoller(
        read_secret=cluster.read_secret,
        enqueue=enqueue,
        clock=lambda: datetime.now(UTC),
        on_observation=replanning_state.on_observation,
    )
    metrics.metrics_query_failures = lambda: metrics_poller.failures
    claims = NamespaceClaims(api, me=settings.lease, instance=settings.instance) if settings.lease else None
    other_operator = no_other_operator if claims is None else claims.other_operator
    metrics.contested = (lambda: 0) if claims is None else (lambda: claims.contested)
    keys = StateKeys(cluster.read_secret, clock=asyncio.get_running_loop().time)
    heartbeats = HeartbeatReader(settings.redis_url, keys=keys)
    progress = ProgressReader(settings.redis_url)
    users = RedisUsers(settings.redis_url, owner=_owner(api, settings), exists=_exists(cluster))
    demand = DemandWatch(settings.redis_url, keys=keys, enqueue=enqueue, clock=asyncio.get_running_loop().time)
    reconciler = ServiceReconciler(
        cluster=cluster,
        planner_client=planner_client,
        metrics_poller=metrics_poller,
        replanning_state=replanning_state,
        idle_scaler=IdleScaler(
            demand=demand,
            heartbeats=heartbeats.read,
            quiet_since=replanning_state.quiet_since,
            clock=lambda: datetime.now(UTC),
        ),
        heartbeats=heartbeats.read,
        progress=progress.read,
        users=users,
        missing_rights=lambda: api.stats.missing_rights,
        other_operator=other_operator,
        settings=settings,
        clock=lambda: datetime.now(UTC),
        new_token=lambda: secrets.token_hex(TOKEN_BYTES).encode(),
    )

    groups = WorkerGroupReconciler(
        cluster=cluster,
        heartbeats=heartbeats.read,
        instance=settings.instance,
        other_operator=other_operator,
        clock=lambda: datetime.now(UTC),
    )

    async def reconcile(key: PassKey) -> ReconcileResult:
        return await (groups.reconcile(key) if isinstance(key, GroupKey) else reconciler.reconcile(key))

    async def observe(key: PassKey, listed: Snapshot | None) -> ReconcileResult:
        if listed is not None:
            with suppress(StaleListError), cluster.use_listing(key, listed):
                return await reconcile(key)
        return await reconcile(key)

    async def one_pass(key: PassKey, listed: Snapshot | None) -> ReconcileResult:
        try:
            outcome = await observe(key, listed)
        except BaseException:
            metrics.passes["error"] += 1
            raise
        metrics.passes["ok"] += 1
        metrics.actions += outcome.actions
        return outcome

    redis_sync = asyncio.create_task(users.run(), name="redis users")
    renewal = None if claims is None else asyncio.create_task(claims.renew_forever(), name="claims")
    try:
        yield one_pass
    finally:
        for task in (redis_sync, renewal):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await metrics_poller.close()
        await users.close()
        await demand.close()
        await heartbeats.close()
        await progress.close()
        await planner_client.close()


def _owner(api: KubeClient, settings: Settings) -> Callable[[], Awaitable[str]]:
    """Return a function that returns this operator's id: the uid of its Lease, "" without one."""

    async def owner() -> str:
        if not settings.lease:
            return ""
        key = ObjectKey(LEASE_API, "Lease", *settings.lease.split("/", 1))
        return str((await asyncio.to_thread(api.get, key))["metadata"]["uid"])

    return owner


def _exists(cluster: KubeCluster) -> Callable[[ServiceKey], Awaitable[bool]]:
    async def exists(key: ServiceKey) -> bool:
        return await cluster.read_service(key) is not None

    return exists
