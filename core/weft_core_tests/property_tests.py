"""Settings of every property test, loaded by pytest as a plugin (pyproject.toml).

No wall-clock deadline per example: on a busy machine it fails tests for reasons that are not theirs (pytest's own time
limit still ends what hangs). Where CI runs, the examples are the same in every run.
"""

import os

from hypothesis import settings

settings.register_profile("weft", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("weft")
