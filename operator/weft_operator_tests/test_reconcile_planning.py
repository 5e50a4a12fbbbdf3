"""What passes do with plans, refusals and specs that cannot be planned, against a cluster in memory."""

import copy
import json
from datetime import timedelta
from typing import Any

import pytest

from weft_core.policies.ppd_file import FIELDS, table_to_json
from weft_operator.planning.planner_process import Refused
from weft_operator.planning.request import planner_request
from weft_operator.render.config_maps import read_record
from weft_operator_tests.samples import group, planned
from weft_operator_tests.valid import PROFILE, REMOVED, changed, rich_service, service, spec, traced_service
from weft_operator_tests.world import UNPLANNED, World, serving, summary
from weft_planner.request.reading import request_of

JWT = {
    "issuer": "https://login.example.com/",
    "audiences": ["weft"],
    "jwksConfigMapRef": {"name": "keys", "key": "jwks.json"},
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"profile": {"ref": {"name": "measured"}}}, ("ProfileNotFound", "no CostProfile measured")),
        ({"coordinator": {"auth": {"apiKeySecretRef": {"name": "keys", "key": "all"}}}}, ("SecretNotFound", "keys")),
        (
            {"coordinator": {"tls": {"secretRef": {"name": "front-tls"}}}},
            ("SecretNotFound", "no Secret front-tls with"),
        ),
        ({"coordinator": {"auth": {"jwt": JWT}}}, ("JwksNotFound", "no ConfigMap keys with a non-empty key jwks.json")),
        ({"capacity": {**service()["spec"]["capacity"], "gpus": 64}}, ("TooFewGpus", "the pools have 16")),
        ({"slo": {"ttft": "1ms", "itl": "40ms"}}, ("InvalidSpec", "spec.slo.ttft")),
    ],
    ids=["profile", "secret", "certificate", "jwks", "gpus", "spec"],
)
async def test_a_bad_change_leaves_the_workers_as_they_are(change: dict[str, Any], words: tuple[str, str]) -> None:
    world = await serving()
    world.cluster.api_key_found = world.cluster.certificate_found = world.cluster.jwks_found = False
    before = copy.deepcopy(world.cluster.objects)
    old = copy.deepcopy(world.cluster.service["spec"])
    world.cluster.change(**change)
    await world.until_quiet()
    assert summary(world)["Planned"] == ("False", words[0])
    assert summary(world)["Ready"] == ("True", "Serving")
    assert words[1] in world.cluster.condition("Planned")["message"]
    assert "workers of P4x2 D8x1 stay as they are" in world.cluster.condition("Planned")["message"]
    assert world.cluster.objects == before
    assert world.cluster.service["status"]["observedGeneration"] == 2
    # And it can be undone.
    world.cluster.service["spec"] = old
    world.cluster.service["metadata"]["generation"] += 1
    await world.until_quiet()
    assert summary(world)["Planned"] == ("True", "PlanReady")
    assert world.cluster.objects == before


async def test_a_lost_worker_is_replaced_while_the_new_spec_is_bad() -> None:
    world = await serving()
    world.cluster.change(profile={"ref": {"name": "measured"}})
    world.cluster.lose_node("demo-w4-0-0")
    await world.until_quiet()
    assert world.cluster.names("StatefulSet") == ["demo-w4-1", "demo-w4-2", "demo-w8-0"]
    assert summary(world)["Planned"] == ("False", "ProfileNotFound")
    assert summary(world)["Ready"] == ("True", "Serving")


async def test_a_profile_that_appears_is_used() -> None:
    world = World(changed(service(), "spec.profile", {"ref": {"name": "measured"}}))
    await world.until_quiet()
    assert summary(world)["Planned"] == ("False", "ProfileNotFound")
    world.cluster.profile = PROFILE
    await world.until_quiet()
    assert summary(world)["Ready"] == ("True", "Serving")
    assert world.requests[0]["profile"]["gpu"] == "nvidia-h20"
    assert "analytic" not in world.requests[0]


async def test_a_profile_comes_before_silicon_tables() -> None:
    """A service that was created with settings of the tables is given a profile by adding ``ref``."""
    world = World(changed(service(), "spec.profile", {"ref": {"name": "measured"}, "silicon": {}}))
    world.cluster.profile = PROFILE
    await world.until_quiet()
    assert world.requests[0]["profile"]["gpu"] == "nvidia-h20"
    assert "silicon" not in world.requests[0]


@pytest.mark.parametrize(
    ("profile", "silicon"),
    [
        (None, {}),
        ({}, {}),
        ({"silicon": {"prefillOverhead": 0.004}}, {"prefillOverhead": 0.004}),
        (
            {"silicon": {"system": "h100_sxm", "backend": "sglang", "version": "0.5.14"}},
            {"system": "h100_sxm", "backend": "sglang", "version": "0.5.14"},
        ),
        ({"analytic": {}}, None),
    ],
)
def test_silicon_tables_are_asked_for_unless_the_spec_says_otherwise(
    profile: dict[str, Any] | None, silicon: dict[str, Any] | None
) -> None:
    body = service() if profile is None else changed(service(), "spec.profile", profile)
    assert planner_request(spec(body)).get("silicon") == silicon


async def test_a_trace_that_appears_is_handed_to_the_planner() -> None:
    world = World(traced_service())
    await world.until_quiet()
    assert summary(world)["Planned"] == ("False", "TraceNotFound")
    assert "no ConfigMap trace with a non-empty key sessions.jsonl" in world.cluster.condition("Planned")["message"]
    world.cluster.trace = {"binaryData": {"sessions.jsonl": "H4sI"}}
    await world.until_quiet()
    assert summary(world)["Ready"] == ("True", "Serving")
    assert world.requests[0]["workload"] == {
        "trace": {"name": "ConfigMap trace, sessions.jsonl", "data": "H4sI", "encoding": "base64"}
    }
    world.cluster.trace = {"data": {"sessions.jsonl": "{}"}}  # another trace is another question
    await world.until_quiet()
    assert world.requests[-1]["workload"]["trace"]["data"] == "{}"


async def test_routers_follow_the_routing_table_without_a_restart() -> None:
    def routers_params() -> Any:
        live = next(item for key, item in world.cluster.objects.items() if key.name.endswith("-live"))
        return json.loads(live["data"]["live.json"])["routing"]["params"]

    def templates() -> Any:
        return [item["spec"]["template"] for key, item in world.cluster.objects.items() if key.kind == "StatefulSet"]

    world = await serving()
    before = copy.deepcopy(templates())
    reference = {"name": "learned", "key": "table.json"}
    world.cluster.change(routing={"policy": "ppd", "tableConfigMapRef": reference, "params": {"w_tpot": 3}})
    await world.until_quiet()
    assert summary(world)["Planned"] == ("False", "RoutingTableNotFound")
    assert "no ConfigMap learned with a non-empty key table.json" in world.cluster.condition("Planned")["message"]
    table = {name: parameter.default for name, parameter in FIELDS.items()}
    world.cluster.routing_table = {"data": {"table.json": table_to_json(table)}}
    await world.until_quiet()
    assert summary(world)["Planned"] == ("True", "PlanReady")
    assert routers_params() == {**table, "w_tpot": 3}
    assert world.requests[-1]["routing"]["params"] == {**table, "w_tpot": 3}, "plans are simulated with it"
    cell = "ttft_fall.long.balanced.high"
    world.cluster.routing_table = {"data": {"table.json": table_to_json({**table, cell: -0.5})}}
    await world.until_quiet()
    assert routers_params()[cell] == -0.5
    world.cluster.routing_table = {"data": {"table.json": table_to_json({**table, cell: 1.5})}}
    await world.until_quiet()
    assert summary(world)["Planned"] == ("False", "RoutingTableInvalid")
    assert f"ConfigMap learned, table.json: {cell}: 1.5 is not between" in world.cluster.condition("Planned")["message"]
    assert summary(world)["Ready"] == ("True", "Serving")
    assert routers_params()[cell] == -0.5, "the last table that could be used stays"
    assert templates() == before, "no worker restarts"


def test_the_planner_is_asked_in_seconds_with_the_classes_slos() -> None:
    request = planner_request(spec(rich_service()))
    asked = request_of({key: value for key, value in request.items() if value is not None}).workload
    chat, agents = asked.mix
    assert (chat.ttft, chat.itl, chat.share, chat.gap.mean) == (1.0, 0.03, 0.75, 20.0)
    assert (agents.ttft, agents.prefix) == (None, 200)
    assert agents.rounds.mean == pytest.approx(12)
    assert asked.arrivals.cv == 1.5
    assert agents.gap.mean == pytest.approx(2.0)
    preset = planner_request(spec(changed(service(), "spec.workload", {"preset": "ampd/gaia", "arrivalRate": 2})))
    assert preset["workload"] == {"preset": "ampd/gaia", "arrivalRate": 2.0}
    plain = planner_request(spec(changed(service(), "spec.workload.gap", REMOVED)))
    assert plain["workload"]["gap"] == {"mean": 5.0}


async def test_a_profile_with_a_bad_figure_is_named() -> None:
    world = World(changed(service(), "spec.profile", {"ref": {"name": "measured"}}))
    world.cluster.profile = changed(PROFILE, "spec.degrees.0.decode", REMOVED)
    await world.until_quiet()
    assert summary(world)["Planned"] == ("False", "ProfileInvalid")
    assert "CostProfile measured: spec.degrees.0.decode" in world.cluster.condition("Planned")["message"]


async def test_more_gpus_than_there_are_is_allowed_where_nodes_grow() -> None:
    world = World(changed(service(), "spec.capacity.elastic", True))
    world.cluster.gpus = 0
    await world.until_quiet()
    assert summary(world)["Ready"] == ("True", "Serving")
    blind = World()
    blind.cluster.gpus = None
    await blind.until_quiet()
    assert summary(blind)["Ready"] == ("True", "Serving")


async def test_an_infeasible_plan_says_why_with_the_planners_words() -> None:
    world = World()
    world.answer = Refused("ModelDoesNotFit", "141 GB are needed and 72 GB are there; degree 4 would do")
    await world.until_quiet()
    assert summary(world) == {
        "Planned": ("False", "ModelDoesNotFit"),
        "Ready": ("False", "NotPlanned"),
        "Progressing": ("False", "WaitingForPlan"),
        **UNPLANNED,
    }
    assert world.cluster.actions == []
    assert len(world.requests) == 1
    for _ in range(3):
        world.now += timedelta(hours=1)
        await world.step()
    assert len(world.requests) == 1, "the same question has the same answer"


async def test_an_unknown_refusal_has_a_documented_reason() -> None:
    world = World()
    world.answer = Refused("SomethingNew", "no")
    await world.until_quiet()
    assert world.cluster.condition("Planned")["reason"] == "Infeasible"
    assert world.cluster.condition("Planned")["message"] == "SomethingNew: no"


async def test_a_planner_that_crashes_is_asked_again_later() -> None:
    world = await serving()
    world.answer = Refused("PlannerTimeout", "no answer within 60 s", passing=True)
    world.cluster.change(slo={"ttft": "3s", "itl": "40ms"})
    await world.until_quiet()
    assert summary(world)["Planned"] == ("False", "PlannerTimeout")
    assert summary(world)["Ready"] == ("True", "Serving")
    outcome = await world.step()
    assert outcome.requeue_after == 15
    assert len(world.requests) == 2
    world.answer = planned(group("prefill", 4, 1), group("decode", 8, 1))
    world.now += timedelta(seconds=15)
    await world.until_quiet()
    assert len(world.requests) == 3
    assert summary(world)["Planned"] == ("True", "PlanReady")
    assert world.cluster.service["status"]["planSummary"] == "P4x1 D8x1"
    assert world.cluster.names("StatefulSet") == ["demo-w4-0", "demo-w8-0"]


async def test_a_plan_that_was_deleted_is_made_again() -> None:
    world = await serving()
    key = next(key for key in world.cluster.objects if key.name == "demo-plan")
    pods = {name: pod["metadata"]["uid"] for name, pod in world.cluster.pods.items()}
    for restarts, questions in ((False, 1), (True, 2)):
        del world.cluster.objects[key]
        if restarts:
            world.restart()
        await world.until_quiet()
        assert len(world.requests) == questions
        assert key in world.cluster.objects
        assert summary(world)["Ready"] == ("True", "Serving")
    assert pods == {name: pod["metadata"]["uid"] for name, pod in world.cluster.pods.items()}


@pytest.mark.parametrize("name", ["plan.json", "profile.json", "spec.json"])
@pytest.mark.parametrize("text", ["null", "[]", "{}", "no JSON"])
async def test_a_plan_that_was_damaged_is_made_again(name: str, text: str) -> None:
    world = await serving()
    config = world.cluster.named("ConfigMap", "demo-plan")
    before = copy.deepcopy(config["data"])
    config["data"][name] = text
    world.restart()
    await world.until_quiet()
    assert len(world.requests) == 2
    assert world.cluster.named("ConfigMap", "demo-plan")["data"] == before


async def test_with_planning_off_the_plan_in_force_stays() -> None:
    world = await serving()
    world.cluster.change(planning={"mode": "Off"}, slo={"ttft": "9s", "itl": "90ms"})
    await world.until_quiet()
    assert len(world.requests) == 1
    assert "planning.mode is Off" in world.cluster.condition("Planned")["message"]
    record = read_record(world.cluster.named("ConfigMap", "demo-plan"))
    assert record is not None
    assert record.spec.slo.ttft == "9s"
