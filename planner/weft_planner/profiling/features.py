"""What a predicted time is made of: the features of each function, in the order of the cost profile's figures.

Every predicted time is a largest of sums of these features with factors of 0 or more. From that alone follows how far
two times may differ: never by more than the ratio of the feature that differs most, nor by less than that of the one
that differs least. ``bounds`` uses it to judge measured rows before anything is fitted. Regimes that apply from one
batch on may break it between a row just below that batch and one just above; the noise that rows are allowed covers it.
"""

from collections.abc import Sequence

import numpy as np

from weft_planner.profiling.measurements import Function, GridCell
from weft_planner.profiling.regression import Floats

PREFILL = ("alpha", "per_token", "per_pair", "per_context_token", "experts_seconds")
STEP = (
    "alpha", "per_sequence", "per_context_token", "experts_seconds",
    "per_chunk_token", "per_chunk_pair", "per_chunk_context", "per_chunk",
)  # fmt: skip


def prefill_features(cells: Sequence[GridCell], *, expert_share: float = 0.0) -> Floats:
    """Return 1, increment, attended pairs, context, share of experts touched (0: dense): one row per cell."""
    history, increment = _column(cells, "history"), _column(cells, "increment")
    pairs = increment * (history + increment / 2)
    touched = 1 - (1 - expert_share) ** increment
    return np.column_stack((np.ones(len(cells)), increment, pairs, history + increment, touched))


def step_features(cells: Sequence[GridCell], *, expert_share: float = 0.0) -> Floats:
    """Return 1, batch, context, share of experts touched (0: dense), the chunk's tokens, pairs, context, and if any."""
    batch, context, chunk, history = (_column(cells, name) for name in ("batch", "context", "chunk", "history"))
    touched = 1 - (1 - expert_share) ** (batch + chunk)
    pairs = chunk * (history + chunk / 2)
    held = np.where(chunk > 0, history + chunk, 0.0)
    return np.column_stack((np.ones(len(cells)), batch, context, touched, chunk, pairs, held, chunk > 0))


def transfer_features(cells: Sequence[GridCell]) -> Floats:
    """Return 1, tokens."""
    return np.column_stack((np.ones(len(cells)), _column(cells, "tokens")))


def features(function: Function, cells: Sequence[GridCell]) -> Floats:
    """Return the features by which rows of one function are compared."""
    if function == "prefill":
        return prefill_features(cells)
    if function == "step":
        return step_features(cells)
    return transfer_features(cells)


def _column(cells: Sequence[GridCell], name: str) -> Floats:
    return np.array([getattr(cell, name) for cell in cells], dtype=np.float64)


def bounds(of: Floats, others: Floats, seconds: Floats) -> tuple[Floats, Floats]:
    """Return the least and most that one row can take, from each of the other rows' features and seconds."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = of[None, :] / others
    # A feature that is 0 in both rows says nothing; one that only the others have may explain all of their time.
    most = np.where(np.isnan(ratio), -np.inf, ratio).max(axis=1)
    least = np.where(np.isnan(ratio), np.inf, ratio).min(axis=1)
    return least * seconds, most * seconds
