"""What a pass returns to the work queue."""

from dataclasses import dataclass

RIVAL_S = 30.0
"""Seconds until a pass asks again whether another operator still owns the namespace."""


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """The end of a pass: when to reconcile again (None: at the next event or resync), and what was done."""

    requeue_after: float | None = None
    actions: int = 0
    gone: bool = False
    settled: bool = True
    """Whether nothing is missing; what is may come without an event, so each resync reconciles the others."""
