"""What the service controller reads of its groups' status, and says of them."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from weft_core.heartbeat import WorkerRecord
from weft_operator.api.objects import Manifest
from weft_operator.api.status import GroupStatus
from weft_operator.api.worker_group import WorkerGroup, WorkerGroupStatus
from weft_operator.rollout.replica_targets import desired_groups
from weft_operator.workers.group_views import (
    GroupView,
    leaving_of,
    lost_of,
    rows_of,
    served_duties,
    states_of,
    views_of,
)
from weft_operator.workers.groups import group_name
from weft_operator_tests.samples import group, planned, rendered, rendering
from weft_operator_tests.world import serving

NEW, OLD = "a" * 10, "b" * 10


def name(revision: str = NEW, role: Any = "prefill", degree: int = 4) -> str:
    return group_name("demo", role, degree, "h20", revision)


def view(
    *rows: dict[str, Any], asked: int | None = 2, revision: str = NEW, role: str = "prefill", seen: int = 1
) -> GroupView:
    degree = 4 if role == "prefill" else 8
    body: Manifest = {
        "metadata": {"name": name(revision, role, degree), "uid": f"uid-{revision}", "generation": 1},
        "spec": {"service": "demo", "role": role, "degree": degree, "pool": "h20", "revision": revision},
        "status": {"observedGeneration": seen, "workers": list(rows)},
    }
    if asked is not None:
        body["spec"]["replicas"] = asked
    (found,) = views_of([body])
    return found


def row(index: int, **parts: Any) -> dict[str, Any]:
    return {"name": f"demo-p4-{index}", "ready": True, **parts}


def wanted(*views: GroupView, replicas: int = 2, by_hand: bool = False) -> Any:
    return desired_groups(
        "demo", [group("prefill", 4, replicas)], views, revision=NEW, scaled_by_hand=by_hand, fixed_roles=True
    )


def test_states_are_those_of_the_groups_rows() -> None:
    sick = row(1, ready=False, trouble="pod demo-p4-1-0 cannot be scheduled: no GPU", unschedulable=True)
    views = (view(row(0), sick, row(9, ready=False, draining=True)),)
    first, second = states_of("demo", wanted(*views), views, changed=frozenset())
    assert (first.name, first.ready) == ("demo-p4-0", True)
    assert (second.ready, second.unschedulable) == (False, True)
    assert "no GPU" in second.trouble
    assert leaving_of(wanted(*views), views) == ("demo-p4-9",)


def test_rows_about_a_spec_before_are_not_taken_for_the_newest() -> None:
    for views, changed in (((view(row(0), row(1), seen=0),), frozenset()), ((view(row(0), row(1)),), {name()})):
        states = states_of("demo", wanted(*views), views, changed=frozenset(changed))
        assert [(state.ready, state.waits) for state in states] == [(False, True)] * 2


def test_workers_of_a_group_before_stand_in_for_those_to_come() -> None:
    views = (view(asked=2), view(row(5), revision=OLD))
    states = states_of("demo", wanted(*views), views, changed=frozenset())
    assert {(state.name, state.ready, state.waits) for state in states} == {
        ("demo-p4-5", False, True),
        (f"{name()}[1]", False, False),
    }
    assert leaving_of(wanted(*views), views) == ("demo-p4-5",)


def test_a_worker_of_both_roles_serves_while_the_others_change_theirs() -> None:
    """A plan of four workers of both roles becomes one of two prefill and two decode workers."""
    switching = {"ready": True, "switching": True}
    rows = [
        {"name": "demo-w4-0", "role": "decode", **switching},
        {"name": "demo-w4-1", "role": "prefill", **switching},
        {"name": "demo-w4-2", "role": "prefill", **switching},
        {"name": "demo-w4-3", "role": "both", "ready": True},
    ]
    body: Manifest = {
        "metadata": {"name": name(role=None), "uid": "u", "generation": 1},
        "spec": {"service": "demo", "degree": 4, "pool": "h20", "revision": NEW, "replicas": 4},
        "status": {"observedGeneration": 1, "workers": rows},
    }
    body["spec"]["roles"] = {"prefill": 2, "decode": 1, "both": 1}
    assert served_duties(views_of([body])) == {"prefill", "decode"}
    rows[3] |= switching
    assert served_duties(views_of([body])) == frozenset()


def test_workers_of_a_group_that_is_replaced_serve_while_all_new_ones_start() -> None:
    starting = [row(number, ready=False) for number in range(2)]
    assert served_duties((view(*starting),)) == frozenset()
    assert served_duties((view(*starting), view(row(5), revision=OLD))) == {"prefill"}


def test_workers_beyond_the_plan_are_leaving_before_their_group_says_which() -> None:
    three = (view(row(0), row(1), row(2), asked=3),)
    assert leaving_of(wanted(*three), three) == (f"1 of {name()}",)
    fewer = (view(row(0), row(1), row(2, ready=False, draining=True)),)
    assert leaving_of(wanted(*fewer), fewer) == ("demo-p4-2",)
    none = [replace(item, group=replace(item.group, replicas=0)) for item in wanted(*three)]
    assert leaving_of(none, three) == ("demo-p4-0", "demo-p4-1", "demo-p4-2")


def test_the_services_status_tells_of_each_group() -> None:
    views = (
        view(row(0, sessions=3), row(1, sessions=4), row(2, ready=False, draining=True, sessions=1)),
        view(row(7), row(8, ready=False, lost="gone"), revision=OLD),
    )
    rows = rows_of(wanted(*views), views, states_of("demo", wanted(*views), views, changed=frozenset()))
    for item in rows:
        GroupStatus.model_validate(item)
    assert [
        (item["name"], item["desired"], item["ready"], item["draining"], item.get("sessions")) for item in rows
    ] == [
        (name(), 2, 2, 1, 8),
        (name(OLD), 0, 0, 0, None),
    ]
    assert lost_of(views) == ("demo-p4-8",)


async def test_groups_and_their_status_are_what_the_definition_says() -> None:
    world = await serving()
    assert len(world.cluster.groups()) > 1
    for key in world.cluster.groups():
        found = world.cluster.named("WorkerGroup", key.name)
        WorkerGroupStatus.model_validate(found["status"])
        WorkerGroup.model_validate({"spec": found["spec"], "status": found["status"]})
        assert {item["type"]: item["status"] for item in found["status"]["conditions"]} == {
            "Ready": "True",
            "Progressing": "False",
        }
        assert found["status"]["replicas"] == found["status"]["readyReplicas"] == found["spec"]["replicas"]
        labels = dict(part.split("=") for part in found["status"]["selector"].split(","))
        chosen = [pod for pod in world.cluster.pods.values() if labels.items() <= pod["metadata"]["labels"].items()]
        assert len(chosen) == found["spec"]["replicas"]


async def test_figures_of_sessions_alone_are_shown_again_after_ten_seconds_only() -> None:
    world = await serving()
    writes = world.cluster.group_writes
    world.heartbeats = {"demo-w8-0": WorkerRecord("demo-w8-0", "decode", "http://x", 8, 1, sessions=5, kv_tokens=90)}
    await world.step()
    assert world.cluster.group_writes == writes
    world.now += timedelta(seconds=11)
    await world.until_quiet()
    assert world.cluster.group_writes == writes + 1
    (decode,) = [item for item in world.cluster.service["status"]["groups"] if item["role"] == "decode"]
    assert decode["sessions"] == 5


async def test_a_request_that_ended_an_engine_is_reported_once() -> None:
    world = await serving()
    world.heartbeats = {"demo-w8-0": WorkerRecord("demo-w8-0", "decode", "http://x", 8, 1, quarantined=("a:b:c",))}
    for _ in range(3):
        world.now += timedelta(seconds=11)
        await world.until_quiet()
    (event,) = [event for event in world.cluster.events if event.reason == "QueryOfDeath"]
    assert event.type == "Warning"
    assert "demo-w8-0" in event.message


async def test_whose_sessions_lose_the_least_leaves_when_the_plan_shrinks() -> None:
    world = await serving()
    world.heartbeats = {
        f"demo-w4-{index}": WorkerRecord(f"demo-w4-{index}", "prefill", "http://x", 4, 1, live_rounds=rounds)
        for index, rounds in ((0, 1), (1, 9))
    }
    world.answer = planned(group("prefill", 4, 1), group("decode", 8, 1))
    load = world.cluster.service["spec"]["workload"]
    world.cluster.change(workload={**load, "arrivalRate": 0.1})
    await world.until_quiet()
    assert world.cluster.names("StatefulSet") == ["demo-w4-1", "demo-w8-0"]


@pytest.mark.parametrize("kind", ["WorkerGroup", "StatefulSet"])
def test_names_are_those_of_objects(kind: str) -> None:
    names = [item["metadata"]["name"] for item in rendered(rendering()) if item["kind"] == kind]
    assert len(set(names)) == len(names) > 1
    assert all(len(one) <= 63 for one in names)
