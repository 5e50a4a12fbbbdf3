"""Write the API reference page from the same schemas as the CRDs."""

import json
from collections.abc import Iterator
from typing import Any

from weft_core.gpus import GPUS, MIG_GPUS
from weft_core.model_families import FAMILIES
from weft_core.models import MODELS
from weft_operator.api.cost_profile import CostProfileSpec
from weft_operator.api.service import GROUP, STATUS, VERSION, DisaggInferenceServiceSpec
from weft_operator.api.structural import structural_schema
from weft_operator.api.worker_group import WorkerGroupSpec, WorkerGroupStatus

Schema = dict[str, Any]

_BOUNDS = {
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} entries",
    "maxItems": "at most {} entries",
    "maxProperties": "at most {} entries",
}


def api_page() -> str:
    """Return docs/reference/api.md."""
    service = structural_schema(DisaggInferenceServiceSpec)
    parts = [
        "# API reference",
        "",
        f"Group `{GROUP}`, version `{VERSION}`. Generated from the API types by `make generate`: do not edit.",
        "Durations are written as `50ms`, `5s`, `1m30s`, `2h`. *Required* fields have no default.",
        "",
        "## DisaggInferenceService (`dis`)",
        "",
        "`metadata.name` has at most 40 characters, begins with a letter and holds only a-z, 0-9 and `-`.",
        "",
        "### spec",
        "",
        *_table(service, "spec"),
        "",
        "### Rules over several fields",
        "",
        "Refused at `kubectl apply` with these words:",
        "",
        *(f"- {message}" for message in dict.fromkeys(_messages(service))),
        "",
        "### status",
        "",
        "Written by the operator alone; conditions and reasons are explained in [status.md](status.md).",
        "",
        *_table(structural_schema(STATUS), "status"),
        "",
        "## WorkerGroup (`wg`)",
        "",
        "The workers of one degree, pool and revision of a service. The operator makes, fills and removes",
        "groups; people read them. With `spec.planning.mode: Off` their number is nobody's but yours:",
        "`kubectl scale wg NAME --replicas=3`, or an HPA or KEDA object whose `scaleTargetRef` is",
        "`{apiVersion: weft.dev/v1alpha1, kind: WorkerGroup, name: NAME}`. In every other mode the operator puts back",
        "what was scaled by hand.",
        "",
        "### spec",
        "",
        *_table(structural_schema(WorkerGroupSpec), "spec"),
        "",
        "### status",
        "",
        *_table(structural_schema(WorkerGroupStatus), "status"),
        "",
        "## CostProfile (`cp`)",
        "",
        "### spec",
        "",
        *_table(structural_schema(CostProfileSpec), "spec"),
        "",
        "## GPU types",
        "",
        "Values of `spec.capacity.pools[].gpuType` that are known without a CostProfile. A pool with one",
        "(`spec.profile.ref`) may use any name. One GPU of `aws-trainium2` is a logical NeuronCore.",
        "",
        *(f"- `{name}`" for name in sorted(GPUS)),
        f"- a MIG slice such as `nvidia-h100-mig-3g.40gb`, of {', '.join(f'`{name}`' for name in sorted(MIG_GPUS))}",
        "",
        "## Models",
        "",
        "Values of `spec.model.name` that are known without a CostProfile:",
        "",
        *(f"- `{name}`" for name in sorted(MODELS)),
        "",
        "Any other model needs its Hugging Face config.json in `spec.model.config` (of `model_type`",
        f"{', '.join(f'`{name}`' for name in sorted(FAMILIES))})",
        "or a measured profile.",
    ]
    return "\n".join(parts) + "\n"


def _table(schema: Schema, root: str) -> Iterator[str]:
    yield "| field | type | default | meaning |"
    yield "| --- | --- | --- | --- |"
    yield from _rows(schema, root)


def _rows(schema: Schema, path: str) -> Iterator[str]:
    required = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        at = f"{path}.{name}"
        default = "*required*" if name in required else _default(field)
        yield f"| `{at}` | {_type(field)} | {default} | {_meaning(field)} |"
        inner = field
        if field.get("type") == "array":
            inner, at = field["items"], f"{at}[]"
        yield from _rows(inner, at)


def _default(field: Schema) -> str:
    value = field.get("default")
    return "" if value is None or value in ({}, []) else f"`{json.dumps(value)}`"


def _type(field: Schema) -> str:
    if field.get("x-kubernetes-int-or-string"):
        return "quantity"
    if field["type"] == "array":
        return f"list of {_type(field['items'])}"
    if field["type"] == "object":
        return f"map to {_type(field['additionalProperties'])}" if "additionalProperties" in field else "object"
    return str(field["type"])


def _meaning(field: Schema) -> str:
    notes = []
    for of, begin in ((field, ""), (field.get("items", {}), "each ")):
        if "enum" in of:
            notes.append(f"{begin}one of " + ", ".join(f"`{value}`" for value in of["enum"]))
    if "minimum" in field:
        notes.append(f"{'above' if field.get('exclusiveMinimum') else 'at least'} {field['minimum']:g}")
    if "maximum" in field:
        most = field["maximum"]
        number = f"{most:g}" if isinstance(most, float) else str(most)
        notes.append(f"{'below' if field.get('exclusiveMaximum') else 'at most'} {number}")
    notes.extend(text.format(field[key]) for key, text in _BOUNDS.items() if key in field and key != "maxLength")
    text = str(field.get("description", "")).replace("|", "\\|")
    return f"{text} ({'; '.join(notes)})" if notes else text


def _messages(schema: Schema) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield str(rule["message"])
    for field in schema.get("properties", {}).values():
        yield from _messages(field)
        if "items" in field:
            yield from _messages(field["items"])
