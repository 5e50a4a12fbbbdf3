"""The two conditions that deployment tools read of any object: Reconciling and Stalled (kstatus, as Flux uses it).

A tool waits while the observed generation is old or Reconciling is True, gives up when Stalled is, and else goes by
Ready. They follow from the other conditions, so they say nothing new.
"""

from collections.abc import Mapping

from weft_operator.api.conditions import ConditionValue
from weft_operator.status.reasons.catalogue import ConditionType

FOR_PEOPLE = frozenset({"AwaitingApproval", "ReplanProposed", "ApprovalStale"})
"""Reasons of Planned=False that wait for a person and are no failure of what was applied."""

TRIED_AGAIN = frozenset({"PlannerTimeout", "PlannerCrashed", "NotPlaceable"})
"""Reasons of Planned=False that may pass by themselves: the planner is asked again."""

_REFUSED = frozenset({"ApplyFailed", "KindMissing", "ModelRefused", "NameTaken", "RightMissing"})
"""Reasons of Progressing by which an object cannot be made or read, or workers cannot have their weights."""


def stalled(said: Mapping[ConditionType, ConditionValue]) -> ConditionValue:
    """Return the condition Stalled: True when nothing but a change of the spec or the cluster helps."""
    planned, progressing = said["Planned"], said["Progressing"]
    if planned.status == "False" and planned.reason not in FOR_PEOPLE | TRIED_AGAIN:
        return ConditionValue("True", "SpecRefused", f"{planned.reason}: {planned.message}")
    if progressing.reason in _REFUSED:
        return ConditionValue("True", "ObjectRefused", f"{progressing.reason}: {progressing.message}")
    return ConditionValue("False", "NotStalled", "nothing is in the way")


def reconciling(said: Mapping[ConditionType, ConditionValue]) -> ConditionValue:
    """Return the condition Reconciling: True while the service is not yet as its spec and plan want it."""
    if stalled(said).status == "True":
        return ConditionValue("False", "Settled", "nothing is done before the spec or the cluster changes; see Stalled")
    planned, progressing = said["Planned"], said["Progressing"]
    asked = planned.status == "Unknown" or (planned.status == "False" and planned.reason in TRIED_AGAIN)
    for verdict, waits in ((planned, asked), (progressing, progressing.status == "True")):
        if waits:
            return ConditionValue("True", "Working", f"{verdict.reason}: {verdict.message}")
    return ConditionValue("False", "Settled", "the service is as its spec and plan want it")
