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

_FIRST_ROUNDS = 6
_ROUNDS = 60
_STALE = 8
_FINISHED = 4
"""Of all starts tried for a few rounds, so many are brought to their end."""
_CUTS = (0.15, 0.35, 0.5, 0.65, 0.85)
_LIMIT = 0.05
"""Errors above 5 % count linearly and no longer by their square (Huber): strays of a measurement, not its noise."""
_FOLDS = 5
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
        if regimes > 1 and len(seconds) < 2 * regimes * _FOLDS:
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
    scale = np.abs(features).max(axis=0)
    scale[scale == 0] = 1.0
    scaled = features / scale
    tried = [_alternate(scaled, seconds, start, rounds=_FIRST_ROUNDS) for start in _starts(scaled, regimes)]
    tried.sort(key=lambda run: run[1])
    finished = [
        _alternate(scaled, seconds, (scaled @ coefficients.T).argmax(axis=1), rounds=_ROUNDS)
        for coefficients, _ in tried[:_FINISHED]
    ]
    best, _ = min([*finished, tried[0]], key=lambda run: run[1])
    return MaxAffine(best / scale)


def _starts(features: Floats, regimes: int) -> Iterator[Wholes]:
    """Yield first guesses of each row's regime: the rows ordered by a feature, cut at several places."""
    rows = len(features)
    if regimes == 1:
        yield np.zeros(rows, dtype=np.intp)
        return
    seen: set[bytes] = set()
    for values in _orders(features):
        order = np.argsort(values, kind="stable")
        for cuts in combinations(_CUTS, regimes - 1):
            guess = np.zeros(rows, dtype=np.intp)
            for cut in cuts:
                guess[order[round(cut * rows) :]] += 1
            if guess.tobytes() not in seen:
                seen.add(guess.tobytes())
                yield guess


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
                coefficients[regime] = nnls(features[rows] * spread[rows, None], seconds[rows] * spread[rows])
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


def nnls(a: Floats, b: Floats) -> Floats:
    """Return the x of 0 or more with the least |a x - b| (Lawson and Hanson's active sets, on the small R of a QR)."""
    columns = a.shape[1]
    if len(a) > columns + 1:
        triangle = np.linalg.qr(np.column_stack((a, b)), mode="r")
        a, b = triangle[:, :columns], triangle[:, columns]
    norm = np.sqrt((a**2).sum(axis=0))
    norm[norm == 0] = 1.0
    a = a / norm
    x = np.zeros(columns)
    free = np.zeros(columns, dtype=bool)
    threshold = 1e-12 * max(1.0, float(np.abs(b).max()))
    for _ in range(3 * columns):
        gradient = a.T @ (b - a @ x)
        gradient[free] = -np.inf
        if free.all() or gradient.max() <= threshold:
            break
        free[int(gradient.argmax())] = True
        while True:
            solution = np.zeros(columns)
            solution[free] = np.linalg.lstsq(a[:, free], b, rcond=None)[0]
            negative = free & (solution <= 0)
            if not negative.any():
                x = solution
                break
            step = float((x[negative] / (x[negative] - solution[negative])).min())
            x = x + step * (solution - x)
            free &= x > 1e-15
            x[~free] = 0.0
            if not free.any():
                break
    result: Floats = x / norm
    return result
