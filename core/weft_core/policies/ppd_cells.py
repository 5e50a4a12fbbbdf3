"""The cells of PPD's table: 27 classes of rounds by context, in/out ratio and rate (PPD, Algorithm 1, lines 15-16)."""

import itertools
from collections.abc import Sequence

CLASSES = 3
"""Of each of the three axes."""
CELLS = CLASSES**3
CONTEXTS = ("short", "middle", "long")
SHAPES = ("decode-heavy", "balanced", "prefill-heavy")
RATES = ("low", "medium", "high")


def cell_names() -> Sequence[str]:
    """Return the cells' names in the table's order: the rate changes fastest, then the ratio, then the context."""
    return [".".join(parts) for parts in itertools.product(CONTEXTS, SHAPES, RATES)]
