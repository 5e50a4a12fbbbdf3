"""Every condition and reason that a status can hold, with its remedy: the source of docs/reference/status.md."""

from collections.abc import Mapping
from typing import Literal, get_args

from weft_operator.status.reasons.carried_out import DRAINED, PROGRESSING, READY, RECONCILING, STALLED
from weft_operator.status.reasons.engines import ENGINE_PLUGIN, KV_TRANSPORT_VERIFIED
from weft_operator.status.reasons.groups import GROUP_PROGRESSING, GROUP_READY
from weft_operator.status.reasons.measured import METRICS_AVAILABLE, SLO_MET
from weft_operator.status.reasons.model import MODEL_READY
from weft_operator.status.reasons.planned import PLANNED
from weft_operator.status.reasons.predicted import COST_MODEL_FRESH, PROFILE_MEASURED, SLO_FEASIBLE
from weft_operator.status.reasons.reason import Reason

__all__ = [
    "CONDITIONS",
    "GROUP_MEANING",
    "GROUP_REASONS",
    "MEANING",
    "METRICS_AVAILABLE",
    "PLANNED",
    "REASONS",
    "SLO_MET",
    "ConditionType",
    "Reason",
    "status_page",
]

ConditionType = Literal[
    "Planned",
    "Ready",
    "Progressing",
    "Drained",
    "SLOFeasible",
    "MetricsAvailable",
    "SLOMet",
    "CostModelFresh",
    "ProfileMeasured",
    "ModelReady",
    "EnginePlugin",
    "KVTransportVerified",
    "Reconciling",
    "Stalled",
]
CONDITIONS: tuple[ConditionType, ...] = get_args(ConditionType)
"""In the order of the status; ProfileMeasured is only there where it is asked for, ModelReady where weights are
cached or in an image, EnginePlugin and KVTransportVerified where engines tell."""

MEANING: Mapping[ConditionType, str] = {
    "Planned": "A plan for the current spec is in force.",
    "Ready": "The coordinator and all planned workers are ready at the newest template: requests are served.",
    "Progressing": "Workers are being made, replaced or removed.",
    "Drained": "Every worker that was to leave has handed its sessions over and is gone.",
    "SLOFeasible": "The plan in force should hold the SLO at the traffic that it was made for.",
    "MetricsAvailable": "Prometheus tells what the running service does. While it does not, nothing shrinks.",
    "ModelReady": "The weights are where the workers load them. Only with a cache or an image in `spec.model.source`.",
    "EnginePlugin": "Every ready engine has Weft's plug-in and it is active. Only where `spec.engine.plugin` is set.",
    "KVTransportVerified": "KV goes between all pairs of engines, and over RDMA where they have it. Only for vLLM.",
    "Reconciling": "The service is not yet as its spec and plan want it: what deployment tools wait for (kstatus).",
    "Stalled": "Nothing but a change of the spec or the cluster helps: what deployment tools give up at (kstatus).",
    "SLOMet": "Streamed rounds met the SLO over the window of `spec.planning.prometheus`, in every class.",
    "CostModelFresh": "What is seen agrees with what the cost model predicted for the plan in force.",
    "ProfileMeasured": "Plans are made with costs that the operator measured. Only with `spec.profile.measure`.",
}

REASONS: Mapping[ConditionType, Mapping[str, Reason]] = {
    "Planned": PLANNED,
    "Ready": READY,
    "Progressing": PROGRESSING,
    "Drained": DRAINED,
    "SLOFeasible": SLO_FEASIBLE,
    "MetricsAvailable": METRICS_AVAILABLE,
    "SLOMet": SLO_MET,
    "CostModelFresh": COST_MODEL_FRESH,
    "ProfileMeasured": PROFILE_MEASURED,
    "ModelReady": MODEL_READY,
    "EnginePlugin": ENGINE_PLUGIN,
    "KVTransportVerified": KV_TRANSPORT_VERIFIED,
    "Reconciling": RECONCILING,
    "Stalled": STALLED,
}


GROUP_MEANING: Mapping[str, str] = {
    "Ready": "As many workers as are asked for serve with the newest template.",
    "Progressing": "Workers of the group are being made, replaced or removed.",
}

GROUP_REASONS: Mapping[str, Mapping[str, Reason]] = {"Ready": GROUP_READY, "Progressing": GROUP_PROGRESSING}
"""The conditions of a WorkerGroup."""


def status_page() -> str:
    """Return docs/reference/status.md."""
    lines = [
        "# Conditions of a DisaggInferenceService",
        "",
        "Generated from the code by `make generate`: do not edit. Each condition names the generation of the spec that",
        "it is about. Reasons are stable words; messages are for people and hold the numbers. What usually brings each",
        "about is in [the runbook](runbook.md), and `weft explain REASON` prints it.",
    ]
    for condition in CONDITIONS:
        lines += _table(condition, MEANING[condition], REASONS[condition])
    lines += ["", "# Conditions of a WorkerGroup"]
    for name, reasons in GROUP_REASONS.items():
        lines += _table(f"{name} of a WorkerGroup", GROUP_MEANING[name], reasons)
    return "\n".join(lines) + "\n"


def _table(title: str, meaning: str, reasons: Mapping[str, Reason]) -> list[str]:
    head = ["", f"## {title}", "", meaning, "", "| reason | meaning | remedy |", "| --- | --- | --- |"]
    return [*head, *(f"| `{name}` | {reason.meaning} | {reason.remedy} |" for name, reason in reasons.items())]
