"""What passes do about drift: another plan is asked for, proposed or carried out, and survives a restart."""

import asyncio
import copy
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from weft_operator.api.objects import APPROVE_ANNOTATION
from weft_operator.api.status import Status
from weft_operator.kube.leader_election.namespace_claims import FindOtherOperator, no_other_operator
from weft_operator.metrics.observation import MetricsAvailability, Observation, Tally, WorkerPressure
from weft_operator.planning.planner_process import Planned, Refused
from weft_operator.render.config_maps import read_record
from weft_operator.render.inputs import PlanRecord
from weft_operator.settings import Settings
from weft_operator.status.reasons.planned import PLANNED
from weft_operator_tests.observations import FLAT, blind, look, plan_for, service_with, spread
from weft_operator_tests.samples import KEY
from weft_operator_tests.world import World, summary


class Watched(World):
    """A service with two decode workers for 0.6 sessions/s, and a clock that stands at the newest look."""

    def __init__(self, **planning: Any) -> None:
        super().__init__(service_with(**{"objective": "cost", "cooldown": "0s", **planning}))
        self.answer = Planned(plan=plan_for(2, rate=0.6), profile=FLAT)
        self.start = self.now
        self.seen: Observation | None = None

    def restart(
        self, settings: Settings | None = None, *, other_operator: FindOtherOperator = no_other_operator
    ) -> None:
        super().restart(settings, other_operator=other_operator)
        setattr(self.metrics_poller, "last", lambda _key: getattr(self, "seen", None))  # noqa: B010 - for mypy

    def serves(self, begin: float, end: float, rate: float, **parts: Any) -> None:
        """Let the watch see a load from one moment to another, in seconds since the start."""
        self.see(*(look(begin + 10.0 * k, rate, **parts) for k in range(int((end - begin) / 10) + 1)))

    def see(self, *looks: Observation) -> None:
        """Let the watch see something."""
        for one in looks:
            self.now = one.at
            self.seen = one
            self.replanning_state.on_observation(KEY, one)

    def offers(self, workers: int, rate: float, instead_of: int = 2) -> None:
        """Let the planner answer with so many decode workers from now on."""
        self.answer = Planned(plan=plan_for(workers, rate=rate, instead_of=instead_of), profile=FLAT)

    @property
    def record(self) -> PlanRecord:
        """Return the active plan as the cluster keeps it."""
        found = read_record(self.cluster.named("ConfigMap", "demo-plan"))
        assert found is not None
        return found

    @property
    def planned(self) -> tuple[str, str]:
        """Return status and reason of the condition Planned, which must be documented."""
        Status.model_validate(self.cluster.service["status"])
        status, reason = summary(self)["Planned"]
        assert reason in PLANNED
        return status, reason

    @property
    def message(self) -> str:
        return str(self.cluster.condition("Planned")["message"])

    def approve(self, hashed: str) -> None:
        """Annotate the service, as a person does."""
        self.cluster.service["metadata"].setdefault("annotations", {})[APPROVE_ANNOTATION] = hashed

    def decode_workers(self) -> list[str]:
        """Return the names of the decode workers' StatefulSets."""
        return [name for name, role in self.cluster.roles().items() if role == "decode"]

    def reasons(self) -> list[str]:
        """Return the reasons of all events."""
        return [event.reason for event in self.cluster.events]


async def watched(**planning: Any) -> Watched:
    world = Watched(**planning)
    world.see(look(0.0))
    await world.until_quiet()
    assert summary(world)["Ready"] == ("True", "Serving")
    assert world.planned == ("True", "PlanReady")
    assert len(world.requests) == 1
    return world


async def test_more_load_gets_more_workers_in_the_next_pass() -> None:
    world = await watched()
    world.serves(10, 310, 1.8)
    world.offers(5, 1.8)
    await world.step()
    assert world.planned == ("True", "Replanning")
    assert summary(world)["Ready"] == ("True", "Serving"), "the active plan is for this spec"
    await world.step()
    assert world.decode_workers() == [f"demo-w1-{index}" for index in (0, 1, 3, 4, 5)]
    await world.until_quiet()
    asked = world.requests[1]
    assert asked["workload"]["arrivalRate"] == 1.8
    assert asked["current"] == [
        {"role": "decode", "degree": 1, "replicas": 2, "pool": "h20"},
        {"role": "prefill", "degree": 1, "replicas": 1, "pool": "h20"},
    ]
    assert len(world.requests) == 2
    assert world.planned == ("True", "Replanned")
    assert "P1x1 D1x5 was made for the observed traffic, because 1.8 sessions/s arrive" in world.message
    plan = world.cluster.service["status"]["plan"]
    assert (plan["madeFrom"], plan["validity"]["arrivalRate"]) == ("observed", 1.8)
    assert world.reasons().count("Replanned") == 1
    assert "proposedPlan" not in world.cluster.service["status"]


async def test_a_restarted_operator_keeps_the_plan_for_what_was_seen() -> None:
    world = await watched()
    world.serves(10, 310, 1.8)
    world.offers(5, 1.8)
    await world.until_quiet()
    before, events = copy.deepcopy(world.cluster.objects), len(world.cluster.events)
    world.restart()
    await world.until_quiet()
    assert world.cluster.objects == before
    assert len(world.requests) == 2, "an unchanged spec asks for no plan of its own workload"
    assert world.planned == ("True", "Replanned")
    assert world.record.baseline.changed_at == world.now
    assert len(world.cluster.events) == events


async def test_a_changed_slo_is_planned_for_what_was_seen_and_a_changed_workload_for_itself() -> None:
    world = await watched()
    world.serves(10, 310, 1.8, first_prompt=spread(1100.0))
    world.offers(5, 1.8)
    await world.until_quiet()
    world.cluster.change(slo={"ttft": "3s", "itl": "40ms"})
    await world.until_quiet()
    asked = world.requests[-1]
    assert len(world.requests) == 3
    assert (asked["workload"]["arrivalRate"], asked["workload"]["firstPrompt"]["mean"]) == (1.8, 1100)
    assert asked["slo"]["ttft"] == 3
    assert world.planned == ("True", "PlanReady")
    assert world.cluster.service["status"]["plan"]["madeFrom"] == "observed"
    world.cluster.change(workload={**world.cluster.service["spec"]["workload"], "arrivalRate": 0.7})
    await world.until_quiet()
    assert world.requests[-1]["workload"]["arrivalRate"] == 0.7
    assert world.requests[-1]["workload"]["firstPrompt"]["mean"] == 1000
    assert world.record.baseline.workload is None
    assert world.cluster.service["status"]["plan"]["madeFrom"] == "spec.workload"


@pytest.mark.parametrize(("mode", "reason"), [("Advisory", "ReplanProposed"), ("Manual", "AwaitingApproval")])
async def test_other_modes_touch_no_child(mode: str, reason: str) -> None:
    world = await watched(mode=mode)
    before = {key: item for key, item in copy.deepcopy(world.cluster.objects).items() if key.name != "demo-plan"}
    world.serves(10, 310, 1.8)
    world.offers(5, 1.8)
    await world.until_quiet()
    assert world.planned == ("True", reason)
    assert {key: item for key, item in world.cluster.objects.items() if key.name != "demo-plan"} == before
    proposal = world.cluster.service["status"]["proposedPlan"]
    assert (proposal["summary"], proposal["madeFrom"], proposal["gpus"]) == ("P1x1 D1x5", "observed", 6)
    assert proposal["reason"].startswith("1.8 sessions/s arrive (540 counted) and the plan holds the SLO up to 0.99")
    assert proposal["diff"] == [
        "decode workers of 1 GPU in h20: 2 -> 5",
        "GPUs: 3 -> 6",
        "carries within the SLO: 1 sessions/s -> 2.5 sessions/s",
    ]
    assert world.reasons().count("PlanProposed") == 1
    # It stays what it is while more is seen, and after a restart.
    world.restart()
    world.serves(320, 900, 1.9)
    await world.until_quiet()
    assert world.cluster.service["status"]["proposedPlan"] == proposal
    assert world.reasons().count("PlanProposed") == 1


async def test_an_approved_proposal_is_carried_out_also_by_a_restarted_operator() -> None:
    world = await watched(mode="Manual")
    world.serves(10, 310, 1.8)
    world.offers(5, 1.8)
    await world.until_quiet()
    hashed = world.cluster.service["status"]["proposedPlan"]["hash"]
    assert f"weft.dev/approve: {hashed}" in world.message
    world.approve("000000000000")
    await world.until_quiet()
    assert world.planned == ("True", "ApprovalStale")
    assert f"the proposal is {hashed}; nothing was changed" in world.message
    assert len(world.decode_workers()) == 2
    assert world.reasons().count("ApprovalStale") == 1
    world.restart()
    world.see(look(320.0, 1.8))
    world.approve(hashed)
    await world.until_quiet()
    assert len(world.decode_workers()) == 5
    assert world.planned == ("True", "Replanned")
    assert world.record.baseline.approved == hashed
    assert "proposedPlan" not in world.cluster.service["status"]
    assert world.reasons().count("Replanned") == 1


async def test_a_changed_spec_waits_for_a_person_too() -> None:
    world = await watched(mode="Manual")
    before = copy.deepcopy(world.cluster.objects)
    world.offers(4, 0.6)
    world.cluster.change(slo={"ttft": "1s", "itl": "40ms"})
    await world.until_quiet()
    assert world.planned == ("False", "AwaitingApproval")
    assert "P1x1 D1x2 -> P1x1 D1x4 is proposed, because the spec changed" in world.message
    assert summary(world)["Ready"] == ("True", "Serving")
    changed = {key.name for key, item in world.cluster.objects.items() if item != before[key]}
    assert changed == {"demo-plan"}
    world.restart()
    await world.until_quiet()
    assert len(world.requests) == 2, "the proposal answers the question"
    world.approve("000000000000")
    await world.until_quiet()
    assert world.planned == ("False", "ApprovalStale")
    world.approve(world.cluster.service["status"]["proposedPlan"]["hash"])
    await world.until_quiet()
    assert len(world.decode_workers()) == 4
    assert world.planned == ("True", "PlanReady")
    assert world.record.spec.slo.ttft == "1s"


async def test_a_proposal_for_a_spec_that_was_taken_back_is_dropped() -> None:
    world = await watched(mode="Advisory")
    old = world.cluster.service["spec"]["slo"]
    world.offers(4, 0.6)
    world.cluster.change(slo={"ttft": "1s", "itl": "40ms"})
    await world.until_quiet()
    assert world.planned == ("False", "ReplanProposed")
    world.cluster.change(slo=old)
    await world.until_quiet()
    assert world.planned == ("True", "PlanReady")
    assert "proposedPlan" not in world.cluster.service["status"]


async def test_a_change_that_moves_no_worker_needs_no_person() -> None:
    world = await watched(mode="Manual")
    world.offers(2, 0.6)
    world.cluster.change(slo={"ttft": "1s", "itl": "40ms"})
    await world.until_quiet()
    assert world.planned == ("True", "PlanReady")
    assert world.record.spec.slo.ttft == "1s"


async def test_while_nothing_is_seen_nothing_is_changed_and_it_is_reported() -> None:
    world = await watched()
    world.offers(1, 0.1)
    world.serves(10, 2000, 0.1)
    world.see(blind(2010.0, "PrometheusUnreachable"))
    before = copy.deepcopy(world.cluster.objects)
    await world.until_quiet()
    assert world.planned == ("True", "MetricsUnavailable")
    assert "(PrometheusUnreachable)" in world.message
    assert world.cluster.objects == before
    writes = world.cluster.status_writes
    for number in range(5):
        world.see(
            replace(
                blind(2020.0 + number),
                availability=MetricsAvailability("PrometheusUnreachable", f"no answer for {number} s"),
            )
        )
        await world.step()
    assert world.cluster.status_writes == writes, "no write while blind"
    assert len(world.requests) == 1
    world.serves(2030, 4100, 0.1)
    await world.until_quiet()
    assert len(world.decode_workers()) == 1, "half an hour of sight later"


async def test_blindness_ends_a_question_that_the_planner_works_on() -> None:
    world = await watched()
    gate = asyncio.Event()
    solve = world.planner_client._solve

    async def slow(request: Any) -> Any:
        await gate.wait()
        return await solve(request)

    setattr(world.planner_client, "_solve", slow)  # noqa: B010 - for mypy
    world.offers(5, 1.8)
    world.serves(10, 310, 1.8)
    await world.step()
    world.see(blind(320.0))
    await world.step()
    assert world.planned == ("True", "MetricsUnavailable")
    gate.set()
    await world.until_quiet()
    assert len(world.decode_workers()) == 2
    assert len(world.requests) == 1


async def test_the_question_stands_while_more_is_seen() -> None:
    world = await watched()
    gate = asyncio.Event()
    solve, calls = world.planner_client._solve, 0

    async def slow(request: Any) -> Any:
        nonlocal calls
        calls += 1
        await gate.wait()
        return await solve(request)

    setattr(world.planner_client, "_solve", slow)  # noqa: B010 - for mypy
    world.offers(5, 1.8)
    world.serves(10, 310, 1.8)
    for number in range(5):
        await world.step()
        world.see(look(320.0 + 10 * number, 1.8 + number / 10))
    assert calls == 1
    gate.set()
    await world.until_quiet()
    assert world.requests[-1]["workload"]["arrivalRate"] == 1.8
    assert len(world.decode_workers()) == 5


async def test_the_cooldown_is_reported_and_requeued() -> None:
    world = await watched(cooldown="10m")
    world.serves(10, 310, 1.8)
    world.offers(5, 1.8)
    outcome = await world.step()
    assert world.planned == ("True", "Cooldown")
    assert outcome.requeue_after == 290
    assert len(world.requests) == 1
    world.serves(320, 600, 1.8)
    await world.until_quiet()
    assert len(world.decode_workers()) == 5


@pytest.mark.parametrize(
    ("workers", "rate", "parts", "reason"),
    [
        (2, 0.6, {"fast": Tally(100, 100), "slow": Tally(500, 500)}, "NoBetterPlan"),
        (1, 0.1, {"pressure": WorkerPressure(queue=0.0, kv_use={"decode": 0.8})}, "SessionsDoNotFit"),
        (1, 0.1, {"fast": Tally(100, 100)}, "ScaleDownStabilized"),
    ],
)
async def test_every_reason_to_keep_a_plan_is_reported(workers: int, rate: float, parts: Any, reason: str) -> None:
    world = await watched(cooldown="10m")
    world.offers(workers, rate)
    world.serves(10, 2000, rate, **parts)
    await world.step()
    await world.step()
    assert world.planned == ("True", reason)
    assert len(world.requests) == 2
    writes = world.cluster.status_writes
    for _ in range(3):
        await world.step()
    assert world.cluster.status_writes == writes, "nothing changed"
    assert len(world.requests) == 2, "the question is put once in the cooldown"
    assert len(world.decode_workers()) == 2


async def test_a_planner_without_a_plan_changes_nothing() -> None:
    world = await watched(cooldown="10m")
    world.answer = Refused("OverBudget", "more than 8 an hour")
    world.serves(10, 800, 1.8)
    await world.until_quiet()
    assert world.planned == ("True", "ReplanFailed")
    assert world.message == "OverBudget: more than 8 an hour"
    assert summary(world)["Ready"] == ("True", "Serving")


async def test_too_few_nodes_for_the_budget_keep_the_plan() -> None:
    world = await watched(cooldown="10m")
    world.cluster.gpus = 4
    world.serves(10, 800, 1.8)
    await world.until_quiet()
    assert world.planned == ("True", "ReplanFailed")
    assert "TooFewGpus" in world.message
    assert len(world.decode_workers()) == 2


async def test_an_observation_that_starts_a_drift_enqueues_the_service_and_others_do_not() -> None:
    world = await watched()
    assert not world.replanning_state.on_observation(KEY, look(10.0))
    woken = [
        seconds
        for seconds in range(20, 600, 10)
        if world.replanning_state.on_observation(KEY, look(float(seconds), 1.8))
    ]
    assert len(woken) == 1
    assert woken[0] <= 80
    assert world.replanning_state.on_observation(KEY, look(610.0, 0.6)), "it is over"
    assert not world.replanning_state.on_observation(KEY, look(620.0, 0.6))
    world.replanning_state.forget(KEY)
    assert not world.replanning_state.on_observation(KEY, look(1300.0, 9.0))


@pytest.mark.parametrize("text", ["null", "[]", "{}", "no JSON", '{"changedAt": 3}', '{"proposal": {}}'])
async def test_a_damaged_memory_of_replanning_leaves_the_plan_in_force(text: str) -> None:
    world = await watched()
    config = world.cluster.named("ConfigMap", "demo-plan")
    config["data"]["replanning.json"] = text
    world.restart()
    await world.until_quiet()
    assert len(world.requests) == 1
    assert world.planned == ("True", "PlanReady")
    assert len(world.decode_workers()) == 2


async def test_a_deleted_service_is_forgotten() -> None:
    world = await watched()
    world.cluster.service["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    outcome = await world.step()
    assert outcome.gone
    assert not world.replanning_state.on_observation(KEY, look(10.0, 9.0))
    world.now += timedelta(seconds=1)
