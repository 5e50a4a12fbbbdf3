"""Plan revisions: what is kept of plans, their numbers, and taking an older one up again."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from weft_core.plan import Plan
from weft_operator.api.engine_parts import RoleEngine
from weft_operator.api.objects import ROLLBACK_ANNOTATION, Manifest, annotations_of
from weft_operator.api.status import Status
from weft_operator.metrics.observation import WorkerPressure
from weft_operator.planning.planner_process import Planned
from weft_operator.render.config_maps import read_record
from weft_operator.render.plan_baseline import Hold, PlanBaseline, baseline_json, read_baseline
from weft_operator.render.revisions import cause_of, find_revision, kept_revisions, revision_name, revision_object
from weft_operator_tests.observations import FLAT, VALID, blind, look, plan_for
from weft_operator_tests.samples import SYMMETRIC, record, rendering, with_both_roles
from weft_operator_tests.test_reconcile_replanning import Watched, watched
from weft_operator_tests.world import summary


def plans(world: Watched) -> dict[int, Manifest]:
    """Return the kept revisions by number."""
    found = [item for key, item in world.cluster.objects.items() if key.kind == "ControllerRevision"]
    numbers = {item["revision"]: item for item in found}
    assert len(numbers) == len(found), "a number is given once"
    return numbers


def shape(revision: Manifest) -> str:
    return annotations_of(revision)["weft.dev/plan-summary"]


async def drifts(world: Watched, at: float, rate: float, workers: int, instead_of: int) -> float:
    """Let the traffic drift until a plan with so many workers is active; return the moment after it."""
    world.offers(workers, rate, instead_of)
    world.serves(at, at + 900, rate)
    await world.until_quiet()
    assert len(world.decode_workers()) == workers
    return at + 910


def undo(world: Watched, number: object) -> None:
    world.cluster.service["metadata"].setdefault("annotations", {})[ROLLBACK_ANNOTATION] = str(number)


async def test_every_plan_in_force_is_kept_with_what_it_was_made_from() -> None:
    world = await watched()
    await drifts(world, 10, 1.8, 5, 2)
    kept = plans(world)
    assert {number: shape(item) for number, item in kept.items()} == {1: "P1x1 D1x2", 2: "P1x1 D1x5"}
    second = kept[2]
    assert second["metadata"]["ownerReferences"][0]["kind"] == "DisaggInferenceService"
    assert annotations_of(second)["weft.dev/change-cause"].startswith("1.8 sessions/s arrive")
    assert annotations_of(second)["weft.dev/in-force-since"].startswith("2026-01-01T00:")
    was = read_record(second)
    assert was is not None
    assert was.plan.predicted == world.record.plan.predicted
    assert was.baseline.workload == world.record.baseline.workload
    assert was.spec == world.record.spec
    status = world.cluster.service["status"]
    Status.model_validate(status)
    assert status["plan"]["number"] == 2


async def test_a_restart_and_a_quiet_pass_write_no_revision() -> None:
    world = await watched()
    before = copy.deepcopy(plans(world))
    world.restart()
    count = len(world.cluster.actions)
    await world.until_quiet()
    assert plans(world) == before
    assert len(world.cluster.actions) == count


async def test_only_the_newest_are_kept_and_the_one_in_force_always() -> None:
    world = await watched(revisionHistoryLimit=3)
    at, now = 10.0, 2
    for workers, rate in ((4, 1.6), (7, 3.0), (11, 5.0), (14, 6.9)):
        at = await drifts(world, at, rate, workers, now)
        now = workers
    assert sorted(plans(world)) == [3, 4, 5]
    assert shape(plans(world)[5]) == "P1x1 D1x14"


async def test_the_same_plan_again_is_the_same_object_with_the_next_number() -> None:
    world = await watched()
    names = {number: item["metadata"]["name"] for number, item in plans(world).items()}
    at = await drifts(world, 10, 1.8, 5, 2)
    world.offers(2, 0.6, 5)
    world.serves(at, at + 2000, 0.6)
    await world.until_quiet()
    assert len(world.decode_workers()) == 2
    kept = plans(world)
    assert sorted(kept) == [2, 3]
    assert kept[3]["metadata"]["name"] == names[1]
    assert world.cluster.service["status"]["plan"]["number"] == 3


async def test_a_rollback_to_an_older_plan_is_held() -> None:
    world = await watched()
    at = await drifts(world, 10, 1.8, 5, 2)
    asked = len(world.requests)
    undo(world, 1)
    await world.until_quiet()
    assert len(world.decode_workers()) == 2
    assert world.planned == ("True", "RolledBack")
    assert "revision 1 was requested in place of P1x1 D1x5" in world.message
    assert world.reasons().count("RolledBack") == 1
    assert shape(plans(world)[3]) == "P1x1 D1x2"
    assert annotations_of(plans(world)[3])["weft.dev/change-cause"].startswith("revision 1 was requested")
    # The traffic that the newer plan was for goes on, the SLO suffers, and the operator is another one: it is held.
    world.restart()
    world.serves(at, at + 3000, 1.8, ttft=9.0)
    await world.until_quiet()
    assert len(world.decode_workers()) == 2
    assert len(world.requests) == asked
    assert world.planned == ("True", "RolledBack")


async def test_other_traffic_ends_the_hold() -> None:
    world = await watched()
    at = await drifts(world, 10, 1.8, 5, 2)
    undo(world, 1)
    await world.until_quiet()
    at = await drifts(world, at, 4.0, 10, 2)
    assert world.planned == ("True", "Replanned")
    assert world.record.baseline.hold is None
    # The annotation is still there; it was heeded once.
    world.serves(at, at + 300, 4.0)
    await world.until_quiet()
    assert len(world.decode_workers()) == 10
    assert world.planned[1] == "Replanned"


async def test_a_changed_spec_ends_the_hold() -> None:
    world = await watched()
    await drifts(world, 10, 1.8, 5, 2)
    undo(world, 1)
    await world.until_quiet()
    world.offers(4, 1.8)
    world.cluster.change(slo={"ttft": "3s", "itl": "40ms"})
    await world.until_quiet()
    assert len(world.decode_workers()) == 4
    assert world.planned == ("True", "PlanReady")
    assert world.record.baseline.hold is None


async def test_taking_the_annotation_away_ends_the_hold() -> None:
    world = await watched()
    at = await drifts(world, 10, 1.8, 5, 2)
    undo(world, 1)
    await world.until_quiet()
    del world.cluster.service["metadata"]["annotations"][ROLLBACK_ANNOTATION]
    await drifts(world, at, 1.8, 5, 2)
    assert world.planned == ("True", "Replanned")


@pytest.mark.parametrize("number", ["7", "first", "-1", "0"])
async def test_a_revision_that_is_not_kept_changes_nothing(number: str) -> None:
    world = await watched()
    before = copy.deepcopy(world.cluster.objects)
    undo(world, number)
    await world.until_quiet()
    assert world.planned == ("True", "RollbackRevisionNotFound")
    assert f"names {number!r}" in world.message
    assert world.cluster.objects == before
    assert world.reasons().count("RollbackRevisionNotFound") == 1


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"model": {"name": "meta-llama/Llama-3.1-8B-Instruct", "maxModelLen": 8192}}, "spec.model.name"),
        ({"planning": {"objective": "cost", "decode": {"min": 3, "max": 15}}}, "spec.planning.decode allows 3"),
        ({"planning": {"objective": "cost", "ratio": {"min": 0.6}}}, "spec.planning.ratio.min is 0.6"),
    ],
)
async def test_a_plan_that_cannot_run_any_more_is_refused(parts: dict[str, Any], said: str) -> None:
    world = await watched()
    await drifts(world, 10, 1.8, 5, 2)
    world.offers(5, 1.8)
    world.cluster.change(**parts)
    await world.until_quiet()
    before = world.decode_workers()
    undo(world, 1)
    await world.until_quiet()
    assert world.planned == ("True", "RollbackRefused")
    assert said in world.message
    assert world.decode_workers() == before


async def test_a_pool_or_degree_that_went_is_named() -> None:
    from weft_operator.replanning.rollback import unusable

    to = record()
    spec = to.spec
    pool = spec.capacity.pools[0]
    capacity = spec.capacity

    def said(**parts: object) -> str:
        pools = [pool.model_copy(update=parts)]
        return unusable(spec.model_copy(update={"capacity": capacity.model_copy(update={"pools": pools})}), to)

    assert unusable(spec, to) == ""
    assert said(name="h100") == "it uses pool h20 and spec.capacity.pools has h100"
    assert "degree 8 and spec.capacity.pools[h20] allows 1" in said(degrees=[1])
    assert "prefill workers in pool h20" in said(roles=["decode"])
    layouts = spec.planning.model_copy(update={"layouts": ["colocated"]})
    assert "spec.planning.layouts" in unusable(spec.model_copy(update={"planning": layouts}), to)


async def test_a_plan_with_workers_of_both_roles_needs_engines_that_can_have_them() -> None:
    from weft_operator.replanning.rollback import unusable

    to = with_both_roles(None, *SYMMETRIC).record
    assert unusable(to.spec, to) == ""
    changed_engine = to.spec.engine.model_copy(update={"decode": RoleEngine(max_num_seqs=9)})
    assert "workers with both roles" in unusable(to.spec.model_copy(update={"engine": changed_engine}), to)
    named = to.spec.planning.model_copy(update={"layouts": ["disaggregated"]})
    assert "its layout is symmetric" in unusable(to.spec.model_copy(update={"planning": named}), to)


async def test_live_sessions_hold_an_undo_up() -> None:
    world = await watched()
    at = await drifts(world, 10, 1.8, 5, 2)
    world.see(look(at, 1.8, pressure=WorkerPressure(queue=0.0, kv_use={"decode": 0.8})))
    undo(world, 1)
    await world.until_quiet()
    assert world.planned == ("True", "SessionsDoNotFit")
    assert len(world.decode_workers()) == 5
    world.see(look(at + 10, 1.8))
    await world.until_quiet()
    assert world.planned == ("True", "RolledBack")


async def test_a_person_can_roll_back_without_metrics() -> None:
    world = await watched()
    at = await drifts(world, 10, 1.8, 5, 2)
    world.see(blind(at))
    undo(world, 1)
    await world.until_quiet()
    assert world.planned == ("True", "RolledBack")
    assert summary(world)["Ready"] == ("True", "Serving")


async def test_with_planning_off_an_undo_leaves_the_number_of_workers_to_people() -> None:
    world = await watched()
    await drifts(world, 10, 1.8, 5, 2)
    world.cluster.change(planning={"mode": "Off"})
    await world.until_quiet()
    undo(world, 1)
    await world.until_quiet()
    assert world.planned == ("True", "RolledBack")
    assert len(world.decode_workers()) == 5


def test_the_data_of_a_revision_is_never_changed() -> None:
    base = rendering()
    first = revision_object(base, ())
    other = replace(base, record=replace(base.record, baseline=PlanBaseline(cause="more came"), request_hash="another"))
    again = revision_object(other, [first])
    assert again["data"] == first["data"]
    assert (first["revision"], again["revision"]) == (1, 1)
    assert annotations_of(again)["weft.dev/change-cause"] == "more came"


def test_the_newest_others_are_kept() -> None:
    base = rendering()
    live = [
        {**revision_object(base, ()), "revision": number, "metadata": {"name": f"r{number}", "namespace": "default"}}
        for number in (3, 1, 2)
    ]
    assert {key.name for key in kept_revisions(live, current="new", limit=3)} == {"r3", "r2"}
    assert {key.name for key in kept_revisions(live, current="r3", limit=3)} == {"r2", "r1"}
    assert kept_revisions(live, current="new", limit=1) == frozenset()


def test_the_plan_to_go_back_to_is_kept_whatever_the_limit() -> None:
    live = [_kept(f"r{number}", number, plan_for(2, rate=0.6)) for number in (1, 2, 3)]
    assert {key.name for key in kept_revisions(live, current="new", limit=1, before="r1")} == {"r1"}
    assert {key.name for key in kept_revisions(live, current="new", limit=3, before="r1")} == {"r3", "r2", "r1"}
    assert kept_revisions(live, current="r1", limit=1, before="r1") == frozenset()


def test_a_plan_is_found_by_its_name_and_only_without_it_by_its_workers() -> None:
    same, more = plan_for(2, rate=0.6), plan_for(3, rate=0.6)
    live = [_kept("r1", 1, same), _kept("r2", 2, same), _kept("r3", 3, more)]
    for name, number in (("r1", 1), ("r2", 2), ("", 2), ("gone", 2), ("r3", 2)):
        found = find_revision(live, name, same.groups)
        assert found is not None
        assert found.number == number
    assert find_revision(live[2:], "r1", same.groups) is None


def _kept(name: str, number: int, plan: Plan) -> Manifest:
    base = rendering()
    of = revision_object(replace(base, record=replace(base.record, plan=plan)), ())
    return {**of, "revision": number, "metadata": {"name": name, "namespace": "default"}}


def test_names_follow_what_runs() -> None:
    one, other = plan_for(2, rate=0.6), plan_for(2, rate=0.7)
    assert revision_name("demo", one) == revision_name("demo", other)
    assert revision_name("demo", one) != revision_name("demo", plan_for(3, rate=0.6))
    assert revision_name("demo", one) != revision_name("demo", replace(one, layout="colocated"))


def test_a_hold_is_stored() -> None:
    baseline = PlanBaseline(rolled_back="3", hold=Hold("because", "3", VALID))
    assert read_baseline(baseline_json(baseline)) == baseline
    assert read_baseline(baseline_json(PlanBaseline(hold=Hold("because")))).hold == Hold("because")
    body = json.loads(baseline_json(baseline) or "")
    assert read_baseline(json.dumps({**body, "hold": 3})) == PlanBaseline()
    assert cause_of(replace(record(), baseline=baseline)) == "because"
    assert Planned(plan=plan_for(2, rate=0.6), profile=FLAT).plan.validity is not None
