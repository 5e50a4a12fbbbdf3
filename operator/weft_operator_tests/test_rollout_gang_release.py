"""Without a gang scheduler: a worker of which only some pods found a node gives these back, and tries again later."""

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_operator.api.objects import COMPONENT_LABEL, RELEASED_ANNOTATION, Manifest, labels_of
from weft_operator.kube.diff import Apply, Delete
from weft_operator.rollout.gang_release import RELEASE_INTERVAL_S, plan_release
from weft_operator.rollout.group_plan import GroupPlan, plan_group
from weft_operator.workers.fleet import live_workers
from weft_operator.workers.groups import WorkerGroupView
from weft_operator.workers.readiness import worker_states
from weft_operator_tests.test_rollout_group_plan import NOW, group, made

TIMEOUT_S = 600.0
SPAN: dict[str, Any] = {"degree": 16, "nodesPerWorker": 2}
ALONE: dict[str, Any] = {**SPAN, "unschedulableTimeout": "10m"}
GANG: dict[str, Any] = {**SPAN, "gang": {"scheduler": "kueue", "queue": "team-a"}}


def node(item: Manifest, rank: int, *, on: str = "", waits_s: float = 0.0) -> Manifest:
    """Return a pod that is on a node, or has waited for one for so long."""
    scheduled: Manifest = {"type": "PodScheduled", "status": "True"}
    if not on:
        since = (NOW - timedelta(seconds=waits_s)).isoformat()
        scheduled = {"type": "PodScheduled", "status": "False", "message": "0/4 nodes", "lastTransitionTime": since}
    labels = {**item["spec"]["template"]["metadata"]["labels"], "controller-revision-hash": "r"}
    return {
        "kind": "Pod",
        "metadata": {"name": f"{item['metadata']['name']}-{rank}", "uid": f"pod-{rank}", "labels": labels},
        "spec": {"nodeName": on} if on else {},
        "status": {"conditions": [scheduled]},
    }


def run(of: WorkerGroupView, sets: Sequence[Manifest], pods: Sequence[Manifest], *, now: datetime = NOW) -> GroupPlan:
    return plan_group(of, statefulsets=sets, pods=pods, records={}, now=now)


def sizes(plan: GroupPlan) -> dict[str, int]:
    """Return the pods that applied StatefulSets ask for."""
    return {
        item.key.name: item.manifest["spec"]["replicas"]
        for item in plan.actions
        if isinstance(item, Apply) and item.key.kind == "StatefulSet"
    }


def live(plan: GroupPlan, sets: Sequence[Manifest]) -> list[Manifest]:
    """Return the StatefulSets as they are once a plan is carried out."""
    applied = {item.key.name: item.manifest for item in plan.actions if isinstance(item, Apply)}
    return [{**item, **applied.get(item["metadata"]["name"], {}), "status": item["status"]} for item in sets]


def test_a_worker_that_found_only_some_nodes_gives_them_back_after_the_timeout() -> None:
    of = group(1, **ALONE)
    sets = made(of, 0)
    half = [node(sets[0], 0, on="node-a"), node(sets[0], 1, waits_s=TIMEOUT_S - 60)]
    waits = run(of, sets, half)
    assert (waits.actions, waits.release_events, waits.requeue_after) == ((), (), 60.0)
    plan = run(of, sets, [half[0], node(sets[0], 1, waits_s=TIMEOUT_S + 1)])
    assert sizes(plan) == {"demo-p16-0": 0}
    (event,) = plan.release_events
    assert (event.type, event.reason) == ("Warning", "WorkerReleased")
    assert "found nodes for 1 of its 2 pods within 10m (spec.rollout.unschedulableTimeout)" in event.message
    empty = live(plan, sets)
    (state,) = worker_states("demo", plan.fleet.workers, statefulsets=empty, pods=[], changed=frozenset())
    assert (state.ready, state.unschedulable) == (False, True)
    assert "released at 2026-01-01T00:00:00+00:00" in state.trouble
    (worker,) = live_workers("demo", empty, [], now=NOW)
    assert not worker.serving
    held = run(of, empty, [], now=NOW + timedelta(seconds=TIMEOUT_S))
    assert sizes(held) == {}, "its nodes are left to others"
    assert held.requeue_after is not None
    assert 0 < held.requeue_after <= TIMEOUT_S
    again = run(of, empty, [], now=NOW + timedelta(seconds=2 * TIMEOUT_S))
    assert sizes(again) == {"demo-p16-0": 2}
    (found,) = live(again, empty)
    assert RELEASED_ANNOTATION not in found["metadata"]["annotations"]


@pytest.mark.parametrize("places", [("node-a", "node-b"), ("", "")], ids=["all on nodes", "none on a node"])
def test_a_worker_with_all_or_no_pods_on_nodes_gives_nothing_back(places: tuple[str, str]) -> None:
    of = group(1, **ALONE)
    sets = made(of, 0)
    pods = [node(sets[0], rank, on=on, waits_s=10 * TIMEOUT_S) for rank, on in enumerate(places)]
    assert run(of, sets, pods).actions == ()


def test_the_time_in_which_no_pod_had_a_node_does_not_count() -> None:
    """Nodes that an autoscaler brings come one by one: the first one is not given back as soon as it is there."""
    of = group(1, **ALONE)
    sets = made(of, 0)
    pods = [node(sets[0], 0, on="node-a"), node(sets[0], 1, waits_s=10 * TIMEOUT_S)]
    scheduled = pods[0]["status"]["conditions"][0]
    scheduled["lastTransitionTime"] = (NOW - timedelta(seconds=60)).isoformat()
    plan = run(of, sets, pods)
    assert (plan.actions, plan.release_events, plan.requeue_after) == ((), (), TIMEOUT_S - 60)
    scheduled["lastTransitionTime"] = (NOW - timedelta(seconds=TIMEOUT_S)).isoformat()
    assert sizes(run(of, sets, pods)) == {"demo-p16-0": 0}


def test_a_gang_scheduler_is_left_to_its_own_rules() -> None:
    of = group(1, **GANG)
    sets = made(of, 0)
    pods = [node(sets[0], 0, on="node-a"), node(sets[0], 1, waits_s=10 * TIMEOUT_S)]
    assert run(of, sets, pods).actions == ()


def test_one_of_two_gives_its_nodes_back_and_the_other_gets_its_turn() -> None:
    of = group(2, **ALONE)
    sets = made(of, 0, 1)
    pods = [
        *(node(sets[0], rank, on="node-a" * (rank == 0), waits_s=TIMEOUT_S + 1) for rank in (0, 1)),
        *(node(sets[1], rank, on="node-b" * (rank == 0), waits_s=TIMEOUT_S + 1) for rank in (0, 1)),
    ]
    plan = run(of, sets, pods)
    assert sizes(plan) == {"demo-p16-1": 0}, "the newer one"
    after = live(plan, sets)
    assert sizes(run(of, after, pods[:2], now=NOW + timedelta(seconds=20))) == {}
    assert sizes(run(of, after, pods[:2], now=NOW + timedelta(seconds=31))) == {"demo-p16-0": 0}, "it had its turn"


@pytest.mark.parametrize("text", ["soon", "2026-01-01T00:00:00", "2999-01-01T00:00:00+00:00"])
def test_a_time_that_somebody_wrote_by_hand_holds_no_worker_back(text: str) -> None:
    of = group(1, **ALONE)
    (item,) = made(of, 0)
    item["metadata"]["annotations"][RELEASED_ANNOTATION] = text
    item["spec"]["replicas"] = 0
    assert sizes(run(of, [item], [])) == {"demo-p16-0": 2}


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def partly(item: Manifest, *, waits_s: float = TIMEOUT_S + 1) -> list[Manifest]:
    """Return the pods of a worker of which one is on a node and the other waits."""
    return [node(item, 0, on="node-a"), node(item, 1, waits_s=waits_s)]


@pytest.mark.parametrize(
    ("waits_s", "expected"), [(TIMEOUT_S - 0.5, ({}, 0.5)), (TIMEOUT_S, ({"demo-p16-0": NOW}, None))]
)
def test_a_worker_releases_its_nodes_when_the_timeout_is_over_and_no_sooner(
    waits_s: float, expected: tuple[dict[str, datetime], float | None]
) -> None:
    of = group(1, **ALONE)
    (item,) = made(of, 0)
    found = plan_release(of, [item], partly(item, waits_s=waits_s), now=NOW)
    at, requeue_after = expected
    assert found.at == at
    assert requeue_after is None or found.requeue_after == requeue_after


@given(uid=st.uuids(), at_s=st.integers(0, 10**6))
def test_a_released_worker_pauses_for_one_to_two_timeouts(uid: object, at_s: int) -> None:
    """Its nodes are others' until then, to the second, although its pods may exist for some time."""
    of = group(1, **ALONE)
    (item,) = made(of, 0)
    item["metadata"]["uid"] = str(uid)
    pods = partly(item, waits_s=TIMEOUT_S - at_s)
    first = plan_release(of, [item], pods, now=after(at_s))
    pause_s = first.requeue_after
    assert pause_s is not None
    assert TIMEOUT_S <= pause_s < 2 * TIMEOUT_S
    assert len(first.events) == 1
    item["metadata"]["annotations"][RELEASED_ANNOTATION] = after(at_s).isoformat()
    for passed_s in (0.0, 20.0, pause_s - 0.5):
        held = plan_release(of, [item], pods, now=after(at_s + passed_s))
        assert (held.at, held.events) == (first.at, ()), "no second Event, and it stays released"
        assert held.requeue_after == pytest.approx(pause_s - passed_s)
    assert plan_release(of, [item], [], now=after(at_s + pause_s)).at == {}


def test_pauses_differ_by_worker_and_by_release() -> None:
    of = group(1, **ALONE)
    pauses = set()
    for index in range(4):
        (item,) = made(of, index)
        for at_s in range(4):
            pauses.add(plan_release(of, [item], partly(item), now=after(at_s)).requeue_after)
    assert len(pauses) > 8, "so workers that block each other do not come back together again and again"


@pytest.mark.parametrize("count", [2, 3])
def test_the_next_worker_is_released_after_the_interval_and_no_sooner(count: int) -> None:
    of = group(count, **ALONE)
    sets = made(of, *range(count))
    pods = [pod for item in sets for pod in partly(item)]
    first = plan_release(of, sets, pods, now=NOW)
    newest = sets[-1]["metadata"]
    assert (dict(first.at), first.requeue_after) == ({newest["name"]: NOW}, RELEASE_INTERVAL_S)
    newest["annotations"][RELEASED_ANNOTATION] = NOW.isoformat()
    waits = plan_release(of, sets, pods, now=after(RELEASE_INTERVAL_S - 0.5))
    assert (waits.at, waits.events, waits.requeue_after) == (first.at, (), 0.5)
    second = plan_release(of, sets, pods, now=after(RELEASE_INTERVAL_S))
    assert second.at.keys() - first.at.keys() == {sets[-2]["metadata"]["name"]}


def test_the_newest_worker_is_the_one_that_was_created_last() -> None:
    """A free index may be lower than those of older workers."""
    of = group(2, **ALONE)
    sets = made(of, 0, 1)
    sets[0]["metadata"]["creationTimestamp"] = after(3600).isoformat()
    found = plan_release(of, sets, [pod for item in sets for pod in partly(item)], now=NOW)
    assert set(found.at) == {"demo-p16-0"}


def test_a_worker_is_judged_by_its_own_pods_that_stay() -> None:
    of = group(2, **ALONE)
    on_nodes, waiting = made(of, 0, 1)
    pods = [
        *(node(on_nodes, rank, on="node-a") for rank in (0, 1)),
        *(node(waiting, rank, waits_s=TIMEOUT_S + 1) for rank in (0, 1)),
    ]
    assert plan_release(of, [on_nodes, waiting], pods, now=NOW).at == {}, "all of the one, none of the other"
    leaves = partly(on_nodes)
    leaves[0]["metadata"]["deletionTimestamp"] = NOW.isoformat()
    assert plan_release(of, [on_nodes], leaves, now=NOW).at == {}, "that node is released already"


def test_a_pod_that_the_scheduler_has_not_tried_yet_does_not_count_as_waiting() -> None:
    of = group(1, **ALONE)
    (item,) = made(of, 0)
    pods = partly(item)
    del pods[1]["status"]["conditions"][0]["lastTransitionTime"]
    assert plan_release(of, [item], pods, now=NOW).at == {}
    pods[1]["status"] = {}
    assert plan_release(of, [item], pods, now=NOW).at == {}


def test_two_releases_of_one_worker_are_two_events() -> None:
    of = group(1, **ALONE)
    (item,) = made(of, 0)
    pods = partly(item)
    (event,) = plan_release(of, [item], pods, now=NOW).events
    (again,) = plan_release(of, [item], pods[::-1], now=NOW).events
    assert again == event
    for pod in pods:
        pod["metadata"]["uid"] += " created later"
    (later,) = plan_release(of, [item], pods, now=NOW).events
    assert later.origin != event.origin


@dataclass
class Cluster:
    """Nodes for one pod each; a scheduler that takes pods one by one, and the StatefulSet controller."""

    nodes: int
    chance: random.Random
    now: datetime = NOW
    sets: dict[str, Manifest] = field(default_factory=dict)
    pods: dict[str, Manifest] = field(default_factory=dict)
    made: int = 0

    def apply(self, plan: GroupPlan) -> None:
        for action in plan.actions:
            if isinstance(action, Apply) and action.key.kind == "StatefulSet":
                before = self.sets.get(action.key.name)
                found = copy.deepcopy(action.manifest)
                self.made += before is None
                times = {"uid": f"set-{self.made}", "creationTimestamp": self.now.isoformat()}
                found["metadata"] |= times if before is None else {k: before["metadata"][k] for k in times}
                found["metadata"]["generation"] = 1
                found["status"] = {"observedGeneration": 1, "updateRevision": "r"}
                self.sets[action.key.name] = found
            if isinstance(action, Delete):
                self.sets.pop(action.key.name, None)

    def of_role(self, items: dict[str, Manifest], role: str) -> list[Manifest]:
        return [item for item in items.values() if labels_of(item)[COMPONENT_LABEL] == role]

    def settle(self) -> None:
        """Make and remove pods, then bind those that find a free node, in any order."""
        ranks = {name: range(item["spec"]["replicas"]) for name, item in self.sets.items()}
        wanted = {f"{name}-{rank}": self.sets[name] for name, some in ranks.items() for rank in some}
        self.pods = {name: pod for name, pod in self.pods.items() if name in wanted}
        for name, item in wanted.items():
            if name not in self.pods:
                self.pods[name] = node(item, int(name.rpartition("-")[2]))
                self.pods[name]["status"]["conditions"][0]["lastTransitionTime"] = self.now.isoformat()
                self.pods[name]["metadata"] |= {"name": name, "uid": f"{name} of {self.now}"}
        waiting = [pod for pod in self.pods.values() if not pod["spec"]]
        self.chance.shuffle(waiting)
        for pod in waiting[: self.nodes - sum(bool(pod["spec"]) for pod in self.pods.values())]:
            pod["spec"]["nodeName"] = "a node"
            since = {"lastTransitionTime": self.now.isoformat()}
            pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True", **since}]

    def whole(self) -> int:
        """Return how many workers have all their pods on nodes."""
        return sum(
            item["spec"]["replicas"] == 2 and all(self.pods[f"{name}-{rank}"]["spec"] for rank in (0, 1))
            for name, item in self.sets.items()
        )


@settings(max_examples=20, deadline=None)
@given(counts=st.lists(st.integers(1, 3), min_size=1, max_size=2), nodes=st.integers(2, 5), seed=st.integers(0, 2**16))
def test_workers_that_hold_each_others_nodes_come_to_serve_as_many_as_there_is_room_for(
    counts: list[int], nodes: int, seed: int
) -> None:
    """Of one role, or of two that see nothing of each other: as many as fit are whole after some hours at most."""
    roles = ("prefill", "decode")[: len(counts)]
    groups = [group(count, role=role, uid=role, **ALONE) for count, role in zip(counts, roles, strict=True)]
    cluster = Cluster(nodes, random.Random(seed))
    room = min(sum(counts), nodes // 2)
    for _ in range(24 * 60):
        for of in groups:
            sets, pods = (cluster.of_role(items, of.component) for items in (cluster.sets, cluster.pods))
            cluster.apply(run(of, sets, pods, now=cluster.now))
        cluster.settle()
        if cluster.whole() == room:
            return
        cluster.now += timedelta(minutes=1)
    raise AssertionError(f"{cluster.whole()} of {room} workers have their nodes after a day")
