"""Which plan is in force where the newest one was given up: pure."""

from collections.abc import Iterable
from dataclasses import replace

from weft_operator.api.conditions import ConditionValue
from weft_operator.api.objects import Manifest
from weft_operator.controllers.goal import PlanResult
from weft_operator.render.plan_summary import plan_summary
from weft_operator.render.revisions import Revision, find_revision
from weft_operator.rollout.step import RolloutState


def plan_before(going: RolloutState, revisions: Iterable[Manifest]) -> Revision | None:
    """Return the plan that is in force in place of one that was given up; None where none was, or it is not kept."""
    if going.step is None or going.step.refusal is None:
        return None
    return find_revision(revisions, going.step.ledger.plan, [item.group for item in going.wanted])


def planned(goal: PlanResult, before: Revision | None) -> ConditionValue:
    """Return why the plan is what it is; of one that was given up it says what is in force instead."""
    if before is None or goal.record is None or goal.planned.status != "True":
        return goal.planned
    given_up, stays = plan_summary(goal.record.plan), plan_summary(before.record.plan)
    words = f"{goal.planned.message}; {given_up} was given up, and {stays} stays in force"
    return replace(goal.planned, message=words)
