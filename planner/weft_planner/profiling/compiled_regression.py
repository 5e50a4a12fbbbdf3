"""The inner loop of a fit as machine code: ten times as fast, for fits of many degrees.

It agrees with the loop of ``weft_planner.profiling.regression`` to rounding. The first use on a machine compiles it,
which takes some 8 s; numba keeps the machine code.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numba
import numpy as np

from weft_planner.profiling import regression
from weft_planner.profiling.regression import Bools, Floats, Wholes


@numba.njit(cache=True)
def _solved(gram: Floats, target: Floats, places: Wholes, count: int) -> Floats:
    """Return the solution of the equations of the first ``count`` places, by Gauss with pivots."""
    a = np.empty((count, count + 1))
    for i in range(count):
        for j in range(count):
            a[i, j] = gram[places[i], places[j]]
        a[i, count] = target[places[i]]
    for i in range(count):
        pivot = i
        for k in range(i + 1, count):
            if abs(a[k, i]) > abs(a[pivot, i]):
                pivot = k
        for j in range(count + 1):
            a[i, j], a[pivot, j] = a[pivot, j], a[i, j]
        for k in range(i + 1, count):
            factor = a[k, i] / a[i, i]
            for j in range(i, count + 1):
                a[k, j] -= factor * a[i, j]
    for i in range(count - 1, -1, -1):
        for j in range(i + 1, count):
            a[i, count] -= a[i, j] * a[j, count]
        a[i, count] /= a[i, i]
    return a[:, count].copy()


@numba.njit(cache=True)
def _nnls(a: Floats, b: Floats, guess: Floats, ridge: float) -> Floats:
    rows, columns = a.shape
    norm = np.zeros(columns)
    for j in range(columns):
        for i in range(rows):
            norm[j] += a[i, j] * a[i, j]
        norm[j] = np.sqrt(norm[j])
        if norm[j] == 0.0:
            norm[j] = 1.0
    gram, target = np.zeros((columns, columns)), np.zeros(columns)
    for j in range(columns):
        for k in range(j + 1):
            for i in range(rows):
                gram[j, k] += a[i, j] * a[i, k]
            gram[j, k] /= norm[j] * norm[k]
            gram[k, j] = gram[j, k]
        for i in range(rows):
            target[j] += a[i, j] * b[i]
        target[j] /= norm[j]
        gram[j, j] += ridge
    x, places, count = np.zeros(columns), np.zeros(columns, np.int64), 0
    threshold = 1e-10 * max(1e-300, np.abs(target).max())
    for j in range(columns):
        if guess[j] != 0.0:
            places[count] = j
            count += 1
    if count > 0:
        solution = _solved(gram, target, places, count)
        if solution.min() > 0:
            for i in range(count):
                x[places[i]] = solution[i]
        else:
            count = 0
    for _ in range(3 * columns):
        entering, steepest = -1, threshold
        for j in range(columns):
            inside = False
            for i in range(count):
                inside = inside or places[i] == j
            if not inside:
                gradient = target[j]
                for k in range(columns):
                    gradient -= gram[j, k] * x[k]
                if gradient > steepest:
                    entering, steepest = j, gradient
        if entering < 0:
            break
        places[count] = entering
        count += 1
        while count > 0:
            solution = _solved(gram, target, places, count)
            if solution.min() > 0:
                for i in range(count):
                    x[places[i]] = solution[i]
                break
            step = np.inf
            for i in range(count):
                if solution[i] <= 0:
                    held = x[places[i]]
                    step = min(step, held / (held - solution[i]))
            kept = 0
            for i in range(count):
                j = places[i]
                x[j] += step * (solution[i] - x[j])
                if x[j] <= 1e-15:
                    x[j] = 0.0
                else:
                    places[kept] = j
                    kept += 1
            count = kept
    return x / norm


@numba.njit(cache=True)
def _alternate(
    features: Floats, seconds: Floats, assigned: Wholes, rounds: int, since: Bools, large: Bools, limit: float,
    most_stale: int, ridge: float,
) -> tuple[Floats, float]:  # fmt: skip
    rows, columns = features.shape
    regimes = len(since)
    coefficients, best = np.zeros((regimes, columns)), np.zeros((regimes, columns))
    spread, assigned = 1.0 / seconds, assigned.copy()
    least, stale = np.inf, 0
    for _ in range(rounds):
        for regime in range(regimes):
            own = np.flatnonzero(assigned == regime)
            if len(own):
                a, b = np.empty((len(own), columns)), np.empty(len(own))
                for i in range(len(own)):
                    b[i] = seconds[own[i]] * spread[own[i]]
                    for j in range(columns):
                        a[i, j] = features[own[i], j] * spread[own[i]]
                coefficients[regime] = _nnls(a, b, coefficients[regime], ridge)
        loss = 0.0
        for i in range(rows):
            longest, of = -np.inf, 0
            for regime in range(regimes):
                if since[regime] and not large[i]:
                    continue
                each = 0.0
                for j in range(columns):
                    each += features[i, j] * coefficients[regime, j]
                if each > longest:
                    longest, of = each, regime
            predicted = max(longest, 1e-12)
            log = np.log(predicted / seconds[i])
            size = abs(log)
            loss += (size**2 / 2 if size <= limit else limit * (size - limit / 2)) / rows
            mean = predicted if size < 1e-6 else (predicted - seconds[i]) / log
            spread[i] = np.sqrt(min(1.0, limit / max(size, 1e-12)) / (predicted * mean))
            assigned[i] = of
        stale = 0 if loss < 0.999 * least else stale + 1
        if loss < least:
            best, least = coefficients.copy(), loss
        if stale >= most_stale:
            break
    return best, least


def alternate(
    features: Floats, seconds: Floats, assigned: Wholes, *, rounds: int, since: Bools, large: Bools | None
) -> tuple[Floats, float]:
    """Return the coefficients with the least loss met, and the loss, as ``regression._alternate`` does."""
    everywhere = np.ones(len(seconds), dtype=np.bool_) if large is None else large
    best, least = _alternate(
        np.ascontiguousarray(features), seconds, assigned, rounds, since, everywhere, regression._LIMIT,
        regression._STALE, regression._RIDGE,
    )  # fmt: skip
    return best, float(least)


@contextmanager
def compiled_fits() -> Iterator[None]:
    """Let the fits of this process use the compiled loop."""
    plain = regression._alternate
    regression._alternate = alternate
    try:
        yield
    finally:
        regression._alternate = plain


def compile_fits() -> None:
    """Compile the loop, or load it, before a fit needs it."""
    features, since = np.ones((4, 2)), np.zeros(1, dtype=np.bool_)
    alternate(features, np.ones(4), np.zeros(4, dtype=np.intp), rounds=1, since=since, large=None)
