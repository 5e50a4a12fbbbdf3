"""Map values to places in a picture, and choose round numbers for its axes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

NICE = (1.0, 2.0, 2.5, 5.0, 10.0)
"""Steps between ticks that people count in, times a power of ten."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Values ``low`` to ``high`` on places ``start`` to ``end``; values beyond are drawn at the edge."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Return the place of a value."""
        if self.log:
            span = math.log(self.high / self.low)
            share = math.log(max(value, self.low) / self.low) / span
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """Return about ``count`` round values within the scale."""
        return log_ticks(self.low, self.high) if self.log else linear_ticks(self.low, self.high, count)


def linear_scale(values: Sequence[float], start: float, end: float, *, zero: bool = True, room: float = 0.06) -> Scale:
    """Return a scale that holds all finite values, with some room above them, from 0 unless told otherwise."""
    known = [value for value in values if math.isfinite(value)] or [1.0]
    low = min(0.0, *known) if zero else min(known)
    high = max(known)
    if high <= low:
        high = low + (abs(low) or 1.0)
    high += room * (high - low)
    return Scale(low, high, start, end)


def log_scale(values: Sequence[float], start: float, end: float) -> Scale:
    """Return a logarithmic scale that holds all finite values above 0, a little wider than they are."""
    known = [value for value in values if math.isfinite(value) and value > 0] or [1.0]
    return Scale(min(known) / 1.25, max(known) * 1.25, start, end, log=True)


def linear_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about ``count`` round values from low to high."""
    raw = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(nice * power for nice in NICE if nice * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    # Multiples of the step, rounded so that 3 x 0.1 reads 0.3.
    return [round(k * step, 12) for k in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten from low to high, or only the powers when they are many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    mantissas = (1.0,) if len(powers) > 4 else (1.0, 2.0, 5.0)
    found = [round(m * 10.0**p, 12) for p in powers for m in mantissas]
    return [value for value in found if low <= value <= high]


def plain(value: float) -> str:
    """Return a number for an axis: 1,000, 12, 0.25."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
