"""Find the most sessions per second of which the goal's share stays within the SLO."""

from collections.abc import Callable

STEPS = 6
"""Halvings of a bracket of factor 2 on a logarithmic scale: the answer is within 1 %."""
WIDEST = 8
"""Doublings or halvings from the planned rate at most."""


def goodput(attained: Callable[[float], float], *, goal: float, start: float) -> float:
    """Return the rate up to which ``attained(rate)`` is at least ``goal``; 0 when it is not at any tried rate."""
    low = high = start
    if attained(start) >= goal:
        for _ in range(WIDEST):
            high *= 2
            if attained(high) < goal:
                break
            low = high
        else:
            return high
    else:
        for _ in range(WIDEST):
            low /= 2
            if attained(low) >= goal:
                break
            high = low
        else:
            return 0.0
    for _ in range(STEPS):
        middle: float = (low * high) ** 0.5
        low, high = (middle, high) if attained(middle) >= goal else (low, middle)
    return low
