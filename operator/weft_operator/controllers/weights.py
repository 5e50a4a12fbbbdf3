"""The sub-reconciler of weights: downloads them to the cache from which workers load; workers wait for that."""

from weft_operator.api.conditions import ConditionValue
from weft_operator.controllers.apply import REFUSED_S, Applied
from weft_operator.controllers.context import ReconcileContext
from weft_operator.render.inputs import PlanRecord
from weft_operator.status.results import WeightsResult
from weft_operator.weights.decide import ModelState
from weft_operator.weights.gate import ImageVolumeCheck, ReadProgress, must_wait, read_model_state


async def plan_weights(
    ctx: ReconcileContext, record: PlanRecord | None, *, images: ImageVolumeCheck, progress: ReadProgress
) -> ModelState:
    """Return the state of a plan's weights, with the actions that fill the cache.

    Raises:
        ApiError: the API server refused or did not answer.
    """
    if record is None:
        return ModelState()
    rendering = ctx.rendering(record)
    return await read_model_state(
        rendering, ctx.observed, token=ctx.token, images=images, progress=progress, now=ctx.now
    )


def weights_result(
    state: ModelState, applied: Applied, *, record: PlanRecord | None, active: PlanRecord | None
) -> tuple[WeightsResult, float | None]:
    """Return the result after the actions, and when to reconcile again; workers with the same weights need not wait."""
    condition, requeue_after = state.verdict, state.requeue_after
    if applied.failure is not None:
        requeue_after = REFUSED_S
        if not state.ready:
            condition = ConditionValue("False", "FetchFailed", applied.failure.message)
    if not must_wait(record, active, state):
        return WeightsResult(condition), requeue_after
    return WeightsResult(condition, "Coming" if state.in_progress else "Refused"), requeue_after
