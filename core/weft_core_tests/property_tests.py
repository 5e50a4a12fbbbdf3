"""Settings of every property test, loaded by pytest as a plugin (pyproject.toml).

No wall-clock deadline per example: on a busy machine it fails tests for reasons that are not theirs (pytest's own time
limit still ends what hangs). Where CI runs, the examples are the same in every run.

The proofs with thousands of costly examples run a fifth of them by `make test` and all by `make test-proofs`.
"""

import os

from hypothesis import settings

settings.register_profile("weft", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("weft")

ALL = "WEFT_PROOFS" in os.environ


def examples(whole: int) -> int:
    """Return how many of a proof's `whole` number of examples this run takes."""
    return whole if ALL else whole // 5
