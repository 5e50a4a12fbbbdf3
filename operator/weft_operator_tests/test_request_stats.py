"""What goes to the API server: no more than one write a second to an object, and peace where it asks for it."""

import pytest

from weft_operator.kube.rate_limiter import FORGET_AT, RateLimiter
from weft_operator.kube.request_stats import RequestStats


async def test_writes_of_one_object_are_a_second_apart_and_others_do_not_wait() -> None:
    now, slept = 0.0, []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    limiter = RateLimiter(clock=lambda: now, sleep=sleep)
    for _ in range(3):
        await limiter.wait("a")
    await limiter.wait("b")
    assert slept == [1.0, 2.0]
    now = 3.0
    await limiter.wait("a")
    assert slept == [1.0, 2.0]
    now = 3.25
    await limiter.wait("a")
    assert slept == [1.0, 2.0, 0.75]


async def test_objects_of_long_ago_are_forgotten() -> None:
    now = 0.0
    limiter = RateLimiter(clock=lambda: now)
    for number in range(FORGET_AT):
        await limiter.wait(str(number))
    now = 10.0
    await limiter.wait("new")
    assert len(limiter._next) == 1


def test_trouble_lasts_from_the_first_failure_to_the_first_answer() -> None:
    now = 0.0
    stats = RequestStats(clock=lambda: now)
    stats.count("GET", "pods", 200)
    assert stats.failing_s == 0
    now = 1.0
    for status in (503, 429, 0):
        stats.count("GET", "pods", status)
    now = 5.0
    assert stats.failing_s == 4.0
    stats.count("GET", "pods", 404)
    assert stats.failing_s == 0
    assert stats.requests["GET", "pods", 0] == 1


def test_nothing_is_asked_while_the_api_server_wants_peace() -> None:
    now = 0.0
    stats = RequestStats(clock=lambda: now)
    assert stats.pause_left_s() <= 0
    stats.pause(5)
    stats.pause(2)
    now = 4.0
    assert stats.pause_left_s() == pytest.approx(1.0)
    now = 5.0
    assert stats.pause_left_s() <= 0


def test_writes_on_their_way_are_counted_and_reads_are_not() -> None:
    stats = RequestStats()
    with stats.in_flight("PATCH"), stats.in_flight("GET"):
        assert stats.writes_in_flight == 1
    with pytest.raises(ValueError, match="cut"), stats.in_flight("DELETE"):
        raise ValueError("cut")
    assert stats.writes_in_flight == 0
