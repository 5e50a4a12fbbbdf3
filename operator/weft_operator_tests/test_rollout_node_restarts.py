"""Workers on several nodes: when they serve, and when one lost node restarts them all."""

from datetime import timedelta
from typing import Any

import pytest

from weft_operator.api.objects import Manifest, ObjectKey
from weft_operator.kube.diff import Delete
from weft_operator.rollout.group_plan import GroupPlan, plan_group
from weft_operator.rollout.node_restarts import DEAD_GRACE_S, JOIN_S, SETTLE_S, restart_events, restarts
from weft_operator.status.worker_group import places_of
from weft_operator.workers.readiness import stuck_workers, worker_states
from weft_operator_tests.test_rollout_group_plan import NOW, group, made, pod

TWO = group(1, degree=16, nodesPerWorker=2)
(SET,) = made(TWO, 0)
UP = -600.0
"""When pods were made, engines began and the worker came to serve; seconds from now."""


def at(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).isoformat()


def node(
    rank: int,
    *,
    made_at: float = UP,
    began: float | None = UP + 10,
    ended: float | None = None,
    ready: float | None = UP + 60,
    unready: float | None = None,
    going: float | None = None,
    grace: float = 70,
    revision: str = "r",
    name: str = "n",
) -> Manifest:
    """Return a node's pod: when its engine began and the one before ended, since when it is ready or not, and when it
    was told to go, with which grace; all seconds from now."""
    metadata: Manifest = {
        "name": f"demo-p16-0-{rank}",
        "namespace": "default",
        "uid": f"pod-{rank}",
        "labels": {**SET["spec"]["template"]["metadata"]["labels"], "controller-revision-hash": revision},
        "creationTimestamp": at(made_at),
    }
    if going is not None:
        metadata |= {"deletionTimestamp": at(going + grace), "deletionGracePeriodSeconds": grace}
    engine: dict[str, Any] = {"name": "engine", "state": {} if began is None else {"running": {"startedAt": at(began)}}}
    if ended is not None:
        engine["lastState"] = {"terminated": {"startedAt": at(UP + 10), "finishedAt": at(ended)}}
    since = unready if unready is not None else ready
    condition = {"type": "Ready", "status": "True" if unready is None else "False"}
    if since is not None:
        condition["lastTransitionTime"] = at(since)
    return {
        "metadata": metadata,
        "spec": {"nodeName": f"{name}-{rank}"},
        "status": {"conditions": [condition], "containerStatuses": [engine]},
    }


def run(*pods: Manifest, item: Manifest = SET) -> GroupPlan:
    return plan_group(TWO, statefulsets=[item], pods=list(pods), records={}, now=NOW)


def restarted(plan: GroupPlan) -> dict[str, int | None]:
    """Return the pods that are deleted, with the grace they are given."""
    pods = [action for action in plan.actions if isinstance(action, Delete) and action.key.kind == "Pod"]
    assert all(action.uid for action in pods)
    return {action.key.name: action.grace_s for action in pods}


BOTH: dict[str, int | None] = {"demo-p16-0-0": DEAD_GRACE_S, "demo-p16-0-1": DEAD_GRACE_S}


def test_a_worker_serves_when_all_its_nodes_do() -> None:
    worker = TWO.worker(0)

    def ready(*pods: Manifest) -> bool:
        (state,) = worker_states("demo", [worker], statefulsets=[SET], pods=list(pods), changed=frozenset())
        return state.ready

    assert ready(node(0), node(1))
    assert not ready(node(0))
    assert not ready(node(0), node(1, unready=-5))
    assert run(node(0), node(1)).actions == ()
    assert places_of([SET], [node(1), node(0)])["demo-p16-0"].node == "n-0", "the leader's node"


def test_engines_that_begin_one_after_another_are_of_one_life() -> None:
    assert restarted(run(node(0, began=UP + 2, unready=UP), node(1, began=UP + 500, unready=UP))) == {}
    assert restarted(run(node(0, unready=UP, began=None), node(1, unready=UP, began=None))) == {}


@pytest.mark.parametrize("behind", [0, 1])
def test_a_node_whose_clock_is_behind_restarts_no_worker(behind: int) -> None:
    """Its kubelet says that the engine began before the API server made the other's pod."""
    late = 30.0
    pods = [node(0, unready=UP), node(1, made_at=UP + 1, unready=UP)]
    pods[behind] = node(behind, began=UP + 10 - late, unready=UP - late)
    starting = run(*pods)
    assert (restarted(starting), starting.requeue_after) == ({}, None), "it loads for longer than JOIN_S"
    serves = [node(0), node(1, made_at=UP + 1)]
    serves[behind] = node(behind, began=UP + 10 - 100, ready=UP + 60 - 100)
    assert restarted(run(*serves)) == {}


@pytest.mark.parametrize("lost", [0, 1])
def test_an_engine_that_ended_takes_the_others_along(lost: int) -> None:
    """The one that began anew could not join: the others still hold the ranks of the life before."""
    pods = [node(0, unready=-18), node(1)]
    pods[lost] = node(lost, ended=-20, began=-15, unready=-18)
    plan = run(*pods)
    assert restarted(plan) == BOTH
    (event,) = restart_events(plan.restarts)
    assert (event.type, event.reason) == ("Warning", "WorkerRestarted")
    assert f"the engine of pod demo-p16-0-{lost} ended" in event.message


def test_engines_are_left_a_moment_to_end_by_themselves() -> None:
    plan = run(node(0, unready=-2), node(1, ended=-SETTLE_S + 4, began=-SETTLE_S + 5))
    assert (restarted(plan), plan.requeue_after) == ({}, 4.0)


def test_engines_that_all_restarted_are_left_alone() -> None:
    assert restarted(run(node(0, ended=-20, began=-15, unready=-19), node(1, ended=-21, began=-16))) == {}
    assert restarted(run(node(0, ended=-20, began=-15, ready=-5), node(1, ended=-18, began=-17))) == {}, "it serves"


def test_an_engine_that_ended_before_its_worker_served_is_awaited() -> None:
    waits = run(node(0, unready=UP), node(1, ended=-100, began=-90, unready=UP))
    assert (restarted(waits), waits.requeue_after) == ({}, JOIN_S - 100)
    assert restarted(run(node(0, unready=UP), node(1, ended=-JOIN_S - 1, began=-JOIN_S, unready=UP))) == BOTH


def test_a_pod_that_was_recreated_takes_the_others_along() -> None:
    """As after the loss of a node, or a deletion that nobody saw."""
    soon = run(node(0, made_at=-30, began=-29.5, ready=-29), node(1, made_at=-27, began=-26.5, ready=-26))
    assert restarted(soon) == BOTH, "however soon it was"
    assert restarted(run(node(0), node(1, made_at=-30, began=-20, ready=-15))) == BOTH
    joined = run(node(0, ready=-10), node(1, made_at=-30, began=-20, ready=-15))
    assert restarted(joined) == {}, "it came to serve with that pod"


def test_a_pod_that_leaves_takes_the_others_along_and_all_drain() -> None:
    leaves = run(node(0), node(1, going=-3))
    assert restarted(leaves) == {"demo-p16-0-0": None}
    (event,) = restart_events(leaves.restarts)
    assert event.type == "Normal"
    successor = run(node(0, made_at=-1, began=None, unready=-1), node(1, going=-3))
    assert restarted(successor) == {}, "the leader's successor is of the next life"


def test_a_new_template_restarts_all_nodes_at_once() -> None:
    newer = {**SET, "status": {**SET["status"], "updateRevision": "s"}}
    assert restarted(run(node(0), node(1), item=newer)) == dict.fromkeys(BOTH)
    assert stuck_workers([newer], [node(0, unready=-60), node(1)]) == frozenset()
    unseen = {**newer, "metadata": {**newer["metadata"], "generation": 9}}
    assert restarted(run(node(0), node(1), item=unseen)) == {}


def test_a_worker_whose_node_is_lost_is_given_up_as_a_whole() -> None:
    gone = node(1, going=-200)
    plan = run(node(0), gone)
    assert [worker.index for worker in plan.fleet.workers] == [1]
    deleted = [action.key.kind for action in plan.actions if isinstance(action, Delete)]
    assert deleted == ["StatefulSet"], "its pods go with it"


# Times of the API server and of kubelets are whole seconds.
SAME_SECOND: dict[str, tuple[list[Manifest], dict[str, int | None]]] = {
    "a pod that was created when another one was deleted is to end with it": (
        [node(0, made_at=-3, began=None, unready=-3), node(1, going=-3)],
        {"demo-p16-0-0": None},
    ),
    "as when that one was deleted without grace": (
        [node(0, made_at=-3, began=None, unready=-3), node(1, going=-3, grace=0)],
        {"demo-p16-0-0": None},
    ),
    "an engine that started when another one ended can be joined": (
        [node(0, ended=-21, began=-20, unready=-19), node(1, ended=-20, began=-15)],
        {},
    ),
    "a leader whose readiness changed when its engine started has not served": (
        [node(0, began=UP, unready=UP), node(1, made_at=UP, ended=-100, began=-90, unready=UP)],
        {},
    ),
    "the others have had all their time to end": (
        [node(0, unready=-2), node(1, ended=-SETTLE_S, began=-SETTLE_S + 1)],
        BOTH,
    ),
}


@pytest.mark.parametrize(("pods", "expected"), SAME_SECOND.values(), ids=SAME_SECOND)
def test_what_happens_in_one_second_is_judged_for_the_worker(
    pods: list[Manifest], expected: dict[str, int | None]
) -> None:
    assert restarted(run(*pods)) == expected


def test_an_engine_that_ended_and_has_not_started_again_takes_the_others_along() -> None:
    ended = node(1, began=None)
    ended["status"]["containerStatuses"][0]["state"] = {
        "terminated": {"startedAt": at(UP + 10), "finishedAt": at(-SETTLE_S - 1)}
    }
    plan = run(node(0), ended)
    assert restarted(plan) == BOTH
    assert "the engine of pod demo-p16-0-1 ended" in restart_events(plan.restarts)[0].message


def test_missing_pods_are_awaited_before_engines_are_compared() -> None:
    """The StatefulSet creates the pod of the lost node: it may be the reason why another engine ended."""
    three = group(1, degree=24, nodesPerWorker=3)
    (item,) = made(three, 0)
    pods = [node(0), node(1), node(2, ended=-20, began=-15)]
    for each in pods:
        each["metadata"]["labels"] = {**item["spec"]["template"]["metadata"]["labels"], "controller-revision-hash": "r"}
    whole = plan_group(three, statefulsets=[item], pods=pods, records={}, now=NOW)
    assert len(restarted(whole)) == 3
    missing = plan_group(three, statefulsets=[item], pods=[pods[0], pods[2]], records={}, now=NOW)
    assert (restarted(missing), missing.requeue_after) == ({}, None)


def test_a_new_template_restarts_a_worker_once_although_an_engine_ended_too() -> None:
    newer = {**SET, "status": {**SET["status"], "updateRevision": "s"}}
    plan = run(node(0, unready=-18), node(1, ended=-20, began=-15), item=newer)
    (one,) = plan.restarts
    assert (one.at_once, restarted(plan)) == (False, dict.fromkeys(BOTH)), "the engines that run drain"
    assert "because its template changed" in restart_events([one])[0].message


def test_deletions_are_of_pods_as_lists_of_the_api_server_have_them() -> None:
    """An item of a list has neither kind nor apiVersion."""
    plan = run(node(0), node(1, going=-3))
    assert [action.key for action in plan.actions] == [ObjectKey("v1", "Pod", "default", "demo-p16-0-0")]


def test_the_passes_of_one_restart_report_one_event_and_another_restart_reports_its_own() -> None:
    pods = [node(0), node(1, ended=-20, began=-15)]
    (event,) = restart_events(run(*pods).restarts)
    (again,) = restart_events(run(*reversed(pods)).restarts)
    assert again.origin == event.origin
    for each in pods:
        each["metadata"]["uid"] += " of the next restart"
    (later,) = restart_events(run(*pods).restarts)
    assert later.origin != event.origin


def test_a_worker_on_one_node_is_restarted_by_its_kubelet_alone() -> None:
    one = group(1)
    (item,) = made(one, 0)
    pods = [node(0, ended=-20, began=-15, unready=-18)]
    pods[0]["metadata"]["labels"] = {**item["spec"]["template"]["metadata"]["labels"], "controller-revision-hash": "r"}
    plan = plan_group(one, statefulsets=[item], pods=pods, records={}, now=NOW)
    assert plan.actions == ()


@pytest.mark.parametrize("replicas", [1, None], ids=["one replica", "the default, which is one"])
def test_the_template_of_a_worker_on_one_node_is_updated_by_its_statefulset_alone(replicas: int | None) -> None:
    one = group(1)
    (item,) = made(one, 0)
    item["status"]["updateRevision"] = "s"
    item["spec"] |= {"replicas": replicas}
    if replicas is None:
        del item["spec"]["replicas"]
    assert restarts([item], [pod(item)], now=NOW) == ((), None)
