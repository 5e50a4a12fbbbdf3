"""The sub-reconciler of measured cost profiles: the Jobs that ``spec.profile.measure`` requests."""

from weft_operator.api.conditions import ConditionValue
from weft_operator.controllers.apply import REFUSED_S, Applied
from weft_operator.controllers.context import ReconcileContext
from weft_operator.profiling.cleanup import abandoned
from weft_operator.profiling.decide import ProfilingStep, WorkerStability, next_profiling_step
from weft_operator.render.inputs import PlanRecord
from weft_operator.render.objects import mounts_of
from weft_operator.status.results import ServiceResult


def plan_profiling(ctx: ReconcileContext, record: PlanRecord, result: ServiceResult) -> ProfilingStep:
    """Return the next step of the measurement that a spec requests; without one, left-over Jobs are deleted."""
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
    # Serving is not affected, so only this condition reports it, and a retry is not urgent.
    return ConditionValue("False", "MeasurementFailed", applied.failure.message), REFUSED_S


def worker_stability(result: ServiceResult) -> WorkerStability:
    """Return whether the workers are stable enough for a measurement; coordinators use no GPU and do not count."""
    states = result.workers.states
    planning = result.plan.planned.reason == "Planning"
    in_progress = result.rollout.active is not None or bool(result.workers.leaving)
    if planning or in_progress or any(state.waits or state.unschedulable for state in states):
        return "Changing"
    troubled = result.workers.failure is not None or result.workers.lost or not all(state.ready for state in states)
    return "Troubled" if troubled else "Settled"
