"""What the group controller does about one group: who stays, who leaves, who is made, and who is updated now."""

import copy
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_core.heartbeat import WorkerRecord
from weft_operator.api.objects import Manifest
from weft_operator.kube.diff import Apply, Delete, stamped
from weft_operator.render.statefulsets import statefulset
from weft_operator.rollout.group_plan import GroupPlan, plan_group
from weft_operator.workers.groups import WorkerGroupView, group_name, parse_group

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TEMPLATE: dict[str, Any] = {
    "metadata": {
        "labels": {
            "weft.dev/service": "demo",
            "app.kubernetes.io/component": "prefill",
            "weft.dev/degree": "4",
            "weft.dev/pool": "h20",
            "weft.dev/revision": "0123456789",
        },
        "annotations": {"weft.dev/token-hash": "aa"},
    },
    "spec": {
        "initContainers": [
            {"name": "router", "env": [{"name": "X", "value": "1"}, {"name": "WEFT_WORKER", "value": ""}]}
        ],
        "containers": [{"name": "engine", "image": "engine:1"}],
    },
}


def group(
    replicas: int | None = 2, *, role: str = "prefill", uid: str = "g", revision: str = "0123456789", **spec: Any
) -> WorkerGroupView:
    template = copy.deepcopy(TEMPLATE)
    template["metadata"]["labels"] |= {"app.kubernetes.io/component": role, "weft.dev/revision": revision}
    body = {
        "service": "demo", "role": role, "degree": 4, "pool": "h20", "revision": revision,
        "templateHash": "ab", "template": template, **spec,
    }  # fmt: skip
    if replicas is not None:
        body["replicas"] = replicas
    return parse_group(
        {
            "metadata": {
                "name": group_name("demo", "prefill", 4, "h20", revision),
                "namespace": "default",
                "uid": uid,
                "generation": 3,
                "ownerReferences": [{"uid": "service", "controller": True}],
            },
            "spec": body,
        }
    )


def made(of: WorkerGroupView, *indices: int) -> list[Manifest]:
    """Return the live StatefulSets of some workers, older ones first."""
    found = []
    for index in indices:
        item = stamped(statefulset(of, of.worker(index)))
        item["metadata"] |= {
            "uid": f"uid-{index}",
            "generation": 1,
            "creationTimestamp": (NOW + timedelta(minutes=index)).isoformat(),
        }
        item["status"] = {"observedGeneration": 1, "updateRevision": "r"}
        found.append(item)
    return found


def pod(item: Manifest, *, ready: bool = True, deleted: float | None = None, drain: bool = False) -> Manifest:
    """Return the pod of a StatefulSet; ``deleted``: in how many seconds its grace period ends."""
    metadata: Manifest = {
        "name": f"{item['metadata']['name']}-0",
        "labels": {**item["spec"]["template"]["metadata"]["labels"], "controller-revision-hash": "r"},
        "annotations": {"weft.dev/drain": "requested"} if drain else {},
    }
    if deleted is not None:
        metadata["deletionTimestamp"] = (NOW + timedelta(seconds=deleted)).isoformat()
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": "n"}, "status": {"conditions": conditions}}


def says(name: str, *, rounds: int = 0, kv: int = 0, idle: float = 0.0) -> WorkerRecord:
    """Return a heartbeat."""
    return WorkerRecord(name, "prefill", "http://x", 4, 1, live_rounds=rounds, kv_tokens=kv, idle_seconds=idle)


def run(
    of: WorkerGroupView, sets: Sequence[Manifest] = (), pods: Sequence[Manifest] = (), *records: WorkerRecord
) -> GroupPlan:
    heartbeats = {record.worker: record for record in records}
    return plan_group(of, statefulsets=sets, pods=pods, records=heartbeats, now=NOW)


def workers(plan: GroupPlan) -> list[int]:
    return [worker.index for worker in plan.fleet.workers]


def deleted(plan: GroupPlan) -> list[str]:
    return [action.key.name for action in plan.actions if isinstance(action, Delete)]


def test_a_new_group_makes_its_workers_from_its_template() -> None:
    plan = run(group(2))
    assert workers(plan) == [0, 1]
    first = plan.actions[0]
    assert isinstance(first, Apply)
    assert first.fresh
    template = first.manifest["spec"]["template"]
    assert template["metadata"]["labels"]["weft.dev/worker"] == "demo-p4-0"
    assert template["spec"]["initContainers"][0]["env"] == [
        {"name": "X", "value": "1"},
        {"name": "WEFT_WORKER", "value": "demo-p4-0"},
    ]
    assert first.manifest["metadata"]["ownerReferences"][0]["uid"] == "g"
    assert TEMPLATE["spec"]["initContainers"][0]["env"][1]["value"] == "", "the group's template stays as it is"


def test_a_group_that_was_never_asked_for_a_number_keeps_what_there_is() -> None:
    sets = made(group(2), 0, 1)
    plan = run(group(None), sets, [pod(item) for item in sets])
    assert (workers(plan), plan.actions) == ([0, 1], ())


def test_without_heartbeats_the_newest_leaves_first() -> None:
    sets = made(group(), 4, 2, 9)
    plan = run(group(2), sets, [pod(item) for item in sets])
    assert deleted(plan) == ["demo-p4-9"]
    assert [(item.name, item.lost) for item in plan.leaving] == [("demo-p4-9", None)]


def test_who_serves_the_fewest_live_rounds_leaves_first_then_the_fewest_tokens_then_the_longest_idle() -> None:
    sets = made(group(), 0, 1, 2)
    pods = [pod(item) for item in sets]
    names = [item["metadata"]["name"] for item in sets]
    busy = [says(names[0], rounds=1), says(names[1], rounds=5), says(names[2], rounds=9)]
    assert deleted(run(group(2), sets, pods, *busy)) == ["demo-p4-0"]
    held = [says(names[0], kv=900), says(names[1], kv=10), says(names[2], kv=500)]
    assert deleted(run(group(2), sets, pods, *held)) == ["demo-p4-1"]
    idle = [says(names[0], idle=3), says(names[1], idle=1), says(names[2], idle=60)]
    assert deleted(run(group(2), sets, pods, *idle)) == ["demo-p4-2"]
    assert deleted(run(group(2), sets, pods, *busy[1:])) == ["demo-p4-0"], "nobody knows it"


def test_who_does_not_serve_leaves_before_who_does() -> None:
    sets = made(group(), 0, 1, 2)
    pods = [pod(item, ready=number != 0) for number, item in enumerate(sets)]
    assert deleted(run(group(2), sets, pods, says("demo-p4-0", rounds=9), says("demo-p4-1"))) == ["demo-p4-0"]


def test_a_worker_that_a_person_drains_is_the_first_victim() -> None:
    sets = made(group(), 0, 1, 2)
    pods = [pod(item, drain=number == 1) for number, item in enumerate(sets)]
    assert deleted(run(group(2), sets, pods, says("demo-p4-1", rounds=9))) == ["demo-p4-1"]


def test_a_worker_that_a_person_drains_is_replaced_when_it_is_gone() -> None:
    sets = made(group(), 0, 1)
    pods = [pod(sets[0], drain=True), pod(sets[1])]
    first = run(group(2), sets, pods)
    assert (deleted(first), workers(first)) == (["demo-p4-0"], [1])
    going = [pod(sets[0], drain=True, deleted=30), pods[1]]
    assert workers(run(group(2), sets[1:], going)) == [1], "its GPUs are still taken"
    assert workers(run(group(2), sets[1:], pods[1:])) == [0, 1]


REPLACEMENTS: dict[str, tuple[dict[str, Any], bool, list[int]]] = {
    # what is known of worker 0's pod, whether its StatefulSet still exists, and the workers then wanted
    "drained by a person, StatefulSet gone": ({"drain": True, "deleted": 30}, False, [1]),
    "drained by a person, StatefulSet terminating": ({"drain": True, "deleted": 30}, True, [1]),
    "drained by a person, node lost": ({"drain": True, "deleted": -60}, False, [1, 2]),
    "drained by a person, node lost, StatefulSet terminating": ({"drain": True, "deleted": -60}, True, [1, 2]),
    "deleted by somebody, StatefulSet gone": ({"deleted": 30}, False, [1, 2]),
    "deleted by somebody, StatefulSet terminating": ({"deleted": 30}, True, [1, 2]),
}


@pytest.mark.parametrize(("known", "terminating", "expected"), REPLACEMENTS.values(), ids=REPLACEMENTS)
def test_only_the_replacement_of_a_worker_that_a_person_drains_waits_for_its_gpus(
    known: dict[str, Any], terminating: bool, expected: list[int]
) -> None:
    sets = made(group(), 0, 1)
    pods = [pod(sets[0], **known), pod(sets[1])]
    sets[0]["metadata"]["deletionTimestamp"] = (NOW + timedelta(seconds=30)).isoformat()
    assert workers(run(group(2), sets if terminating else sets[1:], pods)) == expected


def test_a_pod_that_never_had_a_node_leaves_from_none() -> None:
    (item,) = made(group(), 0)
    unscheduled = {**pod(item, ready=False), "spec": {}}
    (leaving,) = run(group(0), [], [unscheduled]).leaving
    assert (leaving.name, leaving.node, leaving.lost) == ("demo-p4-0", "", None)


def test_only_names_of_the_same_role_and_degree_are_taken() -> None:
    wider = made(group(1, uid="other", degree=8), 0)
    stranger = {**wider[0], "metadata": {**wider[0]["metadata"], "name": "demo-backup"}}
    unlabelled = pod(wider[0])
    del unlabelled["metadata"]["labels"]["weft.dev/worker"]
    assert workers(run(group(1), [*wider, stranger], [pod(wider[0]), unlabelled])) == [0]


def test_a_lost_worker_is_replaced_under_a_free_name() -> None:
    sets = made(group(), 0, 1)
    plan = run(group(2), sets, [pod(sets[0], deleted=-60), pod(sets[1])])
    assert (deleted(plan), workers(plan)) == (["demo-p4-0"], [1, 2])
    assert [item.name for item in plan.fleet.lost] == ["demo-p4-0"]
    hanging = run(group(2), sets[1:], [pod(sets[0], deleted=-60), pod(sets[1])])
    assert workers(hanging) == [1, 2]
    assert [(item.name, item.node, item.lost is not None) for item in hanging.leaving] == [("demo-p4-0", "n", True)]


def test_names_of_other_groups_are_not_taken() -> None:
    other = group(1, uid="other", revision="fedcba9876")
    sets = made(other, 0)
    plan = run(group(1), sets, [pod(sets[0])])
    assert workers(plan) == [1]
    assert deleted(plan) == []


def test_a_worker_from_before_there_were_groups_is_taken_over_as_it_is() -> None:
    sets = made(group(), 0, 1)
    for item in sets:
        item["metadata"]["ownerReferences"] = [{"uid": "service", "controller": True}]
        item["metadata"]["annotations"]["weft.dev/applied-hash"] = "from another version"
    plan = run(group(2), sets, [pod(item) for item in sets])
    assert workers(plan) == [0, 1]
    for action, item in zip(plan.actions, sets, strict=True):
        assert isinstance(action, Apply)
        assert not action.fresh
        assert action.manifest["spec"] == item["spec"], "no pod restarts"
        assert [owner["uid"] for owner in action.manifest["metadata"]["ownerReferences"]] == ["g"]
    assert plan.waiting == frozenset(), "nothing restarts, so nobody waits"


def test_a_stranger_of_that_name_or_another_revision_is_not_taken_over() -> None:
    before = made(group(revision="fedcba9876"), 0)
    before[0]["metadata"]["ownerReferences"] = [{"uid": "service", "controller": True}]
    stranger = made(group(), 1)
    stranger[0]["metadata"]["ownerReferences"] = [{"uid": "somebody", "controller": True}]
    plan = run(group(1), [*before, *stranger], [])
    assert (workers(plan), deleted(plan)) == ([2], [])


def test_a_new_template_goes_to_one_serving_worker_of_the_role_at_a_time() -> None:
    of = group(2)
    sets = made(of, 0, 1)
    newer = group(2, templateHash="cd")
    newer.spec.template["spec"]["containers"][0]["image"] = "engine:2"
    pods = [pod(item) for item in sets]
    plan = run(newer, sets, pods)
    assert [action.key.name for action in plan.actions] == ["demo-p4-0"]
    assert plan.waiting == {"demo-p4-1"}
    sibling = made(group(uid="other", revision="fedcba9876"), 5)
    held = run(newer, [*sets, *sibling], [*pods, pod(sibling[0], ready=False)])
    assert held.actions == ()
    assert held.waiting == {"demo-p4-0", "demo-p4-1"}, "a worker of another group of the role is down"


STATES = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.sampled_from(["serving", "starting", "lost", "drain", "hanging", "legacy", "sibling"]),
        st.booleans(),
    ),
    unique_by=lambda item: item[0],
    max_size=8,
)


def carried_out(
    of: WorkerGroupView, plan: GroupPlan, sets: list[Manifest], pods: list[Manifest]
) -> tuple[list[Manifest], list[Manifest]]:
    """Return what there is after the actions of a plan, when pods have come and gone; a dead node's pod stays."""
    names = {action.key.name for action in plan.actions}
    after = [item for item in sets if item["metadata"]["name"] not in names]
    for action in plan.actions:
        if isinstance(action, Apply):
            item = copy.deepcopy(action.manifest)
            item["metadata"] |= {"uid": f"new-{action.key.name}", "generation": 1}
            item["status"] = {"observedGeneration": 1, "updateRevision": "r"}
            after.append(item)
    living = {item["metadata"]["name"] for item in after}
    stuck = [
        one
        for one in pods
        if one["metadata"].get("deletionTimestamp") and one["metadata"]["labels"]["weft.dev/worker"] not in living
    ]
    return after, [*stuck, *(pod(item) for item in after)]


@settings(max_examples=200, deadline=None)
@given(states=STATES, replicas=st.integers(0, 5), rounds=st.lists(st.integers(0, 3), min_size=10, max_size=10))
def test_any_group_comes_to_its_number_and_rests(
    states: list[tuple[int, str, bool]], replicas: int, rounds: list[int]
) -> None:
    """A2: whatever is found, passes end with as many workers as asked for, and then nothing is done any more."""
    of = group(replicas)
    sets: list[Manifest] = []
    pods: list[Manifest] = []
    records = []
    for index, state, heard in states:
        (item,) = made(of if state != "sibling" else group(uid="other", revision="fedcba9876"), index)
        if state == "legacy":
            item["metadata"]["ownerReferences"] = [{"uid": "service", "controller": True}]
        if state != "hanging":
            sets.append(item)
        gone = -60.0 if state in ("lost", "hanging") else None
        pods.append(pod(item, ready=state != "starting", deleted=gone, drain=state == "drain"))
        if heard:
            records.append(says(item["metadata"]["name"], rounds=rounds[index]))
    siblings = {
        item["metadata"]["name"]: item for item in sets if item["metadata"]["ownerReferences"][0]["uid"] == "other"
    }
    plan = run(of, sets, pods, *records)
    again = run(of, copy.deepcopy(sets), copy.deepcopy(pods), *reversed(records))
    assert again == plan, "the same sight gives the same plan"
    for _ in range(6):
        names = [of.name_of(worker) for worker in plan.fleet.workers]
        assert len(set(names)) == len(names) <= max(replicas, 0)
        assert not set(names) & set(siblings)
        sets, pods = carried_out(of, plan, sets, pods)
        plan = run(of, sets, pods, *records)
        if not plan.actions:
            break
    assert plan.actions == ()
    assert len(plan.fleet.workers) == replicas
    assert {name: item for item in sets if (name := item["metadata"]["name"]) in siblings} == siblings
