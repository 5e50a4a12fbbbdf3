"""1,000 random schedules of plan changes with failures: the rules hold at every write, and each comes to an end."""

import random
from dataclasses import replace

import pytest

from weft_core.layouts import ROLES, Role
from weft_core.parallelism import gpus_of
from weft_core_tests.property_tests import examples
from weft_operator.rollout.groups import GroupTarget, RolloutLimits, fits
from weft_operator.rollout.ledger import target_hash
from weft_operator_tests.rollout_world import World, asked, group, replicas, settled_on

SCHEDULES = examples(1000)
CHUNKS = 50
POOLS = ("h100", "h20")


def _limits(rng: random.Random, seed: int) -> RolloutLimits:
    """Return random limits; every third service has a pool that is smaller than its budget, every third pays less."""
    bounds = random.Random(f"bounds {seed}")
    gpus = rng.choice([8, 12, 16, 24])
    limits = RolloutLimits(gpus=gpus, start_s=240.0, unschedulable_s=120.0)
    if bounds.random() < 0.3:
        limits = replace(limits, pools={bounds.choice(POOLS): bounds.choice([2, 4, gpus // 2])})
    if bounds.random() < 0.3:
        prices = {"h100": bounds.choice([2.0, 2.99, 4.1]), "h20": bounds.choice([0.7, 1.3])}
        limits = replace(limits, prices=prices, per_hour=gpus * bounds.choice([1.0, 1.5, 2.0]))
    return limits


def _plan(rng: random.Random, limits: RolloutLimits, revisions: str) -> tuple[GroupTarget, ...]:
    """Return a random plan of one revision within limits: co-located now and then, mixed degrees, two pools."""
    while True:
        revision, template = rng.choice(revisions), rng.choice(["", "", "t"])
        roles: tuple[Role, ...] = ("decode",) if rng.random() < 0.15 else ROLES
        groups: dict[str, GroupTarget] = {}
        for role in roles:
            for _ in range(rng.choice([1, 1, 2])):
                degree, pool = rng.choice([1, 2, 2, 4, 8]), rng.choice(POOLS[: rng.choice([1, 2])])
                one = group(role, degree, rng.randint(1, 3), revision, pool=pool, template=template)
                groups[one.key] = one
        if fits(groups.values(), limits):
            return tuple(groups.values())


def _schedule(seed: int, *, canary: bool = False) -> World:
    """Return a world in the middle of one to three plan changes, with failures behind it."""
    rng = random.Random(seed)
    limits = _limits(rng, seed)
    first = _plan(rng, limits, "ab")
    limits = replace(limits, max_unavailable=rng.choice([0, 1, 1, 1, 2]))
    world = settled_on(first, limits, seed=seed)
    if canary:
        world.percent = rng.choice([1, 10, 25, 50])
    needed = {pool: sum(gpus_of(one.degree) * one.replicas for one in first if one.pool == pool) for pool in POOLS}
    if rng.random() < 0.3:
        world.nodes = {pool: rng.choice([needed[pool], needed[pool] + 4, 64]) for pool in POOLS}
    plans = [first]
    for number in range(rng.randint(1, 3)):
        plan = first if rng.random() < 0.1 else _plan(rng, limits, "abc")
        known = {key for key, one in world.live.items() if one.asked} | {one.key for old in plans for one in old}
        world.bad = {one.key for one in plan if rng.random() < 0.15} - known
        if canary:
            world.worse = {one.key for one in plan if rng.random() < 0.3} - known
        world.target = plan
        world.question = f"q{number}" if rng.random() < 0.7 else world.question
        plans.append(plan)
        for _ in range(rng.randint(5, 60)):
            _event(world, rng)
    return world


def _event(world: World, rng: random.Random) -> None:
    kind = rng.random()
    keys = list(world.live)
    if kind < 0.3:
        world.operate(rng.choice([None, None, 0, 1, 2, 3]))
    elif kind < 0.5:
        world.controller_reads(rng.choice(keys))
    elif kind < 0.7:
        world.controller_acts(rng.choice(keys))
    elif kind < 0.97:
        world.pass_time(rng.choice([0.5, 5.0, 20.0, 60.0]))
    else:
        world.crash()


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_schedule_keeps_the_rules_and_ends(chunk: int) -> None:
    """The world itself checks budget, floor and pairs at every write, and that only a way back may break the floor."""
    for seed in range(chunk, SCHEDULES, CHUNKS):
        world = _schedule(seed)
        step = world.settle()
        ample = world.limits.max_unavailable and min(world.nodes.values()) >= world.limits.gpus
        assert not (world.forced and ample), f"{seed}: below the floor although there was another way"
        if step.outcome == "Complete":
            assert asked(world) == replicas(world.target), seed
            continue
        # Given up: all is as the plan before wants it, and it says why.
        assert step.refusal is not None, seed
        assert step.refusal.hash == target_hash(world.target), seed
        assert step.refusal.message in step.message, seed
        assert asked(world) == replicas(step.ledger.base), seed


def test_schedules_take_both_ends() -> None:
    outcomes = [_schedule(seed).settle().outcome for seed in range(40)]
    assert 5 < outcomes.count("RolledBack") < 35, outcomes


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_schedule_with_canaries_keeps_the_rules_and_ends(chunk: int) -> None:
    """As above; the world checks too that no plan is kept that was not tried, or that did worse."""
    for seed in range(chunk, SCHEDULES, CHUNKS):
        world = _schedule(seed, canary=True)
        step = world.settle()
        if step.outcome == "Complete":
            assert asked(world) == replicas(world.target), seed
            continue
        assert step.refusal is not None, seed
        assert step.refusal.hash == target_hash(world.target), seed
        assert asked(world) == replicas(step.ledger.base), seed
        if step.refusal.reason == "CanaryFailed":
            assert step.ledger.canary is not None, seed
            assert step.ledger.canary.state == "RolledBack", seed


def test_schedules_with_canaries_take_all_ends() -> None:
    worlds = [_schedule(seed, canary=True) for seed in range(80)]
    steps = [world.settle() for world in worlds]
    reasons = [step.refusal.reason for step in steps if step.refusal is not None]
    assert reasons.count("CanaryFailed") > 8, reasons
    assert sum(step.outcome == "Complete" for step in steps) > 8
    assert sum(bool(world.tried) for world in worlds) > 20
