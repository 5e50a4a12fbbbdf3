"""The edges of the rules of a plan change: what is just not a reason, just enough, or just too late."""

from dataclasses import replace

import pytest

from weft_core.parallelism import gpus_of
from weft_operator.rollout.groups import GroupState, GroupTarget
from weft_operator.rollout.ledger import Ledger, Refusal, ledger_json, read_ledger
from weft_operator.rollout.step import limits_of
from weft_operator_tests.rollout_world import START, group
from weft_operator_tests.test_rollout_advance import limits, state, step_of, times
from weft_operator_tests.valid import changed, pools_service, service, spec


def test_a_ledger_of_the_smallest_workers_is_read_and_what_is_no_plan_is_not() -> None:
    one = group("decode", 1, 0)
    ledger = Ledger(base=(one,), refusals=(Refusal((one,), "q", "NoFeasibleStep", "why", START),), plan="demo-plan-1")
    assert read_ledger(ledger_json(ledger)) == ledger
    for wrong in (replace(one, degree=0), replace(one, replicas=-1), replace(one, role="neither")):  # type: ignore[arg-type]
        assert read_ledger(ledger_json(Ledger(base=(wrong,)))) is None


def test_a_lost_worker_of_the_old_plan_is_no_reason_to_give_up_a_plan_that_wants_more_of_its_kind() -> None:
    old = group("decode", 4, 1)
    lost = state(old, 0, starting=1, since=START)
    full = limits(gpus=4)
    blocked = step_of([lost], [times(old, 3)], [old], full, at_s=9999).refusal
    assert blocked is not None
    assert blocked.reason == "NoFeasibleStep"
    more = state(old, 1, starting=1, since=START)
    given_up = step_of([more], [times(old, 3)], [old], at_s=300).refusal
    assert given_up is not None
    assert given_up.reason == "NeverReady"


def test_a_lost_worker_that_both_plans_have_keeps_nobody_from_leaving() -> None:
    both, old, new = group("decode", 1, 1), group("decode", 2, 2), group("decode", 4, 1)
    step = step_of([state(both, 0, starting=1, since=START), state(old, 2), state(new, 1)], [both, new], [both, old])
    assert step.replicas == {both.key: 1, old.key: 1, new.key: 1}, "4 of 5 GPUs stay ready; a worker may be missing"


def test_the_smallest_worker_goes_first_where_one_must_beyond_the_bound() -> None:
    small, large = group("decode", 2, 2), group("decode", 4, 2)
    target = [group("decode", 8, 1)]
    step = step_of([state(large, 1), state(small, 2)], target, [small, large], limits(gpus=8, max_unavailable=0))
    assert "drains 1 decode worker of 2 GPUs in pool h100 beyond spec.rollout.maxUnavailable" in step.message
    assert (step.replicas[small.key], step.replicas[large.key]) == (1, 1)


@pytest.mark.parametrize(("ready", "base"), [(1, 1), (0, 0)])
def test_one_serving_worker_of_a_first_plan_is_something_to_go_back_to(ready: int, base: int) -> None:
    first = group("decode", 2, 3)
    step = step_of([state(first, ready, starting=2, since=START)], [group("decode", 4, 1)], [])
    assert step.ledger.base == ((times(first, base),) if base else ())


def test_only_what_is_done_is_said() -> None:
    old, new = group("decode", 2, 2), group("decode", 4, 1)
    step = step_of([state(old, 2)], [new, old], [old])
    assert step.message == "adds 1 decode worker of 4 GPUs in pool h100"


def test_during_a_rollback_no_other_rollback_is_announced() -> None:
    old, new = group("decode", 2, 2), group("decode", 4, 1)
    groups = [state(old, 1, starting=1, since=START), state(new, 0, starting=1, since=START)]
    step = step_of(groups, [new], [old], at_s=300)
    assert step.outcome == "RollingBack"
    assert "till" not in step.message


def test_prefill_workers_without_a_partner_leave_when_their_decode_worker_is_lost_for_good() -> None:
    decode, old, new = group("decode", 8, 1), group("prefill", 4, 1), group("prefill", 2, 2)
    lost = state(decode, 0, starting=1, since=START)
    step = step_of([lost, state(old, 1), state(new, 2)], [decode, new], [decode, old], at_s=9999)
    assert (step.outcome, step.refusal) == ("Progressing", None)
    assert step.replicas == {decode.key: 1, old.key: 0, new.key: 2}
    assert "drains 1 prefill worker of 4 GPUs in pool h100, which has no worker to pair with" in step.message


def test_prefill_workers_without_a_partner_make_room_whatever_may_be_missing() -> None:
    old, decode, new = group("prefill", 4, 2), group("decode", 4, 1, "b"), group("prefill", 4, 1, "b")
    given = limits(gpus=12, max_unavailable=0)
    step = step_of([state(old, 2), state(decode, 1)], [decode, new], [old], given)
    assert step.replicas == {old.key: 1, decode.key: 1, new.key: 0}
    assert "drains 1 prefill worker of 4 GPUs in pool h100 first, to free GPUs for 1 prefill worker" in step.message


def test_what_only_starts_of_a_first_plan_is_nothing_to_go_back_to() -> None:
    serves, starts = group("decode", 2, 3), group("prefill", 2, 1)
    groups = [state(serves, 2), state(starts, 0, starting=1, since=START)]
    assert step_of(groups, [group("decode", 4, 1)], []).ledger.base == (times(serves, 2),)


def test_the_largest_worker_that_is_there_says_how_much_may_be_missing() -> None:
    base, given_up, target = group("decode", 2, 4), group("decode", 8, 1), group("decode", 4, 2)
    step = step_of([state(base, 0), state(given_up, 1)], [target], [base], limits(gpus=8))
    assert (step.outcome, step.replicas[given_up.key]) == ("Progressing", 0)


def test_where_there_is_room_for_one_worker_and_both_roles_lack_as_many_it_is_a_decode_worker() -> None:
    prefill, decode = group("prefill", 4, 1), group("decode", 4, 1)
    target = [times(prefill, 2), times(decode, 2)]
    step = step_of([state(prefill, 1), state(decode, 1)], target, [prefill, decode], limits(gpus=12))
    assert step.replicas == {prefill.key: 1, decode.key: 2}


def test_a_plan_is_not_done_while_a_group_has_more_workers_than_it_was_asked_for() -> None:
    decode = group("decode", 4, 1)
    assert step_of([state(decode, 1, asked=1, starting=1)], [decode], [decode]).outcome == "Progressing"


def test_the_next_check_is_at_the_earliest_time_at_which_anything_follows() -> None:
    old, new = group("decode", 2, 2), group("decode", 4, 1)
    waits = state(new, 0, starting=1, unschedulable=1, since=START)
    assert step_of([state(old, 2), waits], [new], [old], at_s=4).requeue_after == 6.0, "then it makes room"
    late = step_of([state(old, 2), waits], [new], [old], limits(max_unavailable=0), at_s=100)
    assert late.requeue_after == 80.0, "then it is given up: 120 s for a node, and 60 s for others to drain"


def test_for_a_worker_without_a_node_what_may_go_goes_although_it_is_not_enough() -> None:
    old, new = group("decode", 2, 4), group("decode", 4, 2)
    waits = state(new, 0, starting=1, unschedulable=1, since=START)
    step = step_of([state(old, 3), waits], [new], [old], at_s=10)
    assert step.replicas[old.key] == 2, "4 of 8 GPUs must stay: a worker of 4 may be missing"


def test_the_limits_of_a_plan_change_are_those_of_the_spec() -> None:
    found = limits_of(spec(pools_service()))
    assert (found.gpus, found.max_unavailable, found.make_room_s) == (16, 1, 10.0)
    assert (found.start_s, found.unschedulable_s) == (1800.0, 600.0)
    assert found.drain_s > 60.0, "drainTimeout, and what a pod takes to end"
    assert found.pools == {"h100": 8}, "a pool without a number of its own has the budget"
    assert (found.per_hour, found.prices) == (80.0, {"h20": 2.5, "h100": 6.0})
    free = limits_of(spec(changed(service(), "spec.capacity.elastic", True)))
    assert (free.pools, free.per_hour, free.prices) == ({}, None, {})
    assert free.make_room_s == 300.0, "an autoscaler is given half of unschedulableTimeout"


def test_one_less_than_the_plan_wants_is_nothing_to_go_back_to() -> None:
    first, other = group("decode", 2, 2), group("prefill", 2, 1)
    for ready, starting in ((2, 0), (1, 2)):
        step = step_of([state(first, ready, starting=starting, since=START)], [first, other], [])
        assert step.ledger.base == (), "nothing that serves is to go"


def test_only_workers_that_wait_are_waited_for_in_vain() -> None:
    old, new = group("decode", 2, 2), group("decode", 4, 1)
    assert step_of([state(old, 0), state(new, 1, since=START)], [new], [old], at_s=9999).outcome == "Complete"
    stray = group("prefill", 1, 1)
    groups = [state(old, 2), state(stray, 0, starting=1, since=START), state(new, 0, asked=0)]
    assert step_of(groups, [new], [old], at_s=9999).refusal is None, "nobody wants that one"


def test_a_plan_is_aborted_with_the_number_of_workers_that_did_not_start() -> None:
    old, new = group("decode", 2, 2), group("decode", 1, 5)
    step = step_of([state(old, 2), state(new, 2, starting=3, since=START)], [new], [old], at_s=300)
    assert step.refusal is not None
    assert step.refusal.message.startswith("3 decode workers of 1 GPU in pool h100 did not get ready")


def test_the_next_check_is_no_sooner_than_anything_follows() -> None:
    old, new = group("decode", 2, 2), group("decode", 4, 1)
    starts = state(new, 0, starting=1, since=START)
    assert step_of([state(old, 2), starts], [new], [old], at_s=4).requeue_after == 296.0, "it has a node"
    waits = state(new, 0, starting=1, unschedulable=1, since=START)
    assert step_of([state(old, 2), waits], [new], [old], at_s=10).requeue_after == 170.0, "room is made now"


def test_workers_on_their_way_out_and_those_asked_for_share_the_budget() -> None:
    some = group("decode", 4, 1)
    step = step_of([state(some, 1, draining=1)], [times(some, 3)], [], limits(gpus=12))
    assert step.replicas == {some.key: 2}


def test_a_steps_message_has_the_numbers_of_workers() -> None:
    some = group("decode", 2, 1)
    assert step_of([state(some, 1)], [times(some, 3)], [some]).message.startswith("adds 2 decode workers")
    gone = step_of([state(some, 4)], [some], [times(some, 4)])
    assert gone.message == "drains 3 decode workers of 2 GPUs in pool h100: enough others are ready"


def test_larger_workers_come_first_and_go_first() -> None:
    large, small = group("decode", 8, 1), group("decode", 2, 1)
    assert step_of([], [small, large], None, limits(gpus=9)).replicas == {large.key: 1, small.key: 0}
    old, less, new = group("decode", 4, 1), group("decode", 2, 1), times(group("decode", 1, 4), 4)
    step = step_of([state(less, 1), state(old, 1), state(new, 2, starting=2, since=START)], [new], [old, less])
    assert (step.replicas[old.key], step.replicas[less.key]) == (0, 1), "4 of 6 GPUs must stay, and 2 are new"


def test_for_workers_that_have_not_shown_that_they_start_no_more_room_is_made() -> None:
    old, new = group("decode", 2, 4), group("decode", 2, 4, template="t")
    given = limits(gpus=8, max_unavailable=2)
    waits = step_of([state(old, 3), state(new, 0, starting=1, since=START)], [new], [old], given)
    assert waits.replicas == {old.key: 3, new.key: 1}
    serves = step_of([state(old, 3), state(new, 1)], [new], [old], given)
    assert serves.replicas[old.key] == 1, "8 GPUs less two workers must stay"


def test_workers_of_another_pool_make_no_room() -> None:
    here, there, new = group("decode", 4, 1), group("decode", 8, 1, pool="h20"), group("decode", 8, 1, template="t")
    given = replace(limits(gpus=64), pools={"h100": 8})
    step = step_of([state(here, 1), state(there, 1)], [new], [here, there], given)
    assert step.replicas[here.key] == 0


def test_a_refusal_is_of_one_plan_for_one_question() -> None:
    one, other = group("decode", 1, 1), group("decode", 2, 1)
    first = Refusal((one,), "q", "NoFeasibleStep", "why", START)
    ledger = Ledger().with_refusal(first)
    assert ledger.refusal_of([one], "q") == first
    assert ledger.refusal_of([one], "another") is None
    assert ledger.refusal_of([other], "q") is None
    second = Refusal((other,), "q", "NeverReady", "why", START)
    again = replace(first, message="still")
    assert ledger.with_refusal(second).with_refusal(again).refusals == (second, again)
    later = Refusal((one,), "another", "NoFeasibleStep", "why", START)
    assert ledger.with_refusal(second).with_refusal(later).refusals == (later,), (
        "what answered other questions is forgotten"
    )
    many = [Refusal((group("decode", 1, n),), "q", "NoFeasibleStep", "why", START) for n in range(1, 11)]
    for refusal in many:
        ledger = ledger.with_refusal(refusal)
    assert ledger.refusals == tuple(many[2:])


def test_the_role_further_behind_gets_the_next_worker_and_decode_where_neither_is() -> None:
    prefill, decode = group("prefill", 1, 2), group("decode", 1, 4)
    room_for_one = limits(gpus=3)
    step = step_of([state(prefill, 1), state(decode, 1)], [prefill, decode], [], room_for_one)
    assert step.replicas == {prefill.key: 1, decode.key: 2}, "1 of 4 is less than 1 of 2"
    decode = group("decode", 1, 2)
    step = step_of([state(prefill, 1), state(decode, 1)], [prefill, decode], [], room_for_one)
    assert step.replicas == {prefill.key: 1, decode.key: 2}


def test_a_revision_without_a_decode_worker_gets_one_before_the_role_further_behind() -> None:
    prefill, decode = group("prefill", 1, 8), group("decode", 1, 3)
    fresh = group("decode", 1, 1, "b")
    now = [state(prefill, 1), state(decode, 3)]
    step = step_of(now, [prefill, decode, fresh], [prefill, decode], limits(gpus=5))
    assert step.replicas == {prefill.key: 1, decode.key: 3, fresh.key: 1}


OLD, NEW = group("decode", 2, 2), group("decode", 4, 1)
WAITS = "waiting for 1 decode worker of 4 GPUs in pool h100 to become ready"
AWAITED: dict[str, tuple[list[GroupState], list[GroupTarget], str]] = {
    # the groups, the old plan, and what is said of the worker that starts
    "a new worker": (
        [state(OLD, 2), state(NEW, 0, starting=1, since=START)], [OLD], f"{WAITS}; rollback at 00:05:00 UTC",
    ),
    "a new worker in trouble": (
        [state(OLD, 2), state(NEW, 0, starting=1, since=START, trouble="no image")], [OLD],
        f"{WAITS} (no image); rollback at 00:05:00 UTC",
    ),
    "a worker that the old plan has too": (
        [state(OLD, 2), state(NEW, 0, starting=1, since=START, trouble="no image")], [OLD, NEW], f"{WAITS} (no image)",
    ),
    "a worker of a first plan": ([state(NEW, 0, starting=1, since=START)], [], WAITS),
}  # fmt: skip


@pytest.mark.parametrize(("groups", "base", "message"), AWAITED.values(), ids=AWAITED)
def test_a_step_says_what_it_waits_for_and_when_it_is_given_up(
    groups: list[GroupState], base: list[GroupTarget], message: str
) -> None:
    assert step_of(groups, [NEW], base).message == message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ([group("decode", 8, 1), group("decode", 4, 1)], group("decode", 4, 3, template="t")),
        ([group("decode", 1, 2), group("decode", 2, 1), group("decode", 4, 1)], group("decode", 8, 1)),
    ],
    ids=["the smallest that is enough", "the largest where none is enough"],
)
def test_room_for_a_new_worker_is_made_by_one_of_four_gpus(old: list[GroupTarget], new: GroupTarget) -> None:
    budget = sum(gpus_of(one.degree) * one.replicas for one in old)
    step = step_of([state(one, one.replicas) for one in old], [new], old, limits(gpus=budget))
    assert step.message.startswith("drains 1 decode worker of 4 GPUs in pool h100 first, to free GPUs for")
