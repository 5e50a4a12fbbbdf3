"""The conditions Reconciling and Stalled, which deployment tools read (kstatus, as Flux uses it).

A tool waits while the observed generation is old or Reconciling is True, fails when Stalled is True, and otherwise
reads Ready. Both conditions are derived from the other ones.
"""

from collections.abc import Mapping

from weft_operator.api.conditions import ConditionValue
from weft_operator.status.reasons.catalogue import ConditionType

FOR_PEOPLE = frozenset({"AwaitingApproval", "ReplanProposed", "ApprovalStale"})
"""Reasons of Planned=False that wait for a person and are no failure."""

RETRIED = frozenset({"PlannerTimeout", "PlannerCrashed", "NotPlaceable"})
"""Reasons of Planned=False that the operator retries."""

_REFUSED = frozenset({"ApplyFailed", "KindMissing", "ModelRefused", "NameTaken", "RightMissing"})
"""Reasons of Progressing for which an object cannot be created or read, or weights cannot be downloaded."""


def stalled(values: Mapping[ConditionType, ConditionValue]) -> ConditionValue:
    """Return the condition Stalled: True when nothing but a change of the spec or the cluster helps."""
    planned, progressing = values["Planned"], values["Progressing"]
    if planned.status == "False" and planned.reason not in FOR_PEOPLE | RETRIED:
        return ConditionValue("True", "SpecRefused", f"{planned.reason}: {planned.message}")
    if progressing.reason in _REFUSED:
        return ConditionValue("True", "ObjectRefused", f"{progressing.reason}: {progressing.message}")
    return ConditionValue("False", "NotStalled", "nothing is blocked")


def reconciling(values: Mapping[ConditionType, ConditionValue]) -> ConditionValue:
    """Return the condition Reconciling: True while the service is not yet in its desired state."""
    if stalled(values).status == "True":
        return ConditionValue("False", "Settled", "waiting for a change of the spec or the cluster; see Stalled")
    planned, progressing = values["Planned"], values["Progressing"]
    planning = planned.status == "Unknown" or (planned.status == "False" and planned.reason in RETRIED)
    for value, waits in ((planned, planning), (progressing, progressing.status == "True")):
        if waits:
            return ConditionValue("True", "Working", f"{value.reason}: {value.message}")
    return ConditionValue("False", "Settled", "the service is in its desired state")
