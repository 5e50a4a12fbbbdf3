"""Passes that deploy co-located plans and plans over several pools, and change from one layout to another."""

import json
from dataclasses import replace

from weft_core.plan import plan_to_json
from weft_operator.api.status import Status
from weft_operator.planning.planner_process import Planned, Refused, read_answer
from weft_operator.render.config_maps import read_record
from weft_operator_tests.samples import (
    POOL_PROFILES,
    PROFILE_JSON,
    TWO_POOLS,
    colocated,
    group,
    plan,
    planned,
)
from weft_operator_tests.valid import PROFILE, changed, pools_service, service
from weft_operator_tests.world import World, serving, summary

COLOCATED = Planned(plan=colocated().record.plan, profile=PROFILE_JSON)
OVER_POOLS = Planned(plan=plan(*TWO_POOLS), profile=PROFILE_JSON, profiles=POOL_PROFILES)


async def test_a_co_located_service_is_ready_without_prefill_workers() -> None:
    world = World(changed(service(), "spec.planning.layouts", ["colocated"]))
    world.answer = COLOCATED
    await world.until_quiet()
    assert summary(world)["Ready"] == ("True", "Serving")
    assert summary(world)["Progressing"] == ("False", "UpToDate")
    assert world.cluster.names("StatefulSet") == ["demo-w8-0", "demo-w8-1"]
    status = world.cluster.service["status"]
    assert status["planSummary"] == "C8x2"
    assert status["plan"]["layout"] == "colocated"
    assert world.requests[0]["engine"]["layouts"] == ["colocated"]
    Status.model_validate(status)


async def test_a_co_located_service_without_workers_says_so() -> None:
    world = World(changed(service(), "spec.planning.layouts", ["colocated"]))
    world.answer = COLOCATED
    await world.step()
    await world.step()
    assert summary(world)["Ready"] == ("False", "NoDecodeWorker")


async def test_a_layout_follows_another_and_back() -> None:
    world = await serving()
    world.answer = COLOCATED
    world.cluster.change(planning={"layouts": ["colocated"]})
    await world.until_quiet()
    assert world.cluster.names("StatefulSet") == ["demo-w8-0", "demo-w8-1"]
    assert summary(world)["Ready"] == ("True", "Serving")
    for pod in world.cluster.pods.values():
        engine = pod["spec"]["containers"][0]
        assert "--role=both" in engine["args"], "a worker that stays is told that there is nobody to pair with"
    world.answer = planned()
    world.cluster.change(planning={})
    await world.until_quiet()
    assert world.cluster.names("StatefulSet") == ["demo-w4-0", "demo-w4-1", "demo-w8-0"]
    assert world.cluster.service["status"]["planSummary"] == "P4x2 D8x1"
    assert world.requests[-1]["current"] == [{"role": "decode", "degree": 8, "replicas": 2, "pool": "h20"}]


async def test_workers_of_one_role_differ_in_degree_and_pool() -> None:
    world = World(pools_service())
    world.answer = OVER_POOLS
    await world.until_quiet()
    assert summary(world)["Ready"] == ("True", "Serving")
    status = world.cluster.service["status"]
    assert status["planSummary"] == "P4x1@h100 D8x1@h20 D4x1@h100"
    assert {(row["role"], row["degree"], row["pool"], row["ready"]) for row in status["groups"]} == {
        ("prefill", 4, "h100", 1),
        ("decode", 8, "h20", 1),
        ("decode", 4, "h100", 1),
    }
    assert [row["pool"] for row in status["plan"]["groups"]] == ["h100", "h20", "h100"]
    record = read_record(world.cluster.named("ConfigMap", "demo-plan"))
    assert record is not None
    assert record.profiles == POOL_PROFILES
    # A restarted operator goes on from what it kept.
    actions = len(world.cluster.actions)
    world.restart()
    await world.until_quiet()
    assert (len(world.cluster.actions), len(world.requests)) == (actions, 1)


async def test_a_plan_that_takes_up_another_pool_restarts_nobody() -> None:
    world = World(pools_service())
    one = (group("prefill", 4, 1, "h100"), group("decode", 4, 1, "h100"))
    world.answer = replace(OVER_POOLS, plan=plan(*one))
    await world.until_quiet()
    before = {name: pod["metadata"]["uid"] for name, pod in world.cluster.pods.items()}
    world.answer = replace(OVER_POOLS, plan=plan(*one, group("decode", 8, 1)))
    world.cluster.change(planning={"objective": "cost", "budgetPerHour": 90})
    await world.until_quiet()
    after = {name: pod["metadata"]["uid"] for name, pod in world.cluster.pods.items()}
    assert after.keys() - before.keys() == {"demo-w8-0-0"}
    assert {name: after[name] for name in before} == before


async def test_the_plan_in_force_shows_reading_and_cost() -> None:
    world = World(pools_service())
    predicted = replace(OVER_POOLS.plan.predicted, reading="round, P95 ITL", cost_per_hour=56.0)
    world.answer = replace(OVER_POOLS, plan=replace(OVER_POOLS.plan, predicted=predicted))
    await world.until_quiet()
    shown = world.cluster.service["status"]["plan"]["predicted"]
    assert (shown["reading"], shown["costPerHour"]) == ("round, P95 ITL", 56.0)


async def test_a_profile_for_each_gpu_type_is_asked_for_and_used() -> None:
    world = World(changed(pools_service(), "spec.profile", {"refs": [{"name": "measured"}, {"name": "h100"}]}))
    world.cluster.profile = PROFILE
    await world.until_quiet()
    assert summary(world)["Planned"] == ("False", "ProfileNotFound")
    assert "spec.profile.refs: there is no CostProfile h100" in world.cluster.condition("Planned")["message"]
    world.cluster.more_profiles = {"h100": changed(PROFILE, "spec.gpu", "nvidia-h100")}
    await world.until_quiet()
    asked = world.requests[0]
    assert (asked["profile"]["gpu"], [item["gpu"] for item in asked["profiles"]]) == ("nvidia-h20", ["nvidia-h100"])


def test_only_profiles_that_differ_are_kept_by_pool() -> None:
    def answer(profiles: object) -> Planned | Refused:
        body = {"status": "ok", "plan": plan_to_json(plan(*TWO_POOLS)), "profile": PROFILE_JSON, "profiles": profiles}
        return read_answer(0, json.dumps(body).encode(), "")

    found = answer(POOL_PROFILES)
    assert isinstance(found, Planned)
    assert found.profiles == POOL_PROFILES
    assert found.profile == POOL_PROFILES["h100"], "the first by name, whichever pools a plan uses"
    alike = answer(dict.fromkeys(("h20", "h100"), PROFILE_JSON))
    assert isinstance(alike, Planned)
    assert alike.profiles == {}
    assert isinstance(answer(["h20"]), Refused)
    assert isinstance(answer({"h20": 3}), Refused)
    assert planned(group("prefill", 4, 1), group("decode", 8, 1)).profiles == {}
