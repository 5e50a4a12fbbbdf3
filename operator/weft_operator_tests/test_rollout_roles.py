"""Rollouts where roles can change: switches come first, the budget and the floor hold, and each comes to an end."""

import random
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from weft_core.layouts import WORKER_ROLES
from weft_core_tests.property_tests import examples
from weft_operator.rollout.groups import GroupTarget, RolloutLimits
from weft_operator_tests.role_world import RoleWorld, carried_out, fixed, replicas, targets

COUNTS = st.fixed_dictionaries({role: st.integers(0, 4) for role in WORKER_ROLES}).filter(
    lambda counts: counts["decode"] + counts["both"] > 0
)
SEEDS = st.integers(0, 2**32)


def _events(world: RoleWorld, rng: random.Random, count: int) -> None:
    for _ in range(count):
        kind = rng.random()
        if kind < 0.4:
            world.operate(writes=rng.choice([0, 1, 2, 1000]))
        elif kind < 0.7 and world.groups:
            world.control(rng.choice(list(world.groups)))
        else:
            world.pass_time(1.0)


def _change(old: tuple[GroupTarget, ...], new: tuple[GroupTarget, ...], limits: RolloutLimits, seed: int) -> RoleWorld:
    world = carried_out(old, limits, seed=seed)
    world.target = new
    _events(world, random.Random(seed), 20)
    return world


def _of_total(counts: Mapping[str, int], total: int) -> dict[str, int]:
    """Return counts with a sum, by more or fewer decode workers."""
    rest = total - sum(counts.values())
    return {**counts, "decode": counts["decode"] + rest}


@given(old=COUNTS, new=COUNTS, more=st.integers(0, 2), seed=SEEDS)
@settings(max_examples=examples(200), deadline=None)
def test_another_ratio_starts_and_drains_no_worker(
    old: dict[str, int], new: dict[str, int], more: int, seed: int
) -> None:
    total = max(sum(old.values()), sum(new.values()))
    plans = [targets("w2", 2, **_of_total(counts, total)) for counts in (old, new)]
    world = _change(plans[0], plans[1], RolloutLimits(gpus=2 * total + more, max_unavailable=1), seed)
    assert world.settle().outcome == "Complete"
    assert world.counts() == replicas(plans[1])
    assert (world.started, world.drained, world.forced) == (0, 0, False)


@given(old=COUNTS, new=COUNTS, more=st.integers(0, 4), unavailable=st.integers(0, 2), seed=SEEDS)
@settings(max_examples=examples(200), deadline=None)
def test_a_plan_switches_as_many_workers_as_it_can_and_ends(
    old: dict[str, int], new: dict[str, int], more: int, unavailable: int, seed: int
) -> None:
    """The world checks the budget and the floor after every write."""
    gpus = 2 * max(sum(old.values()), sum(new.values())) + more
    plan = targets("w2", 2, **new)
    world = _change(targets("w2", 2, **old), plan, RolloutLimits(gpus=gpus, max_unavailable=unavailable), seed)
    step = world.settle()
    if step.outcome == "RolledBack":
        assert unavailable == 0
        assert world.counts() == replicas(targets("w2", 2, **old))
        return
    assert world.counts() == replicas(plan)
    surplus = sum(max(0, old[role] - new[role]) for role in WORKER_ROLES)
    missing = sum(max(0, new[role] - old[role]) for role in WORKER_ROLES)
    assert world.started == max(0, missing - surplus)
    assert world.drained == max(0, surplus - missing)


@given(old=COUNTS, new=COUNTS, wide=st.integers(0, 2), more=st.integers(0, 4), seed=SEEDS)
@settings(max_examples=examples(100), deadline=None)
def test_workers_of_another_degree_are_started_and_not_switched_to(
    old: dict[str, int], new: dict[str, int], wide: int, more: int, seed: int
) -> None:
    plans = targets("w2", 2, **old), (*targets("w2", 2, **new), *targets("w4", 4, decode=wide))
    gpus = max(sum(int(str(one.degree)) * one.replicas for one in plan) for plan in plans) + more
    world = _change(plans[0], plans[1], RolloutLimits(gpus=gpus, max_unavailable=1), seed)
    assert world.settle().outcome in ("Complete", "RolledBack")


@given(prefill=st.integers(1, 3), decode=st.integers(1, 3), more=st.integers(0, 4), seed=SEEDS)
@settings(max_examples=examples(100), deadline=None)
def test_groups_with_roles_in_their_names_are_replaced_in_one_rollout(
    prefill: int, decode: int, more: int, seed: int
) -> None:
    old = fixed("prefill", 2, prefill), fixed("decode", 2, decode)
    new = targets("w2", 2, prefill=prefill, decode=decode)
    limits = RolloutLimits(gpus=2 * (prefill + decode) + more, max_unavailable=1)
    world = _change(old, new, limits, seed)
    assert world.settle().outcome == "Complete"
    assert world.counts() == replicas(new)
    assert world.started == world.drained == prefill + decode


def test_a_plan_of_both_roles_for_each_worker_never_leaves_the_service_without_decode() -> None:
    world = carried_out(targets("w2", 2, prefill=1, decode=1), RolloutLimits(gpus=4, max_unavailable=1), seed=0)
    world.target = targets("w2", 2, both=2)
    for _ in range(40):
        world.operate()
        for name in list(world.groups):
            world.control(name)
        assert world.serving()["decode"] >= 2
        world.pass_time(1.0)
    assert world.counts() == {"w2/both": 2}
    assert world.switched == 2


def test_no_worker_beyond_the_bound_switches_at_once() -> None:
    world = carried_out(targets("w2", 2, prefill=4, decode=4), RolloutLimits(gpus=16, max_unavailable=1), seed=0)
    world.target = targets("w2", 2, both=8)
    step = world.operate()
    assert {key: number for key, number in step.replicas.items() if number} == {
        "w2/prefill": 3,
        "w2/decode": 3,
        "w2/both": 2,
    }
    assert "changes the role of 1 prefill worker of 2 GPUs in pool h100 to both" in step.message
