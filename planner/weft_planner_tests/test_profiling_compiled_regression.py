"""The compiled loop of a fit finds what the plain one finds."""

import numpy as np
import pytest

from weft_planner.profiling import compiled_regression, regression


@pytest.mark.parametrize("seed", range(20))
def test_it_finds_as_small_a_residual(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, columns = int(rng.integers(2, 60)), int(rng.integers(1, 8))
    a = rng.random((rows, columns)) * 10.0 ** rng.integers(-3, 3, columns)
    b = rng.random(rows) + 0.1
    wanted = regression.nnls(a, b)
    guess = wanted * (rng.random(columns) > 0.3)
    for start in (np.zeros(columns), guess):
        found = compiled_regression._nnls.py_func(a, b, start, regression._RIDGE)
        assert found.min() >= 0
        assert np.linalg.norm(a @ found - b) == pytest.approx(np.linalg.norm(a @ wanted - b), rel=1e-6)
