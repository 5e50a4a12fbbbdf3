"""Which workers try a plan beside the old one, and how a trial ends."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from weft_core.parallelism import gpus_of
from weft_operator.rollout.advance import RolloutStep, advance
from weft_operator.rollout.canary import CanaryRequest, current_canary, share_of
from weft_operator.rollout.groups import GroupState, GroupTarget, RolloutLimits
from weft_operator.rollout.ledger import CanaryRun, Ledger, ledger_json, read_ledger, target_hash
from weft_operator_tests.rollout_world import START, World, asked, group, settled_on

OLD = (group("prefill", 4, 2), group("decode", 8, 1))
WIDE = (group("prefill", 2, 4), group("decode", 4, 2))


def _counts(plan: tuple[GroupTarget, ...]) -> dict[str, int]:
    return {one.key: one.replicas for one in plan if one.replicas}


def test_where_there_is_room_the_share_comes_beside_the_whole_old_plan() -> None:
    share = share_of(OLD, WIDE, RolloutLimits(gpus=32), 50)
    assert share is not None
    assert _counts(share.goal) == {"p4-h100-a": 2, "d8-h100-a": 1, "p2-h100-a": 2, "d4-h100-a": 1}
    assert {one.key for one in share.canary} == {"p2-h100-a", "d4-h100-a"}
    assert share.percent == 50


def test_workers_of_the_canary_never_carry_more_than_in_the_whole_plan() -> None:
    plan = (group("prefill", 2, 4), group("decode", 1, 8))
    share = share_of(OLD, plan, RolloutLimits(gpus=20), 50)  # of 16 GPUs 4 are free: one pair, and a decode worker more
    assert share is not None
    assert _counts(share.goal) == {"p4-h100-a": 2, "d8-h100-a": 1, "p2-h100-a": 1, "d1-h100-a": 2}
    assert share.percent == 25, "one of four prefill workers, two of eight decode workers"


def test_the_old_plan_gives_up_what_may_be_unavailable_for_it() -> None:
    old = (group("prefill", 2, 2), group("decode", 4, 3))
    new = (group("prefill", 1, 4), group("decode", 2, 6))
    share = share_of(old, new, RolloutLimits(gpus=16), 10)
    assert share is not None
    assert _counts(share.goal) == {"p2-h100-a": 1, "d4-h100-a": 2, "p1-h100-a": 1, "d2-h100-a": 1}
    assert sum(gpus_of(one.degree) * one.replicas for one in share.goal) <= 16
    assert share_of(old, new, replace(RolloutLimits(gpus=16), max_unavailable=0), 10) is None


def test_only_workers_that_make_room_leave_for_the_canary() -> None:
    dear, cheap = group("decode", 4, 2), group("decode", 2, 3, pool="h20")
    new = (group("decode", 2, 4, template="t"), group("decode", 2, 1, template="t", pool="h20"))
    small = replace(RolloutLimits(gpus=32), pools={"h100": 10})
    share = share_of((dear, cheap), new, small, 50)
    assert share is not None
    assert _counts(share.goal) == {"d4-h100-a": 2, "d2-h20-a": 3, "d2-h100-at": 1, "d2-h20-at": 1}, "2 of 10 are free"
    full = share_of((dear, cheap), new, replace(small, pools={"h100": 8}), 50)
    assert full is not None
    assert _counts(full.goal) == {"d4-h100-a": 1, "d2-h20-a": 3, "d2-h100-at": 1, "d2-h20-at": 1}
    paid = replace(RolloutLimits(gpus=32), prices={"h100": 2.0, "h20": 0.0}, per_hour=18.0)
    cheaper = share_of((dear, cheap), new, paid, 50)
    assert cheaper is not None
    assert _counts(cheaper.goal) == {"d4-h100-a": 1, "d2-h20-a": 3, "d2-h100-at": 1, "d2-h20-at": 1}


def test_the_last_pair_of_the_old_plan_stays() -> None:
    assert share_of(OLD, WIDE, RolloutLimits(gpus=16, max_unavailable=2), 10) is None


def test_other_numbers_of_the_same_kinds_are_tried_on_all_sessions() -> None:
    more = (group("prefill", 4, 2), group("decode", 8, 2))
    assert share_of(OLD, more, RolloutLimits(gpus=64), 10) is None
    assert share_of(OLD, (group("prefill", 2, 4), group("decode", 8, 1)), RolloutLimits(gpus=64), 10) is None


def test_a_stored_canary_is_read_as_it_was_written() -> None:
    world = _with_canary_status()
    kept = read_ledger(world.ledger)
    assert kept is not None
    assert kept.canary is not None
    assert kept.canary.since is not None
    assert read_ledger(ledger_json(kept)) == kept
    assert read_ledger(ledger_json(kept).replace('"Share"', '"Half"')) is None


def _with_canary_status(gpus: int = 32, plan: tuple[GroupTarget, ...] = WIDE) -> World:
    world = settled_on(OLD, RolloutLimits(gpus=gpus))
    world.percent, world.target, world.window_s = 10, plan, 600.0
    for _ in range(200):
        for key in list(world.live):
            world.controller_reads(key)
            world.controller_acts(key)
        world.pass_time(10.0)
        if world.operate().outcome == "Canary":
            return world
    raise AssertionError(f"no trial: {world.last}")


def test_the_old_workers_stay_while_a_share_tries_the_plan() -> None:
    world = _with_canary_status()
    assert asked(world) == {"p4-h100-a": 2, "d8-h100-a": 1, "p2-h100-a": 1, "d4-h100-a": 1}
    world.now += timedelta(seconds=601)
    assert world.operate().outcome == "Progressing"
    assert world.settle().outcome == "Complete"
    assert asked(world) == {"p2-h100-a": 4, "d4-h100-a": 2}


def test_a_plan_that_does_worse_is_left_and_not_tried_again() -> None:
    world = _with_canary_status()
    world.worse = {"d4-h100-a"}
    world.now += timedelta(seconds=601)
    step = world.operate()
    assert step.outcome == "RollingBack"
    assert step.refusal is not None
    assert step.refusal.reason == "CanaryFailed"
    assert world.settle().outcome == "RolledBack"
    assert asked(world) == {"p4-h100-a": 2, "d8-h100-a": 1}
    world.percent = 0
    assert world.operate().outcome == "RolledBack", "without a canary it is refused for the same question, too"
    world.percent, world.question, world.worse = 10, "another", set()
    assert world.settle().outcome == "Complete"


def test_a_plan_without_room_beside_the_old_one_is_carried_out_and_watched() -> None:
    world = _with_canary_status(gpus=16)
    assert asked(world) == {"p2-h100-a": 4, "d4-h100-a": 2}
    world.worse = {"d4-h100-a"}
    world.now += timedelta(seconds=601)
    assert world.settle().outcome == "RolledBack"
    assert asked(world) == {"p4-h100-a": 2, "d8-h100-a": 1}


def test_a_canary_that_finds_no_node_makes_room_as_any_plan_does() -> None:
    world = settled_on(OLD, RolloutLimits(gpus=32, max_unavailable=1), nodes=16)
    world.percent, world.target = 10, WIDE
    assert world.settle().outcome == "Complete"
    assert asked(world) == {"p2-h100-a": 4, "d4-h100-a": 2}


def test_a_lost_worker_of_the_canary_does_not_restart_it() -> None:
    world = _with_canary_status()
    began = read_ledger(world.ledger)
    pods = world.live["d4-h100-a"].pods
    pods[0].phase, pods[0].since, pods[0].until = "starting", world.now, world.now + timedelta(seconds=30)
    assert world.operate().outcome == "Canary"
    assert read_ledger(world.ledger) == began


OTHER = CanaryRequest(10)
FAILED = CanaryRequest(10, passed=False, message="it did worse")


def _step(
    ready: dict[str, int], ledger: Ledger, canary: CanaryRequest | None, at_s: float = 0.0, gpus: int = 32
) -> RolloutStep:
    """Return the step from so many ready workers of the groups of both plans; others that are asked for start."""
    groups = [
        GroupState(
            key=one.key, role=one.role, degree=one.degree, pool=one.pool, revision=one.revision,
            asked=max(1, ready[one.key]), ready=ready[one.key], starting=int(not ready[one.key]), since=START,
        )
        for one in (*OLD, *WIDE) if one.key in ready
    ]  # fmt: skip
    now = START + timedelta(seconds=at_s)
    return advance(groups, WIDE, ledger, RolloutLimits(gpus=gpus), inputs_hash="q", now=now, canary_request=canary)


BOTH = {"p4-h100-a": 2, "d8-h100-a": 1, "p2-h100-a": 1, "d4-h100-a": 1}
TRIED = target_hash(WIDE)


def test_a_plan_that_failed_for_other_inputs_is_tried_again() -> None:
    for state in ("Failed", "RolledBack"):
        ledger = Ledger(base=OLD, canary=CanaryRun(TRIED, "Share", START, state, "it did worse"))
        found = _step({key: BOTH[key] for key in ("p4-h100-a", "d8-h100-a")}, ledger, OTHER).ledger.canary
        assert found == CanaryRun(TRIED, "Share")


def test_a_canary_that_does_not_fit_any_more_goes_on_with_all_sessions() -> None:
    ledger = Ledger(base=OLD, canary=CanaryRun(TRIED, "Share", START))
    step = _step(BOTH, ledger, OTHER, gpus=16)
    assert step.share is None
    assert step.ledger.canary == CanaryRun(TRIED, "Whole", START)


def test_a_plan_whose_workers_do_not_start_has_no_canary_and_a_failed_one_has_until_rolled_back() -> None:
    ledger = Ledger(base=OLD, canary=CanaryRun(TRIED, "Share"))
    late = _step({**BOTH, "d4-h100-a": 0}, ledger, OTHER, at_s=9999)
    assert late.refusal is not None
    assert (late.refusal.reason, late.ledger.canary) == ("NeverReady", None)
    worse = _step(BOTH, replace(ledger, canary=CanaryRun(TRIED, "Share", START)), FAILED)
    assert worse.refusal is not None
    assert (worse.refusal.reason, worse.outcome) == ("CanaryFailed", "RollingBack")
    assert worse.ledger.canary == CanaryRun(TRIED, "Share", START, "Failed", "it did worse")
    back = _step({"p4-h100-a": 2, "d8-h100-a": 1}, worse.ledger, OTHER)
    assert (back.outcome, back.ledger.canary) == ("RolledBack", replace(worse.ledger.canary, state="RolledBack"))


@given(counts=st.tuples(st.integers(1, 300), st.integers(1, 300)), percent=st.integers(1, 50))
@example(counts=(1, 300), percent=29)  # 87 of 300 in floats is less than 29 %
def test_with_room_for_it_a_canary_has_the_fewest_workers_that_carry_its_share(
    counts: tuple[int, int], percent: int
) -> None:
    new = (group("prefill", 2, counts[0]), group("decode", 4, counts[1]))
    share = share_of(OLD, new, RolloutLimits(gpus=10**6), percent)
    assert share is not None
    assert share.percent == percent
    for one, canary in zip(new, (_counts(share.goal)[one.key] for one in new), strict=True):
        assert 100 * (canary - 1) < percent * one.replicas <= 100 * canary


P4, D4 = group("prefill", 4, 2), group("decode", 4, 2)
ROOM: dict[str, tuple[tuple[GroupTarget, ...], tuple[GroupTarget, ...], RolloutLimits, int, dict[str, int] | None]] = {
    # the old plan, the new one, the limits, the percentage, and the workers while the canary runs
    "a canary of two workers shrinks before an old worker leaves": (
        (P4, D4), (P4, group("decode", 2, 4)), RolloutLimits(gpus=18), 50,
        {"p4-h100-a": 2, "d4-h100-a": 2, "d2-h100-a": 1},
    ),
    "of two groups of a canary the one with more GPUs shrinks": (
        (group("prefill", 1, 1), group("decode", 1, 1)),
        (group("prefill", 2, 8), group("decode", 3, 4)), RolloutLimits(gpus=14), 50,
        {"p1-h100-a": 1, "d1-h100-a": 1, "p2-h100-a": 3, "d3-h100-a": 2},
    ),
    "workers that both plans have stay": (
        (P4, D4), (P4, group("decode", 2, 4)), RolloutLimits(gpus=16), 10,
        {"p4-h100-a": 2, "d4-h100-a": 1, "d2-h100-a": 1},
    ),
    "the last worker of a group may leave where its role has another one": (
        (group("decode", 8, 1), group("decode", 4, 1)), (group("decode", 2, 6),), RolloutLimits(gpus=12), 10,
        {"d8-h100-a": 1, "d2-h100-a": 1},
    ),
    "a prefill worker leaves before a smaller decode worker": (
        (group("prefill", 4, 2), group("decode", 2, 4)),
        (group("prefill", 4, 2, template="t"), group("decode", 2, 4, template="t")), RolloutLimits(gpus=20), 10,
        {"p4-h100-a": 1, "d2-h100-a": 4, "p4-h100-at": 1, "d2-h100-at": 1},
    ),
    "with nothing unavailable a worker leaves for one as large": (
        (D4,), (group("decode", 4, 2, template="t"),), RolloutLimits(gpus=8, max_unavailable=0), 10,
        {"d4-h100-a": 1, "d4-h100-at": 1},
    ),
    "with nothing unavailable no worker leaves for a smaller one": (
        (D4,), (group("decode", 2, 4),), RolloutLimits(gpus=8, max_unavailable=0), 10, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "given_limits", "percent", "expected"), ROOM.values(), ids=ROOM)
def test_room_for_a_canary_is_made_in_this_order(
    old: tuple[GroupTarget, ...],
    new: tuple[GroupTarget, ...],
    given_limits: RolloutLimits,
    percent: int,
    expected: dict[str, int] | None,
) -> None:
    share = share_of(old, new, given_limits, percent)
    assert (None if share is None else _counts(share.goal)) == expected


def test_a_canary_that_passed_is_stored_until_its_plan_is_rolled_out() -> None:
    """An operator that restarts between them goes on with the rollout, and knows the old plan."""
    world = _with_canary_status()
    world.now += timedelta(seconds=601)
    assert world.operate().outcome == "Progressing"
    kept = read_ledger(world.ledger)
    assert kept is not None
    assert kept.canary is not None
    assert (kept.canary.state, kept.canary.message) == ("Passed", "it was good")
    assert {one.key for one in kept.base} == {one.key for one in OLD}


@pytest.mark.parametrize(("waits_s", "kind"), [(9, "Share"), (10, "Whole")])
def test_a_canary_without_a_node_is_one_of_all_sessions_after_the_time_for_making_room(
    waits_s: float, kind: str
) -> None:
    groups = [
        GroupState(
            key=one.key, role=one.role, degree=one.degree, pool=one.pool, revision=one.revision, asked=1,
            ready=int(one in OLD), starting=int(one not in OLD), unschedulable=int(one not in OLD), since=START,
        )
        for one in (*OLD, *WIDE)
    ]  # fmt: skip
    ledger = Ledger(base=OLD, canary=CanaryRun(TRIED, "Share"))
    found = current_canary(
        ledger, groups, WIDE, OTHER, RolloutLimits(gpus=32, make_room_s=10), now=START + timedelta(seconds=waits_s)
    )
    assert found == CanaryRun(TRIED, kind)  # type: ignore[arg-type]
    stray = [replace(one, unschedulable=int(one.key == OLD[0].key)) for one in groups]
    kept = current_canary(ledger, stray, WIDE, OTHER, RolloutLimits(gpus=32), now=START + timedelta(hours=1))
    assert kept == ledger.canary, "an old worker without a node is not the canary's"
