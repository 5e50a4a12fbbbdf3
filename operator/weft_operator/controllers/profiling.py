"""The sub-reconciler of measured cost profiles: the Jobs that measure what the spec asks to be measured."""

from weft_operator.api.conditions import ConditionValue
from weft_operator.controllers.apply import REFUSED_S, Applied
from weft_operator.controllers.context import ReconcileContext
from weft_operator.profiling.cleanup import abandoned
from weft_operator.profiling.decide import ProfilingStep, WorkerStability, next_profiling_step
from weft_operator.render.inputs import PlanRecord
from weft_operator.render.objects import mounts_of
from weft_operator.status.results import ServiceResult


def plan_profiling(ctx: ReconcileContext, record: PlanRecord, result: ServiceResult) -> ProfilingStep:
    """Return the next step of the measurement that a spec asks for; without one its left-over Jobs are removed."""
    measure = record.spec.profile.measure
    if measure is None:
        return ProfilingStep(None, tuple(abandoned(ctx.observed)))
    rendering = ctx.rendering(record)
    mounts = mounts_of(rendering, token=ctx.token)
    stability = worker_stability(result)
    return next_profiling_step(measure, rendering, ctx.observed, mounts, stability=stability, now=ctx.now)


def profiling_result(step: ProfilingStep, applied: Applied) -> tuple[ConditionValue | None, float | None]:
    """Return the condition ProfileMeasured after the actions, and when to reconcile again."""
    if applied.failure is None or step.verdict is None:
        return step.verdict, step.requeue_after
    # What serves is as it should be, so only this condition says so, and it is tried again without haste.
    return ConditionValue("False", "MeasurementFailed", applied.failure.message), REFUSED_S


def worker_stability(result: ServiceResult) -> WorkerStability:
    """Return whether the workers leave room for a measurement; coordinators take no GPU and are left out."""
    states = result.workers.states
    planning = result.plan.planned.reason == "Planning"
    on_the_way = result.rollout.active is not None or bool(result.workers.leaving)
    if planning or on_the_way or any(state.waits or state.unschedulable for state in states):
        return "Changing"
    troubled = result.workers.failure is not None or result.workers.lost or not all(state.ready for state in states)
    return "Troubled" if troubled else "Settled"
