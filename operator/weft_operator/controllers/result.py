"""The result of a pass, for the work queue."""

from dataclasses import dataclass

RIVAL_S = 30.0
"""Seconds until a pass checks again whether another operator still owns the namespace."""


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """The result of a pass: when to reconcile again (None: at the next event or resync), and the number of actions."""

    requeue_after: float | None = None
    actions: int = 0
    gone: bool = False
    settled: bool = True
    """Whether everything is ready; every resync reconciles the unsettled, for which an event may be missing."""
