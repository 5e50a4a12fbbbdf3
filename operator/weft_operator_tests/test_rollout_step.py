"""The next step of a service's rollout: what its groups' statuses say, and what routers and the status are given."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from weft_operator.api.objects import Manifest
from weft_operator.render.inputs import PlanRecord
from weft_operator.render.plan_baseline import Hold, PlanBaseline
from weft_operator.rollout.canary_analysis import CanaryAnalysis
from weft_operator.rollout.groups import GroupState
from weft_operator.rollout.ledger import CanaryRun, Ledger, ledger_json, read_ledger, target_hash
from weft_operator.rollout.replica_targets import desired_groups
from weft_operator.rollout.step import RolloutState, next_step, state_of, targets_of
from weft_operator.workers.group_views import DesiredGroup, GroupView, views_of
from weft_operator.workers.groups import group_name
from weft_operator_tests.samples import group, record
from weft_operator_tests.valid import changed, service
from weft_router.config import CanaryConfig

NOW = datetime(2026, 1, 1, tzinfo=UTC)
REVISION = "a" * 10


def at(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).isoformat()


def view(
    role: str,
    degree: int,
    *rows: dict[str, Any],
    asked: int | None = None,
    ready: tuple[str, float] | None = None,
    current: bool = True,
) -> GroupView:
    """Return a group with workers; ``ready`` is the status of its condition, and since when in seconds from now."""
    name = group_name("demo", role, degree, "h20", REVISION)  # type: ignore[arg-type]
    body: Manifest = {
        "metadata": {"name": name, "uid": f"uid of {name}", "generation": 2},
        "spec": {"service": "demo", "role": role, "degree": degree, "pool": "h20", "revision": REVISION},
        "status": {"observedGeneration": 2 if current else 1, "workers": list(rows)},
    }
    body["spec"]["replicas"] = len(rows) if asked is None else asked
    if ready is not None:
        status, since = ready
        body["status"]["conditions"] = [{"type": "Ready", "status": status, "lastTransitionTime": at(since)}]
    (found,) = views_of([body])
    return found


def serving(count: int) -> list[dict[str, Any]]:
    return [{"name": f"serving-{number}", "ready": True} for number in range(count)]


STATES: dict[str, tuple[GroupView, dict[str, Any]]] = {
    "nothing asked yet": (view("decode", 8), {"asked": 0}),
    "all serve": (view("decode", 8, *serving(2)), {"asked": 2, "ready": 2}),
    "one serves with an older template": (
        view("decode", 8, *serving(1), {"name": "b", "outdated": True, "since": at(-9)}),
        {"asked": 2, "ready": 2},
    ),
    "two wait, one of them for a node": (
        view(
            "decode",
            8,
            {"name": "a", "since": at(-5)},
            {"name": "b", "since": at(-7), "unschedulable": True, "trouble": "no GPU"},
        ),
        {
            "asked": 2,
            "starting": 2,
            "unschedulable": 1,
            "since": NOW - timedelta(seconds=7),
            "trouble": "no GPU",
        },
    ),
    "one changes its role": (
        view("decode", 8, *serving(1), {"name": "b", "ready": True, "switching": True, "since": at(-9)}),
        {"asked": 2, "ready": 1, "starting": 1, "switching": 1, "since": NOW - timedelta(seconds=9)},
    ),
    "one drains and one is lost": (
        view("decode", 8, *serving(1), {"name": "b", "draining": True}, {"name": "c", "lost": "its node"}, asked=1),
        {"asked": 1, "ready": 1, "draining": 1},
    ),
    "one has no pod yet": (
        view("decode", 8, *serving(1), asked=2, ready=("False", -30)),
        {"asked": 2, "ready": 1, "since": NOW - timedelta(seconds=30)},
    ),
    "one has no pod yet, and one waits for longer": (
        view("decode", 8, {"name": "a", "since": at(-60)}, asked=2, ready=("False", -30)),
        {"asked": 2, "starting": 1, "since": NOW - timedelta(seconds=60)},
    ),
    "one has no pod yet, and the status is of before": (
        view("decode", 8, *serving(1), asked=2, ready=("True", -30), current=False),
        {"asked": 2, "ready": 1, "settled": False},
    ),
    "one has no pod yet, and the status of before is about another worker that is down": (
        view("decode", 8, *serving(1), asked=2, ready=("False", -3600), current=False),
        {"asked": 2, "ready": 1, "settled": False},
    ),
    "not ready although no worker is missing": (
        view("decode", 8, *serving(1), ready=("False", -30)),
        {"asked": 1, "ready": 1},
    ),
}


@pytest.mark.parametrize(("of", "expected"), STATES.values(), ids=STATES)
def test_the_state_of_a_group_is_that_of_its_workers(of: GroupView, expected: dict[str, Any]) -> None:
    known: dict[str, Any] = {"key": of.name, "role": "decode", "degree": 8, "pool": "h20", "revision": REVISION}
    assert state_of(of) == GroupState(**known, **expected)


OLD = [group("prefill", 4, 2), group("decode", 8, 1)]
NEW = [group("prefill", 2, 4), group("decode", 4, 2)]


def groups_of(*plan: Any) -> tuple[DesiredGroup, ...]:
    return desired_groups("demo", plan, (), revision=REVISION, scaled_by_hand=False, fixed_roles=True)


def body() -> Manifest:
    given = changed(service(), "spec.capacity.gpus", 32)
    return changed(given, "spec.rollout.canary", {"percent": 10, "window": "5m"})


OLD_VIEWS = (view("prefill", 4, *serving(2)), view("decode", 8, *serving(1)))
SHARE_VIEWS = (*OLD_VIEWS, view("prefill", 2, *serving(1)), view("decode", 4, *serving(1)))
NAMES = {"p4": OLD_VIEWS[0].name, "d8": OLD_VIEWS[1].name, "p2": SHARE_VIEWS[2].name, "d4": SHARE_VIEWS[3].name}
BASE = tuple(targets_of(groups_of(*OLD), REVISION))
TRIED = target_hash(targets_of(groups_of(*NEW), REVISION))


def step(
    of: PlanRecord, ledger: Ledger, views: tuple[GroupView, ...], *, annotation: str = "", at_s: float = 0.0
) -> RolloutState:
    """Return the step to the new plan."""
    return next_step(
        groups_of(*NEW),
        views,
        of,
        revision=REVISION,
        ledger_text=ledger_json(ledger),
        now=NOW + timedelta(seconds=at_s),
        plan="demo-plan-2",
        analysis=CanaryAnalysis(of.spec, of.plan, None, (), annotation=annotation),
    )


RECORD = record(body(), *NEW)


def test_while_a_canary_runs_routers_have_its_groups_and_its_share() -> None:
    found = step(RECORD, Ledger(base=BASE, canary=CanaryRun(TRIED, "Share", NOW)), SHARE_VIEWS, at_s=60)
    assert found.targets.replicas == {NAMES["p4"]: 2, NAMES["d8"]: 1, NAMES["p2"]: 1, NAMES["d4"]: 1}
    assert found.canary is not None
    assert found.canary == {
        "percent": 10,
        "salt": TRIED,
        "groups": [
            {"role": "prefill", "degree": 2, "pool": "h20", "revision": REVISION},
            {"role": "decode", "degree": 4, "pool": "h20", "revision": REVISION},
        ],
    }
    assert CanaryConfig.model_validate(found.canary).percent == 10, "routers understand it"
    assert {(item.name, item.group.replicas) for item in found.wanted} == {
        (NAMES["p4"], 2),
        (NAMES["d8"], 1),
        (NAMES["p2"], 1),
        (NAMES["d4"], 1),
    }
    assert found.canary_status is not None
    assert found.canary_status["state"] == "Running"
    assert found.step is not None
    assert (found.step.outcome, found.step.requeue_after) == ("Canary", 10.0), "analyzed at every interval"
    words = "canary of P2x4 D4x2: 10 % of new sessions go to it; it is analyzed at 00:05:00 UTC (spec.rollout.canary)"
    assert found.step.message == words
    restarts = view("decode", 4, {"name": "demo-d4-0", "since": at(50)})
    waits = step(
        RECORD, Ledger(base=BASE, canary=CanaryRun(TRIED, "Share", NOW)), (*SHARE_VIEWS[:3], restarts), at_s=60
    )
    assert waits.step is not None
    assert waits.step.message.startswith(f"{words}; waiting for 1 decode worker of 4 GPUs")


@pytest.mark.parametrize(
    ("baseline", "outcome"),
    [
        (PlanBaseline(), "Canary"),
        (PlanBaseline(hold=Hold("a rollback")), "Progressing"),
    ],
    ids=["a new plan", "one that a rollback brought back"],
)
def test_a_plan_that_a_rollback_brought_back_has_no_canary(baseline: PlanBaseline, outcome: str) -> None:
    found = step(
        replace(RECORD, baseline=baseline), Ledger(base=BASE, canary=CanaryRun(TRIED, "Share", NOW)), SHARE_VIEWS
    )
    assert found.step is not None
    assert found.step.outcome == outcome
    assert (found.canary is None) == (outcome != "Canary")


def test_a_plan_that_failed_its_canary_leaves_the_old_plan_to_serve() -> None:
    ledger = Ledger(base=BASE, canary=CanaryRun(TRIED, "Share", NOW))
    found = step(RECORD, ledger, SHARE_VIEWS, annotation=f"abort {TRIED}")
    assert found.step is not None
    assert found.step.outcome == "RollingBack"
    assert {(item.name, item.group.replicas) for item in found.wanted} == {(NAMES["p4"], 2), (NAMES["d8"], 1)}
    assert (found.canary, (found.canary_status or {}).get("state")) == (None, "Failed")
    assert (found.canary_status or {})["message"] == "requested by `weft rollout abort`"
    kept = read_ledger(found.ledger_text)
    assert kept is not None
    assert kept.canary is not None
    assert kept.canary.state == "Failed"


def test_a_group_of_the_old_plan_that_somebody_deleted_is_not_asked_for() -> None:
    """Its template is gone with it."""
    found = step(RECORD, Ledger(base=BASE), OLD_VIEWS[:1])
    assert NAMES["d8"] not in found.targets.replicas
    assert found.targets.replicas.keys() >= {NAMES["p4"], NAMES["p2"], NAMES["d4"]}


def test_a_plan_that_was_rolled_out_has_its_name_in_the_ledger_and_old_groups_are_deleted() -> None:
    views = (view("prefill", 4, asked=0), view("prefill", 2, *serving(4)), view("decode", 4, *serving(2)))
    found = step(record(service(), *NEW), Ledger(base=BASE), views)
    assert found.step is not None
    assert (found.step.outcome, found.targets.retire) == ("Complete", frozenset({NAMES["p4"]}))
    kept = read_ledger(found.ledger_text)
    assert kept is not None
    assert (kept.plan, {one.key for one in kept.base}) == ("demo-plan-2", {NAMES["p2"], NAMES["d4"]})
    assert (found.canary, found.canary_status) == (None, None)


def test_at_zero_no_group_is_asked_for_workers_and_the_ledger_stays() -> None:
    idle = replace(RECORD, baseline=PlanBaseline(scaled_to_zero_at=NOW))
    ledger = Ledger(base=BASE)
    found = step(idle, ledger, OLD_VIEWS)
    assert set(found.targets.replicas.values()) == {0}
    assert found.targets.replicas.keys() == set(NAMES.values())
    assert (found.ledger_text, found.step) == (ledger_json(ledger), None)
    assert [item.group.replicas for item in found.wanted] == [0, 0]


def test_without_planning_replicas_are_asked_at_once_and_the_ledger_stays() -> None:
    off = record(changed(body(), "spec.planning.mode", "Off"), *NEW)
    found = step(off, Ledger(base=BASE), OLD_VIEWS)
    assert found.targets.replicas == {NAMES["p2"]: 4, NAMES["d4"]: 2, NAMES["p4"]: 0, NAMES["d8"]: 0}
    assert (found.ledger_text, found.step, found.wanted) == (ledger_json(Ledger(base=BASE)), None, groups_of(*NEW))


INPUTS: dict[str, tuple[PlanRecord, bool]] = {
    # another record of the plan that was given up, and whether it is rolled out again
    "the same inputs": (RECORD, False),
    "another request": (replace(RECORD, request_hash="another"), True),
    "another workload": (replace(RECORD, baseline=PlanBaseline(workload={"arrivalRate": 9})), True),
    "a rollback that a person asked for": (replace(RECORD, baseline=PlanBaseline(hold=Hold("asked", "2"))), True),
    "other limits": (record(changed(body(), "spec.rollout.startTimeout", "2h"), *NEW), True),
}


@pytest.mark.parametrize(("of", "again"), INPUTS.values(), ids=INPUTS)
def test_a_plan_that_was_given_up_is_rolled_out_again_for_other_inputs_only(of: PlanRecord, again: bool) -> None:
    ledger = Ledger(base=BASE, canary=CanaryRun(TRIED, "Share", NOW))
    failed = read_ledger(step(RECORD, ledger, SHARE_VIEWS, annotation=f"abort {TRIED}").ledger_text)
    assert failed is not None
    found = step(of, failed, OLD_VIEWS)
    assert found.step is not None
    assert (found.step.refusal is None) == again
