"""The reasons of the conditions about a plan's predictions: SLOFeasible, CostModelFresh and ProfileMeasured."""

from collections.abc import Mapping
from types import MappingProxyType

from weft_operator.status.reasons.reason import Reason

SLO_FEASIBLE: Mapping[str, Reason] = MappingProxyType(
    {
        "PredictedMet": Reason("The active plan should meet the SLO at the traffic that it was made for."),
        "PredictedMissed": Reason(
            "No plan within the limits of the spec should meet the SLO: the best one runs.",
            "See the message: more GPUs, other degrees, or a wider SLO; `status.plan.shortfall` has the nearest SLO, "
            "the number of GPUs that would be enough, and the fields to change (`remedies`).",
            cause="The budget is too small for the traffic, or the SLO is narrower than the model and GPUs allow.",
        ),
        "NotPlanned": Reason("There is no plan yet.", "See the condition Planned.", cause="The service is new."),
    }
)

COST_MODEL_FRESH: Mapping[str, Reason] = MappingProxyType(
    {
        "AsPredicted": Reason(
            "TTFT and ITL are not more above the plan's prediction than `spec.planning.drift.residual` allows, or they "
            "are within the SLO."
        ),
        "SlowerThanPredicted": Reason(
            "At the traffic that the plan is for, TTFT or ITL have been above the prediction and the SLO for long "
            "enough: the cost profile is too fast.",
            "Let the operator measure it (`spec.profile.measure`), or measure it with `weft profile` and name it in "
            "`spec.profile.ref`.",
            cause="The engine, its flags or the GPUs changed since the profile was measured, or it was derived from "
            "data sheets.",
        ),
        "NotComparable": Reason(
            "The predictions are for other traffic or workers than the observed ones.",
            "Wait: a plan for this traffic brings new predictions; see the condition Planned.",
            cause="Traffic drifted, or a plan change or canary is under way.",
        ),
        "TooFewRounds": Reason(
            "Too few rounds were served to compare them with the prediction.",
            cause="There is little traffic.",
        ),
        "Unknown": Reason(
            "There are no metrics of the service.",
            "See the condition MetricsAvailable.",
            cause="No Prometheus is configured, or nothing serves yet.",
        ),
    }
)

PROFILE_MEASURED: Mapping[str, Reason] = MappingProxyType(
    {
        "Measured": Reason("Every requested degree is measured, with this model, engine and GPU."),
        "Measuring": Reason("A Job measures, on engines that do not serve.", cause="`spec.profile.measure` is set."),
        "Waiting": Reason(
            "Workers change or are not ready; the measurement goes on once they are those of the plan.",
            "Wait; see the condition Progressing.",
            cause="A plan change is under way, or a worker crashed.",
        ),
        "InsufficientCapacity": Reason(
            "The plan leaves too few GPUs of the budget for an engine beside the workers, or no node takes its pod.",
            "Raise `spec.profile.measure.extraGpus` if there are more, or measure when the service needs less. If the "
            "pod waits for a node, free what the message names.",
            cause="The plan uses the whole budget, or the nodes have fewer free GPUs than the budget says.",
        ),
        "MeasurementFailed": Reason(
            "The Job failed; it is retried after an hour.",
            "See the message and the Job's log: kubectl logs job/JOB -c profile, and -c engine. Deleting the Job "
            "retries at once.",
            cause="The engine does not start, its pod finds no node, or the time is too short.",
        ),
        "MeasurementUnusable": Reason(
            "The measured profile predicts held-out shapes too badly, or cannot be read; the old profile stays.",
            "Raise `spec.profile.measure.budget`, and check that nothing else runs on the node's GPUs and cores.",
            cause="Other load during the measurement, or too short a budget.",
        ),
        "NothingToMeasure": Reason(
            "No requested degree fits on one node of a pool.",
            "Correct `spec.profile.measure.degrees`; measure workers on several nodes with `weft profile`.",
            cause="All degrees of the pools span several nodes, or the named ones are none of theirs.",
        ),
    }
)
