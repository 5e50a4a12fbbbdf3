"""Write single figures for people: shares, rates, money, intervals."""

import math

from weft_core.durations import format_seconds
from weft_core.prediction import Estimate

UNKNOWN = "-"


def latency(seconds: float | None) -> str:
    """Return a latency: 1.08 s, 17.2 ms."""
    return UNKNOWN if seconds is None else format_seconds(seconds)


def share(value: float | None) -> str:
    """Return a share in percent."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{100 * value:.0f}%"


def fine_share(value: float) -> str:
    """Return a share in percent, with a digit after the point below ten."""
    return f"{100 * value:.1f}%" if value < 0.1 else share(value)


def share_interval(estimate: Estimate | None) -> str:
    """Return a share with its interval where there is one: 93% (91-95)."""
    if estimate is None or not math.isfinite(estimate.value):
        return UNKNOWN
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return share(estimate.value)
    low, high = max(0.0, estimate.low), min(1.0, estimate.high)
    return f"{100 * estimate.value:.0f}% ({100 * low:.0f}-{100 * high:.0f})"


def rate(value: float | None) -> str:
    """Return a rate with three digits."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:.3g}"


def rate_interval(estimate: Estimate | None) -> str:
    """Return a rate with its interval: 1.32 (1.25-1.39)."""
    if estimate is None or not math.isfinite(estimate.value):
        return UNKNOWN
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)) or estimate.low == estimate.high:
        return rate(estimate.value)
    return f"{estimate.value:.3g} ({max(0.0, estimate.low):.3g}-{estimate.high:.3g})"


def money(value: float | None) -> str:
    """Return an amount with two digits after the point."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:,.2f}"
