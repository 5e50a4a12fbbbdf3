"""A worker's role: which words name one, which duties it has, and how one follows the other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.heartbeat import WorkerRecord
from weft_core.layouts import ROLES, WORKER_ROLES, WorkerRole
from weft_core.worker_roles import RoleState, has_duty, parse_role

roles = st.sampled_from(WORKER_ROLES)
events = st.lists(st.one_of(roles, st.just("handed over")), max_size=30)


@pytest.mark.parametrize("word", ["prefill", "decode", "both", " both\n", "decode\n"])
def test_words_with_white_space_around_them_name_roles(word: str) -> None:
    assert parse_role(word) == word.strip()


@pytest.mark.parametrize("word", ["", "\n", "Prefill", "prefill,decode", "worker", "both both", "coordinator"])
def test_other_words_name_none(word: str) -> None:
    assert parse_role(word) is None


def test_a_worker_with_the_role_both_has_both_duties() -> None:
    duties = {role: [duty for duty in ROLES if has_duty(role, duty)] for role in WORKER_ROLES}
    assert duties == {"prefill": ["prefill"], "decode": ["decode"], "both": ["prefill", "decode"]}
    record = WorkerRecord("w", "both", "http://127.0.0.1:1", 1, 1)
    assert record.has_duty("prefill")
    assert record.has_duty("decode")


@pytest.mark.parametrize(
    ("before", "after"),
    [("prefill", "decode"), ("prefill", "both"), ("decode", "both"), ("both", "decode")],
)
def test_a_role_that_decodes_is_in_force_at_once(before: WorkerRole, after: WorkerRole) -> None:
    state = RoleState(before, before, 1.0).assign(after, 2.0)
    assert state == RoleState(after, after, 2.0)
    assert not state.leaving


@pytest.mark.parametrize("before", ["decode", "both"])
def test_a_worker_that_is_not_to_decode_any_more_hands_its_sessions_over_first(before: WorkerRole) -> None:
    state = RoleState(before, before, 1.0).assign("prefill", 2.0)
    assert (state.role, state.leaving, state.since) == (before, True, 2.0)
    assert state.assign("prefill", 3.0) is state, "the same assignment again starts nothing anew"
    assert state.handed_over() == RoleState("prefill", "prefill", 2.0)


@pytest.mark.parametrize("back", ["decode", "both"])
def test_a_change_back_midway_is_followed(back: WorkerRole) -> None:
    state = RoleState("decode", "decode", 1.0).assign("prefill", 2.0).assign(back, 3.0)
    assert (state.role, state.leaving) == (back, False)


@given(first=roles, events=events)
def test_the_last_assignment_wins_and_no_worker_is_ever_idle(first: WorkerRole, events: list[str]) -> None:
    """One role is in force at any time; whoever leaves still decodes, and is assigned a role that does not."""
    state, last = RoleState(first, first, 0.0), first
    for now, event in enumerate(events, start=1):
        if event == "handed over":
            state = state.handed_over()
        else:
            role = parse_role(event)
            assert role is not None
            state, last = state.assign(role, float(now)), role
        assert state.assigned == last
        assert state.role in WORKER_ROLES
        if state.leaving:
            assert has_duty(state.role, "decode")
            assert not has_duty(state.assigned, "decode")
        else:
            assert state.role == last
    assert state.handed_over().role == last
    assert not state.handed_over().leaving


@given(first=roles, assigned=st.lists(roles, max_size=20))
def test_sessions_are_never_given_up_without_being_handed_over(first: WorkerRole, assigned: list[WorkerRole]) -> None:
    state = RoleState(first, first, 0.0)
    for role in assigned:
        before = state
        state = state.assign(role, 1.0)
        if has_duty(before.role, "decode"):
            assert has_duty(state.role, "decode"), "only handed_over takes the duty away"
