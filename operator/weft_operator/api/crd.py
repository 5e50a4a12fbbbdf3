"""Assemble the CustomResourceDefinitions from the API types."""

from collections.abc import Sequence
from typing import Any

from weft_operator.api.cost_profile import CostProfileSpec
from weft_operator.api.service import GROUP, KIND, PLURAL, STATUS, VERSION, DisaggInferenceService
from weft_operator.api.structural import structural_schema

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
            "Workers: P4x2 is two prefill workers of 4 GPUs; D decode, C co-located",
        ),
        ("GPUs", "integer", ".status.plan.gpus", "GPUs the plan takes"),
        ("SLO", "string", ".status.sloSummary", "Whether the plan should hold the SLO"),
        ("TTFT", "string", ".status.ttftSummary", "Predicted TTFT at the SLO's percentile"),
        ("ITL", "string", ".status.itlSummary", "Predicted ITL at the SLO's percentile"),
    ]
    wide = [
        ("Layout", "string", ".status.plan.layout", "Who prefills: disaggregated or colocated"),
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
        status=True,
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


def _crd(
    *,
    plural: str,
    singular: str,
    kind: str,
    short: list[str],
    schema: Manifest,
    columns: list[tuple[str, str, str, str]],
    wide: Sequence[tuple[str, str, str, str]] = (),
    status: bool = False,
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
    if status:
        version["subresources"] = {"status": {}}
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
