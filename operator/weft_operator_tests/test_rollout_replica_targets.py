"""Which replicas the service controller asks of its groups, and which groups it deletes."""

import pytest

from weft_operator.kube.diff import Delete, Scale
from weft_operator.rollout.replica_targets import desired_groups, plan_targets, scale_actions, zero_targets
from weft_operator.workers.group_views import GroupView
from weft_operator_tests.samples import KEY, group
from weft_operator_tests.test_groups_view import NEW, OLD, name, row, view, wanted


def test_groups_are_asked_for_the_plans_numbers_and_others_for_none() -> None:
    views = (view(row(0), asked=1), view(row(1), row(2), revision=OLD))
    asked = plan_targets(wanted(*views), views)
    assert asked.replicas == {name(): 2, name(OLD): 0}
    assert asked.retire == frozenset(), "workers are still there"
    actions = scale_actions(KEY, asked, views)
    assert [(type(item), item.key.name, getattr(item, "replicas", None)) for item in actions] == [
        (Scale, name(), 2),
        (Scale, name(OLD), 0),
    ]
    assert [item.uid for item in actions if isinstance(item, Scale)] == [f"uid-{NEW}", f"uid-{OLD}"]
    assert [item.reason for item in actions] == ["replicas 1 -> 2", "replicas 2 -> 0"]


@pytest.mark.parametrize("views", [(), (view(asked=None),)], ids=["no group yet", "a group without replicas"])
def test_the_first_number_of_a_group_is_written_as_new(views: tuple[GroupView, ...]) -> None:
    (action,) = scale_actions(KEY, plan_targets(wanted(), views), views)
    assert isinstance(action, Scale)
    assert (action.key.name, action.replicas, action.reason) == (name(), 2, "replicas new -> 2")


def test_what_is_asked_already_is_not_asked_again() -> None:
    views = (view(row(0), row(1)),)
    assert scale_actions(KEY, plan_targets(wanted(*views), views), views) == ()


def test_an_empty_group_that_is_not_in_the_plan_is_removed() -> None:
    for left, retired in (
        ((), True),
        (({"name": "demo-p4-1", "draining": True},), False),
        (({"name": "demo-p4-1", "lost": "its node is gone"},), True),
    ):
        views = (view(row(0), row(1)), view(*left, asked=0, revision=OLD))
        actions = scale_actions(KEY, plan_targets(wanted(*views), views), views)
        assert [type(item) for item in actions] == ([Delete] if retired else [])
    unseen = (view(row(0), row(1)), view(asked=0, revision=OLD, seen=0))
    assert scale_actions(KEY, plan_targets(wanted(*unseen), unseen), unseen) == (), "its controller has not looked yet"


def test_with_planning_off_a_group_keeps_its_number_and_a_new_one_takes_that_of_the_one_before() -> None:
    scaled = (view(row(0), asked=7),)
    assert plan_targets(wanted(*scaled, by_hand=True), scaled).replicas == {name(): 7}
    to_zero = (view(asked=0),)
    assert plan_targets(wanted(*to_zero, by_hand=True), to_zero).replicas == {name(): 0}
    before = (view(row(0), asked=5, revision=OLD),)
    assert plan_targets(wanted(*before, by_hand=True), before).replicas == {name(): 5, name(OLD): 0}
    halfway = (view(asked=0), *before)
    assert plan_targets(wanted(*halfway, by_hand=True), halfway).replicas == {name(): 5, name(OLD): 0}, "mid rollout"
    assert plan_targets(wanted(by_hand=True), ()).replicas == {name(): 2}


def test_with_planning_off_a_new_group_takes_no_number_of_another_place() -> None:
    elsewhere = (view(asked=7, role="decode"), view(asked=9, role="decode", revision=OLD))
    asked = plan_targets(wanted(*elsewhere, by_hand=True), elsewhere)
    assert asked.replicas[name()] == 2
    unset = (view(asked=None), view(asked=5, revision=OLD))
    assert plan_targets(wanted(*unset, by_hand=True), unset).replicas[name()] == 5


def test_groups_of_one_place_in_a_plan_are_one_group() -> None:
    (found,) = desired_groups(
        "demo",
        [group("prefill", 4, 1), group("prefill", 4, 2)],
        (),
        revision=NEW,
        scaled_by_hand=False,
        fixed_roles=True,
    )
    assert (found.name, found.group.replicas) == (name(), 3)


def test_at_scale_to_zero_every_group_gets_none_prefill_first_and_none_is_deleted() -> None:
    """Prefill workers are of no use without decode workers; the plan's groups that are not there yet get none too."""
    planned = desired_groups(
        "demo",
        [group("decode", 8, 1), group("prefill", 4, 2)],
        (),
        revision=NEW,
        scaled_by_hand=False,
        fixed_roles=True,
    )
    views = (view(asked=0, role="decode", revision=OLD), view(row(0), revision=OLD), view(row(1), row(2)))
    targets = zero_targets(planned, views)
    prefill, decode = sorted([name(), name(OLD)]), sorted([name(NEW, "decode", 8), name(OLD, "decode", 8)])
    assert list(targets.replicas.items()) == [(one, 0) for one in (*prefill, *decode)]
    assert targets.retire == frozenset()
