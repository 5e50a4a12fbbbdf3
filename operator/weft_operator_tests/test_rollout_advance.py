"""Each rule of a plan change by itself: surge, drain first, pairs, deadlines, the way back, newer targets."""

from dataclasses import replace
from datetime import timedelta

import pytest

from weft_operator.rollout.advance import RolloutStep, advance
from weft_operator.rollout.groups import GroupState, GroupTarget, RolloutLimits
from weft_operator.rollout.ledger import Ledger, Refusal, ledger_json, read_ledger, target_hash
from weft_operator_tests.rollout_world import FORCED, START, asked, group, replicas, settled_on

P4, D4 = group("prefill", 4, 1), group("decode", 4, 1)


def limits(gpus: int = 16, max_unavailable: int = 1, **more: float) -> RolloutLimits:
    """Return limits with short deadlines."""
    return replace(
        RolloutLimits(gpus=gpus, max_unavailable=max_unavailable, start_s=300.0, unschedulable_s=120.0),
        **more,  # type: ignore[arg-type]
    )


def state(of: GroupTarget, ready: int, **more: object) -> GroupState:
    """Return a group as it is; asked for what is ready unless told otherwise."""
    known: dict[str, object] = {"asked": ready + int(str(more.get("starting", 0))), "ready": ready, **more}
    return GroupState(
        key=of.key,
        role=of.role,
        degree=of.degree,
        pool=of.pool,
        revision=of.revision,
        **known,  # type: ignore[arg-type]
    )


def step_of(
    groups: list[GroupState],
    target: list[GroupTarget],
    base: list[GroupTarget] | None,
    given: RolloutLimits | None = None,
    at_s: float = 0.0,
) -> RolloutStep:
    """Return the step of one pass."""
    ledger = None if base is None else Ledger(base=tuple(base))
    now = START + timedelta(seconds=at_s)
    return advance(groups, target, ledger, given or limits(), inputs_hash="q", now=now)


def times(of: GroupTarget, count: int) -> GroupTarget:
    """Return a group of a plan with another number of workers."""
    return replace(of, replicas=count)


def test_a_first_plan_is_asked_for_at_once_decode_before_prefill() -> None:
    step = step_of([], [P4, D4], None)
    assert list(step.replicas.items()) == [(D4.key, 1), (P4.key, 1)]
    assert (step.outcome, step.ledger) == ("Progressing", Ledger())


def test_a_plan_that_is_carried_out_becomes_the_one_to_go_back_to_and_nothing_is_asked_again() -> None:
    step = step_of([state(P4, 1), state(D4, 1)], [P4, D4], [])
    assert (step.outcome, step.message) == ("Complete", "every group is as planned")
    assert set(step.ledger.base) == {P4, D4}
    again = advance([state(P4, 1), state(D4, 1)], [P4, D4], step.ledger, limits(), inputs_hash="q", now=START)
    assert again == step


def test_new_workers_come_first_where_the_budget_has_room_and_nothing_is_drained_before_they_start() -> None:
    old, new = times(group("decode", 2, 2), 2), group("decode", 4, 1)
    step = step_of([state(P4, 1), state(old, 2)], [P4, new], [P4, old])
    assert step.replicas == {P4.key: 1, old.key: 2, new.key: 1}
    ready = step_of([state(P4, 1), state(old, 2), state(new, 1)], [P4, new], [P4, old])
    assert ready.replicas[old.key] == 0


def test_old_workers_go_first_where_the_budget_is_full_and_no_more_than_needed() -> None:
    old, new = group("decode", 2, 4), group("decode", 4, 2)
    step = step_of([state(P4, 1), state(old, 4)], [P4, new], [P4, old], limits(gpus=12))
    assert step.replicas == {P4.key: 1, old.key: 2, new.key: 0}
    assert "drains 1 decode worker of 2 GPUs in pool h100 first, to free GPUs for 1 decode worker of 4" in step.message
    # Pods on their way out still hold their GPUs.
    going = step_of([state(P4, 1), state(old, 2, draining=2)], [P4, new], [P4, old], limits(gpus=12))
    assert going.replicas == {P4.key: 1, old.key: 2, new.key: 0}
    assert "waiting for 2 decode workers of 2 GPUs in pool h100 to drain" in going.message
    gone = step_of([state(P4, 1), state(old, 2)], [P4, new], [P4, old], limits(gpus=12))
    assert gone.replicas == {P4.key: 1, old.key: 2, new.key: 1}


def test_nothing_is_asked_before_a_group_has_acted_on_what_it_was_asked() -> None:
    new = group("decode", 4, 1)
    old = group("decode", 2, 2)
    unsettled = state(old, 2, asked=1, settled=False)
    step = step_of([state(P4, 1), unsettled], [P4, new], [P4, old])
    assert step.replicas[new.key] == 0
    assert "waiting for the controller of" in step.message


def test_a_pool_that_is_smaller_than_the_budget_is_not_overrun() -> None:
    old, new = group("decode", 4, 2), group("decode", 8, 1)
    given = replace(limits(gpus=64), pools={"h100": 12})
    step = step_of([state(old, 2)], [new], [old], given)
    assert step.replicas == {old.key: 1, new.key: 0}  # 4 GPUs are free, and 4 more are needed
    other = group("decode", 8, 1, pool="h20")
    assert step_of([state(old, 2)], [other], [old], given).replicas == {old.key: 2, other.key: 1}
    stuck = step_of([state(old, 2)], [new], [old], replace(given, pools={"h100": 8}, max_unavailable=0))
    assert "the budget is 64 GPUs (spec.capacity.gpus), pool h100 has 8, and spec.rollout" in stuck.message


class TestMoney:
    """What all GPUs may cost is a budget as GPUs are."""

    dear, cheap = group("decode", 4, 1), group("decode", 4, 2, pool="h20")
    prices = {"h100": 3.0, "h20": 1.0}  # noqa: RUF012 - read only

    def given(self, per_hour: float, max_unavailable: int = 1) -> RolloutLimits:
        return replace(limits(gpus=64, max_unavailable=max_unavailable), prices=self.prices, per_hour=per_hour)

    def test_what_cannot_be_paid_beside_the_old_workers_waits_until_they_are_gone(self) -> None:
        up = [state(self.dear, 1), state(self.cheap, 2)]
        target, base = [times(self.dear, 2)], [self.dear, self.cheap]
        assert step_of(up, target, base, self.given(32)).replicas[self.dear.key] == 2
        step = step_of(up, target, base, self.given(31))
        assert step.replicas == {self.cheap.key: 1, self.dear.key: 1}, "one of them is enough"
        going = [state(self.dear, 1), state(self.cheap, 1, draining=1)]
        assert step_of(going, target, base, self.given(31)).replicas == step.replicas
        gone = [state(self.dear, 1), state(self.cheap, 1)]
        assert step_of(gone, target, base, self.given(31)).replicas[self.dear.key] == 2

    def test_cheap_workers_go_for_a_dear_one_although_each_pays_for_a_part_of_it_alone(self) -> None:
        old, new = group("decode", 1, 4, pool="h20"), group("decode", 2, 2)
        given = replace(self.given(12), prices={"h100": 3.0, "h20": 2.0})
        step = step_of([state(old, 4)], [new], [old], given)
        assert step.replicas == {old.key: 3, new.key: 0}, "4 an hour are left, and 6 are needed"

    def test_a_plan_that_no_money_is_left_for_is_refused_with_the_budget_named(self) -> None:
        step = step_of([state(self.dear, 1)], [self.cheap], [self.dear], self.given(12, max_unavailable=0))
        assert step.refusal is not None
        assert step.refusal.reason == "NoFeasibleStep"
        assert "they may cost 12 an hour (spec.planning.budgetPerHour), and spec.rollout" in step.message

    def test_a_plan_that_costs_just_what_it_may_is_carried_out_whole(self) -> None:
        three = group("decode", 1, 3)
        given = replace(limits(), prices={"h100": 0.1}, per_hour=0.3)  # 3 * 0.1 > 0.3
        assert step_of([], [three], None, given).replicas == {three.key: 3}

    def test_where_the_budget_was_lowered_below_the_old_plan_there_is_no_way_back(self) -> None:
        waits = [state(self.dear, 1), state(self.cheap, 0, starting=1, since=START)]
        back = step_of(waits, [self.cheap], [self.dear], self.given(20), at_s=9999)
        assert back.outcome == "RollingBack"
        assert step_of(waits, [self.cheap], [self.dear], self.given(8), at_s=9999).refusal is None


def test_scaling_in_drains_to_the_new_plan_at_once() -> None:
    four = group("decode", 4, 4)
    step = step_of([state(four, 4)], [times(four, 1)], [four])
    assert step.replicas == {four.key: 1}
    assert "enough others are ready" in step.message


def test_workers_that_are_not_ready_do_not_count_as_capacity() -> None:
    four = group("decode", 4, 4)
    step = step_of([state(four, 2, starting=2)], [times(four, 2)], [four])
    assert step.replicas == {four.key: 2}, "those that are not ready go first"
    other = group("decode", 2, 8)
    blocked = step_of([state(four, 1), state(other, 0, starting=8, since=START)], [other], [four], limits(gpus=32))
    assert blocked.replicas[four.key] == 1


@pytest.mark.parametrize(("max_unavailable", "left"), [(1, 3), (2, 2)])
def test_no_more_than_max_unavailable_workers_of_a_role_are_missing(max_unavailable: int, left: int) -> None:
    old, new = group("decode", 2, 4), group("decode", 2, 4, template="t")
    step = step_of([state(old, 4)], [new], [old], limits(gpus=8, max_unavailable=max_unavailable))
    assert step.replicas == {old.key: left, new.key: 0}


class TestRevisions:
    """Prefill and decode of one request share a revision."""

    old = (group("prefill", 2, 2), group("decode", 2, 2))
    new = (group("prefill", 2, 2, "b"), group("decode", 2, 2, "b"))

    def test_both_roles_come_up_before_an_old_worker_goes(self) -> None:
        up = [state(one, 2) for one in self.old]
        step = step_of(up, list(self.new), list(self.old))
        assert step.replicas == {one.key: 2 for one in (*self.old, *self.new)}
        assert list(step.replicas)[-2:] == [self.new[1].key, self.new[0].key], "decode is asked for first"
        half = [*up, state(self.new[0], 0, starting=2, since=START), state(self.new[1], 2)]
        assert step_of(half, list(self.new), list(self.old)).replicas[self.old[1].key] == 2
        both = [*up, state(self.new[0], 2), state(self.new[1], 2)]
        last = step_of(both, list(self.new), list(self.old)).replicas
        assert (last[self.old[0].key], last[self.old[1].key]) == (0, 0)

    def test_one_pair_at_a_time_where_the_budget_is_full(self) -> None:
        up = [state(one, 2) for one in self.old]
        step = step_of(up, list(self.new), list(self.old), limits(gpus=8))
        assert step.replicas == {self.old[0].key: 1, self.old[1].key: 1, self.new[0].key: 0, self.new[1].key: 0}

    def test_a_new_prefill_worker_is_not_asked_for_beside_old_decode_workers_alone(self) -> None:
        eight = (group("prefill", 2, 1, "b"), group("decode", 8, 1, "b"))
        up = [state(self.old[0], 2), state(self.old[1], 2)]
        step = step_of(up, list(eight), list(self.old), limits(gpus=12, max_unavailable=0))
        assert step.replicas.get(eight[0].key, 0) == 0

    def test_ready_prefill_workers_without_a_decode_worker_of_theirs_are_no_capacity(self) -> None:
        up = [state(self.old[0], 2), state(self.old[1], 2), state(self.new[0], 2), state(self.new[1], 0, asked=0)]
        step = step_of(up, list(self.new), list(self.old), limits(gpus=12, max_unavailable=0))
        assert step.replicas[self.old[0].key] == 2

    def test_the_only_decode_worker_is_replaced_where_no_other_step_is_left(self) -> None:
        old = (group("prefill", 4, 2), group("decode", 8, 1))
        new = (group("prefill", 4, 2, "b"), group("decode", 8, 1, "b"))
        world = settled_on(old, limits(gpus=16))
        world.target = new
        assert world.settle().outcome == "Complete"
        assert not world.forced
        kept = settled_on(old, limits(gpus=16, max_unavailable=0))
        kept.target = new
        assert kept.settle().outcome == "RolledBack"

    def test_the_last_decode_worker_of_a_revision_leaves_after_its_prefill_workers(self) -> None:
        world = settled_on(self.old, limits(gpus=8))
        world.target = self.new  # the world checks it at every write
        assert world.settle().outcome == "Complete"


class TestTheWayBack:
    """A plan whose workers do not come up is given up."""

    old, new = group("decode", 2, 2), group("decode", 4, 1)

    def test_a_worker_that_never_gets_ready_brings_the_old_plan_back_with_the_reason(self) -> None:
        groups = [state(self.old, 2), state(self.new, 0, starting=1, since=START, trouble="cannot pull image x")]
        early = step_of(groups, [self.new], [self.old], at_s=299)
        assert (early.outcome, early.refusal) == ("Progressing", None)
        assert "rollback at 00:05:00 UTC" in early.message
        assert early.requeue_after == 1.0
        late = step_of(groups, [self.new], [self.old], at_s=300)
        assert late.outcome == "RollingBack"
        assert late.replicas == {self.old.key: 2, self.new.key: 0}
        assert late.refusal is not None
        assert late.refusal.reason == "NeverReady"
        assert "did not get ready within spec.rollout.startTimeout: cannot pull image x" in late.message

    def test_a_worker_that_changes_its_role_may_hand_its_sessions_over_on_top(self) -> None:
        groups = [state(self.old, 2), state(self.new, 0, starting=1, switching=1, since=START)]
        limit = limits(drain_s=3600.0)
        early = step_of(groups, [self.new], [self.old], limit, at_s=3899)
        assert early.refusal is None
        assert "rollback at 01:05:00 UTC" in early.message
        late = step_of(groups, [self.new], [self.old], limit, at_s=3900)
        assert late.refusal is not None
        assert late.refusal.reason == "NeverReady"
        assert "did not confirm this role within spec.rollout.startTimeout and drainTimeout" in late.message

    def test_a_worker_without_a_node_is_waited_for_as_long_as_another_drains(self) -> None:
        groups = [state(self.old, 2), state(self.new, 0, starting=1, unschedulable=1, since=START)]
        limit = limits(max_unavailable=0)
        assert step_of(groups, [self.new], [self.old], limit, at_s=179).refusal is None
        late = step_of(groups, [self.new], [self.old], limit, at_s=180)
        assert late.refusal is not None
        assert late.refusal.reason == "Unschedulable"
        assert "found no node within spec.rollout.unschedulableTimeout" in late.message

    def test_old_workers_make_room_for_a_worker_that_finds_no_node(self) -> None:
        groups = [state(self.old, 2), state(self.new, 0, starting=1, unschedulable=1, since=START)]
        assert step_of(groups, [self.new], [self.old], at_s=9).replicas[self.old.key] == 2
        assert step_of(groups, [self.new], [self.old], at_s=10).replicas[self.old.key] == 0

    def test_workers_that_the_old_plan_had_too_are_no_reason_to_give_up(self) -> None:
        more = times(self.old, 4)
        kept = [state(self.old, 1, starting=1, since=START), state(self.new, 1)]
        step = step_of(kept, [self.old, self.new], [self.old], at_s=9999)
        assert step.outcome == "Complete"
        step = step_of([state(self.old, 3, starting=1, since=START)], [more], [self.old], at_s=300)
        assert step.outcome == "RollingBack"

    def test_an_aborted_plan_is_tried_again_only_for_other_inputs(self) -> None:
        world = settled_on([self.old], limits())
        world.bad = {self.new.key}
        world.target = (self.new,)
        assert world.settle().outcome == "RolledBack"
        assert asked(world) == replicas([self.old])
        ledger = read_ledger(world.ledger)
        assert ledger is not None
        assert [one.hash for one in ledger.refusals] == [target_hash([self.new])]
        calm = world.operate()
        assert calm.message.startswith("rollback to the plan before, because 1 decode worker of 4 GPUs")
        world.question, world.bad = "another", set()
        assert world.settle().outcome == "Complete"
        assert asked(world) == replicas([self.new])

    def test_a_plan_that_no_step_leads_to_is_refused_at_once(self) -> None:
        step = step_of([state(self.old, 2)], [self.new], [self.old], limits(gpus=4, max_unavailable=0))
        assert (step.outcome, step.replicas) == ("RolledBack", {self.old.key: 2})
        assert step.refusal is not None
        assert step.refusal.reason == "NoFeasibleStep"
        assert (
            "there are too few free GPUs for 1 decode worker of 4 GPUs in pool h100: the budget is 4 GPUs"
            in step.message
        )

    def test_without_an_old_plan_it_is_waited_for(self) -> None:
        step = step_of([state(self.new, 0, starting=1, since=START)], [self.new], [], at_s=9999)
        assert (step.outcome, step.refusal) == ("Progressing", None)
        assert "waiting for 1 decode worker of 4 GPUs in pool h100 to become ready" in step.message

    def test_a_budget_below_the_old_plan_leaves_no_way_back_and_the_floor_gives_way(self) -> None:
        large = group("decode", 8, 2)
        world = settled_on([large], limits())
        world.limits = limits(gpus=16, max_unavailable=0)
        groups = [state(large, 1)]
        step = step_of(groups, [group("decode", 4, 2)], [large], limits(gpus=8, max_unavailable=0))
        assert FORCED in step.message
        assert step.replicas[large.key] == 0

    def test_a_service_that_never_got_its_first_plan_whole_does_not_lose_what_serves(self) -> None:
        first = group("decode", 2, 3)
        step = step_of([state(first, 2, starting=1, since=START)], [group("decode", 4, 1)], [], at_s=5)
        assert step.ledger.base == (times(first, 2),)
        assert step.replicas[first.key] == 2


class TestNewerTargets:
    """A newer target takes over where the one before had got to."""

    def test_workers_that_both_want_stay_and_those_of_the_first_alone_go(self) -> None:
        base, kept, other = group("decode", 2, 4), group("decode", 4, 2), group("prefill", 1, 1)
        midway = [state(base, 2), state(kept, 1), state(other, 0, starting=1, since=START)]
        step = step_of(midway, [kept], [base])
        assert step.replicas == {other.key: 0, base.key: 2, kept.key: 2}
        assert "removes 1 prefill worker of 1 GPU in pool h100, which are surplus and not ready" in step.message

    def test_back_to_the_base_midway_needs_no_start_from_the_beginning(self) -> None:
        base, newer = group("decode", 2, 4), group("decode", 4, 2)
        step = step_of([state(base, 2), state(newer, 1)], [base], [base], limits(gpus=8))
        assert step.replicas == {newer.key: 0, base.key: 2}

    def test_groups_go_when_neither_plan_has_them_and_nothing_is_left_of_them(self) -> None:
        stray = group("decode", 1, 1)
        base, target = group("decode", 2, 1), group("decode", 4, 1)
        step = step_of([state(stray, 0), state(base, 0), state(target, 0)], [target], [base])
        assert step.retire == (stray.key,)
        done = step_of([state(base, 0), state(target, 1)], [target], [base])
        assert (done.outcome, done.retire) == ("Complete", (base.key,))
        draining = step_of([state(base, 0, draining=1), state(target, 1)], [target], [base])
        assert (draining.outcome, draining.retire) == ("Progressing", ())


def test_another_ratio_on_full_nodes_drains_one_role_for_a_new_worker_of_the_other() -> None:
    """Where roles are fixed: decision 0025."""
    old = (group("prefill", 2, 3), group("decode", 2, 1))
    new = (group("prefill", 2, 2), group("decode", 2, 2))
    step = step_of([state(old[0], 3), state(old[1], 1)], list(new), list(old), limits(gpus=8))
    assert step.replicas == {old[0].key: 2, old[1].key: 1}, "the GPUs must be free before they are asked for"
    world = settled_on(old, limits(gpus=8))
    world.target = new
    assert world.settle().outcome == "Complete"
    assert sum(len(one.pods) for one in world.live.values()) == 4


def test_a_kill_at_any_write_loses_nothing() -> None:
    """Every write of a whole change of revision is the last one of its pass once, in every pass."""
    old = (group("prefill", 2, 2), group("decode", 2, 2))
    new = (group("prefill", 4, 1, "b"), group("decode", 2, 2, "b"))
    for alive in range(3):
        world = settled_on(old, limits(gpus=8))
        world.target = new
        for _ in range(200):
            for key in list(world.live):
                world.controller_reads(key)
                world.controller_acts(key)
            world.pass_time(15.0)
            world.operate(alive)
            world.operate(alive)
        if alive:
            assert asked(world) == replicas(new)
        assert world.settle().outcome == "Complete"


def test_a_ledger_that_cannot_be_read_makes_what_runs_the_old_plan() -> None:
    refusal = Refusal((D4,), "q", "NoFeasibleStep", "why", START)
    ledger = Ledger(base=(P4, D4), refusals=(refusal,))
    assert read_ledger(ledger_json(ledger)) == ledger
    for text in (None, "", "{", "[]", '{"base": [{}]}', ledger_json(ledger).replace("NoFeasibleStep", "Because")):
        assert read_ledger(text) is None
    step = step_of([state(D4, 1)], [times(D4, 2)], None)
    assert step.ledger.base == (D4,)


def test_pods_of_a_group_that_is_in_no_plan_hold_the_budget_until_they_are_gone() -> None:
    target, stray = group("decode", 4, 2), group("decode", 4, 1, pool="h20")
    step = step_of([state(target, 1), state(stray, 0, draining=1)], [target], [], limits(gpus=8))
    assert step.replicas[target.key] == 1
    assert "waiting for 1 decode worker of 4 GPUs in pool h20 to drain" in step.message
    assert step_of([state(target, 1), state(stray, 0)], [target], [], limits(gpus=8)).replicas[target.key] == 2
