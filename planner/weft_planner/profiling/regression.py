"""Fit the largest of a few affine functions with coefficients of 0 or more to measured times.

Each measured time is one row: its features (1, tokens, pairs, …) and its seconds. The model is
``max over regimes of (coefficients . features)``: AMPD's piecewise alpha-beta model (section 3). Rows are given to
the regime that is largest there and each regime is fitted to its rows, in turn, until nothing changes. The loss is
Huber's on the logarithm of predicted over measured, so that short and long times count alike and a stray row cannot
pull by more than any other.

A largest of affine functions is convex, and an engine's kernels are not: attention reads keys and values at half the
rate once the batch fills the GPU without splitting sequences. So some regimes may apply from one size of the batch on.
More of them never make a larger batch faster.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Wholes = NDArray[np.intp]
Bools = NDArray[np.bool_]

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
_WORTH_A_SIZE = 0.7
"""Regimes from a size on are tried where they bring the loss below this share: they have a figure more."""


@dataclass(frozen=True)
class MaxAffine:
    """A fitted model: one row of coefficients per regime, and the size from which on each applies (None: any)."""

    coefficients: Floats
    since: Floats | None = None

    def seconds(self, features: Floats, sizes: Floats | None = None) -> Floats:
        """Return the predicted time of each row of features; ``sizes`` are one per row, where ``since`` is given."""
        each: Floats = features @ self.coefficients.T
        if self.since is not None and sizes is not None:
            each[sizes[:, None] < self.since] = -np.inf
        longest: Floats = each.max(axis=1)
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


def fit_max_affine(
    features: Floats, seconds: Floats, *, most_regimes: int = 3, sizes: Floats | None = None
) -> tuple[MaxAffine, HeldOut]:
    """Return the model with as few regimes as the held-out rows justify, fitted to all rows, and its held-out errors.

    Rows are held out in ``_FOLDS`` folds spread over the order of the measured times. With ``sizes``, one per row,
    regimes that apply from one size on are tried too, and one regime more. That size is chosen by all rows.

    Raises:
        ValueError: there are fewer than two rows.
    """
    if len(seconds) < 2:
        raise ValueError("at least two rows are needed for a fit")
    best = _best([_Candidate(regimes) for regimes in range(1, most_regimes + 1)], features, seconds, sizes)
    model = best[0].fit(features, seconds, sizes)
    if sizes is None:
        return model, best[1]
    loss = _WORTH_A_SIZE * _loss(np.log(np.maximum(model.seconds(features), 1e-12) / seconds))
    size = _size_of_change(features, seconds, sizes, below=loss)
    if size is None:
        return model, best[1]
    others = [_Candidate(regimes, size) for regimes in range(2, most_regimes + 2)]
    changed = _best(others, features, seconds, sizes, best)
    return (model if changed is best else changed[0].fit(features, seconds, sizes)), changed[1]


def _best(
    candidates: Sequence["_Candidate"],
    features: Floats,
    seconds: Floats,
    sizes: Floats | None,
    best: tuple["_Candidate", HeldOut] | None = None,
) -> tuple["_Candidate", HeldOut]:
    """Return the candidate that is worth its regimes, each compared with those before it, and its held-out errors."""
    for candidate in candidates:
        if candidate.regimes > 1 and len(seconds) < _ROWS_PER_REGIME * candidate.regimes:
            continue
        held_out = _cross_validate(features, seconds, sizes, candidate)
        if best is None or score(held_out) < _WORTH * score(best[1]):
            best = (candidate, held_out)
    if best is None:
        raise ValueError("at least one regime is needed")
    return best


@dataclass(frozen=True)
class _Candidate:
    """A number of regimes, and the size from which on some of them apply."""

    regimes: int
    size: float | None = None

    def fit(self, features: Floats, seconds: Floats, sizes: Floats | None) -> MaxAffine:
        if self.size is None or sizes is None:
            return _fit(features, seconds, self.regimes)
        large = sizes >= self.size
        if large.all() or not large.any():
            return _fit(features, seconds, self.regimes)
        model = _fit(features, seconds, self.regimes, large)
        return model if model.since is None else MaxAffine(model.coefficients, model.since * self.size)


def _size_of_change(features: Floats, seconds: Floats, sizes: Floats, *, below: float) -> float | None:
    """Return the size from which on regimes of their own fit the rows best; None where no loss is ``below`` a bound."""
    found: list[tuple[float, float]] = []
    scaled = features / _scale(features)
    for size in np.unique(sizes)[1:]:
        large = sizes >= size
        if min(large.sum(), (~large).sum()) < 2 * _ROWS_PER_REGIME:
            continue
        since = np.array([False, True])
        first, loss = _alternate(scaled, seconds, large.astype(np.intp), rounds=_FIRST_ROUNDS, since=since, large=large)
        assigned = _largest(scaled, first, since, large)
        for guess, parent in _splits(scaled, assigned, ratios=False):
            split = np.append(since, since[parent])
            _, other = _alternate(scaled, seconds, guess, rounds=_FIRST_ROUNDS, since=split, large=large)
            loss = min(loss, other)
        found.append((loss, float(size)))
    best = min(found, default=(np.inf, 0.0))
    return best[1] if best[0] < below else None


def _loss(log: Floats) -> float:
    """Return Huber's loss of logarithms of predicted over measured."""
    size = np.abs(log)
    return float(np.where(size <= _LIMIT, size**2 / 2, _LIMIT * (size - _LIMIT / 2)).mean())


def score(held_out: HeldOut) -> float:
    """Return the mean error with outliers capped: what decides between numbers of regimes."""
    return float(np.minimum(held_out.errors, 0.5).mean()) + 1e-4


def _cross_validate(features: Floats, seconds: Floats, sizes: Floats | None, candidate: _Candidate) -> HeldOut:
    folds = np.empty(len(seconds), dtype=np.intp)
    folds[np.argsort(seconds, kind="stable")] = np.arange(len(seconds)) % min(_FOLDS, len(seconds))
    errors = np.empty(len(seconds))
    for fold in range(int(folds.max()) + 1):
        out = folds == fold
        some, others = (None, None) if sizes is None else (sizes[~out], sizes[out])
        model = candidate.fit(features[~out], seconds[~out], some)
        errors[out] = np.abs(model.seconds(features[out], others) / seconds[out] - 1)
    return HeldOut(errors)


def _scale(features: Floats) -> Floats:
    scale: Floats = np.abs(features).max(axis=0)
    scale[scale == 0] = 1.0
    return scale


def _fit(features: Floats, seconds: Floats, regimes: int, large: Bools | None = None) -> MaxAffine:
    """Fit one regime, then split regimes one at a time until there are as many as asked for.

    With ``large``, begin with two, of which the second applies to these rows only; the model's ``since`` is then 1 for
    the regimes that do and 0 for the others.
    """
    scale = _scale(features)
    scaled = features / scale
    assigned: Wholes = np.zeros(len(seconds), dtype=np.intp) if large is None else large.astype(np.intp)
    since: Bools = np.arange(1 if large is None else 2) > 0
    best, _ = _alternate(scaled, seconds, assigned, rounds=_ROUNDS, since=since, large=large)
    assigned = _largest(scaled, best, since, large)
    while len(since) < regimes:
        tried = [
            (*_alternate(scaled, seconds, guess, rounds=_FIRST_ROUNDS, since=split, large=large), split)
            for guess, split in (
                (guess, np.append(since, since[parent])) for guess, parent in _splits(scaled, assigned)
            )
        ]
        tried.sort(key=lambda run: run[1])
        finished = [
            (
                *_alternate(
                    scaled, seconds, _largest(scaled, coefficients, split, large),
                    rounds=_ROUNDS, since=split, large=large,
                ),
                split,
            )
            for coefficients, _, split in tried[:_FINISHED]
        ]  # fmt: skip
        best, _, since = min([*finished, *tried[:1]], key=lambda run: run[1])
        assigned = _largest(scaled, best, since, large)
    return MaxAffine(best / scale, None if large is None else since.astype(float))


def _each(features: Floats, coefficients: Floats, since: Bools, large: Bools | None) -> Floats:
    """Return every regime's time of every row, that of a regime which does not apply to a row below all others."""
    each: Floats = features @ coefficients.T
    if large is not None:
        each[since & ~large[:, None]] = -np.inf
    return each


def _largest(features: Floats, coefficients: Floats, since: Bools, large: Bools | None) -> Wholes:
    largest: Wholes = _each(features, coefficients, since, large).argmax(axis=1)
    return largest


def _splits(features: Floats, assigned: Wholes, *, ratios: bool = True) -> Iterator[tuple[Wholes, int]]:
    """Yield guesses with one regime more, and which one was split.

    The rows of a regime are cut at several places in the order of a feature, or of a ratio of two.
    """
    seen: set[bytes] = set()
    new = int(assigned.max()) + 1
    for regime in range(new):
        rows = np.flatnonzero(assigned == regime)
        if len(rows) < 2:
            continue
        for values in _orders(features[rows], ratios=ratios):
            order = rows[np.argsort(values, kind="stable")]
            for cut in _CUTS:
                guess = assigned.copy()
                guess[order[round(cut * len(rows)) :]] = new
                if guess.tobytes() not in seen:
                    seen.add(guess.tobytes())
                    yield guess, regime
    if not seen:  # rows that no feature tells apart
        yield np.arange(len(assigned), dtype=np.intp) % (new + 1), 0


def _orders(features: Floats, *, ratios: bool) -> Iterator[Floats]:
    """Yield what rows are ordered by: each feature that varies, and the ratio of each two of them."""
    varying = [column for column in features.T if column.min() < column.max()]
    yield from varying
    for a, b in combinations(varying if ratios else [], 2):
        yield a / (a + b + 1e-9)


def _alternate(
    features: Floats, seconds: Floats, assigned: Wholes, *, rounds: int, since: Bools, large: Bools | None
) -> tuple[Floats, float]:
    """Return the coefficients with the least loss met while rows and regimes are fitted to one another in turn.

    A regime whose ``since`` is set applies to the ``large`` rows only.
    """
    regimes = len(since)
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
        each = _each(features, coefficients, since, large)
        predicted = np.maximum(each.max(axis=1), 1e-12)
        log = np.log(predicted / seconds)
        size = np.abs(log)
        loss = _loss(log)
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
