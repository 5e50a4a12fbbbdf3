"""One service, its operator and its cluster in memory, for tests of whole passes."""

import asyncio
from datetime import UTC, datetime

from weft_operator.manifest import Manifest
from weft_operator.planning.child import Answer
from weft_operator.planning.desk import PlannerDesk
from weft_operator.planning.request import Request
from weft_operator.reconcile import Outcome, Reconciler
from weft_operator_tests.fake_cluster import FakeCluster
from weft_operator_tests.samples import KEY, SETTINGS, planned
from weft_operator_tests.valid import service


class World:
    """One service, its cluster, a planner that answers what the test says, and a clock that stands still."""

    def __init__(self, body: Manifest | None = None) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.cluster = FakeCluster(body or service(), clock=lambda: self.now)
        self.answer: Answer = planned()
        self.requests: list[Request] = []
        self.woken = 0
        self.new_token = b"0123456789abcdef0123456789abcdef"
        self.restart()

    def restart(self) -> None:
        """Start the operator anew: nothing is remembered but what the cluster holds."""
        self.desk = PlannerDesk(solve=self._solve, wake=self._wake, clock=lambda: self.now.timestamp())
        self.reconciler = Reconciler(
            cluster=self.cluster,
            desk=self.desk,
            settings=SETTINGS,
            clock=lambda: self.now,
            new_token=lambda: self.new_token,
        )

    async def step(self) -> Outcome:
        """Run one pass, and let the planner answer afterwards."""
        outcome = await self.reconciler.reconcile(KEY)
        for _ in range(5):
            await asyncio.sleep(0)
        return outcome

    async def until_quiet(self) -> int:
        """Run passes and controllers until nothing changes; return how many passes it took."""
        for passes in range(1, 12):
            self.cluster.settle()
            before = (len(self.cluster.actions), self.cluster.status_writes, self.woken)
            await self.step()
            if before == (len(self.cluster.actions), self.cluster.status_writes, self.woken):
                return passes
        raise AssertionError("the service does not come to rest")

    async def _solve(self, request: Request) -> Answer:
        self.requests.append(request)
        return self.answer

    def _wake(self, _key: object) -> None:
        self.woken += 1


async def serving(body: Manifest | None = None) -> World:
    world = World(body)
    await world.until_quiet()
    assert world.cluster.condition("Ready")["reason"] == "Serving"
    return world


def summary(world: World) -> dict[str, tuple[str, str]]:
    conditions = world.cluster.service["status"]["conditions"]
    return {item["type"]: (item["status"], item["reason"]) for item in conditions}
