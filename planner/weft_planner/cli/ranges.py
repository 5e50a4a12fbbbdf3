"""Numbers that options take: finite, and within what makes sense, so that a slip of the unit is refused by name."""

import math

import click


class Finite(click.FloatRange):
    """A number within a range; click's own range lets NaN pass."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or fail with the range."""
        number = super().convert(value, param, ctx)  # type: ignore[arg-type]
        if math.isnan(number):
            self.fail(f"{value} is no number; it must be in the range {self._describe_range()}.", param, ctx)
        return number


RATE = Finite(min=0, max=100_000, min_open=True)
"""Sessions a second, as in ``spec.workload.arrivalRate``."""
MOST_TOKENS = 10_000_000
MEAN_ROUNDS = Finite(min=1, max=10_000)
MEAN_TOKENS = Finite(min=0, max=MOST_TOKENS, min_open=True)
NOISE = Finite(min=0, max=10)
LINK_RATE = Finite(min=1e6, max=1e14)
"""Bytes per second: a rate in gigabytes is below, one in bits for a whole rack above."""
