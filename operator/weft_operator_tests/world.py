"""One service, its operator and its cluster in memory, for tests of whole passes."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from weft_core.heartbeat import WorkerRecord
from weft_operator.api.objects import Manifest, ServiceKey
from weft_operator.controllers.redis_users import NoRedisUsers, RedisUserStore
from weft_operator.controllers.result import ReconcileResult
from weft_operator.controllers.service import ServiceReconciler
from weft_operator.controllers.worker_group import WorkerGroupReconciler
from weft_operator.kube.leader_election.namespace_claims import FindOtherOperator, no_other_operator
from weft_operator.metrics.credentials import Credentials
from weft_operator.metrics.observation import Demand, NoMetricsError
from weft_operator.metrics.poller import MetricsPoller
from weft_operator.planning.client import PlannerClient
from weft_operator.planning.planner_process import Answer
from weft_operator.planning.request import Request
from weft_operator.replanning.state import ReplanningState
from weft_operator.scaling.scale_to_zero import IdleScaler
from weft_operator.settings import Settings
from weft_operator_tests.fake_cluster import FakeCluster
from weft_operator_tests.samples import KEY, SETTINGS, planned
from weft_operator_tests.valid import service

Answered = tuple[object, list[object]]

KSTATUS = ("Reconciling", "Stalled")
"""Conditions that follow from the others."""

UNSEEN = {
    "MetricsAvailable": ("Unknown", "NotYetObserved"),
    "SLOMet": ("Unknown", "Unknown"),
    "CostModelFresh": ("Unknown", "Unknown"),
}
"""What is said of the traffic of a service before the first look at it."""

UNPLANNED = {**UNSEEN, "Drained": ("Unknown", "NotPlanned"), "SLOFeasible": ("Unknown", "NotPlanned")}
"""What else is said of a service before its first plan."""

AT_REST = {**UNSEEN, "Drained": ("True", "NoWorkersDraining"), "SLOFeasible": ("True", "PredictedMet")}
"""What else is said of a planned service that nobody has looked at yet."""


_looking: list[MetricsPoller] = []


def end_looks() -> None:
    """End the threads of every world made so far; an operator's program closes its own."""
    while _looking:
        _looking.pop().end_threads()


def _silent() -> Answered:
    raise NoMetricsError("PrometheusUnreachable", "no answer from http://prometheus:9090 (no connection)")


class Waiting:
    """What coordinators say of requests that wait, as a test will have it."""

    def __init__(self) -> None:
        self.said: Demand = "None"
        self.watched: set[ServiceKey] = set()

    async def read(self, key: ServiceKey) -> Demand:
        self.watched.add(key)
        return self.said

    def forget(self, key: ServiceKey) -> None:
        self.watched.discard(key)


def confirmed(name: str, role: str) -> WorkerRecord:
    """Return the heartbeat of a worker that has taken over its role."""
    return WorkerRecord(name, role, "http://x", 1, 1)  # type: ignore[arg-type]


class World:
    """One service, its cluster, a planner that answers what the test says, and a clock that stands still."""

    def __init__(self, body: Manifest | None = None) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.cluster = FakeCluster(body or service(), clock=lambda: self.now)
        self.answer: Answer = planned()
        self.requests: list[Request] = []
        self.woken = 0
        self.prometheus: Callable[[], Answered] = _silent
        self.looks = asyncio.Semaphore(0)
        self.new_token = b"0123456789abcdef0123456789abcdef"
        self.heartbeats: dict[str, WorkerRecord] = {}
        self.switched: set[str] = set()
        """Workers whose role was changed: their heartbeats are there without a word of the test."""
        self.demand = Waiting()
        self.users: RedisUserStore = NoRedisUsers()
        self.restart()

    def restart(
        self, settings: Settings | None = None, *, other_operator: FindOtherOperator = no_other_operator
    ) -> None:
        """Start the operator anew: nothing is remembered but what the cluster holds."""
        self.planner_client = PlannerClient(
            solve=self._solve, enqueue=self._enqueue, clock=lambda: self.now.timestamp()
        )
        self.replanning_state = ReplanningState()
        self.metrics_poller = MetricsPoller(
            read_secret=self.cluster.read_secret,
            enqueue=self._enqueue,
            clock=lambda: self.now,
            ask=self._ask,
            sleep=self._pause,
        )
        _looking.append(self.metrics_poller)
        self.reconciler = ServiceReconciler(
            cluster=self.cluster,
            planner_client=self.planner_client,
            metrics_poller=self.metrics_poller,
            replanning_state=self.replanning_state,
            idle_scaler=IdleScaler(
                demand=self.demand,
                heartbeats=self._heartbeats,
                quiet_since=self.replanning_state.quiet_since,
                clock=lambda: self.now,
            ),
            heartbeats=self._heartbeats,
            users=self.users,
            other_operator=other_operator,
            settings=settings or SETTINGS,
            clock=lambda: self.now,
            new_token=lambda: self.new_token,
        )
        self.group_reconciler = WorkerGroupReconciler(
            cluster=self.cluster,
            heartbeats=self._heartbeats,
            instance=SETTINGS.instance,
            other_operator=other_operator,
            clock=lambda: self.now,
        )

    async def step(self) -> ReconcileResult:
        """Run one pass over the service and what it brings about: passes over groups, and another over the service.

        The planner answers afterwards.
        """
        before = len(self.cluster.actions), self.cluster.group_writes
        outcomes = [await self.reconciler.reconcile(KEY)]
        outcomes += [await self.group_reconciler.reconcile(key) for key in self.cluster.groups()]
        if before != (len(self.cluster.actions), self.cluster.group_writes):
            outcomes[0] = await self.reconciler.reconcile(KEY)
        for _ in range(10):
            await asyncio.sleep(0)
        if outcomes[0].gone:
            return outcomes[0]
        again = [outcome.requeue_after for outcome in outcomes if outcome.requeue_after is not None]
        return ReconcileResult(
            requeue_after=min(again, default=None), actions=sum(outcome.actions for outcome in outcomes)
        )

    async def look(self) -> None:
        """Let the operator look at the service once, and run a pass if that wakes it."""
        woken, before = self.woken, self.metrics_poller.last(KEY)
        self.looks.release()
        async with asyncio.timeout(60):
            while self.metrics_poller.last(KEY) is before:  # noqa: ASYNC110 - a look tells nobody that it is over
                await asyncio.sleep(0.001)
        if self.woken > woken:
            await self.step()

    async def until_quiet(self) -> int:
        """Run passes and controllers until nothing changes; return how many passes it took."""
        for passes in range(1, 12):
            self.cluster.settle()
            before = self._counts()
            await self.step()
            if before == self._counts():
                return passes
        raise AssertionError("the service does not come to rest")

    def _counts(self) -> tuple[int, ...]:
        return len(self.cluster.actions), self.cluster.status_writes, self.cluster.group_writes, self.woken

    async def _solve(self, request: Request) -> Answer:
        self.requests.append(request)
        return self.answer

    async def _heartbeats(self, _key: ServiceKey) -> dict[str, WorkerRecord]:
        """Return what the test says, and what sidecars say that were given another role."""
        roles = self.cluster.pod_roles()
        self.switched |= {name for name, role in self.cluster.switching().items() if roles.get(name) == role}
        roles = {name: role for name, role in roles.items() if name in self.switched}
        return {**{name: confirmed(name, role) for name, role in roles.items()}, **self.heartbeats}

    def _ask(self, _url: str, _credentials: Credentials, _queries: Sequence[str]) -> Answered:
        return self.prometheus()

    async def _pause(self, _seconds: float) -> None:
        await self.looks.acquire()

    def _enqueue(self, _key: object) -> None:
        self.woken += 1


async def serving(body: Manifest | None = None) -> World:
    world = World(body)
    await world.until_quiet()
    assert world.cluster.condition("Ready")["reason"] == "Serving"
    return world


def summary(world: World) -> dict[str, tuple[str, str]]:
    conditions = world.cluster.service["status"]["conditions"]
    return {item["type"]: (item["status"], item["reason"]) for item in conditions if item["type"] not in KSTATUS}
