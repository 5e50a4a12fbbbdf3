"""Turn a pydantic type into a structural OpenAPI v3 schema as CustomResourceDefinitions take it.

Structural means: no references, no unions but int-or-string, no ``additionalProperties: false`` (the API server
prunes unknown fields, and refuses them under strict validation), ``exclusiveMinimum`` as a boolean.
"""

from typing import Any, cast

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from weft_operator.api.base import ApiModel

Schema = dict[str, Any]

_KEPT = (
    "type",
    "format",
    "description",
    "enum",
    "default",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "anyOf",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-preserve-unknown-fields",
)


class UnsupportedSchemaError(TypeError):
    """Report a Python type that has no structural schema; the message names the place and the type."""


def structural_schema(model: type[ApiModel]) -> Schema:
    """Return the structural schema of a type, with its rules as CEL validations."""
    raw = model.model_json_schema(by_alias=True)
    return _object(raw, raw.get("$defs", {}), model, where=model.__name__)


def _object(raw: Schema, definitions: Schema, model: type[ApiModel], *, where: str) -> Schema:
    properties: Schema = {}
    required: list[str] = []
    for name, field in model.model_fields.items():
        alias = field.alias or name
        properties[alias] = _property(raw["properties"][alias], definitions, field, where=f"{where}.{alias}")
        if field.is_required():
            required.append(alias)
    out: Schema = {"type": "object"}
    if model.__doc__:
        out["description"] = _one_line(model.__doc__)
    out["properties"] = properties
    if required:
        out["required"] = required
    validations = [rule.validation for rule in model.rules if rule.cel is not None]
    if validations:
        out["x-kubernetes-validations"] = validations
    return out


def _property(raw: Schema, definitions: Schema, field: FieldInfo, *, where: str) -> Schema:
    if raw.get("x-weft-plain-object"):
        return {"type": "object"}
    model = _model_of(field.annotation)
    out = _schema(raw, definitions, model, where=where)
    if field.description:
        out["description"] = _one_line(field.description)
    out.pop("default", None)
    default = field.default
    if default is not PydanticUndefined and default is not None:
        out["default"] = _plain(default)
    return _ordered(out)


def _schema(raw: Schema, definitions: Schema, model: type[ApiModel] | None, *, where: str) -> Schema:
    if "$ref" in raw:
        merged = {**definitions[raw["$ref"].rsplit("/", 1)[1]], **{k: v for k, v in raw.items() if k != "$ref"}}
        return _schema(merged, definitions, model, where=where)
    if "allOf" in raw and len(raw["allOf"]) == 1:
        return _schema({**raw, **raw["allOf"][0], "allOf": []}, definitions, model, where=where)
    if "anyOf" in raw and not raw.get("x-kubernetes-int-or-string"):
        some = [option for option in raw["anyOf"] if option.get("type") != "null"]
        if len(some) != 1:
            raise UnsupportedSchemaError(f"{where}: a union has no structural schema; use one type")
        rest = {k: v for k, v in raw.items() if k not in ("anyOf", "default")}
        return _schema({**some[0], **rest}, definitions, model, where=where)
    if raw.get("type") == "object" and "properties" in raw:
        if model is None:
            raise UnsupportedSchemaError(f"{where}: an object here must be an ApiModel")
        return _object(raw, definitions, model, where=where)
    return _leaf(raw, definitions, model, where=where)


def _leaf(raw: Schema, definitions: Schema, model: type[ApiModel] | None, *, where: str) -> Schema:
    out: Schema = {k: v for k, v in raw.items() if k in _KEPT}
    if "const" in raw:
        out["enum"] = [raw["const"]]
    for bound, base in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if bound in raw:
            out[base] = raw[bound]
            out[bound] = True
    kind = raw.get("type")
    if kind == "array":
        out["items"] = _schema(raw["items"], definitions, model, where=f"{where}[]")
        if "x-kubernetes-list-map-keys" in out:
            out["x-kubernetes-list-type"] = "map"
        out.setdefault("x-kubernetes-list-type", "atomic")
        _bounded(out, "maxItems", where)
    elif kind == "object" and "x-kubernetes-preserve-unknown-fields" in out:
        _bounded(out, "maxProperties", where)
    elif kind == "object":
        values = raw.get("additionalProperties")
        if not isinstance(values, dict):
            raise UnsupportedSchemaError(f"{where}: a map needs a value type")
        out["additionalProperties"] = _schema(values, definitions, model, where=f"{where}{{}}")
        _bounded(out, "maxProperties", where)
    elif kind is None and "anyOf" not in out:
        raise UnsupportedSchemaError(f"{where}: the schema {raw} has no type")
    out.pop("title", None)
    return _ordered(out)


def _bounded(out: Schema, bound: str, where: str) -> None:
    """Insist on a bound: without one the API server cannot tell what a rule over the field costs."""
    if bound not in out:
        raise UnsupportedSchemaError(f"{where}: {bound} is missing; rules need bounded fields")


def _model_of(annotation: object) -> type[ApiModel] | None:
    """Return the ApiModel inside X, X | None, list[X] or dict[str, X]."""
    if isinstance(annotation, type) and issubclass(annotation, ApiModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        found = _model_of(inner)
        if found is not None:
            return found
    return None


def _plain(default: object) -> object:
    if isinstance(default, BaseModel):
        return default.model_dump(mode="json", by_alias=True, exclude_none=True)
    return default


def _ordered(schema: Schema) -> Schema:
    first = ("type", "description", "default")
    return cast(
        Schema, {k: schema[k] for k in first if k in schema} | {k: v for k, v in schema.items() if k not in first}
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())
