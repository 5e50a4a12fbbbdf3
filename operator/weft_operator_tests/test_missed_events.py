"""A2 and A3: whatever kind of event never comes, a service ends as if it had come; and then nothing is written."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import cast

import pytest

from weft_operator.api.objects import (
    COMPONENT_LABEL,
    SERVICE_LABEL,
    GroupKey,
    Manifest,
    PassKey,
    ServiceKey,
    labels_of,
    name_of,
)
from weft_operator.api.service import KIND
from weft_operator.api.worker_group import GROUP_KIND
from weft_operator.controllers.program import Replica
from weft_operator.controllers.result import ReconcileResult
from weft_operator.controllers.work_queue import WorkQueue
from weft_operator.kube.client import KubeClient
from weft_operator.kube.diff import Action
from weft_operator.kube.observe_many import Snapshot
from weft_operator.kube.request_stats import RequestStats
from weft_operator.kube.watch_handlers import WatchEvent
from weft_operator_tests.samples import KEY, SETTINGS, group, planned
from weft_operator_tests.virtual_time import run_virtual
from weft_operator_tests.world import World, summary

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
RESYNC_S = 60.0
CONTROLLERS_S = 1.0
"""How often the controllers of StatefulSets and Deployments do what is to be done."""
SLACK_S = 15.0
"""Beside the resync: the queue's own pauses and the controllers'."""

QUIET_S = 1200.0

KINDS = (KIND, GROUP_KIND, "StatefulSet", "Deployment", "Pod")
"""What is watched of a service; what happens to its other objects is only ever found by a resync."""
CHANGES = ("ADDED", "MODIFIED", "DELETED")
Dropped = tuple[str, str] | None


class _Clocked(World):
    """A world whose clock is that of the loop."""

    @property
    def now(self) -> datetime:
        return BEGIN + timedelta(seconds=asyncio.get_running_loop().time())

    @now.setter
    def now(self, _value: datetime) -> None:
        """The loop says what time it is."""


class Api:
    """Tells of every change of a cluster in memory but those of one class; an operator's queue hears it."""

    def __init__(self, world: World, dropped: Dropped) -> None:
        self.world = world
        self.dropped = dropped
        self.missed = 0
        self._seen: dict[tuple[str, str], str] = {}
        stub = type("Stub", (), {"stats": RequestStats()})()
        self.operator = Replica(cast(KubeClient, stub), SETTINGS, elector=None)
        self.operator.work_queue = WorkQueue(
            self._pass, resync=RESYNC_S, list_keys=self._list_keys, observe=self._see_nothing, batches=_in_parts
        )
        carried_out, world.cluster.carry_out = world.cluster.carry_out, self._carry_out  # type: ignore[method-assign]
        self._carried_out = carried_out
        world._enqueue = lambda key: self.operator.work_queue.enqueue(cast(ServiceKey, key))  # type: ignore[method-assign,assignment]
        world.restart()

    async def _carry_out(self, action: Action, *, owner_uid: str) -> Manifest | None:
        done = await self._carried_out(action, owner_uid=owner_uid)
        self.tell()
        return done

    async def _pass(self, key: PassKey, _sight: Snapshot | None) -> ReconcileResult:
        one = self.world.group_reconciler if isinstance(key, GroupKey) else self.world.reconciler
        outcome = await one.reconcile(key)  # type: ignore[arg-type]
        self.tell()
        return outcome

    async def _list_keys(self) -> Iterable[PassKey]:
        service = [KEY] if name_of(self.world.cluster.service) == KEY.name else []
        return [*service, *self.world.cluster.groups()]

    async def _see_nothing(self, _keys: Sequence[PassKey]) -> Mapping[PassKey, Snapshot]:
        return {}

    def snapshot(self) -> dict[tuple[str, str], str]:
        """Return all that there is, as text by kind and name."""
        return {key: json.dumps(item) for key, item in self._objects()}

    def _objects(self) -> Iterator[tuple[tuple[str, str], Manifest]]:
        cluster = self.world.cluster
        if name_of(cluster.service) == KEY.name:
            yield (KIND, KEY.name), cluster.service
        for key, item in cluster.objects.items():
            yield (key.kind, key.name), item
        for name, pod in cluster.pods.items():
            yield ("Pod", name), pod

    def tell(self) -> None:
        """Tell the operator what has changed since the last time, as the handlers do."""
        before, self._seen = self._seen, self.snapshot()
        for key in sorted({*before, *self._seen}):
            if key not in before:
                self._event("ADDED", json.loads(self._seen[key]))
            elif key not in self._seen:
                self._event("DELETED", json.loads(before[key]))
            elif before[key] != self._seen[key]:
                self._event("MODIFIED", json.loads(self._seen[key]))

    def _event(self, change: str, item: Manifest) -> None:
        kind = item.get("kind", KIND)
        if (kind, change) == self.dropped:
            self.missed += 1
            return
        gone, labels, on_event = change == "DELETED", labels_of(item), self.operator.on_event
        if kind == KIND:
            newer = item["metadata"].get("generation") != item.get("status", {}).get("observedGeneration")
            on_event(WatchEvent(KEY.namespace, service=KEY, changed=newer, gone=gone))
        elif kind == GROUP_KIND:
            on_event(WatchEvent(KEY.namespace, service=KEY, group=GroupKey(KEY.namespace, name_of(item)), gone=gone))
        elif kind in ("StatefulSet", "Deployment", "Pod") and SERVICE_LABEL in labels:
            on_event(
                WatchEvent(
                    KEY.namespace, service=KEY, affects_groups=labels.get(COMPONENT_LABEL) != "coordinator", gone=gone
                )
            )

    async def control(self) -> None:
        """Play the controllers for ever."""
        while True:
            await asyncio.sleep(CONTROLLERS_S)
            self.world.cluster.settle()
            self.tell()

    def written(self) -> tuple[int, int, int]:
        """Return how much was written by the operator so far."""
        cluster = self.world.cluster
        return len(cluster.actions), cluster.status_writes, cluster.group_writes


def _in_parts(keys: Iterable[PassKey]) -> Iterator[Sequence[PassKey]]:
    found = list(keys)
    return iter([found] if found else [])


@asynccontextmanager
async def operating(dropped: Dropped) -> AsyncIterator[Api]:
    """Give a cluster with a service that nobody has looked at, an operator, and controllers."""
    api = Api(_Clocked(), dropped)
    tasks = [asyncio.create_task(api.operator.work_queue.run()), asyncio.create_task(api.control())]
    await asyncio.sleep(0)
    api.tell()
    try:
        yield api
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await api.world.metrics_poller.close()


def at_rest(world: World) -> bool:
    """Return whether the status says that the newest spec is served by all the workers of its plan, and none other."""
    status = world.cluster.service.get("status", {})
    newest = status.get("observedGeneration") == world.cluster.service["metadata"]["generation"]
    if not newest or summary(world)["Ready"] != ("True", "Serving"):
        return False
    return summary(world)["Progressing"][0] == "False" and {
        pod for pod in world.cluster.pods if "on-dead-node" not in world.cluster.pods[pod]
    } == {f"{name}-0" for name in world.cluster.names("StatefulSet")}


def _delete(kind: str, name: str) -> Callable[[World], None]:
    def act(world: World) -> None:
        cluster = world.cluster
        if kind == "Pod":
            cluster.remove_pod(name)
        else:
            cluster._remove(next(key for key in cluster.objects if (key.kind, key.name) == (kind, name)))

    return act


def _spoil(world: World) -> None:
    deployment = world.cluster.named("Deployment", "demo")
    deployment["spec"]["replicas"] = 7
    deployment["metadata"]["generation"] += 1


def _lose_a_node(world: World) -> None:
    world.cluster.lose_node("demo-w4-0-0")


def _lost_node_left(world: World) -> bool:
    return "demo-w4-0" not in world.cluster.names("StatefulSet") and len(world.cluster.names("StatefulSet")) == 3


def _lose_a_group(world: World) -> None:
    group = next(key for key in world.cluster.objects if key.kind == GROUP_KIND and "w4" in key.name)
    world.cluster._remove(group)


def _replan(world: World) -> None:
    world.answer = planned(group("prefill", 4, 1), group("decode", 8, 1))
    world.cluster.change(slo={"ttft": "3s", "itl": "50ms"})


STORY: dict[str, tuple[Callable[[World], None], Callable[[World], bool]]] = {
    "a hand edit": (_spoil, lambda w: w.cluster.named("Deployment", "demo")["spec"]["replicas"] != 7),
    "a lost Deployment": (_delete("Deployment", "demo"), lambda w: "demo" in w.cluster.names("Deployment")),
    "a lost Service": (_delete("Service", "demo"), lambda w: "demo" in w.cluster.names("Service")),
    "a lost ConfigMap": (_delete("ConfigMap", "demo-live"), lambda w: "demo-live" in w.cluster.names("ConfigMap")),
    "a lost StatefulSet": (
        _delete("StatefulSet", "demo-w4-1"),
        lambda w: "demo-w4-1" in w.cluster.names("StatefulSet"),
    ),
    "a lost node": (_lose_a_node, _lost_node_left),
    "a lost group": (_lose_a_group, lambda w: len(w.cluster.names("StatefulSet")) == 3),
    "a changed service": (_replan, lambda w: len(w.cluster.names("StatefulSet")) == 2),
}
"""What happens, and how one sees that the operator has answered it."""


def _rendered(world: World) -> dict[tuple[str, str], str]:
    """Return what the operator rendered, without the times at which it did."""
    return {
        (key.kind, key.name): re.sub(
            r"20\d\d-\d\d-\d\dT[\d:.]+Z",
            "<time>",
            json.dumps({part: value for part, value in item.items() if part not in ("metadata", "status")}),
        )
        for key, item in world.cluster.objects.items()
    }


async def _life(dropped: Dropped) -> tuple[dict[str, float], dict[tuple[str, str], str], int]:
    """Live a service's life; return how long each answer took, what there was in the end, and events missed."""
    loop = asyncio.get_running_loop()
    took: dict[str, float] = {}

    async def until(what: str, holds: Callable[[], bool]) -> None:
        begin = loop.time()
        while not holds():
            await asyncio.sleep(0.25)
            assert loop.time() - begin < 10 * RESYNC_S, f"{what}: never"
        took[what] = loop.time() - begin

    async with operating(dropped) as api:
        world = api.world
        await until("a new service", lambda: "status" in world.cluster.service)
        await until("readiness", lambda: at_rest(world))
        for what, (act, answered) in STORY.items():
            act(world)
            api.tell()
            await until(what, partial(answered, world))
            await until(f"rest after {what}", lambda: at_rest(world))
        # A2: nobody writes anything when nothing happens, over all resyncs.
        before, objects = api.written(), api.snapshot()
        await asyncio.sleep(QUIET_S if dropped is None else 2 * RESYNC_S)
        assert api.written() == before
        assert api.snapshot() == objects
        end = _rendered(world)
        world.cluster.service["metadata"]["name"] = "gone"
        api.tell()
        await until("a deleted service", lambda: KEY not in api.operator.work_queue.known)
        return took, end, api.missed


@pytest.fixture(scope="module")
def reference() -> dict[tuple[str, str], str]:
    took, end, missed = run_virtual(_life(None))
    assert missed == 0
    assert {what for what, seconds in took.items() if seconds > RESYNC_S / 2} == {"a lost ConfigMap"}
    return end


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", CHANGES)
def test_an_event_that_never_comes_costs_a_resync_at_most(
    reference: dict[tuple[str, str], str], kind: str, change: str
) -> None:
    took, end, missed = run_virtual(_life((kind, change)))
    assert missed > 0, "no such event: the story has to have one"
    late = {what: seconds for what, seconds in took.items() if seconds > RESYNC_S + SLACK_S}
    assert not late, f"without {change} of {kind}: {late}"
    assert end == reference
