"""The sliding window equals one that remembers everything."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_router.telemetry.sliding_window import BUCKETS, SlidingWindow

SAMPLES = st.lists(st.tuples(st.floats(0, 3), st.floats(0, 100), st.integers(1, 9), st.booleans()), max_size=60)


@given(st.sampled_from([0.1, 1.0, 10.0, 7.3]), SAMPLES)
def test_it_equals_a_window_that_remembers_everything(
    seconds: float, steps: list[tuple[float, float, int, bool]]
) -> None:
    window, width = SlidingWindow(seconds), seconds / BUCKETS
    samples: list[tuple[float, float, int]] = []
    now = 0.0
    for later, total, count, adds in steps:
        now += later
        if adds:
            window.add(now, total, count)
            samples.append((now // width, total, count))
        inside = [(total, count) for index, total, count in samples if index > now // width - BUCKETS]
        number = sum(count for _, count in inside)
        assert window.rate(now) == pytest.approx(number / seconds)
        mean = window.mean(now)
        if number:
            assert mean == pytest.approx(math.fsum(total for total, _ in inside) / number)
        else:
            assert mean is None


def test_it_forgets_what_is_older_than_its_seconds() -> None:
    window = SlidingWindow(10.0)
    window.add(100.0, 5.0)
    window.add(105.0, 1.0)
    assert window.mean(105.0) == 3.0
    assert window.mean(109.4) == 3.0
    assert window.mean(110.1) == 1.0
    assert window.mean(120.0) is None
    assert window.rate(120.0) == 0.0


def test_sums_do_not_drift() -> None:
    window = SlidingWindow(1.0)
    for k in range(2000):
        window.add(k * 0.01, 1e9 if k < 1000 else 1e-9)
    assert window.mean(2000 * 0.01 - 0.01) == pytest.approx(1e-9)


def test_a_run_counts_as_far_as_it_is_within_the_window() -> None:
    window = SlidingWindow(10.0)
    window.add_run(100.0, 40.0, 400)
    assert window.mean(100.0) == pytest.approx(0.1)
    assert window.rate(100.0) == pytest.approx(10.0)
    window.add_run(100.0, 5.0, 100)
    assert window.mean(100.0) == pytest.approx(15.0 / 200)
    window.add_run(100.0, 0.0, 100)
    assert window.mean(100.0) == pytest.approx(15.0 / 300)
