"""Write single figures for people: shares, rates, money, intervals, layouts."""

import math
from collections.abc import Sequence

from weft_core.durations import format_seconds
from weft_core.layouts import LayoutKind, PlannedGroup
from weft_core.parallelism import gpus_of, in_layout
from weft_core.prediction import Estimate

UNKNOWN = "-"
LETTERS: dict[LayoutKind, str] = {"disaggregated": "D", "hybrid": "D", "colocated": "C", "symmetric": "S"}


def layout_name(groups: Sequence[PlannedGroup], kind: LayoutKind, *, named: bool = False) -> str:
    """Return a layout as the papers write it, degree x workers: P4x2 D8x1, co-located C4x4, symmetric S4x4.

    Pools stand behind where the layout has several, or with ``named``.
    """
    ordered = sorted(groups, key=lambda g: (g.role != "prefill", -gpus_of(g.degree), str(g.degree), g.pool))
    pools = {group.pool for group in groups}
    names = []
    for group in ordered:
        letter = "P" if group.role == "prefill" else LETTERS[kind]
        names.append(
            f"{letter}{in_layout(group.degree)}x{group.replicas}"
            + (f"@{group.pool}" if named or len(pools) > 1 else "")
        )
    return " ".join(names)


def latency(seconds: float | None) -> str:
    """Return a latency: 1.08 s, 17.2 ms."""
    return UNKNOWN if seconds is None else format_seconds(seconds)


def share(value: float | None) -> str:
    """Return a share in percent."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{100 * value:.0f}%"


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
