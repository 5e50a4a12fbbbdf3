"""Which prompts prefill workers must still have in their prefix caches, by what their heartbeats count."""

from dataclasses import replace

import pytest

from weft_core.heartbeat import WorkerRecord
from weft_router.routing.prefix_cache_ages import SAMPLES, PrefixCacheAges
from weft_router.sessions.session import CachedPrompt

RECORD = WorkerRecord("p0", "prefill", "http://x", 1, 10_000, instance_id="a", ready=True)


class World:
    """One prefill worker and what is known of its cache; time passes by a second with each heartbeat."""

    def __init__(self) -> None:
        self.now = 100.0
        self.record = RECORD
        self.ages = PrefixCacheAges(clock=lambda: self.now)
        self.ages.observe([self.record])

    def beat(self, tokens: int, **fields: object) -> None:
        self.now += 1.0
        self.record = replace(self.record, **{"kv_intake": self.record.kv_intake + tokens, **fields})  # type: ignore[arg-type]
        self.ages.observe([self.record])

    def holds(self, at: float) -> bool:
        return self.ages.cached({"p0": CachedPrompt(700, at), "gone": CachedPrompt(9, at)}) == {"p0": 700}


def test_a_prompt_is_cached_until_as_many_tokens_came_after_it_as_the_memory_holds() -> None:
    world = World()
    world.beat(3000)
    computed = world.now
    for _ in range(3):
        world.beat(3000)
        assert world.holds(computed)
    world.beat(3000)
    assert not world.holds(computed)
    assert world.holds(computed + 1)


def test_running_requests_take_room_from_cached_prompts() -> None:
    world = World()
    world.beat(3000)
    computed = world.now
    world.beat(3000)
    assert world.holds(computed)
    world.beat(0, kv_used=8000)
    assert not world.holds(computed)


@pytest.mark.parametrize("again", [True, False])
def test_an_engine_that_began_again_or_is_gone_has_nothing(again: bool) -> None:
    world = World()
    world.beat(300)
    computed = world.now
    assert world.holds(computed)
    if again:
        world.beat(0, instance_id="b", kv_intake=0)
        assert world.holds(world.now)
    else:
        world.ages.observe([])
    assert not world.holds(computed)


def test_what_was_computed_before_a_worker_was_known_is_not_counted_on() -> None:
    world = World()
    assert not world.holds(99.0)
    assert world.holds(100.0)


def test_few_samples_are_kept_however_many_heartbeats_come() -> None:
    world = World()
    for _ in range(5000):
        world.beat(10)
    assert len(world.ages._caches["p0"].samples) <= SAMPLES + 2
    assert world.holds(world.now - 900)
    assert not world.holds(world.now - 1100)
