"""The conditions SLOFeasible and CostModelFresh: a plan's predictions against the SLO and the metrics. Pure."""

from collections.abc import Sequence

from weft_core.cost_sources import cost_sources
from weft_core.durations import format_seconds
from weft_core.profile_json import profile_from_json
from weft_operator.api.conditions import ConditionValue
from weft_operator.metrics.observation import Observation
from weft_operator.metrics.status_figures import NO_METRICS
from weft_operator.render.inputs import PlanRecord
from weft_operator.render.plan_summary import plan_summary
from weft_operator.replanning.drift import DetectedDrift
from weft_planner.request.service import in_manifest

_OTHER_TRAFFIC = frozenset({"Rate", "Rounds", "Lengths"})


def slo_feasible(record: PlanRecord | None) -> ConditionValue:
    """Return the condition SLOFeasible; ``record`` is of the plan whose workers run."""
    if record is None:
        return ConditionValue("Unknown", "NotPlanned", "there is no plan yet")
    predicted, slo = record.plan.predicted, record.spec.slo
    words = (
        f"predicted for {plan_summary(record.plan)}: P{slo.percentile} TTFT {format_seconds(predicted.ttft_p95_s)} "
        f"(SLO {slo.ttft}), ITL {format_seconds(predicted.itl_p95_s)} (SLO {slo.itl})"
    )
    if predicted.slo_met:
        return ConditionValue("True", "PredictedMet", words)
    short = record.plan.shortfall
    why = "" if short is None else f": {in_manifest(short.message.removeprefix(f'{short.binding}: '))}"
    return ConditionValue("False", "PredictedMissed", f"{words}{why}")


def cost_model_fresh(
    record: PlanRecord | None, *, in_force: bool, observation: Observation | None, drifts: Sequence[DetectedDrift]
) -> ConditionValue:
    """Return the condition CostModelFresh.

    ``drifts`` are from the plan of ``record``; ``in_force`` tells whether all its workers, and no others, serve. The
    message ends with the source of the plan's costs.
    """
    if record is None:
        return ConditionValue("Unknown", "Unknown", NO_METRICS)
    found = _compared(record, in_force=in_force, observation=observation, drifts=drifts)
    return found._replace(message=f"{found.message}; {plan_sources(record)}")


def plan_sources(record: PlanRecord) -> str:
    """Return where the costs of a plan come from, for each pool where pools differ."""
    profiles = record.profiles or {"": record.profile}
    return "; ".join(cost_sources({pool: profile_from_json(body) for pool, body in profiles.items()}))


def _compared(
    record: PlanRecord, *, in_force: bool, observation: Observation | None, drifts: Sequence[DetectedDrift]
) -> ConditionValue:
    seen = None if observation is None or not observation.availability.seen else observation.slo
    if seen is None:
        return ConditionValue("Unknown", "Unknown", NO_METRICS)
    if not in_force:
        return ConditionValue("Unknown", "NotComparable", "not all workers of the plan serve, or others serve as well")
    slower = next((drift for drift in drifts if drift.kind == "Residual" and not drift.traffic_changes), None)
    if slower is not None:
        return ConditionValue("False", "SlowerThanPredicted", slower.sentence)
    other = next((drift for drift in drifts if drift.kind in _OTHER_TRAFFIC or drift.traffic_changes), None)
    if other is not None:
        return ConditionValue("Unknown", "NotComparable", f"predictions are for other traffic: {other.sentence}")
    settings = record.spec.planning.drift
    enough = [one for one in (seen.ttft_first, seen.ttft_later, seen.itl) if one and one.count >= settings.min_samples]
    if not enough:
        return ConditionValue(
            "Unknown", "TooFewRounds", f"fewer than {settings.min_samples} rounds were served in the window"
        )
    within = f"at most {settings.residual:.0%} above the predictions, or within the SLO"
    return ConditionValue("True", "AsPredicted", f"TTFT and ITL are {within}")
