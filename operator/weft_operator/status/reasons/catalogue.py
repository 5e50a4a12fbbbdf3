"""All conditions and reasons with their remedies: the source of docs/reference/status.md."""

from collections.abc import Mapping
from typing import Literal, get_args

from weft_operator.status.reasons.engines import ADAPTERS_LOADED, ENGINE_PLUGIN, KV_TRANSPORT_VERIFIED
from weft_operator.status.reasons.groups import GROUP_PROGRESSING, GROUP_READY
from weft_operator.status.reasons.kv_cache import KV_CACHE_TIERS
from weft_operator.status.reasons.metrics import METRICS_AVAILABLE, SLO_MET
from weft_operator.status.reasons.model import MODEL_READY
from weft_operator.status.reasons.planned import PLANNED
from weft_operator.status.reasons.predictions import COST_MODEL_FRESH, PROFILE_MEASURED, SLO_FEASIBLE
from weft_operator.status.reasons.reason import Reason
from weft_operator.status.reasons.rollout import DRAINED, PROGRESSING, READY, RECONCILING, STALLED

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
    "AdaptersLoaded",
    "KVCacheTiers",
    "Reconciling",
    "Stalled",
]
CONDITIONS: tuple[ConditionType, ...] = get_args(ConditionType)
"""In the order of the status. ProfileMeasured, ModelReady, EnginePlugin, KVTransportVerified, AdaptersLoaded and
KVCacheTiers are optional: see ``MEANING``."""

MEANING: Mapping[ConditionType, str] = {
    "Planned": "A plan for the current spec is active.",
    "Ready": "The coordinator and all planned workers are ready at the newest template, and endpoint pickers, if any.",
    "Progressing": "Workers are being created, replaced or removed.",
    "Drained": "Every removed worker has migrated its sessions and is gone.",
    "SLOFeasible": "The active plan should meet the SLO at the traffic that it was made for.",
    "MetricsAvailable": "Prometheus has current metrics of the service. Without them no plan shrinks.",
    "ModelReady": "The weights are downloaded. Only with a cache or an image in `spec.model.source`.",
    "EnginePlugin": "Every ready engine has Weft's plug-in and it is active. Only where `spec.engine.plugin` is set.",
    "KVTransportVerified": "KV is transferred between all pairs of engines, over RDMA if they have it. Only for vLLM.",
    "AdaptersLoaded": "Every ready engine has all adapters of `spec.model.adapters`. Only for vLLM and mock engines.",
    "KVCacheTiers": (
        "Workers run with the tiers of `spec.kvCache`, and their KV events come in order. Only where that or "
        "`spec.engine.kvEvents` is set."
    ),
    "Reconciling": "The service is not yet in its desired state; deployment tools wait while True (kstatus).",
    "Stalled": "The spec or the cluster must change; deployment tools fail while True (kstatus).",
    "SLOMet": "Streamed rounds met the SLO over the window of `spec.planning.prometheus`, in every class.",
    "CostModelFresh": (
        "Observed latencies agree with the predictions for the active plan. The message names the source of its costs."
    ),
    "ProfileMeasured": "Plans use costs that the operator measured. Only with `spec.profile.measure`.",
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
    "AdaptersLoaded": ADAPTERS_LOADED,
    "KVCacheTiers": KV_CACHE_TIERS,
    "Reconciling": RECONCILING,
    "Stalled": STALLED,
}


GROUP_MEANING: Mapping[str, str] = {
    "Ready": "All requested workers serve with the newest template.",
    "Progressing": "Workers of the group are being created, replaced or removed.",
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
