"""Plan changes through whole passes: inside the budget at every moment, and given up where workers do not start."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

from weft_operator.errors import ApiError
from weft_operator.render.config_maps import ledger_text
from weft_operator.rollout.ledger import read_ledger
from weft_operator_tests.samples import group, planned
from weft_operator_tests.world import World, serving, summary

MORE = {"arrivalRate": 4.0, "rounds": {"mean": 3}}
GPUS = 16


def _asked(world: World) -> dict[str, int]:
    """Return how many workers are asked of each group, by role and degree."""
    return world.cluster.asked()


def _gpus(world: World) -> int:
    """Return the GPUs of all pods of workers that are not gone."""
    degrees = [pod["metadata"]["labels"].get("weft.dev/degree") for pod in world.cluster.pods.values()]
    return sum(int(degree) for degree in degrees if degree)


async def _another_plan(world: World, *groups: tuple[str, int, int]) -> None:
    """Let the spec change, and the planner answer it with other groups."""
    world.answer = planned(*(group(role, degree, count) for role, degree, count in groups))
    world.cluster.change(slo={"ttft": "4s", "itl": "45ms"})
    await world.step()


async def test_a_change_of_degree_on_a_full_budget_never_takes_more_than_it() -> None:
    world = await serving()
    assert _gpus(world) == GPUS
    await _another_plan(world, ("prefill", 2, 4), ("decode", 4, 2))
    said = set()
    for _ in range(20):
        world.cluster.settle()
        assert _gpus(world) <= GPUS
        await world.step()
        assert _gpus(world) <= GPUS
        said.update(world.cluster.condition("Progressing")["message"].split("; "))
    assert "1 decode worker of 4 GPUs in pool h20 more when GPUs are free" in said, "a person sees what it waits for"
    assert _asked(world) == {"p2": 4, "d4": 2}
    assert summary(world)["Progressing"] == ("False", "UpToDate")
    assert len(world.cluster.names("WorkerGroup")) == 2, "those of the plan before are gone"


async def test_a_restarted_operator_goes_on_where_the_last_one_was() -> None:
    world = await serving()
    await _another_plan(world, ("prefill", 2, 4), ("decode", 4, 2))
    await world.step()  # the planner's answer is taken up; before that a restart only asks it again
    for _ in range(20):
        world.restart()
        world.cluster.settle()
        await world.step()
    assert _asked(world) == {"p2": 4, "d4": 2}


async def test_a_plan_whose_workers_do_not_start_is_aborted_and_reported() -> None:
    world = await serving()
    await _another_plan(world, ("prefill", 4, 1), ("decode", 2, 2))
    for _ in range(12):
        world.cluster.settle()
        for name in list(world.cluster.pods):
            if "-w2-" in name:
                world.cluster.break_pod(name)
                world.cluster.pods[name]["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
        await world.step()
    assert summary(world)["Progressing"] == ("True", "RollingOut")
    world.now += timedelta(minutes=31)
    await world.step()
    assert summary(world)["Progressing"] == ("True", "RolloutAborted")
    await world.until_quiet()
    assert _asked(world) == {"p4": 2, "d8": 1}
    assert summary(world)["Progressing"] == ("False", "RolloutAborted")
    assert summary(world)["Ready"] == ("True", "Serving")
    status = world.cluster.service["status"]
    assert status["planSummary"] == "P4x2 D8x1", "the plan that is active, not the one that was given up"
    assert {(row["role"], row["degree"], row["replicas"]) for row in status["plan"]["groups"]} == {
        ("prefill", 4, 2),
        ("decode", 8, 1),
    }
    assert status["plan"]["number"] == 1
    assert "did not get ready within spec.rollout.startTimeout" in world.cluster.condition("Progressing")["message"]
    kept = read_ledger(ledger_text(world.cluster.named("ConfigMap", "demo-plan")))
    assert kept is not None
    assert [one.reason for one in kept.refusals] == ["NeverReady"]


async def test_a_plan_without_room_is_carried_out_when_more_may_be_missing_on_the_way() -> None:
    world = await serving()
    world.cluster.change(rollout={"maxUnavailable": 0})
    await world.until_quiet()
    await _another_plan(world, ("prefill", 2, 4), ("decode", 4, 2))
    await world.until_quiet()
    assert summary(world)["Progressing"] == ("False", "RolloutAborted")
    assert "spec.rollout.maxUnavailable: 0 allows no further drain" in world.cluster.condition("Progressing")["message"]
    assert _asked(world) == {"p4": 2, "d8": 1}
    asked = len(world.requests)
    world.cluster.change(rollout={"maxUnavailable": 1})
    for _ in range(20):
        await world.step()
        world.cluster.settle()
    assert _asked(world) == {"p2": 4, "d4": 2}
    assert summary(world)["Progressing"] == ("False", "UpToDate")
    assert len(world.requests) == asked, "what was planned stays planned"


async def test_routers_follow_the_plan_in_force_not_an_aborted_one() -> None:
    world = await serving()
    assert _rules(world)["policy"] != "colocated"
    answer = planned(group("decode", 2, 4))
    world.answer = replace(answer, plan=replace(answer.plan, layout="colocated"))
    world.cluster.change(slo={"ttft": "4s", "itl": "45ms"})
    for _ in range(6):
        await world.step()
        world.cluster.settle()
        for name in list(world.cluster.pods):
            if "-w2-" in name:
                world.cluster.break_pod(name)
                world.cluster.pods[name]["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    assert _rules(world)["policy"] == "colocated", "on the way to the new plan its rules hold"
    world.now += timedelta(minutes=31)
    await world.until_quiet()
    assert summary(world)["Progressing"] == ("False", "RolloutAborted")
    assert _asked(world) == {"p4": 2, "d8": 1}
    assert _rules(world)["policy"] != "colocated", "its prefill workers would idle"


def _rules(world: World) -> dict[str, Any]:
    live = json.loads(world.cluster.named("ConfigMap", "demo-live")["data"]["live.json"])
    found: dict[str, Any] = live["routing"]
    return found


async def test_nothing_is_asked_of_groups_while_what_must_be_remembered_cannot_be_stored() -> None:
    world = await serving()
    before = _asked(world)
    world.cluster.fail = lambda action: ApiError("no", status=500) if action.key.name == "demo-plan" else None
    await _another_plan(world, ("prefill", 2, 4), ("decode", 4, 2))
    await world.step()
    assert _asked(world) == before
