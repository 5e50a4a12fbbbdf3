"""Passes over a service against a cluster in memory, and what people see of them."""

import asyncio
import copy
import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_operator.api.objects import Manifest
from weft_operator.controllers.result import ReconcileResult
from weft_operator.errors import ForbiddenError, InvalidError, OperatorError, StalledError, TransientError
from weft_operator.kube.diff import Action, Apply
from weft_operator.render.config_maps import read_record
from weft_operator_tests.samples import KEY, group, planned
from weft_operator_tests.valid import changed, service, sglang_service
from weft_operator_tests.world import AT_REST, UNPLANNED, World, serving, summary


async def test_a_new_service_is_planned_deployed_and_served() -> None:
    world = World()
    await world.step()
    assert summary(world) == {
        "Planned": ("Unknown", "Planning"),
        "Ready": ("False", "NotPlanned"),
        "Progressing": ("True", "WaitingForPlan"),
        **UNPLANNED,
    }
    assert world.cluster.actions == []
    await world.step()
    assert world.woken == 1
    assert summary(world)["Ready"] == ("False", "NoPrefillWorker")
    assert summary(world)["Progressing"] == ("True", "RollingOut")
    await world.until_quiet()
    assert summary(world) == {
        "Planned": ("True", "PlanReady"),
        "Ready": ("True", "Serving"),
        "Progressing": ("False", "UpToDate"),
        **AT_REST,
    }
    status = world.cluster.service["status"]
    assert status["url"] == "http://demo.default.svc"
    assert (status["planSummary"], status["sloSummary"]) == ("P4x2 D8x1", "met")
    assert (status["ttftSummary"], status["itlSummary"]) == ("944 ms", "25.1 ms")
    assert status["plan"]["predicted"]["ttftP95"] == 0.943873
    assert [(row["role"], row["ready"], row["desired"]) for row in status["groups"]] == [
        ("decode", 1, 1),
        ("prefill", 2, 2),
    ]
    assert world.cluster.names("StatefulSet") == ["demo-w4-0", "demo-w4-1", "demo-w8-0"]
    assert len(world.requests) == 1


async def test_at_rest_a_pass_changes_nothing() -> None:
    world = await serving()
    actions, writes = len(world.cluster.actions), world.cluster.status_writes
    world.now += timedelta(hours=1)
    for _ in range(3):
        outcome = await world.step()
        assert outcome == ReconcileResult()
    world.restart()
    await world.step()
    assert (len(world.cluster.actions), world.cluster.status_writes) == (actions, writes)
    assert len(world.requests) == 1, "the plan is kept in the cluster, not in the operator"


async def test_events_are_posted_once_per_fact() -> None:
    world = await serving()
    assert [event.reason for event in world.cluster.events] == ["PlanReady", "NoPrefillWorker", "Serving"]
    assert [event.type for event in world.cluster.events] == ["Normal", "Normal", "Normal"]
    world.restart()
    await world.until_quiet()
    assert len(world.cluster.events) == 3


async def test_scaling_leaves_the_pods_of_workers_that_stay() -> None:
    world = await serving()
    kept = {name: pod["metadata"]["uid"] for name, pod in world.cluster.pods.items()}
    world.answer = planned(group("prefill", 4, 1), group("decode", 8, 1))
    world.cluster.change(workload={**service()["spec"]["workload"], "arrivalRate": 0.1})
    await world.until_quiet()
    now = {name: pod["metadata"]["uid"] for name, pod in world.cluster.pods.items()}
    assert now == {name: uid for name, uid in kept.items() if name != "demo-w4-1-0"}


async def test_an_engine_change_is_rolled_out_without_a_new_plan() -> None:
    world = await serving()
    before = {name: pod["metadata"]["uid"] for name, pod in world.cluster.pods.items()}
    configs = world.cluster.names("ConfigMap")
    world.cluster.change(engine={"type": "mock", "image": "registry.example.com/mock:2"})
    await world.step()
    assert summary(world)["Ready"][0] == "False", "old pods are not ready at the new template"
    await world.until_quiet()
    after = {name: pod["metadata"]["uid"] for name, pod in world.cluster.pods.items()}
    assert len(before) == len(after)
    assert len(world.cluster.names("WorkerGroup")) == 2, "those of the engine before are gone"
    assert not set(before.values()) & set(after.values())
    assert len(world.requests) == 1
    assert world.cluster.names("ConfigMap") != configs
    assert len(world.cluster.names("ConfigMap")) == 3, "the router's old ConfigMap is removed when nobody mounts it"


async def test_a_worker_on_a_dead_node_is_replaced_at_once() -> None:
    world = await serving()
    world.cluster.lose_node("demo-w8-0-0")
    await world.step()
    assert summary(world)["Progressing"] == ("True", "ReplacingWorkers")
    assert summary(world)["Ready"] == ("False", "NoDecodeWorker")
    await world.until_quiet()
    assert world.cluster.names("StatefulSet") == ["demo-w4-0", "demo-w4-1", "demo-w8-1"]
    assert "demo-w8-0-0" in world.cluster.pods, "the pod still hangs, and nobody waits for it"
    assert summary(world)["Ready"] == ("True", "Serving")
    (event,) = [item for item in world.cluster.events if item.reason == "WorkerLost"]
    assert "demo-w8-0 on node node-1" in event.message


async def test_a_pod_that_does_not_stop_is_looked_at_again_in_time() -> None:
    world = await serving()
    pod = world.cluster.pods["demo-w4-0-0"]
    pod["on-dead-node"] = True
    pod["metadata"]["deletionTimestamp"] = (world.now + timedelta(seconds=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
    outcome = await world.step()
    assert outcome.requeue_after == 15
    world.now += timedelta(seconds=16)
    await world.until_quiet()
    assert world.cluster.names("StatefulSet") == ["demo-w4-1", "demo-w4-2", "demo-w8-0"]


async def test_a_change_by_hand_is_reverted_and_reported() -> None:
    world = await serving()
    world.cluster.named("StatefulSet", "demo-w4-0")["spec"]["replicas"] = 3
    await world.until_quiet()
    assert world.cluster.named("StatefulSet", "demo-w4-0")["spec"]["replicas"] == 1
    (event,) = [item for item in world.cluster.events if item.reason == "DriftCorrected"]
    assert "StatefulSet demo-w4-0" in event.message
    assert "spec.replicas" in event.message


async def test_a_worker_with_a_broken_pod_of_an_old_template_restarts() -> None:
    world = await serving()
    world.cluster.break_pod("demo-w4-0-0")
    world.cluster.change(routing={"prefillConcurrency": 2})
    await world.until_quiet()
    assert world.cluster.names("StatefulSet") == ["demo-w4-0", "demo-w4-1", "demo-w8-0"]
    assert summary(world)["Ready"] == ("True", "Serving")
    events = [item.message for item in world.cluster.events if item.reason == "WorkerRestarted"]
    assert "worker demo-w4-0 restarts, because its template changed" in events


async def test_a_worker_of_a_fixed_role_with_a_broken_pod_of_an_old_template_is_replaced() -> None:
    world = await serving(sglang_service())
    world.cluster.break_pod("demo-p4-0-0")
    world.cluster.change(routing={"prefillConcurrency": 2})
    await world.until_quiet()
    assert world.cluster.names("StatefulSet") == ["demo-d8-0", "demo-p4-1", "demo-p4-2"]
    assert summary(world)["Ready"] == ("True", "Serving")
    (event,) = [item for item in world.cluster.events if item.reason == "WorkerLost"]
    assert "its pod is broken and has an old template" in event.message


async def test_a_refused_object_is_reported_and_does_not_hold_up_the_others() -> None:
    world = World()

    def refuse(action: Action) -> OperatorError | None:
        return InvalidError("422 spec.x: no", status=422) if action.key.name == "demo-w4-0" else None

    world.cluster.fail = refuse
    for _ in range(4):
        await world.step()
        world.cluster.settle()
    assert summary(world)["Progressing"] == ("False", "ApplyFailed")
    assert "spec.x" in world.cluster.condition("Progressing")["message"]
    assert world.cluster.names("Deployment") == ["demo"]
    world.cluster.fail = lambda _action: None
    await world.until_quiet()
    assert summary(world)["Ready"] == ("True", "Serving")


async def test_a_kind_that_is_refused_is_named_with_every_object_of_it() -> None:
    world = World()

    def refuse(action: Action) -> OperatorError | None:
        return ForbiddenError("403 no", status=403) if action.key.kind == "NetworkPolicy" else None

    world.cluster.fail = refuse
    for _ in range(4):
        await world.step()
        world.cluster.settle()
    told = world.cluster.condition("Progressing")
    assert (told["status"], told["reason"]) == ("False", "ApplyFailed")
    assert re.match(
        r"NetworkPolicy default/demo\S*: 403 no; refused as well: NetworkPolicy default/demo", told["message"]
    )
    assert summary(world)["Ready"] == ("True", "Serving"), "all else is carried out"
    world.cluster.fail = lambda _action: None
    await world.until_quiet()
    assert summary(world)["Progressing"] == ("False", "UpToDate")


async def test_a_name_that_is_taken_is_reported() -> None:
    world = World()
    world.cluster.fail = lambda action: (
        StalledError("NameTaken", f"{action.key} exists") if action.key.kind == "Service" else None
    )
    for _ in range(3):
        await world.step()
    assert summary(world)["Progressing"] == ("False", "NameTaken")


async def test_trouble_of_the_api_server_ends_the_pass() -> None:
    world = World()
    await world.step()
    world.cluster.fail = lambda _action: TransientError("503")
    with pytest.raises(TransientError):
        await world.reconciler.reconcile(KEY)
    assert world.cluster.actions == []


async def test_a_service_that_goes_is_left_to_its_owner_references() -> None:
    world = World()
    world.cluster.service["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert await world.step() == ReconcileResult(gone=True)
    assert world.cluster.actions == []
    assert world.requests == []
    world.cluster.service["metadata"]["name"] = "other"
    assert await world.step() == ReconcileResult(gone=True)


async def test_another_operators_service_is_left_alone() -> None:
    world = World(changed(service(), "metadata.labels", {"weft.dev/operator": "canary"}))
    assert await world.step() == ReconcileResult(gone=True)
    assert world.cluster.actions == []
    assert world.cluster.status_writes == 0


@pytest.mark.parametrize("crash_at", range(16))
async def test_killed_at_any_write_the_end_is_the_same(crash_at: int) -> None:
    """A1 in small: the operator dies before its n-th write; the next one brings the service to the same end."""
    reference = await serving()
    world = World()
    count = 0

    def crash(_action: Action) -> OperatorError | None:
        nonlocal count
        count += 1
        return TransientError("killed") if count == crash_at + 1 else None

    world.cluster.fail = crash
    for _ in range(3):
        try:
            await world.step()
        except TransientError:
            world.restart()
    await world.until_quiet()
    assert summary(world) == summary(reference)
    assert {key: masked(item) for key, item in world.cluster.objects.items()} == {
        key: masked(item) for key, item in reference.cluster.objects.items()
    }


def masked(item: Manifest) -> Manifest:
    return {key: value for key, value in item.items() if key not in ("metadata", "status")}


def lose_a_node(world: World, position: int) -> None:
    """Lose the node of a pod; in the midst of a change that drains first there may be none."""
    if pods := sorted(world.cluster.pods):
        world.cluster.lose_node(pods[position])


CHANGES: list[Callable[[World], None]] = [
    lambda world: world.cluster.change(engine={"type": "mock", "args": ["--block-size=32"]}),
    lambda world: world.cluster.change(rollout={"drainTimeout": "5s"}),
    lambda world: world.cluster.change(coordinator={"replicas": 3}),
    lambda world: setattr(world, "answer", planned(group("prefill", 8, 1), group("decode", 4, 2))),
    lambda world: setattr(world, "answer", planned(group("prefill", 4, 1), group("decode", 8, 1))),
    lambda world: world.cluster.change(slo={"ttft": "3s", "itl": "50ms"}),
    lambda world: world.cluster.change(slo={"ttft": "4s", "itl": "50ms"}),
    lambda world: lose_a_node(world, 0),
    lambda world: lose_a_node(world, -1),
    lambda world: setattr(world, "now", world.now + timedelta(seconds=60)),
    lambda world: world.restart(),
]


@settings(max_examples=25)
@given(steps=st.lists(st.tuples(st.integers(0, len(CHANGES) - 1), st.booleans()), max_size=6))
def test_after_any_history_the_service_comes_to_rest(steps: list[tuple[int, bool]]) -> None:
    """A2 and A5: whatever happened, passes end in a state that the next pass leaves alone."""

    async def history() -> None:
        world = await serving()
        for number, pass_between in steps:
            CHANGES[number](world)
            if pass_between:
                await world.step()
                world.cluster.settle()
        await world.until_quiet()
        before = copy.deepcopy(world.cluster.objects)
        actions = len(world.cluster.actions)
        world.restart()
        await world.step()
        assert world.cluster.objects == before
        assert len(world.cluster.actions) == actions
        assert summary(world)["Ready"] == ("True", "Serving")
        names = world.cluster.names("StatefulSet")
        record = read_record(world.cluster.named("ConfigMap", "demo-plan"))
        assert record is not None
        assert len(names) == sum(item.replicas for item in record.plan.groups)

    asyncio.run(history())


def test_actions_are_data() -> None:
    action = Apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}, reason="missing", fresh=True)
    assert str(action.key) == "Secret /a"
