"""Assemble the CustomResourceDefinitions from the API types."""

from collections.abc import Sequence
from typing import Any

from weft_operator.api.cost_profile import CostProfileSpec
from weft_operator.api.service import GROUP, KIND, PLURAL, STATUS, VERSION, DisaggInferenceService
from weft_operator.api.structural import structural_schema
from weft_operator.api.worker_group import GROUP_KIND, GROUP_PLURAL, WorkerGroupSpec, WorkerGroupStatus

Manifest = dict[str, Any]

_META = {
    "apiVersion": {
        "type": "string",
        "description": "Version of the schema of this object.",
    },
    "kind": {"type": "string", "description": "Kind of this object."},
    "metadata": {"type": "object"},
}


def _condition(kind: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].status'


def service_crd() -> Manifest:
    """Return the CRD of DisaggInferenceService."""
    schema = structural_schema(DisaggInferenceService)
    schema["properties"] = {
        **_META,
        "spec": schema["properties"]["spec"],
        "status": {**structural_schema(STATUS), "description": "What the operator last saw and did."},
    }
    # Kubernetes allows 253 characters; the bound is for the cost of the rule over the name.
    schema["properties"]["metadata"] = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 63}}}
    schema["required"] = ["spec"]
    columns = [
        ("Ready", "string", _condition("Ready"), "Whether requests are served by all planned workers"),
        (
            "Plan",
            "string",
            ".status.planSummary",
            "Workers: P4x2 is two prefill workers of 4 GPUs; D decode, C co-located, B both",
        ),
        ("Workers", "string", ".status.workersSummary", "Ready workers of those planned, by role"),
        ("GPUs", "integer", ".status.plan.gpus", "GPUs the plan takes"),
        ("SLO", "string", ".status.sloSummary", "Whether the plan should hold the SLO"),
        ("TTFT", "string", ".status.ttftSummary", "Predicted TTFT at the SLO's percentile"),
        ("ITL", "string", ".status.itlSummary", "Predicted ITL at the SLO's percentile"),
    ]
    wide = [
        ("Layout", "string", ".status.plan.layout", "Who prefills: disaggregated, colocated, symmetric or hybrid"),
        (
            "Cost/h",
            "number",
            ".status.plan.predicted.costPerHour",
            "Price of all GPUs for an hour, where pools have prices",
        ),
    ]
    return _crd(
        plural=PLURAL,
        singular="disagginferenceservice",
        kind=KIND,
        short=["dis"],
        schema=schema,
        columns=columns,
        wide=wide,
        subresources={"status": {}},
    )


def cost_profile_crd() -> Manifest:
    """Return the CRD of CostProfile."""
    spec = structural_schema(CostProfileSpec)
    schema: Manifest = {
        "type": "object",
        "description": "Predicted times of one model on one GPU type and engine, measured or derived.",
        "properties": {**_META, "spec": spec},
        "required": ["spec"],
    }
    columns = [
        ("Model", "string", ".spec.model", "Model the figures are of"),
        ("GPU", "string", ".spec.gpu", "GPU type the figures are of"),
        ("Engine", "string", ".spec.engine", "Engine the figures are of"),
    ]
    return _crd(
        plural="costprofiles", singular="costprofile", kind="CostProfile", short=["cp"], schema=schema, columns=columns
    )


def worker_group_crd() -> Manifest:
    """Return the CRD of WorkerGroup, which ``kubectl scale``, HPA and KEDA can scale."""
    schema: Manifest = {
        "type": "object",
        "description": "The workers of one degree, pool and revision of a service. Made by the operator.",
        "properties": {
            **_META,
            "spec": structural_schema(WorkerGroupSpec),
            "status": {**structural_schema(WorkerGroupStatus), "description": "What the operator last saw and did."},
        },
        "required": ["spec"],
    }
    columns = [
        ("Service", "string", ".spec.service", "Service that the workers are of"),
        ("Degree", "string", ".spec.degree", "GPUs of one worker, or how it splits the model"),
        ("Pool", "string", ".spec.pool", "GPU pool"),
        ("Replicas", "integer", ".spec.replicas", "Workers that are asked for"),
        ("Ready", "integer", ".status.readyReplicas", "Workers that serve"),
        ("Prefill", "integer", ".status.roles.prefill", "Workers that serve and prefill for others"),
        ("Decode", "integer", ".status.roles.decode", "Workers that serve and decode"),
        ("Both", "integer", ".status.roles.both", "Workers that serve and do both"),
        ("Draining", "integer", ".status.drainingReplicas", "Workers on their way out"),
    ]
    wide = [
        ("Updated", "integer", ".status.updatedReplicas", "Workers that serve with the newest template"),
        ("Revision", "string", ".spec.revision", "What workers must agree on to hand KV to each other"),
    ]
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    return _crd(
        plural=GROUP_PLURAL,
        singular="workergroup",
        kind=GROUP_KIND,
        short=["wg"],
        schema=schema,
        columns=columns,
        wide=wide,
        subresources={"status": {}, "scale": scale},
    )


def _crd(
    *,
    plural: str,
    singular: str,
    kind: str,
    short: list[str],
    schema: Manifest,
    columns: list[tuple[str, str, str, str]],
    wide: Sequence[tuple[str, str, str, str]] = (),
    subresources: Manifest | None = None,
) -> Manifest:
    version: Manifest = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [
            *({"name": n, "type": t, "jsonPath": path, "description": text} for n, t, path, text in columns),
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
            *(
                {"name": n, "type": t, "jsonPath": path, "description": text, "priority": 1}
                for n, t, path, text in wide
            ),
        ],
        "schema": {"openAPIV3Schema": schema},
    }
    if subresources is not None:
        version["subresources"] = subresources
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": singular,
                "shortNames": short,
                "categories": ["all", "weft"],
            },
            "versions": [version],
        },
    }
