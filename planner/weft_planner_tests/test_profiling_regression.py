"""Piecewise fits: known models are found again under noise and strays, with coefficients of 0 or more."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_planner.profiling.features import bounds, prefill_features, step_features
from weft_planner.profiling.measurements import GridCell
from weft_planner.profiling.regression import Floats, fit_max_affine, nnls
from weft_planner_tests.profiled import HISTORIES, INCREMENTS

TABLE = prefill_features([GridCell("prefill", 1, history=h, increment=i) for h in HISTORIES for i in INCREMENTS])

compute = st.tuples(
    st.floats(min_value=1e-3, max_value=3e-2),
    st.floats(min_value=1e-5, max_value=5e-4),
    st.floats(min_value=1e-10, max_value=1e-8),
    st.just(0.0),
    st.just(0.0),
)
memory = st.tuples(
    st.floats(min_value=1e-2, max_value=1e-1),
    st.floats(min_value=1e-7, max_value=1e-6),
    st.just(0.0),
    st.floats(min_value=1e-8, max_value=1e-6),
    st.just(0.0),
)
seeds = st.integers(min_value=0, max_value=2**32 - 1)


@settings(max_examples=8)
@given(compute, memory, seeds)
def test_a_known_model_is_found_under_noise_and_strays(
    first: tuple[float, ...], second: tuple[float, ...], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    truth = (TABLE @ np.array([first, second]).T).max(axis=1)
    seconds = truth * np.exp(rng.normal(0, 0.03, len(truth)))
    strays = rng.choice(len(seconds), size=max(1, len(seconds) // 20), replace=False)
    seconds[strays] *= rng.choice([0.2, 5.0], size=len(strays))
    model, held_out = fit_max_affine(TABLE, seconds)
    error = np.abs(model.seconds(TABLE) / truth - 1)
    assert np.median(error) < 0.05
    assert (model.coefficients >= 0).all()
    assert held_out.median < 0.08  # the noise itself is 2 % in the median
    assert len(held_out.errors) == len(seconds)


def test_exact_rows_are_fitted_exactly() -> None:
    truth = (TABLE @ np.array([[0.01, 1e-4, 1e-9, 0, 0], [0.03, 1e-6, 0, 1e-7, 0]]).T).max(axis=1)
    model, held_out = fit_max_affine(TABLE, truth)
    assert np.abs(model.seconds(TABLE) / truth - 1).max() < 1e-3
    assert held_out.p95 < 0.05


def test_one_regime_is_enough_for_a_straight_line() -> None:
    table = np.column_stack((np.ones(20), np.arange(1.0, 21.0)))
    model, _ = fit_max_affine(table, 0.5 + 0.1 * table[:, 1])
    assert model.coefficients.shape == (1, 2)
    assert model.coefficients[0] == pytest.approx([0.5, 0.1], rel=1e-6)


def batches(large: tuple[float, ...], *, noise: float = 0.0) -> tuple[Floats, Floats, Floats]:
    """Return batches, features and times of decode steps; those of 32 sequences and more take ``large``."""
    cells = [
        GridCell("step", 1, batch=b, context=b * each)
        for b in (1, 2, 4, 8, 16, 32, 64, 128, 256)
        for each in (256, 1024, 4096, 16384)
    ]
    sizes = np.array([float(cell.batch) for cell in cells])
    table = step_features(cells)[:, :3]
    slow = table @ np.array(large)
    seconds = np.where(sizes >= 32, slow, table @ np.array([4e-3, 1e-6, 3e-8]))
    return sizes, table, seconds * np.exp(np.random.default_rng(0).normal(0, noise, len(cells)))


def test_a_regime_of_large_batches_is_found_with_its_batch() -> None:
    """No largest of affine functions is within a tenth of times that jump by two thirds between two batches."""
    sizes, table, seconds = batches((4e-3, 1e-5, 6e-8), noise=0.01)
    convex, _ = fit_max_affine(table, seconds)
    assert np.abs(convex.seconds(table) / seconds - 1).max() > 0.1
    model, held_out = fit_max_affine(table, seconds, sizes=sizes)
    assert model.since is not None
    assert set(model.since) == {0.0, 32.0}
    assert np.abs(model.seconds(table, sizes) / seconds - 1).max() < 0.05
    assert held_out.p95 < 0.05
    assert (model.coefficients >= 0).all()


def test_where_all_batches_take_alike_no_regime_begins_at_one() -> None:
    sizes, table, seconds = batches((4e-3, 1e-6, 3e-8), noise=0.03)
    model, _ = fit_max_affine(table, seconds, sizes=sizes)
    assert model.since is None


def test_one_row_is_no_fit() -> None:
    with pytest.raises(ValueError, match="at least two rows"):
        fit_max_affine(TABLE[:1], np.ones(1))


@given(seeds, st.integers(min_value=1, max_value=6), st.integers(min_value=1, max_value=12))
def test_least_squares_never_go_negative_and_cannot_be_improved(seed: int, columns: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(rows, columns)), rng.normal(size=rows)
    x = nnls(a, b)
    assert (x >= 0).all()
    gradient = a.T @ (a @ x - b)  # Kuhn-Tucker: zero where x is free, no descent where it is held at 0
    assert np.abs(gradient[x > 0]).max(initial=0.0) < 1e-6
    assert gradient.min() > -1e-6
    guess = rng.integers(0, 2, size=columns).astype(float)
    assert np.abs(a @ nnls(a, b, guess=guess) - a @ x).max() < 1e-6


@given(compute, memory, st.integers(min_value=0, max_value=len(TABLE) - 1))
def test_no_model_leaves_the_bounds_that_rows_set_each_other(
    first: tuple[float, ...], second: tuple[float, ...], at: int
) -> None:
    seconds = (TABLE @ np.array([first, second]).T).max(axis=1)
    least, most = bounds(TABLE[at], TABLE, seconds)
    assert (least <= seconds[at] * (1 + 1e-9)).all()
    assert (most >= seconds[at] * (1 - 1e-9)).all()
