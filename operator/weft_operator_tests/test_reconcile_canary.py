"""Canaries through whole passes: a share of the workers first, and back without a person where they do worse."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from weft_operator.api.objects import CANARY_ANNOTATION, Manifest, pod_role
from weft_operator.metrics.observation import NoMetricsError
from weft_operator.metrics.queries import windows_of
from weft_operator.render.config_maps import ledger_text
from weft_operator.rollout.ledger import CanaryRun, read_ledger
from weft_operator_tests.fake_prometheus import Prometheus, Router
from weft_operator_tests.samples import SETTINGS, group, planned
from weft_operator_tests.test_groups_apiserver import FIXED_ROLES
from weft_operator_tests.valid import changed, service
from weft_operator_tests.world import Answered, World, summary
from weft_router.config import CanaryConfig

NEW = (("prefill", 2, 4), ("decode", 4, 2))
OLD = {"p4": 2, "d8": 1}
SHARE = {**OLD, "p2": 1, "d4": 1}


def body(gpus: int = 32, **more: Any) -> Manifest:
    given = changed(service(), "spec.planning.prometheus", {"url": "https://prometheus.example.com/tenant"})
    given = changed(given, "spec.capacity.gpus", gpus)
    return changed(given, "spec.rollout.canary", {"percent": 10, "window": "5m", **more})


class Traffic:
    """A Prometheus of the world's pods; ``good`` is the share of good rounds on decode workers of each degree."""

    def __init__(self, world: World, good: dict[str, float], *, rounds: int = 200) -> None:
        self.world, self.good, self.rounds = world, good, rounds
        self.spoilt: float | None = None
        world.prometheus = self.answers

    def answers(self) -> Answered:
        now = self.world.now.timestamp()
        pods = self.world.cluster.pods
        routers = [Router(name, now - 5000, 2.0 / len(pods)) for name in sorted(pods)]
        given = Prometheus(routers, now, windows_of(300)).answers()
        rows = []
        for name, pod in pods.items():
            labels = pod["metadata"]["labels"]
            share = self.good.get(labels.get("weft.dev/degree", ""))
            if pod_role(pod) != "decode" or share is None:
                continue
            for outcome, part in (("good", share), ("bad", 1 - share)):
                value = part * self.rounds if self.spoilt is None else self.spoilt
                metric = {"figure": "pod_rounds", "pod": name, "outcome": outcome}
                rows.append({"metric": metric, "value": [0, str(value)]})
        return given.clock, [*given.results, rows]


async def another_plan(world: World, *groups: tuple[str, int, int]) -> None:
    world.answer = planned(*(group(role, degree, count) for role, degree, count in groups))
    world.cluster.change(slo={"ttft": "4s", "itl": "45ms"})
    await world.step()


async def steps(world: World, count: int = 8) -> None:
    """Let passes and controllers go on, and the operator look."""
    for _ in range(count):
        world.cluster.settle()
        await world.look()
        await world.step()


async def restarted(world: World) -> None:
    """Let another operator go on, which remembers nothing, for a pass and a look."""
    await world.metrics_poller.close()
    world.restart()
    await world.step()
    await steps(world, 1)


async def on_trial(given: Manifest | None = None, **good: float) -> tuple[World, Traffic]:
    world = World(given or body())
    world.cluster.gpus = 32
    await world.until_quiet()
    traffic = Traffic(world, {degree[1:]: share for degree, share in (good or {"d8": 0.95, "d4": 0.95}).items()})
    await another_plan(world, *NEW)
    await steps(world)
    return world, traffic


def asked(world: World) -> dict[str, int]:
    return world.cluster.asked()


def routed(world: World) -> dict[str, Any] | None:
    live = json.loads(world.cluster.named("ConfigMap", "demo-live")["data"]["live.json"])
    found: dict[str, Any] | None = live["routing"].get("canary")
    return found


def trial(world: World) -> CanaryRun | None:
    kept = read_ledger(ledger_text(world.cluster.named("ConfigMap", "demo-plan")))
    assert kept is not None
    return kept.canary


def plan_in_force(world: World) -> str:
    return str(world.cluster.service["status"]["planSummary"])


async def test_a_share_of_the_workers_starts_first_and_routers_know_the_canary() -> None:
    world, _ = await on_trial()
    assert asked(world) == SHARE
    assert summary(world)["Progressing"] == ("True", "CanaryRunning")
    assert summary(world)["Ready"] == ("True", "Serving")
    told = routed(world)
    assert told is not None
    assert CanaryConfig.model_validate(told).percent == 10, "routers understand it"
    assert {(one["role"], one["degree"]) for one in told["groups"]} == {("prefill", 2), ("decode", 4)}
    shown = world.cluster.service["status"]["canary"]
    assert (shown["plan"], shown["percent"], shown["state"], shown["hash"]) == (
        "P2x4 D4x2",
        10,
        "Running",
        told["salt"],
    )
    writes = world.cluster.status_writes
    await steps(world, 3)
    assert world.cluster.status_writes == writes, "a trial that goes on writes nothing"


async def test_a_plan_that_keeps_its_word_is_promoted() -> None:
    world, _ = await on_trial()
    world.now += timedelta(minutes=5, seconds=1)
    await steps(world)
    assert asked(world) == {"p2": 4, "d4": 2}
    assert summary(world)["Progressing"] == ("False", "UpToDate")
    assert routed(world) is None
    assert trial(world) is None
    assert "canary" not in world.cluster.service["status"]


async def test_a_plan_that_does_worse_is_undone_without_a_person_and_held() -> None:
    world, _ = await on_trial(d8=0.95, d4=0.1)
    await steps(world, 12)
    assert asked(world) == OLD
    assert "CanaryFailed" in {event.reason for event in world.cluster.events}
    assert plan_in_force(world) == "P4x2 D8x1"
    assert summary(world)["Planned"] == ("True", "RolledBack")
    message = world.cluster.condition("Planned")["message"]
    assert "P2x4 D4x2 failed its canary: 10.0% of its 200 rounds met the SLO, and 95.0% of those of the" in message
    assert routed(world) is None
    world.now += timedelta(hours=1)
    await steps(world, 4)
    assert asked(world) == OLD, "the same plan is not tried again"


async def test_a_person_may_roll_out_a_plan_that_failed_its_canary() -> None:
    world, _ = await on_trial(d8=0.95, d4=0.1)
    await steps(world, 12)
    assert (asked(world), summary(world)["Planned"]) == (OLD, ("True", "RolledBack"))
    world.cluster.service["metadata"].setdefault("annotations", {})["weft.dev/rollback-to"] = "2"
    await steps(world, 12)
    assert asked(world) == {"p2": 4, "d4": 2}
    assert trial(world) is None, "whoever asks for it has seen it"
    assert "revision 2 was requested" in world.cluster.condition("Planned")["message"]
    assert summary(world)["Progressing"] == ("False", "UpToDate")
    await restarted(world)
    assert asked(world) == {"p2": 4, "d4": 2}


async def test_a_plan_that_is_clearly_bad_is_not_kept_for_the_whole_window() -> None:
    world, _ = await on_trial(d8=0.95, d4=0.1)
    assert world.now.minute < 5
    await steps(world, 12)
    assert asked(world) == OLD


async def test_a_canary_that_is_a_little_worse_is_analyzed_at_the_end_only() -> None:
    world, _ = await on_trial(d8=0.95, d4=0.8)
    assert asked(world) == SHARE
    world.now += timedelta(minutes=5, seconds=1)
    await steps(world, 12)
    assert asked(world) == OLD


async def test_a_plan_no_worse_than_the_old_one_stays() -> None:
    world, _ = await on_trial(d8=0.5, d4=0.6)
    world.now += timedelta(minutes=5, seconds=1)
    await steps(world, 12)
    assert asked(world) == {"p2": 4, "d4": 2}


async def _blind(how: str) -> World:
    world = World(body())
    world.cluster.gpus = 32
    await world.until_quiet()
    traffic = Traffic(world, {"8": 0.95, "4": 0.1})
    if how == "nan":
        traffic.spoilt = float("nan")
    elif how == "nothing":
        traffic.rounds = 0
    else:

        def down() -> Answered:
            raise NoMetricsError("PrometheusUnreachable", "no answer")

        world.prometheus = down
    await another_plan(world, *NEW)
    await steps(world)
    return world


@pytest.mark.parametrize("how", ["down", "nan", "nothing"])
async def test_a_canary_without_metrics_is_not_analyzed_and_fails_at_max_window(how: str) -> None:
    world = await _blind(how)
    assert asked(world) == SHARE
    world.now += timedelta(minutes=6)
    await steps(world)
    assert asked(world) == SHARE, "the window is extended"
    assert "there are too few samples yet" in world.cluster.condition("Progressing")["message"]
    world.now += timedelta(minutes=10)
    await steps(world, 12)
    assert asked(world) == OLD
    assert "no result within 900 s" in world.cluster.condition("Planned")["message"]


async def test_a_restarted_operator_continues_the_canary() -> None:
    world, traffic = await on_trial()
    began = trial(world)
    await restarted(world)
    assert trial(world) == began
    traffic.good = {"8": 0.95, "4": 0.1}
    for _ in range(14):
        await restarted(world)
    assert asked(world) == OLD
    assert summary(world)["Planned"] == ("True", "RolledBack")


async def test_a_plan_without_room_beside_the_old_one_is_watched_whole() -> None:
    world, traffic = await on_trial(body(gpus=16))
    await steps(world, 12)
    assert asked(world) == {"p2": 4, "d4": 2}
    assert summary(world)["Progressing"] == ("True", "CanaryRunning")
    assert world.cluster.service["status"]["canary"]["percent"] == 100
    assert routed(world) is None
    traffic.good = {"4": 0.1}
    await steps(world, 20)
    assert asked(world) == OLD
    assert plan_in_force(world) == "P4x2 D8x1"


async def test_a_newer_spec_replaces_a_plan_with_a_canary() -> None:
    world, _ = await on_trial()
    world.answer = planned(group("prefill", 4, 2), group("decode", 8, 2))
    world.cluster.change(slo={"ttft": "3s", "itl": "45ms"})
    await steps(world, 12)
    assert asked(world) == {"p4": 2, "d8": 2}
    found = trial(world)
    assert found is not None
    assert found.kind == "Whole"


@pytest.mark.parametrize(("word", "end"), [("promote", {"p2": 4, "d4": 2}), ("abort", OLD)])
async def test_a_person_ends_a_canary(word: str, end: dict[str, int]) -> None:
    world, _ = await on_trial()
    name = world.cluster.service["status"]["canary"]["hash"]
    world.cluster.service["metadata"].setdefault("annotations", {})[CANARY_ANNOTATION] = f"{word} another"
    await steps(world, 2)
    assert asked(world) == SHARE
    world.cluster.service["metadata"]["annotations"][CANARY_ANNOTATION] = f"{word} {name}"
    await steps(world, 12)
    assert asked(world) == end


async def test_an_engine_that_does_worse_is_left_although_its_plan_is_the_same() -> None:
    world = World(body())
    world.cluster.gpus = 32
    await world.until_quiet()
    Traffic(world, {"8": 0.95})
    before = asked(world)
    engine = world.cluster.service["spec"]["engine"]
    world.cluster.change(engine={**engine, "args": ["--a-new-flag"]})
    await steps(world)
    assert summary(world)["Progressing"] == ("True", "CanaryRunning")
    name = world.cluster.service["status"]["canary"]["hash"]
    world.cluster.service["metadata"].setdefault("annotations", {})[CANARY_ANNOTATION] = f"abort {name}"
    await steps(world, 12)
    assert asked(world) == before
    assert summary(world)["Progressing"] == ("False", "CanaryFailed")
    assert "--a-new-flag" not in json.dumps(
        [world.cluster.objects[key]["spec"] for key in world.cluster.objects if key.kind == "StatefulSet"]
    )


async def test_where_the_spec_forbids_the_plan_before_the_status_still_names_what_runs() -> None:
    world = World(changed(body(), "spec.planning.revisionHistoryLimit", 1))
    world.cluster.gpus = 32
    await world.until_quiet()
    number = world.cluster.service["status"]["plan"]["number"]
    Traffic(world, {"8": 0.95, "4": 0.1})
    world.answer = planned(*(group(role, degree, count) for role, degree, count in NEW))
    capacity = world.cluster.service["spec"]["capacity"]
    world.cluster.change(capacity={**capacity, "pools": [{**pool, "degrees": [2, 4]} for pool in capacity["pools"]]})
    await steps(world, 16)
    assert asked(world) == OLD
    status = world.cluster.service["status"]
    assert (status["planSummary"], status["plan"]["number"]) == ("P4x2 D8x1", number)
    assert {(one["role"], one["degree"]) for one in status["plan"]["groups"]} == {("prefill", 4), ("decode", 8)}
    assert summary(world)["Progressing"] == ("False", "CanaryFailed")
    assert "P2x4 D4x2 was given up, and P4x2 D8x1 stays active" in world.cluster.condition("Planned")["message"]
    writes = world.cluster.status_writes
    await steps(world, 2)
    assert (asked(world), world.cluster.status_writes) == (OLD, writes)


async def test_a_first_plan_and_one_that_a_person_goes_back_to_are_not_tried() -> None:
    world = World(body())
    world.cluster.gpus = 32
    await world.until_quiet()
    assert trial(world) is None
    await another_plan(world, *NEW)
    Traffic(world, {"8": 0.95, "4": 0.95})
    await steps(world)
    world.cluster.service["metadata"].setdefault("annotations", {})["weft.dev/rollback-to"] = "1"
    await steps(world, 12)
    assert asked(world) == OLD
    assert trial(world) is None


async def named_by_role(gpus: int) -> World:
    """Return a world whose workers an older operator named by role, and which now takes the newer router."""
    world = World(changed(body(gpus), "spec.podTemplates", FIXED_ROLES))
    world.cluster.gpus = 32
    await world.until_quiet()
    await world.metrics_poller.close()
    newer = replace(SETTINGS, router_image="registry.example.com/weft-router:2")
    world.restart(newer)
    world.cluster.change(podTemplates=[])
    await world.until_quiet()
    assert world.cluster.names("StatefulSet") == ["demo-d8-0", "demo-p4-0", "demo-p4-1"]
    world.cluster.service["metadata"]["annotations"] = {"weft.dev/upgrade-router-to": newer.router_image}
    return world


async def test_a_plan_that_fails_its_canary_amid_a_takeover_returns_to_the_plan_before() -> None:
    """The workers of that plan were named by role, and are replaced by ones whose roles can change."""
    world = await named_by_role(32)
    Traffic(world, {"8": 0.95, "4": 0.1})
    await another_plan(world, *NEW)
    await steps(world, 30)
    assert summary(world)["Planned"] == ("True", "RolledBack")
    assert plan_in_force(world) == "P4x2 D8x1"
    assert asked(world) == OLD
    assert world.cluster.names("StatefulSet") == ["demo-w4-0", "demo-w4-1", "demo-w8-0"]
    assert summary(world)["Progressing"] == ("False", "UpToDate")
    writes = world.cluster.status_writes
    await steps(world, 2)
    assert (asked(world), world.cluster.status_writes) == (OLD, writes)


async def test_a_takeover_that_fails_its_canary_is_not_tried_again() -> None:
    """The plan before is the same one, with workers that are named by role: they stay."""
    world = await named_by_role(32)
    traffic = Traffic(world, {"8": 0.95})
    await steps(world, 12)
    assert summary(world)["Progressing"] == ("True", "CanaryRunning")
    traffic.good = {"8": 0.1}
    await steps(world, 20)
    named = ["demo-d8-0", "demo-p4-0", "demo-p4-1"]
    assert world.cluster.names("StatefulSet") == named
    assert summary(world)["Progressing"] == ("False", "CanaryFailed")
    assert summary(world)["Planned"] == ("True", "PlanReady"), "it is not held in its own place"
    await steps(world, 4)
    assert (plan_in_force(world), world.cluster.names("StatefulSet")) == ("P4x2 D8x1", named)
