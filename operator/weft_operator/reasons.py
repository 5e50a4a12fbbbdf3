"""Every condition and reason that a status can hold, with its remedy: the source of docs/reference/status.md."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

ConditionType = Literal["Planned", "Ready", "Progressing"]
CONDITIONS: tuple[ConditionType, ...] = ("Planned", "Ready", "Progressing")


@dataclass(frozen=True, slots=True)
class Reason:
    """One stable word of a condition: what it means, and what to do about it."""

    meaning: str
    remedy: str = ""


_MEANING: Mapping[ConditionType, str] = {
    "Planned": "A plan for the current spec is in force.",
    "Ready": "The coordinator and all planned workers are ready at the newest template: requests are served.",
    "Progressing": "Workers are being made, replaced or removed.",
}

PLANNED: Mapping[str, Reason] = MappingProxyType(
    {
        "PlanReady": Reason("The plan in `status.plan` was made for this spec, or kept by `planning.mode: Off`."),
        "Planning": Reason("The planner is at work; workers of the last plan keep running."),
        "InvalidSpec": Reason(
            "The stored spec breaks a rule of this operator's version.", "Correct the field that the message names."
        ),
        "ProfileNotFound": Reason(
            "`spec.profile.ref` names a CostProfile that is not in the namespace.",
            "Create it, correct the name, or use `spec.profile.analytic`.",
        ),
        "ProfileInvalid": Reason(
            "The cost profile has a figure that cannot be used.", "Correct the field that the message names."
        ),
        "TraceNotFound": Reason(
            "`spec.workload.traceConfigMap` names a ConfigMap or key that is not there.",
            "Create the ConfigMap with that key, or correct the reference.",
        ),
        "SecretNotFound": Reason(
            "`spec.coordinator.auth.apiKeySecretRef`, `spec.coordinator.tls.secretRef` or "
            "`spec.model.source.huggingFace.tokenSecretRef` names a Secret or key that is not there.",
            "Create the Secret with that key, or correct the reference.",
        ),
        "JwksNotFound": Reason(
            "`spec.coordinator.auth.jwt.jwksConfigMapRef` names a ConfigMap or key that is not there.",
            "Create the ConfigMap with that key, or correct the reference.",
        ),
        "TooFewGpus": Reason(
            "The budget or the nodes hold fewer GPUs than the smallest layout or `spec.capacity.gpus` needs.",
            "Lower the number to what the message gives, add nodes, or set `spec.capacity.elastic` where an "
            "autoscaler adds them.",
        ),
        "ModelDoesNotFit": Reason(
            "The weights fit on no allowed degree.", "Allow the degree that the message names, or use larger GPUs."
        ),
        "ContextDoesNotFit": Reason(
            "No allowed degree holds the KV cache of one context of `spec.model.maxModelLen`.",
            "Lower maxModelLen or allow a larger degree.",
        ),
        "NoPoolForRole": Reason("No pool may hold one of the roles.", "Add the role to a pool."),
        "BoundsUnsatisfiable": Reason(
            "No layout has as many workers as `spec.planning` asks for.", "Lower a min or raise a max."
        ),
        "NotPlaceable": Reason(
            "No layout fits onto the free GPUs of the nodes, because a worker cannot span nodes; asked again with "
            "growing pauses where real nodes were seen.",
            "Free or add what the message says, correct gpusPerNode, or allow smaller degrees.",
        ),
        "NoPairOfDegrees": Reason(
            "The engine cannot exchange KV between any of the pools' prefill and decode degrees.",
            "Allow the degrees that the message names.",
        ),
        "OverBudget": Reason(
            "`spec.planning.budgetPerHour` does not pay for the smallest layout.",
            "Raise it to what the message says, or allow smaller degrees or cheaper pools.",
        ),
        "UnknownModel": Reason(
            "An analytic profile needs the dimensions of the model, and this one is not in the catalogue.",
            "Correct the name, give the model's config.json in `spec.model.config`, or reference a measured profile.",
        ),
        "ModelConfigInvalid": Reason(
            "`spec.model.config` is not a config.json that the planner can read.",
            "Correct the fields that the message names, or reference a measured profile.",
        ),
        "UnknownGpu": Reason(
            "An analytic profile needs the data sheet of the GPU, and this type is not in the catalogue.",
            "Use a gpuType of the API reference, or reference a measured profile.",
        ),
        "NothingRuns": Reason(
            "No layout of `spec.planning.layouts` keeps the limits.",
            "Allow another layout, or change the limit that the message names.",
        ),
        "Infeasible": Reason("No layout meets the constraints.", "See the message."),
        "PlannerTimeout": Reason(
            "The planner did not answer within the deadline and was ended; it is tried again with growing pauses.",
            "Raise the chart's operator.plannerDeadlineSeconds, or narrow degrees and bounds.",
        ),
        "PlannerCrashed": Reason(
            "The planner ended without an answer; it is tried again with growing pauses.",
            "See the message and the operator's log; more memory for the operator helps when it was killed.",
        ),
    }
)

READY: Mapping[str, Reason] = MappingProxyType(
    {
        "Serving": Reason("The coordinator and every planned worker are ready."),
        "Degraded": Reason(
            "Requests are served, but not by all planned workers at the newest template.",
            "Wait while Progressing is True; else see the message for the workers that are missing.",
        ),
        "CoordinatorNotReady": Reason(
            "No coordinator pod is available.", "`kubectl describe deployment` of the service's name tells why."
        ),
        "NoPrefillWorker": Reason("No prefill worker is ready.", "See the message, then the pods' events."),
        "NoDecodeWorker": Reason("No decode worker is ready.", "See the message, then the pods' events."),
        "NotPlanned": Reason("There is no plan yet.", "See the condition Planned."),
    }
)

PROGRESSING: Mapping[str, Reason] = MappingProxyType(
    {
        "UpToDate": Reason("Every object is as the plan and the spec want it."),
        "RollingOut": Reason("Workers or coordinators are starting or being replaced."),
        "ReplacingWorkers": Reason(
            "Workers were lost (their node is gone, or a broken pod cannot be updated); new ones take their place."
        ),
        "Unschedulable": Reason(
            "The scheduler finds no node for a worker.",
            "See the message: GPUs, RDMA devices, taints or labels are missing.",
        ),
        "WaitingForPlan": Reason(
            "There is no plan for the current spec yet; workers of the last plan keep running.",
            "See the condition Planned.",
        ),
        "NameTaken": Reason(
            "An object that Weft did not make has a name that the service needs.",
            "Rename the service, or remove the object that the message names.",
        ),
        "ApplyFailed": Reason(
            "The API server refused an object; it is tried again.", "The message holds the server's answer."
        ),
    }
)

REASONS: Mapping[ConditionType, Mapping[str, Reason]] = {
    "Planned": PLANNED,
    "Ready": READY,
    "Progressing": PROGRESSING,
}


def status_page() -> str:
    """Return docs/reference/status.md."""
    lines = [
        "# Conditions of a DisaggInferenceService",
        "",
        "Generated from the code by `make generate`: do not edit. Each condition names the generation of the spec that",
        "it is about. Reasons are stable words; messages are for people and hold the numbers.",
    ]
    for condition in CONDITIONS:
        lines += [
            "",
            f"## {condition}",
            "",
            _MEANING[condition],
            "",
            "| reason | meaning | remedy |",
            "| --- | --- | --- |",
        ]
        lines += [f"| `{name}` | {reason.meaning} | {reason.remedy} |" for name, reason in REASONS[condition].items()]
    return "\n".join(lines) + "\n"
