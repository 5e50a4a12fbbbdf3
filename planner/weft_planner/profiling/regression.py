"""Fit the largest of a few affine functions with coefficients of 0 or more to measured times.

Each measured time is one row: its features (1, tokens, pairs, …) and its seconds. The model is
``max over regimes of (coefficients . features)``: AMPD's piecewise alpha-beta model (section 3). Rows are given to
the regime that is largest there and each regime is fitted to its rows, in turn, until nothing changes. The loss is
Huber's on the logarithm of predicted over measured, so that short and long times count alike and a stray row cannot
pull by more than any other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Wholes = NDArray[np.intp]

_FIRST_ROUNDS = 5
_ROUNDS = 60
_STALE = 8
_FINISHED = 4
"""Of all starts tried for a few rounds, so many are brought to their end."""
_CUTS = (0.25, 0.5, 0.75)
_LIMIT = 0.05
"""Errors above 5 % count linearly and no longer by their square (Huber): strays of a measurement, not its noise."""
_RIDGE = 1e-11
"""Keeps the equations of two features that are one in all rows solvable; far below any noise."""
_FOLDS = 5
_ROWS_PER_REGIME = 4
_WORTH = 0.9
"""Another regime must bring the held-out error to at most this share of what fewer regimes reach."""


@dataclass(frozen=True)
class MaxAffine:
    """A fitted model: one row of coefficients per regime."""

    coefficients: Floats

    def seconds(self, features: Floats) -> Floats:
        """Return the predicted time of each row of features."""
        longest: Floats = (features @ self.coefficients.T).max(axis=1)
        return longest


@dataclass(frozen=True)
class HeldOut:
    """Relative errors of every row, each predicted by a model that had not seen it; fractions of the measured time."""

    errors: Floats

    @property
    def median(self) -> float:
        """Return the median of the absolute relative errors."""
        return float(np.median(self.errors))

    @property
    def p95(self) -> float:
        """Return their 95th percentile."""
        return float(np.quantile(self.errors, 0.95))


def fit_max_affine(features: Floats, seconds: Floats, *, most_regimes: int = 3) -> tuple[MaxAffine, HeldOut]:
    """Return the model with as few regimes as the held-out rows justify, fitted to all rows, and its held-out errors.

    Rows are held out in ``_FOLDS`` folds spread over the order of the measured times.

    Raises:
        ValueError: there are fewer than two rows.
    """
    if len(seconds) < 2:
        raise ValueError("at least two rows are needed for a fit")
    best: tuple[int, HeldOut] | None = None
    for regimes in range(1, most_regimes + 1):
        if regimes > 1 and len(seconds) < _ROWS_PER_REGIME * regimes:
            break
        held_out = _cross_validate(features, seconds, regimes)
        if best is None or _score(held_out) < _WORTH * _score(best[1]):
            best = (regimes, held_out)
    if best is None:
        raise ValueError("at least one regime is needed")
    return _fit(features, seconds, best[0]), best[1]


def _score(held_out: HeldOut) -> float:
    """Return the mean error with outliers capped: what decides between numbers of regimes."""
    return float(np.minimum(held_out.errors, 0.5).mean()) + 1e-4


def _cross_validate(features: Floats, seconds: Floats, regimes: int) -> HeldOut:
    folds = np.empty(len(seconds), dtype=np.intp)
    folds[np.argsort(seconds, kind="stable")] = np.arange(len(seconds)) % min(_FOLDS, len(seconds))
    errors = np.empty(len(seconds))
    for fold in range(int(folds.max()) + 1):
        out = folds == fold
        model = _fit(features[~out], seconds[~out], regimes)
        errors[out] = np.abs(model.seconds(features[out]) / seconds[out] - 1)
    return HeldOut(errors)


def _fit(features: Floats, seconds: Floats, regimes: int) -> MaxAffine:
    """Fit one regime, then split regimes one at a time until there are as many as asked for."""
    scale = np.abs(features).max(axis=0)
    scale[scale == 0] = 1.0
    scaled = features / scale
    assigned: Wholes = np.zeros(len(seconds), dtype=np.intp)
    best, _ = _alternate(scaled, seconds, assigned, rounds=_ROUNDS)
    for _ in range(regimes - 1):
        tried = [_alternate(scaled, seconds, start, rounds=_FIRST_ROUNDS) for start in _splits(scaled, assigned)]
        tried.sort(key=lambda run: run[1])
        finished = [
            _alternate(scaled, seconds, (scaled @ coefficients.T).argmax(axis=1), rounds=_ROUNDS)
            for coefficients, _ in tried[:_FINISHED]
        ]
        best, _ = min([*finished, *tried[:1]], key=lambda run: run[1])
        assigned = (scaled @ best.T).argmax(axis=1)
    return MaxAffine(best / scale)


def _splits(features: Floats, assigned: Wholes) -> Iterator[Wholes]:
    """Yield guesses with one regime more: the rows of one regime in the order of a feature, cut at several places."""
    seen: set[bytes] = set()
    new = int(assigned.max()) + 1
    for regime in range(new):
        rows = np.flatnonzero(assigned == regime)
        if len(rows) < 2:
            continue
        for values in _orders(features[rows]):
            order = rows[np.argsort(values, kind="stable")]
            for cut in _CUTS:
                guess = assigned.copy()
                guess[order[round(cut * len(rows)) :]] = new
                if guess.tobytes() not in seen:
                    seen.add(guess.tobytes())
                    yield guess
    if not seen:  # rows that no feature tells apart
        yield np.arange(len(assigned), dtype=np.intp) % (new + 1)


def _orders(features: Floats) -> Iterator[Floats]:
    """Yield what rows are ordered by: each feature that varies, and the ratio of each two of them."""
    varying = [column for column in features.T if column.min() < column.max()]
    yield from varying
    for a, b in combinations(varying, 2):
        yield a / (a + b + 1e-9)


def _alternate(features: Floats, seconds: Floats, assigned: Wholes, *, rounds: int) -> tuple[Floats, float]:
    """Return the coefficients with the least loss met while rows and regimes are fitted to one another in turn."""
    regimes = int(assigned.max()) + 1
    coefficients = np.zeros((regimes, features.shape[1]))
    spread = 1.0 / seconds  # weights of the rows: relative errors first, then what Huber's loss says
    best, least, stale = coefficients, np.inf, 0
    for _ in range(rounds):
        for regime in range(regimes):
            rows = assigned == regime
            if rows.any():
                weights = spread[rows]
                coefficients[regime] = nnls(
                    features[rows] * weights[:, None], seconds[rows] * weights, guess=coefficients[regime]
                )
        each = features @ coefficients.T
        predicted = np.maximum(each.max(axis=1), 1e-12)
        log = np.log(predicted / seconds)
        size = np.abs(log)
        loss = float(np.where(size <= _LIMIT, size**2 / 2, _LIMIT * (size - _LIMIT / 2)).mean())
        stale = 0 if loss < 0.999 * least else stale + 1
        if loss < least:
            best, least = coefficients.copy(), loss
        if stale >= _STALE:
            break
        # Gradient of the loss in the predicted time: clip(log) / predicted, written as a weighted least square.
        close = size < 1e-6
        mean = np.where(close, predicted, (predicted - seconds) / np.where(close, 1.0, log))
        huber = np.minimum(1.0, _LIMIT / np.maximum(size, 1e-12))
        spread = np.sqrt(huber / (predicted * mean))
        assigned = each.argmax(axis=1)
    return best, least


def nnls(a: Floats, b: Floats, *, guess: Floats | None = None) -> Floats:
    """Return the x of 0 or more with the least |a x - b| (Lawson and Hanson's active sets, on the normal equations).

    A ``guess`` that is above 0 in the right places saves the search for them.
    """
    norm = np.sqrt((a**2).sum(axis=0))
    norm[norm == 0] = 1.0
    a = a / norm
    gram: Floats = a.T @ a
    gram.flat[:: len(gram) + 1] += _RIDGE
    target: Floats = a.T @ b
    columns = len(target)
    x: Floats = np.zeros(columns)
    free: list[int] = []
    threshold = 1e-10 * max(1e-300, float(np.abs(target).max()))
    if guess is not None:
        places = np.flatnonzero(guess)
        solution = np.linalg.solve(gram[places[:, None], places], target[places])
        if len(places) and solution.min() > 0:
            x[places] = solution
            gradient = target - gram @ x
            gradient[places] = 0.0
            if gradient.max() <= threshold:
                found: Floats = x / norm
                return found
            free = places.tolist()
    for _ in range(3 * columns):
        gradient = target - gram @ x
        gradient[free] = -np.inf
        entering = int(gradient.argmax())
        if gradient[entering] <= threshold:
            break
        free.append(entering)
        while free:
            solution = np.linalg.solve(gram[free][:, free], target[free])
            if solution.min() > 0:
                x[free] = solution
                break
            held = x[free]
            negative = solution <= 0
            step = float((held[negative] / (held[negative] - solution[negative])).min())
            x[free] = held + step * (solution - held)
            for index in [index for index in free if x[index] <= 1e-15]:
                x[index] = 0.0
                free.remove(index)
    result: Floats = x / norm
    return result
