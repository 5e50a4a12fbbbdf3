"""Token buckets and the waiting room: rates are kept, nobody starves, memory is bounded."""

from hypothesis import given
from hypothesis import strategies as st

from weft_router.limits.token_buckets import TokenBuckets, whole_seconds
from weft_router.limits.waiting_room import EAGERNESS, WaitingRoom

STEPS = st.lists(st.tuples(st.floats(0, 5), st.floats(0.1, 30)), min_size=1, max_size=60)


@given(STEPS, st.floats(0.5, 20), st.floats(0.5, 10))
def test_no_more_passes_than_rate_and_burst_allow(steps: list[tuple[float, float]], rate: float, burst: float) -> None:
    buckets, now, taken, largest = TokenBuckets(), 0.0, 0.0, 0.0
    for pause, amount in steps:
        now += pause
        if buckets.wait("k", amount, rate=rate, burst=burst, now=now) == 0.0:
            buckets.take("k", amount, rate=rate, burst=burst, now=now)
            taken += amount
            largest = max(largest, amount)
        over = max(0.0, largest - rate * burst)  # what costs more than a bucket passes once, into debt
        assert taken <= rate * burst + rate * now + over + 1e-6


@given(STEPS, st.floats(0.5, 20), st.floats(0.5, 10))
def test_who_waits_as_long_as_told_passes(steps: list[tuple[float, float]], rate: float, burst: float) -> None:
    buckets, now = TokenBuckets(), 0.0
    for pause, amount in steps:
        now += pause
        wait = buckets.wait("k", amount, rate=rate, burst=burst, now=now)
        assert buckets.wait("k", amount, rate=rate, burst=burst, now=now + wait) <= 1e-6
        if wait > 1e-3:
            assert buckets.wait("k", amount, rate=rate, burst=burst, now=now + 0.9 * wait) > 0.0, "not told to idle"
        now += wait
        buckets.take("k", amount, rate=rate, burst=burst, now=now)


def test_what_is_given_back_fills_a_bucket_and_no_more() -> None:
    buckets = TokenBuckets()
    buckets.take("k", 8.0, rate=1.0, burst=10.0, now=0.0)
    assert buckets.wait("k", 5.0, rate=1.0, burst=10.0, now=0.0) == 3.0
    buckets.take("k", -100.0, rate=1.0, burst=10.0, now=0.0)
    assert buckets.wait("k", 10.0, rate=1.0, burst=10.0, now=0.0) == 0.0
    buckets.take("k", 10.0, rate=1.0, burst=10.0, now=0.0)
    assert buckets.wait("k", 1.0, rate=1.0, burst=10.0, now=0.0) == 1.0


def test_a_clock_that_goes_back_gives_nothing() -> None:
    buckets = TokenBuckets()
    buckets.take("k", 10.0, rate=1.0, burst=10.0, now=100.0)
    assert buckets.wait("k", 1.0, rate=1.0, burst=10.0, now=50.0) == 1.0
    buckets.take("k", 0.0, rate=1.0, burst=10.0, now=50.0)
    assert buckets.wait("k", 1.0, rate=1.0, burst=10.0, now=50.0) == 1.0
    assert buckets.wait("k", 1.0, rate=1.0, burst=10.0, now=100.0) == 1.0


def test_buckets_are_bounded_and_the_longest_unused_goes_first() -> None:
    buckets = TokenBuckets(limit=3)
    for name in ("a", "b", "c", "a", "d"):
        buckets.take(name, 1.0, rate=1.0, burst=1.0, now=0.0)
    assert len(buckets) == 3
    assert buckets.wait("a", 1.0, rate=1.0, burst=1.0, now=0.0) > 0
    assert buckets.wait("b", 1.0, rate=1.0, burst=1.0, now=0.0) == 0.0


def test_retry_after_is_whole_and_within_reason() -> None:
    assert [whole_seconds(w) for w in (0.0, 0.2, 1.0, 1.2, 1e9, float("nan"))] == [1, 1, 1, 2, 3600, 1]


def greedy(room: WaitingRoom, weights: dict[str, float], rounds: int = 4000) -> dict[str, int]:
    """Let every tenant ask for more than there is, one place being freed of each in turn; return what they hold."""
    for i in range(rounds):
        for name, weight in weights.items():
            if room.may_enter(name, weight):
                room.enter(name)
        name = list(weights)[i % len(weights)]
        if room.of(name) > 1:
            room.leave(name)
    return {name: room.of(name) for name in weights}


def test_greedy_tenants_hold_places_by_their_weights() -> None:
    held = greedy(WaitingRoom(1000), {"a": 1.0, "b": 2.0, "c": 1.0})
    assert abs(held["b"] / held["a"] - 2.0) < 0.2
    assert abs(held["c"] / held["a"] - 1.0) < 0.1


@given(st.dictionaries(st.sampled_from("abcdef"), st.floats(0.1, 8), min_size=1), st.integers(2, 300))
def test_the_room_never_overflows_and_a_newcomer_finds_a_place(weights: dict[str, float], places: int) -> None:
    room = WaitingRoom(places)
    for _ in range(places + 1):
        for name, weight in weights.items():
            if room.may_enter(name, weight):
                room.enter(name)
                assert len(room) <= places
    # Each threshold is at least one place as long as one is free and the weight is above 1/4 of that.
    alone = WaitingRoom(300)
    while alone.may_enter("a", 1.0):
        alone.enter("a")
    assert len(alone) == round(300 * EAGERNESS / (1 + EAGERNESS))
    assert alone.may_enter("newcomer", 1.0)
    for name in weights:
        while room.of(name):
            room.leave(name)
    assert len(room) == 0
    assert not room.full


def test_nobody_is_held_back_while_half_of_the_room_is_free() -> None:
    room = WaitingRoom(100)
    for _ in range(50):
        assert room.may_enter("light", 0.001)
        room.enter("light")
    assert not room.may_enter("light", 0.001)
    assert room.may_enter("other", 0.1)
