"""What a pass may say of a service, and what must not keep it from saying it."""

import asyncio
import copy
import dataclasses
from datetime import timedelta

import pytest

from weft_operator.api.objects import TOKEN_HASH_ANNOTATION, Manifest, ObjectKey
from weft_operator.errors import ForbiddenError, InvalidError, OperatorError, WaitingError
from weft_operator.kube.diff import Action
from weft_operator.planning.planner_process import Answer
from weft_operator.planning.request import Request
from weft_operator_tests.samples import planned
from weft_operator_tests.valid import changed, vllm_service
from weft_operator_tests.world import AT_REST, KSTATUS, World, serving, summary


def generations(world: World) -> dict[str, int]:
    status = world.cluster.service["status"]
    told = [item for item in status["conditions"] if item["type"] not in KSTATUS]
    found = {item["type"]: item["observedGeneration"] for item in told}
    return {**found, "": status["observedGeneration"]}


async def test_ready_is_not_said_of_a_spec_that_is_not_planned_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await serving()
    gate = asyncio.Event()

    async def slow(_request: Request) -> Answer:
        await gate.wait()
        return planned()

    monkeypatch.setattr(world.planner_client, "_solve", slow)
    world.cluster.change(slo={"ttft": "9s", "itl": "50ms"})
    for _ in range(2):
        await world.step()
        assert summary(world) == {
            "Planned": ("Unknown", "Planning"),
            "Ready": ("True", "Serving"),
            "Progressing": ("True", "WaitingForPlan"),
            **AT_REST,
        }
        assert generations(world) == {
            "": 1,
            "Planned": 2,
            "Ready": 1,
            "Progressing": 2,
            "Drained": 2,
            "SLOFeasible": 1,
            "MetricsAvailable": 2,
            "SLOMet": 2,
            "CostModelFresh": 1,
        }
    gate.set()
    await world.until_quiet()
    assert summary(world)["Progressing"] == ("False", "UpToDate")
    assert set(generations(world).values()) == {2}


async def test_labels_alone_leave_the_service_ready() -> None:
    world = await serving()
    events = len(world.cluster.events)
    answer = planned()
    world.answer = dataclasses.replace(answer, plan=dataclasses.replace(answer.plan, revision="ffffffffff"))
    world.cluster.change(workload={**world.cluster.service["spec"]["workload"], "arrivalRate": 0.001})
    await world.step()
    actions = len(world.cluster.actions)
    await world.step()
    assert {action.key.kind for action in world.cluster.actions[actions:]} == {
        "ConfigMap",
        "ControllerRevision",
        "WorkerGroup",
    }
    assert summary(world)["Ready"] == ("True", "Serving")
    assert summary(world)["Progressing"] == ("False", "UpToDate")
    assert [event.reason for event in world.cluster.events[events:]] == ["PlanReady"]


async def test_an_event_that_is_refused_does_not_keep_the_status_back() -> None:
    world = World()
    world.cluster.events_error = ForbiddenError("exceeded quota: events", status=403)
    await world.until_quiet()
    assert summary(world)["Ready"] == ("True", "Serving")
    assert world.cluster.events == []


async def test_a_missing_token_of_the_model_hub_is_reported() -> None:
    body = changed(
        vllm_service(),
        "spec.model.source",
        {"huggingFace": {"tokenSecretRef": {"name": "hub", "key": "token"}}},
    )
    world = World(body)
    world.cluster.model_token_found = False
    await world.until_quiet()
    assert summary(world)["Planned"] == ("False", "SecretNotFound")
    message = world.cluster.condition("Planned")["message"]
    assert message.startswith("spec.model.source.huggingFace.tokenSecretRef: there is no Secret hub")
    world.cluster.model_token_found = True
    await world.until_quiet()
    assert summary(world)["Ready"] == ("True", "Serving")


def token_hashes(world: World) -> set[str]:
    templates: list[Manifest] = [
        item["spec"]["template"]
        for item in world.cluster.objects.values()
        if item["kind"] in ("StatefulSet", "Deployment")
    ]
    return {template["metadata"]["annotations"][TOKEN_HASH_ANNOTATION] for template in templates}


async def test_a_new_token_restarts_all_who_hold_the_old_one() -> None:
    world = await serving()
    (before,) = token_hashes(world)
    pods = {name: pod["metadata"]["uid"] for name, pod in world.cluster.pods.items()}
    key = next(key for key in world.cluster.objects if key.kind == "Secret")
    del world.cluster.objects[key]
    world.new_token = b"fedcba9876543210fedcba9876543210"
    await world.step()
    (after,) = token_hashes(world)
    assert after != before
    assert b"0123456789abcdef".hex() not in before
    assert "0123456789abcdef" not in before
    await world.until_quiet()
    assert not set(pods.values()) & {pod["metadata"]["uid"] for pod in world.cluster.pods.values()}
    assert summary(world)["Ready"] == ("True", "Serving")


async def test_without_a_stored_token_no_template_changes() -> None:
    world = await serving()
    key = next(key for key in world.cluster.objects if key.kind == "Secret")
    del world.cluster.objects[key]
    before = copy.deepcopy(world.cluster.objects)

    def refuse(action: Action) -> OperatorError | None:
        return InvalidError("422 no", status=422) if action.key.kind == "Secret" else None

    world.cluster.fail = refuse
    for number in range(3):
        world.new_token = bytes([number]) * 32
        await world.step()
    assert world.cluster.objects == before
    assert summary(world)["Progressing"] == ("False", "ApplyFailed")


async def test_what_is_left_of_a_service_of_the_same_name_is_waited_for_and_reported_when_it_stays() -> None:
    world = World()
    made = world.now - timedelta(seconds=5)
    world.cluster.service["metadata"]["creationTimestamp"] = made.strftime("%Y-%m-%dT%H:%M:%SZ")
    world.cluster.former = (ObjectKey("apps/v1", "Deployment", "default", "demo"),)
    with pytest.raises(WaitingError, match="Deployment default/demo belongs to a deleted service of the same name"):
        await world.step()
    assert "status" not in world.cluster.service, "the garbage collector has only begun"
    world.now += timedelta(seconds=10)
    for _ in range(2):
        with pytest.raises(WaitingError):
            await world.step()
    assert summary(world)["Progressing"] == ("True", "WaitingForDeletion")
    assert "look at its metadata.finalizers" in world.cluster.condition("Progressing")["message"]
    assert world.cluster.condition("Reconciling")["status"] == "True"
    assert world.cluster.status_writes == 1
    assert [(event.type, event.reason) for event in world.cluster.events] == [("Warning", "WaitingForDeletion")]
    assert world.cluster.actions == []
    world.cluster.former = ()
    await world.until_quiet()
    assert summary(world)["Ready"] == ("True", "Serving")
