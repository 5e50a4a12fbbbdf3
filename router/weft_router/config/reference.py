"""Write the reference page of router.json and gateway.json: ``python -m weft_router.config.reference``."""

import ast
import inspect
import json
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from weft_router.config.file import RouterConfig
from weft_router.config.gateway import GatewayConfig, ServicesFile

HEAD = """# router.json and gateway.json

Made from the code by `make generate`; do not edit. [What the parts are for](../front-door.md).

The operator renders this file; by hand it is written for `weft router --role standalone`, or for a stack without
Kubernetes. Unknown fields are refused. Times are seconds. *Required* fields have no default.

| field | type | default | meaning |
| --- | --- | --- | --- |
"""
GATEWAY = """
## gateway.json

Of [gateways](../gateways.md), `weft router --role gateway --config gateway.json`; the chart renders it. Sections that
are not described here in full are those of router.json.

| field | type | default | meaning |
| --- | --- | --- | --- |
"""
SERVICES = """
## The file that lists services

The file that `servicesFile` of gateway.json names.

| field | type | default | meaning |
| --- | --- | --- | --- |
"""
_BOUNDS = {
    "exclusiveMinimum": "above {:g}",
    "minimum": "at least {:g}",
    "exclusiveMaximum": "below {:g}",
    "maximum": "at most {:g}",
    "minLength": "at least {} characters",
    "minItems": "at least {} entries",
    "maxItems": "at most {} entries",
    "maxProperties": "at most {} entries",
}


def router_page() -> str:
    """Return docs/reference/router.md."""
    return HEAD + _table(RouterConfig) + GATEWAY + _table(GatewayConfig) + SERVICES + _table(ServicesFile)


def _table(model: type[BaseModel]) -> str:
    schema = model.model_json_schema()
    return "".join(f"{row}\n" for row in _rows(model, schema, "", root=model))


def _rows(model: type[BaseModel], schema: dict[str, Any], path: str, *, root: type[BaseModel]) -> Iterator[str]:
    said = _docstrings(model)
    shared = {_model_of(field.annotation) for field in RouterConfig.model_fields.values()}
    definition = schema if model is root else schema["$defs"][model.__name__]
    for name, field in model.model_fields.items():
        alias = field.alias or name
        shape = _plain(definition["properties"][alias], schema)
        at = f"{path}.{alias}" if path else alias
        inner = _model_of(field.annotation)
        text = said.get(name) or (inner.__doc__ if inner is not None else "") or ""
        yield f"| `{at}` | {_type(shape, inner)} | {_default(field)} | {_meaning(text, shape)} |"
        if inner is not None and (root is RouterConfig or inner not in shared):
            below = f"{at}.*" if shape.get("type") == "object" and _is_map(shape) else at
            yield from _rows(inner, schema, below, root=root)


def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Return what stands below each field of a type; read here alone, so that routers need not at each start."""
    body = cast(ast.ClassDef, ast.parse(inspect.getsource(model)).body[0]).body
    return {
        field.target.id: text.value.value
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def _plain(shape: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in shape:
        return dict(schema["$defs"][shape["$ref"].rpartition("/")[2]])
    some = [option for option in shape.get("anyOf", ()) if option.get("type") != "null"]
    return _plain({**some[0]}, schema) if len(some) == 1 else shape


def _model_of(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in getattr(annotation, "__args__", ()) if (found := _model_of(inner))), None)


def _is_map(shape: dict[str, Any]) -> bool:
    return "properties" not in shape


def _type(shape: dict[str, Any], inner: type[BaseModel] | None) -> str:
    if shape.get("type") == "object":
        return "object" if inner is not None and not _is_map(shape) else "map"
    if shape.get("type") == "array":
        return "list"
    return str(shape.get("type", "string"))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "*required*"
    value = field.default if field.default_factory is None else {}
    return "" if value in (None, "", {}, ()) else f"`{json.dumps(value)}`"


def _meaning(text: str, shape: dict[str, Any]) -> str:
    notes = []
    for of, begin in ((shape, ""), (shape.get("items", {}), "each ")):
        if "enum" in of:
            notes.append(f"{begin}one of " + ", ".join(f"`{value}`" for value in of["enum"]))
    notes += [note.format(shape[key]) for key, note in _BOUNDS.items() if key in shape]
    words = " ".join(text.split()).replace("|", "\\|")
    return f"{words} ({'; '.join(notes)})" if notes and words else words or "; ".join(notes)


if __name__ == "__main__":
    sys.stdout.write(router_page())
