"""Distributions have the moments they say, give the same draws for a seed, and refuse what is no distribution."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_planner.workload.arrivals import RenewalArrivals, ReplayedArrivals
from weft_planner.workload.distributions import (
    Constant,
    Distribution,
    Empirical,
    Lognormal,
    Stream,
    from_histogram,
    shares_below,
    values_at,
)

SIZE = 40_000


@st.composite
def empirical(draw: st.DrawFn) -> Empirical:
    count = draw(st.integers(2, 12))
    # In thousandths, as people write them: the grid that the moments are compared with is no finer.
    inner = sorted(draw(st.lists(st.integers(0, 1000), min_size=count - 2, max_size=count - 2)))
    values = sorted(draw(st.lists(st.integers(0, 10**8), min_size=count, max_size=count)))
    return Empirical(at=(0.0, *(at / 1000 for at in inner), 1.0), values=tuple(value / 1000 for value in values))


SHAPES: list[Distribution] = [
    Constant(7.0),
    Lognormal(300.0, 0.6),
    Lognormal(5.0, 2.0),
    Empirical(at=(0.0, 0.3, 0.3, 1.0), values=(1.0, 1.0, 4.0, 12.0)),
    from_histogram([0, 10, 100], [3, 1]),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_draws_have_the_mean_and_variation_that_are_stated(shape: Distribution) -> None:
    drawn = shape.sample(Stream(1), SIZE)
    assert drawn.mean() == pytest.approx(shape.mean, rel=0.03)
    assert drawn.std() / drawn.mean() == pytest.approx(shape.variation, rel=0.15, abs=1e-9)


@given(empirical())
@settings(max_examples=50)
def test_moments_of_an_empirical_distribution_are_those_of_its_quantile_function(shape: Empirical) -> None:
    grid = shape.quantile((np.arange(200_000) + 0.5) / 200_000)
    assert shape.mean == pytest.approx(grid.mean(), rel=1e-3, abs=1e-3)
    assert shape.variation * shape.mean == pytest.approx(grid.std(), rel=1e-2, abs=1.0)


@given(empirical(), st.floats(0.1, 1e4))
@settings(max_examples=50)
def test_scaling_changes_the_mean_and_keeps_the_variation(shape: Empirical, mean: float) -> None:
    scaled = shape.scaled(mean)
    assert scaled.mean == pytest.approx(mean, rel=1e-6)
    if shape.mean > 1e-3:
        assert scaled.variation == pytest.approx(shape.variation, rel=1e-3, abs=1e-3)


@given(st.sampled_from(SHAPES[1:]), st.floats(0.02, 0.98))
@settings(max_examples=60)
def test_shares_and_values_are_inverse(shape: Distribution, share: float) -> None:
    value = values_at(shape, np.array([share]))
    assert shares_below(shape, value)[0] >= share - 1e-9
    below = np.nextafter(value, -math.inf) - 1e-6 * max(1.0, float(value[0]))
    assert shares_below(shape, below)[0] <= share + 1e-6


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_first_draws_do_not_depend_on_how_many_follow(shape: Distribution) -> None:
    assert np.array_equal(shape.sample(Stream(3, 4), 10), shape.sample(Stream(3, 4), 500)[:10])


@pytest.mark.parametrize(
    ("at", "values", "named"),
    [
        ((0.0, 1.0), (1.0,), "the same length"),
        ((0.1, 1.0), (1.0, 2.0), "begin with 0"),
        ((0.0, 0.9), (1.0, 2.0), "end with 1"),
        ((0.0, 0.6, 0.5, 1.0), (1.0, 2.0, 3.0, 4.0), "at must not fall"),
        ((0.0, 1.0), (2.0, 1.0), "values must not fall"),
        ((0.0, 1.0), (math.nan, 1.0), "finite"),
        ((0.0, 1.0), (-1.0, 1.0), "not below 0"),
    ],
)
def test_what_is_no_quantile_function_is_refused(at: tuple[float, ...], values: tuple[float, ...], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Empirical(at=at, values=values)


@pytest.mark.parametrize(("edges", "weights"), [([1, 2], [1, 1]), ([1, 2], [0]), ([1, 2], [-1]), ([2, 1], [1])])
def test_what_is_no_histogram_is_refused(edges: list[float], weights: list[float]) -> None:
    with pytest.raises(ValueError, match=r"weights|values must not fall"):
        from_histogram(edges, weights)


@pytest.mark.parametrize("variation", [0.0, 0.5, 1.0, 2.5])
def test_arrivals_come_at_unit_rate_with_the_variation_of_their_distances(variation: float) -> None:
    past, ahead = RenewalArrivals(variation).positions(7, back=5_000.0, ahead=20_000.0)
    assert len(ahead) == pytest.approx(20_000, rel=0.06)
    assert len(past) == pytest.approx(5_000, rel=0.12)
    distances = np.diff(ahead)
    assert distances.std() / distances.mean() == pytest.approx(variation, rel=0.1, abs=1e-9)
    assert (distances >= 0).all()


def test_time_0_is_a_random_moment_so_bursts_begin_late() -> None:
    """The mean wait for the first arrival of a renewal process in steady state is (1 + cv^2) / 2 distances."""
    for variation in (0.0, 1.0, 2.0):
        waits = [RenewalArrivals(variation).positions(k, back=0.0, ahead=400.0)[1][0] for k in range(2000)]
        assert np.mean(waits) == pytest.approx((1 + variation**2) / 2, rel=0.12)


@pytest.mark.parametrize("variation", [0.0, 1.0, 2.0])
def test_more_arrivals_begin_with_the_same_ones(variation: float) -> None:
    short, long = (
        RenewalArrivals(variation).positions(5, back=b, ahead=a) for b, a in ((10.0, 50.0), (300.0, 9_000.0))
    )
    for few, many in zip(short, long, strict=True):
        assert np.array_equal(few, many[: len(few)])


@given(st.lists(st.integers(0, 10_000), min_size=2, max_size=30, unique=True))
@settings(max_examples=50)
def test_recorded_arrivals_are_kept_and_come_round_again(stamps: list[int]) -> None:
    stamps.sort()
    replayed = ReplayedArrivals(tuple(float(t) for t in stamps))
    past, ahead = replayed.positions(back=2.5 * len(stamps), ahead=2.0 * len(stamps))
    assert len(ahead) == 2 * len(stamps)
    assert ahead[: len(stamps)] / replayed.rate == pytest.approx([t - stamps[0] for t in stamps])
    whole = np.concatenate((-past[::-1], ahead))
    assert all(a < b for a, b in pairwise(whole))
    assert len(past) == pytest.approx(2.5 * len(stamps), abs=len(stamps))
