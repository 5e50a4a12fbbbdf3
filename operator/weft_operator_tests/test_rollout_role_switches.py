"""Roles of workers: who gets which, how a role reaches its pod, and that any pass can be killed after any write."""

import copy
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_core.heartbeat import WorkerRecord
from weft_core.layouts import WORKER_ROLES, WorkerRole, duties_of
from weft_core_tests.property_tests import examples
from weft_operator.api.objects import ROLE_LABEL, TEMPLATE_HASH_ANNOTATION, Manifest, labels_of, name_of
from weft_operator.kube.diff import Action, Apply, Delete, Relabel, stamped
from weft_operator.render.statefulsets import statefulset
from weft_operator.rollout.group_plan import GroupPlan, plan_group
from weft_operator.rollout.role_switches import LONG_SWITCH_POLL_S, SWITCH_POLL_S, role_events
from weft_operator.workers.fleet import Worker, parse_name
from weft_operator.workers.groups import WorkerGroupView, group_name, parse_group
from weft_operator.workers.readiness import RESTARTED_AT_ANNOTATION
from weft_operator.workers.roles import assign_roles, group_of, role_key, role_of_key, split_roles

NOW = datetime(2026, 1, 1, tzinfo=UTC)
COUNTS = st.fixed_dictionaries({role: st.integers(0, 4) for role in WORKER_ROLES})
ROLES_OF_MEMBERS = st.lists(st.sampled_from(WORKER_ROLES), max_size=8)


def group(image: str = "engine:1", /, **roles: int) -> WorkerGroupView:
    """Return a group that wants so many workers of each role."""
    labels = {
        "weft.dev/service": "demo",
        "app.kubernetes.io/component": "worker",
        "weft.dev/degree": "4",
        "weft.dev/pool": "h20",
        "weft.dev/revision": "0123456789",
    }
    return parse_group(
        {
            "metadata": {"name": group_name("demo", None, 4, "h20", "0123456789"), "namespace": "default", "uid": "g"},
            "spec": {
                "service": "demo",
                "degree": 4,
                "pool": "h20",
                "revision": "0123456789",
                "templateHash": "ab",
                "replicas": sum(roles.values()),
                "roles": roles,
                "template": {
                    "metadata": {"labels": labels, "annotations": {}},
                    "spec": {"containers": [{"name": "engine", "image": image}]},
                },
            },
        }
    )


class Cluster:
    """StatefulSets with their pods and the roles of their sidecars; ``after`` writes a pass is killed."""

    def __init__(self) -> None:
        self.sets: dict[str, Manifest] = {}
        self.pods: dict[str, Manifest] = {}
        self.confirmed: dict[str, WorkerRole] = {}
        self.rows: list[dict[str, Any]] = []
        self.written: list[Action] = []
        self.restarted = "True"
        """The condition Ready of a pod that is recreated."""
        self._count = 0

    def plan(self, of: WorkerGroupView, *, records: Mapping[str, WorkerRecord] | None = None) -> GroupPlan:
        """Return the plan of a group."""
        if records is None:
            records = {name: record(name, role) for name, role in self.confirmed.items()}
        found = copy.deepcopy((list(self.sets.values()), list(self.pods.values())))
        return plan_group(of, statefulsets=found[0], pods=found[1], records=records, now=NOW, rows=self.rows)

    def carry_out(
        self, of: WorkerGroupView, *, writes: int = 1000, records: Mapping[str, WorkerRecord] | None = None
    ) -> GroupPlan:
        """Make one pass that is killed after so many writes; ``records`` are other heartbeats than those of roles."""
        plan = self.plan(of, records=records)
        for action in plan.actions[:writes]:
            self._write(action)
        return plan

    def sidecars_follow(self) -> None:
        """Let every sidecar take over the label of its pod."""
        self.confirmed = {labels_of(pod)["weft.dev/worker"]: role_label(pod) for pod in self.pods.values()}

    def pods_down(self) -> list[str]:
        """Return the workers whose pod is not ready."""
        found = [pod for pod in self.pods.values() if pod["status"]["conditions"][0]["status"] != "True"]
        return [labels_of(pod)["weft.dev/worker"] for pod in found]

    def pods_start(self) -> None:
        """Let every pod become ready, and every sidecar take over its label."""
        for pod in self.pods.values():
            pod["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        self.sidecars_follow()

    def roles(self) -> dict[str, int]:
        """Return how many pods have each role."""
        found: dict[str, int] = {}
        for pod in self.pods.values():
            found[role_label(pod)] = found.get(role_label(pod), 0) + 1
        return found

    def _write(self, action: Action) -> None:
        self.written.append(action)
        if isinstance(action, Apply):
            self._count += 1
            old = self.sets.get(action.key.name)
            item = copy.deepcopy(action.manifest)
            item["metadata"] |= {
                "uid": f"uid-{action.key.name}",
                "generation": self._count,
                "creationTimestamp": NOW.isoformat(),
            }
            item["status"] = {"observedGeneration": self._count, "updateRevision": f"r{self._count}"}
            self.sets[action.key.name] = item
            if old is None:
                self.start(item)
        elif isinstance(action, Relabel):
            pod = self.pods[action.key.name]
            assert pod["metadata"]["uid"] == action.uid
            pod["metadata"]["labels"] |= action.labels
        elif isinstance(action, Delete) and action.key.kind == "Pod":
            del self.pods[action.key.name]
            self.start(self.sets[action.key.name.removesuffix("-0")])
            self.pods[action.key.name]["status"]["conditions"][0]["status"] = self.restarted
        elif isinstance(action, Delete):
            del self.sets[action.key.name]
            del self.pods[f"{action.key.name}-0"]
            self.confirmed.pop(action.key.name, None)

    def start(self, item: Manifest) -> None:
        """Create the pod of a StatefulSet."""
        self._count += 1
        template = copy.deepcopy(item["spec"]["template"])
        name = f"{name_of(item)}-0"
        metadata = template["metadata"] | {"name": name, "namespace": "default", "uid": f"uid-{self._count}"}
        self.pods[name] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": {"nodeName": "n"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }
        self.confirmed[name_of(item)] = role_label(self.pods[name])


def record(name: str, role: WorkerRole, **parts: int) -> WorkerRecord:
    """Return a heartbeat."""
    return WorkerRecord(name, role, "http://x", 4, 1, **parts)  # type: ignore[arg-type]


def role_label(pod: Mapping[str, Any]) -> WorkerRole:
    """Return the role in a pod's label."""
    return next(role for role in WORKER_ROLES if role == labels_of(pod)[ROLE_LABEL])


def running(of: WorkerGroupView) -> Cluster:
    """Return a cluster in which a group's workers serve."""
    cluster = Cluster()
    cluster.carry_out(of)
    cluster.sidecars_follow()
    cluster.written.clear()
    assert cluster.plan(of).actions == ()
    return cluster


def kinds(actions: Sequence[Action]) -> list[str]:
    """Return what actions are, with their objects."""
    return [f"{type(action).__name__} {action.key.kind} {action.key.name}" for action in actions]


def test_a_role_is_written_to_the_statefulset_and_then_to_the_pod() -> None:
    cluster = running(group(prefill=1, decode=1))
    plan = cluster.carry_out(group(decode=2))
    assert kinds(plan.actions) == ["Apply StatefulSet demo-w4-1", "Relabel Pod demo-w4-1-0"]
    assert plan.switching == {"demo-w4-1"}
    assert plan.requeue_after == SWITCH_POLL_S
    assert plan.same_template == {"demo-w4-0", "demo-w4-1"}
    assert cluster.roles() == {"decode": 2}
    (event,) = role_events(group(), plan.actions)
    assert (event.reason, event.message) == (
        "RoleChanged",
        "pod demo-w4-1-0 of demo-w4-h20-012345 changes its role prefill -> decode",
    )
    assert cluster.plan(group(decode=2)).switching == {"demo-w4-1"}
    cluster.sidecars_follow()
    again = cluster.plan(group(decode=2))
    assert (again.actions, again.switching, again.requeue_after) == ((), frozenset(), None)


def test_a_long_hand_over_is_looked_at_less_often() -> None:
    cluster, wanted = running(group(prefill=1, decode=1)), group(prefill=2)
    (row,) = [one for one in rows_after(cluster.carry_out(wanted), wanted) if one["switching"]]
    for seconds, expected in ((0, SWITCH_POLL_S), (10, SWITCH_POLL_S), (11, LONG_SWITCH_POLL_S)):
        cluster.rows = [{**row, "since": (NOW - timedelta(seconds=seconds)).isoformat()}]
        assert cluster.plan(wanted).requeue_after == expected
    cluster.sidecars_follow()
    assert cluster.plan(wanted).requeue_after is None


def test_a_change_of_role_that_waits_for_its_restart_is_not_looked_at() -> None:
    cluster = running(group(prefill=3, decode=1))
    plan = cluster.plan(group("engine:2", prefill=1, decode=3))
    assert len(plan.switching) == 2
    assert plan.switching <= plan.waiting
    assert plan.requeue_after is None


def test_another_role_restarts_nothing_and_another_template_restarts_one_pod() -> None:
    cluster = running(group(prefill=1, decode=2))
    before = {name: pod["metadata"]["uid"] for name, pod in cluster.pods.items()}
    cluster.carry_out(group(prefill=2, decode=1))
    cluster.sidecars_follow()
    assert {name: pod["metadata"]["uid"] for name, pod in cluster.pods.items()} == before
    newer = group("engine:2", prefill=2, decode=1)
    assert sorted(kinds(cluster.carry_out(newer).actions)) == [
        "Apply StatefulSet demo-w4-0",
        "Apply StatefulSet demo-w4-1",
    ], "one of each role"
    restarts = cluster.carry_out(newer)
    assert sorted(kinds(restarts.actions)) == ["Delete Pod demo-w4-0-0", "Delete Pod demo-w4-1-0"]
    assert [one.why for one in restarts.restarts] == ["its template changed"] * 2
    cluster.sidecars_follow()
    for _ in range(3):
        cluster.carry_out(newer)
        cluster.sidecars_follow()
    assert cluster.plan(newer).actions == ()
    for name, item in cluster.sets.items():
        wanted = item["metadata"]["annotations"][TEMPLATE_HASH_ANNOTATION]
        assert cluster.pods[f"{name}-0"]["metadata"]["annotations"][TEMPLATE_HASH_ANNOTATION] == wanted


def test_the_label_of_an_outdated_pod_changes_with_its_restart() -> None:
    """Its engine may not be able to serve the new role, as one of a co-located plan."""
    cluster = running(group(decode=2))
    newer = group("engine:2", prefill=1, decode=1)
    plan = cluster.carry_out(newer)
    assert not [action for action in plan.actions if isinstance(action, Relabel)]
    assert plan.switching == {"demo-w4-0"}
    cluster.carry_out(newer)
    cluster.sidecars_follow()
    assert cluster.roles() == {"decode": 1, "prefill": 1}


def test_a_new_template_waits_for_a_worker_of_another_group_that_changes_its_role() -> None:
    cluster, newer = running(group(decode=2)), group("engine:2", decode=2)
    sibling = group(decode=1)
    (item,) = [stamped(statefulset(sibling, sibling.worker(5, "decode")))]
    item["metadata"] |= {"uid": "s", "generation": 1, "ownerReferences": [{"uid": "other", "controller": True}]}
    item["status"] = {"observedGeneration": 1, "updateRevision": "r"}
    cluster.sets["demo-w4-5"] = item
    cluster.start(item)
    assert cluster.plan(newer).waiting == {"demo-w4-1"}
    cluster.confirmed["demo-w4-5"] = "prefill"
    assert cluster.plan(newer).waiting == {"demo-w4-0", "demo-w4-1"}


def rows_after(plan: GroupPlan, of: WorkerGroupView) -> list[dict[str, Any]]:
    """Return the workers in a group's status after a pass."""
    return [
        {
            "name": name,
            "role": worker.role,
            "switching": name in plan.switching,
            "outdated": name in plan.waiting,
        }
        for worker in plan.fleet.workers
        for name in [of.name_of(worker)]
    ]


def test_kubectl_rollout_restart_restarts_a_worker_once() -> None:
    of = group(prefill=1, decode=1)
    cluster = running(of)
    template = cluster.sets["demo-w4-0"]["spec"]["template"]
    template["metadata"]["annotations"][RESTARTED_AT_ANNOTATION] = "2026-01-01T00:00:00Z"
    assert kinds(cluster.carry_out(of).actions) == ["Delete Pod demo-w4-0-0"], "and the annotation stays"
    cluster.sidecars_follow()
    assert cluster.plan(of).actions == ()
    # The role of a pod that was restarted can change.
    cluster.carry_out(group(prefill=2))
    assert cluster.roles() == {"prefill": 2}


@given(old=COUNTS, new=COUNTS, seed=st.integers(0, 2**32))
@settings(max_examples=examples(100), deadline=None)
def test_another_role_with_another_template_restarts_one_worker_of_a_role_at_a_time(
    old: dict[str, int], new: dict[str, int], seed: int
) -> None:
    """Whatever becomes of sessions meanwhile, the workers that were chosen for a role get it."""
    rng = random.Random(seed)
    total = max(sum(old.values()), sum(new.values()))
    counts = [{**one, "both": one["both"] + total - sum(one.values())} for one in (old, new)]
    cluster, wanted = running(group(**counts[0])), group("engine:2", **counts[1])
    cluster.restarted = "False"
    chosen: dict[str, WorkerRole] = {}
    for number in range(8 * total + 3):
        moved = {name: record(name, role, kv_tokens=rng.randrange(9)) for name, role in cluster.confirmed.items()}
        plan = cluster.carry_out(wanted, records=moved)
        cluster.rows = rows_after(plan, wanted)
        roles = {wanted.name_of(worker): worker.role for worker in plan.fleet.workers}
        assert roles == (chosen or roles)
        chosen = roles
        down = [cluster.pods[f"{name}-0"] for name in cluster.pods_down()]
        for duty in ("prefill", "decode"):
            assert sum(duty in duties_of(role_label(pod)) for pod in down) <= 1
        if number % 2 and (rng.random() < 0.5 or number > 4 * total):
            cluster.pods_start()
    assert cluster.plan(wanted).actions == ()
    assert cluster.roles() == {role: count for role, count in counts[1].items() if count}


@given(old=COUNTS, new=COUNTS, seed=st.integers(0, 2**32))
@settings(max_examples=examples(200), deadline=None)
def test_passes_killed_after_any_write_end_at_the_wanted_roles(
    old: dict[str, int], new: dict[str, int], seed: int
) -> None:
    rng = random.Random(seed)
    cluster = running(group(**old))
    for _ in range(6):
        cluster.carry_out(group(**new), writes=rng.choice([0, 1, 1, 2, 1000]))
        if rng.random() < 0.5:
            cluster.sidecars_follow()
    relabelled = sum(isinstance(action, Relabel) for action in cluster.written)
    for _ in range(3):
        cluster.carry_out(group(**new))
        cluster.sidecars_follow()
    assert cluster.roles() == {role: count for role, count in new.items() if count}
    assert cluster.plan(group(**new)).actions == ()
    surplus = sum(max(0, old[role] - new[role]) for role in WORKER_ROLES)
    missing = sum(max(0, new[role] - old[role]) for role in WORKER_ROLES)
    relabelled = sum(isinstance(action, Relabel) for action in cluster.written)
    assert relabelled == min(surplus, missing), "no pod changes its role twice"
    assert not [action for action in cluster.written if isinstance(action, Delete) and action.key.kind == "Pod"]


def test_without_heartbeats_a_switch_is_not_confirmed_but_a_new_worker_is() -> None:
    wanted = group(decode=2)
    cluster = running(group(prefill=1, decode=1))
    cluster.rows = [
        {"name": "demo-w4-0", "role": "decode", "ready": True},
        {"name": "demo-w4-1", "role": "prefill", "ready": True},
    ]
    cluster.carry_out(wanted)
    assert cluster.plan(wanted, records={}).switching == {"demo-w4-1"}
    cluster.rows[1] = {"name": "demo-w4-1", "role": "decode", "ready": True, "switching": True}
    assert cluster.plan(wanted, records={}).switching == {"demo-w4-1"}
    cluster.rows = []
    assert cluster.plan(wanted, records={}).switching == frozenset()


def test_the_worker_that_loses_least_changes_its_role() -> None:
    of, wanted = group(decode=3), group(prefill=1, decode=2)
    items = [stamped(statefulset(of, of.worker(index, "decode"))) for index in range(3)]
    for index, item in enumerate(items):
        item["metadata"] |= {"uid": f"uid-{index}", "generation": 1, "creationTimestamp": NOW.isoformat()}
        item["status"] = {"observedGeneration": 1, "updateRevision": "r"}
    records = {f"demo-w4-{n}": record(f"demo-w4-{n}", "decode", kv_tokens=kv) for n, kv in enumerate((5, 1, 9))}
    pods = []
    for item in items:
        metadata = copy.deepcopy(item["spec"]["template"]["metadata"]) | {"name": f"{name_of(item)}-0", "uid": "u"}
        conditions = [{"type": "Ready", "status": "True"}]
        pods.append({"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"conditions": conditions}})
    plan = plan_group(wanted, statefulsets=items, pods=pods, records=records, now=NOW)
    assert {worker.index: worker.role for worker in plan.fleet.workers} == {0: "decode", 1: "prefill", 2: "decode"}


@given(wanted=COUNTS, have=ROLES_OF_MEMBERS)
def test_an_assignment_has_the_wanted_roles_and_switches_as_few_as_possible(
    wanted: dict[WorkerRole, int], have: list[WorkerRole]
) -> None:
    members = [(f"m{index}", role) for index, role in enumerate(have)]
    found = assign_roles(wanted, members)
    got = [*found.kept.values(), *found.new]
    assert {role: got.count(role) for role in WORKER_ROLES} == wanted
    unchanged = sum(found.kept.get(name) == role for name, role in members)
    assert unchanged == sum(min(wanted[role], have.count(role)) for role in WORKER_ROLES)
    assert not (found.new and len(found.kept) < len(members)), "none is drained while another is started"


@given(roles=COUNTS, replicas=st.integers(0, 12))
def test_scaled_roles_add_up_and_keep_each_role_that_has_workers(roles: dict[WorkerRole, int], replicas: int) -> None:
    found = split_roles(roles, replicas)
    assert sum(found.values()) == replicas
    there = [role for role in WORKER_ROLES if roles[role]]
    assert all(found[role] > 0 for role in there) or replicas < len(there)
    assert all(role in there or not count or not there for role, count in found.items())
    if replicas and any(roles[role] for role in ("decode", "both")):
        assert found["decode"] + found["both"] > 0


@pytest.mark.parametrize(
    ("roles", "replicas", "expected"),
    [
        ({"prefill": 2, "decode": 3}, 5, {"prefill": 2, "decode": 3, "both": 0}),
        ({"prefill": 2, "decode": 3}, 10, {"prefill": 4, "decode": 6, "both": 0}),
        ({"prefill": 2, "decode": 3}, 1, {"prefill": 0, "decode": 1, "both": 0}),
        ({}, 2, {"prefill": 0, "decode": 2, "both": 0}),
    ],
)
def test_scaled_roles_stay_in_proportion(
    roles: dict[WorkerRole, int], replicas: int, expected: dict[WorkerRole, int]
) -> None:
    assert split_roles(roles, replicas) == expected


def test_names_say_no_role_that_can_change() -> None:
    worker = Worker("both", 4, 2, "h20", fixed=False)
    assert worker.name("demo") == "demo-w4-2"
    assert parse_name("demo", "demo-w4-2", "h20", "both") == worker
    assert parse_name("demo", "demo-p4-2", "h20", "both") == Worker("prefill", 4, 2, "h20")
    key = role_key("demo-w4-h20-012345", "both")
    assert (group_of(key), role_of_key(key)) == ("demo-w4-h20-012345", "both")
    assert (group_of("demo-p4-h20-012345"), role_of_key("demo-p4-h20-012345")) == ("demo-p4-h20-012345", "")
