"""``python -m weft_e2e.scale``: ``make e2e-scale``."""

from weft_e2e.scale.cli import scale

scale()
