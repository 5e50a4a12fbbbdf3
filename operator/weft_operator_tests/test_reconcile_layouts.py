"""Passes that deploy co-located, symmetric and hybrid plans and plans over several pools, and change layouts."""

import json
from dataclasses import replace
from datetime import timedelta

from weft_core.plan import plan_to_json
from weft_operator.api.objects import condition_of
from weft_operator.api.status import Status
from weft_operator.planning.planner_process import Planned, Refused, read_answer
from weft_operator.render.config_maps import read_record
from weft_operator_tests.samples import (
    HYBRID,
    POOL_PROFILES,
    PROFILE_JSON,
    SYMMETRIC,
    TWO_POOLS,
    colocated,
    group,
    plan,
    plan_with_both_roles,
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


def asks_for(world: World) -> dict[str, int]:
    """Return how many workers of each role the one WorkerGroup has."""
    (name,) = world.cluster.names("WorkerGroup")
    spec = world.cluster.named("WorkerGroup", name)["spec"]
    roles: dict[str, int] = spec["roles"]
    assert sum(roles.values()) == spec["replicas"]
    return roles


def roles_of_pods(world: World) -> list[str]:
    return sorted(pod["metadata"]["labels"]["weft.dev/role"] for pod in world.cluster.pods.values())


async def test_a_symmetric_plan_is_one_group_whose_workers_have_both_roles() -> None:
    world = World(changed(service(), "spec.planning.layouts", ["symmetric"]))
    world.answer = Planned(plan=plan_with_both_roles(*SYMMETRIC), profile=PROFILE_JSON)
    await world.until_quiet()
    assert summary(world)["Ready"] == ("True", "Serving")
    assert world.requests[0]["engine"]["layouts"] == ["symmetric"]
    assert asks_for(world) == {"prefill": 0, "decode": 0, "both": 3}
    assert world.cluster.names("StatefulSet") == ["demo-w4-0", "demo-w4-1", "demo-w4-2"]
    assert roles_of_pods(world) == ["both"] * 3
    for pod in world.cluster.pods.values():
        sidecar = pod["spec"]["initContainers"][0]
        assert [arg for arg in sidecar["args"] if "role" in arg] == ["--role=worker"], "its role comes from the label"
        assert "--role=both" in pod["spec"]["containers"][0]["args"]
    status = world.cluster.service["status"]
    assert (status["planSummary"], status["workersSummary"]) == ("B4x3", "B3/3")
    assert status["plan"]["layout"] == "symmetric"
    assert [(row["role"], row["desired"], row["ready"]) for row in status["groups"]] == [("both", 3, 3)]
    Status.model_validate(status)
    # Planned again, the planner learns what runs.
    world.cluster.change(planning={"objective": "cost"})
    await world.until_quiet()
    assert world.requests[-1]["current"] == [{"role": "both", "degree": 4, "replicas": 3, "pool": "h20"}]
    assert "layouts" not in world.requests[-1]["engine"], "all that the engine can run"


async def test_layouts_of_the_same_workers_follow_each_other_without_a_restart() -> None:
    world = World()
    world.answer = Planned(plan=plan_with_both_roles(*HYBRID), profile=PROFILE_JSON)
    await world.until_quiet()
    assert world.cluster.service["status"]["planSummary"] == "P4x1 D4x1 B4x1"
    assert world.cluster.service["status"]["workersSummary"] == "P1/1 D1/1 B1/1"
    assert roles_of_pods(world) == ["both", "decode", "prefill"]
    before = {name: pod["metadata"]["uid"] for name, pod in world.cluster.pods.items()}
    for number, (groups, roles) in enumerate(
        (
            (SYMMETRIC, ["both"] * 3),
            ((group("prefill", 4, 2), group("decode", 4, 1)), ["decode", "prefill", "prefill"]),
            (HYBRID, ["both", "decode", "prefill"]),
        )
    ):
        world.answer = Planned(plan=plan_with_both_roles(*groups), profile=PROFILE_JSON)
        world.cluster.change(planning={"minImprovement": 0.1 + number / 10})
        await world.until_quiet()
        assert roles_of_pods(world) == roles
        assert summary(world)["Ready"] == ("True", "Serving")
        assert {name: pod["metadata"]["uid"] for name, pod in world.cluster.pods.items()} == before


async def test_another_layout_with_another_template_restarts_one_worker_at_a_time() -> None:
    """Its workers are days old, which bounds nothing."""
    world = World()
    world.answer = Planned(plan=plan_with_both_roles(*SYMMETRIC), profile=PROFILE_JSON)
    await world.until_quiet()
    before = {name: pod["metadata"]["uid"] for name, pod in world.cluster.pods.items()}
    world.now += timedelta(days=7)
    groups = (group("prefill", 4, 2), group("decode", 4, 1))
    world.answer = Planned(plan=plan_with_both_roles(*groups), profile=PROFILE_JSON)
    world.cluster.change(planning={"minImprovement": 0.2}, routing={"sessionTTL": "30m"})
    for _ in range(30):
        await world.step()
        serving = [pod for pod in world.cluster.pods.values() if (condition_of(pod, "Ready") or {})["status"] == "True"]
        assert len(serving) >= len(before) - 1
        assert summary(world)["Progressing"][1] != "RolloutAborted"
        world.cluster.settle()
    await world.until_quiet()
    assert summary(world)["Ready"] == ("True", "Serving")
    assert roles_of_pods(world) == ["decode", "prefill", "prefill"]
    after = {name: pod["metadata"]["uid"] for name, pod in world.cluster.pods.items()}
    assert before.keys() == after.keys()
    assert not set(before.values()) & set(after.values())


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
