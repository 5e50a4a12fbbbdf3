"""Judge a plan's predictions: do they hold the SLO, and does what is seen agree with them? Pure."""

from collections.abc import Sequence
from typing import Literal

from weft_core.durations import format_seconds
from weft_operator.metrics.observation import Observation
from weft_operator.metrics.status_figures import NO_METRICS
from weft_operator.render.inputs import PlanRecord
from weft_operator.render.plan_summary import plan_summary
from weft_operator.replanning.drift import DetectedDrift
from weft_planner.request.service import in_manifest

Said = tuple[Literal["True", "False", "Unknown"], str, str]

_OTHER_TRAFFIC = frozenset({"Rate", "Rounds", "Lengths"})


def slo_feasible(record: PlanRecord | None) -> Said:
    """Return status, reason and message of SLOFeasible; ``record`` is of the plan whose workers run."""
    if record is None:
        return "Unknown", "NotPlanned", "there is no plan yet"
    predicted, slo = record.plan.predicted, record.spec.slo
    words = (
        f"predicted for {plan_summary(record.plan)}: P{slo.percentile} TTFT {format_seconds(predicted.ttft_p95_s)} "
        f"(SLO {slo.ttft}), ITL {format_seconds(predicted.itl_p95_s)} (SLO {slo.itl})"
    )
    if predicted.slo_met:
        return "True", "PredictedMet", words
    short = record.plan.shortfall
    why = "" if short is None else f": {in_manifest(short.message.removeprefix(f'{short.binding}: '))}"
    return "False", "PredictedMissed", f"{words}{why}"


def cost_model_fresh(
    record: PlanRecord | None, *, in_force: bool, observation: Observation | None, drifts: Sequence[DetectedDrift]
) -> Said:
    """Return status, reason and message of CostModelFresh.

    ``drifts`` are from the plan of ``record``; ``in_force`` tells whether all its workers, and no others, serve.
    """
    if record is None:
        return "Unknown", "Unknown", NO_METRICS
    seen = None if observation is None or not observation.availability.seen else observation.slo
    if seen is None:
        return "Unknown", "Unknown", NO_METRICS
    if not in_force:
        return "Unknown", "NotComparable", "not all workers of the plan serve, or others serve, too"
    slower = next((drift for drift in drifts if drift.kind == "Residual" and not drift.elsewhere), None)
    if slower is not None:
        return "False", "SlowerThanPredicted", slower.sentence
    other = next((drift for drift in drifts if drift.kind in _OTHER_TRAFFIC or drift.elsewhere), None)
    if other is not None:
        return "Unknown", "NotComparable", f"the traffic is not the one that predictions are for: {other.sentence}"
    settings = record.spec.planning.drift
    enough = [one for one in (seen.ttft_first, seen.ttft_later, seen.itl) if one and one.count >= settings.min_samples]
    if not enough:
        return "Unknown", "TooFewRounds", f"fewer than {settings.min_samples} rounds were streamed in the window"
    within = f"not more than {settings.residual:.0%} above what was predicted, or within the SLO"
    return "True", "AsPredicted", f"TTFT and ITL are {within}"
