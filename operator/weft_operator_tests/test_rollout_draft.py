"""What one worker less would cost, and what is free: the figures that every step of a plan change is chosen by."""

from weft_operator.rollout.draft import AvailabilityBounds, Draft, WorkersByRole
from weft_operator.rollout.groups import GroupState, GroupTarget, RolloutLimits
from weft_operator.rollout.moves import make_room
from weft_operator_tests.rollout_world import START, group
from weft_operator_tests.test_rollout_advance import state, times

P, D = group("prefill", 4, 1), group("decode", 4, 1)
P_NEW, D_NEW = group("prefill", 4, 1, "b"), group("decode", 4, 1, "b")
NOTHING: WorkersByRole = {"prefill": 0, "decode": 0}


def draft(groups: list[GroupState], goal: list[GroupTarget], gpus: int = 64) -> Draft:
    return Draft(groups, goal, RolloutLimits(gpus=gpus))


def may(found: Draft, of: GroupTarget, bound: dict[str, int] | None = None, **how: bool) -> bool:
    return found.may_lower(found.groups[of.key], bound or NOTHING, **how)  # type: ignore[arg-type]


def test_the_last_decode_worker_of_a_revision_leaves_after_prefill_workers_that_leave_too() -> None:
    found = draft([state(P, 1), state(D, 1), state(D_NEW, 1)], [D_NEW])
    assert not may(found, D)
    found.asked[P.key] = 0
    assert may(found, D)


def test_one_of_two_decode_workers_of_a_revision_may_leave_before() -> None:
    assert may(draft([state(P, 1), state(D, 2), state(D_NEW, 1)], [D_NEW]), D)
    other = group("decode", 2, 1)
    assert may(draft([state(P, 1), state(D, 1), state(other, 1)], [other]), D)


def test_prefill_workers_that_stay_wait_for_their_next_decode_worker_alone_but_not_beside_anothers() -> None:
    assert may(draft([state(P, 1), state(D, 1)], [P, times(D, 0)]), D), "where the bound lets it"
    assert not may(draft([state(P, 1), state(D, 1), state(D_NEW, 1)], [P, times(D, 0), D_NEW]), D)
    leaving = state(D_NEW, 0, asked=1)
    left = draft([state(P, 1), state(D, 1), leaving], [P, times(D, 0)])
    left.asked[D_NEW.key] = 0
    assert not may(left, D), "it was asked for until this pass"


def test_a_pause_of_the_service_takes_the_last_decode_worker_although_prefill_workers_are_to_leave() -> None:
    found = draft([state(P, 1), state(D, 1)], [])
    assert not may(found, D)
    assert may(found, D, outage=True)
    beside = draft([state(P, 1), state(D, 1), state(D_NEW, 1)], [D_NEW])
    assert not may(beside, D, outage=True), "a prefill worker is never left beside decode workers of others"


def test_a_pause_costs_decode_workers_alone() -> None:
    found = draft([state(P, 1), state(D, 1)], [P])
    bound = {"prefill": 4, "decode": 0}
    assert not may(found, D, bound), "its prefill worker would serve nobody"
    assert may(found, D, bound, outage=True)


def test_a_worker_that_is_not_ready_costs_nothing() -> None:
    assert may(draft([state(D, 1, starting=1)], []), D, {"prefill": 9, "decode": 9})
    assert not may(draft([state(D, 2)], []), D, {"prefill": 0, "decode": 8})


def test_a_role_below_its_bound_keeps_no_worker_of_another_role() -> None:
    found = draft([state(P, 0, asked=1), state(D, 2)], [P])
    assert may(found, D, {"prefill": 4, "decode": 4})
    assert not may(found, D, {"prefill": 4, "decode": 8})


def test_both_roles_that_a_decode_worker_costs_must_stay_at_their_bounds() -> None:
    alone = draft([state(P, 1), state(D, 1)], [P])
    assert not may(alone, D, {"prefill": 4, "decode": 0})
    assert may(alone, D)


def test_useless_prefill_workers_may_leave_whatever_the_bound_is() -> None:
    found = draft([state(P, 1), state(D_NEW, 1)], [D_NEW])
    bound = {"prefill": 8, "decode": 4}
    assert not may(found, P, bound)
    assert may(found, P, bound, unpaired=True)
    assert not may(found, D_NEW, bound, unpaired=True)


def test_places_that_are_kept_for_decode_workers_count_as_asked_for() -> None:
    found = draft([], [times(D, 2)])
    assert not found.has_decode("a")
    found.reserved[D.key] = 1
    assert found.has_decode("a")
    assert not found.has_decode("b")
    surplus = draft([state(D, 1)], [])
    assert not surplus.has_decode("a"), "one that is to leave is no partner"


def test_what_leaves_holds_its_gpus_beside_what_is_asked_for_now() -> None:
    found = draft([state(D, 1, draining=1)], [times(D, 3)], gpus=16)
    assert (found.free_now("h100"), found.free_after_drain("h100"), found.draining_gpus("h100")) == (8, 12, 4)
    found.asked[D.key] = 2
    assert (found.free_now("h100"), found.free_after_drain("h100"), found.draining_gpus("h100")) == (4, 8, 4)
    found.asked[D.key] = 0
    assert (found.free_now("h100"), found.free_after_drain("h100"), found.draining_gpus("h100")) == (8, 16, 8)


def test_workers_hold_what_is_asked_for_or_there_whichever_is_more_and_those_that_leave() -> None:
    assert state(D, 1, starting=1, asked=3, draining=2).held == 5
    assert state(D, 2, starting=1, asked=1, draining=1).held == 4


def made_room(found: Draft, taker: GroupTarget) -> dict[str, int]:
    """Return what is asked of each group when room was made for what the goal wants, nothing needing to stay."""
    said = make_room(found, AvailabilityBounds(NOTHING, NOTHING), {}, now=START)
    assert bool(said) == any(found.asked[key] < one.asked for key, one in found.groups.items()), said
    assert all(f"to free GPUs for {taker.workers(1)}" in words for words in said)
    return found.asked


def test_only_workers_whose_gpus_the_next_one_can_take_make_room_for_it() -> None:
    here, there, new = group("decode", 2, 4), group("decode", 8, 1, pool="h20"), group("decode", 8, 1, template="t")
    found = Draft([state(here, 4), state(there, 1)], [new], RolloutLimits(gpus=64, pools={"h100": 8}))
    assert made_room(found, new) == {new.key: 0, here.key: 0, there.key: 1}


def test_workers_of_the_same_role_make_room_before_others() -> None:
    new = group("decode", 4, 1, template="t")
    found = draft([state(P, 2), state(D, 2)], [new], gpus=16)
    assert made_room(found, new) == {new.key: 0, P.key: 2, D.key: 1}


def test_no_room_is_made_for_a_prefill_worker_that_would_have_no_partner() -> None:
    found = draft([state(P, 1), state(D, 1)], [P_NEW], gpus=8)
    assert made_room(found, P_NEW) == {P_NEW.key: 0, P.key: 1, D.key: 1}


def test_the_last_decode_worker_of_all_makes_room_only_in_a_pause() -> None:
    new = group("decode", 8, 1, template="t")
    found = draft([state(P, 1), state(D, 1)], [P, new], gpus=12)
    bounds = AvailabilityBounds(NOTHING, {"prefill": 4, "decode": 0})
    assert make_room(found, bounds, {}, now=START) == []
    assert make_room(found, bounds, {}, now=START, outage=True)
    assert found.asked == {P.key: 1, new.key: 0, D.key: 0}
