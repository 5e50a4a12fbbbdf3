"""A workload as people write it (``spec.workload``: durations with units) and as a request has it (seconds)."""

import textwrap
from collections.abc import Mapping
from typing import cast

import yaml

from weft_core.durations import parse_duration

Json = Mapping[str, object]
Body = dict[str, object]


class WorkloadFileError(ValueError):
    """Report a workload that cannot be read; the message names the field."""


KEYS = frozenset(
    {
        "preset", "arrivalRate", "arrivals", "rounds", "firstPrompt", "increment", "decode", "gap", "sharedPrefix",
        "classes", "traceConfigMap",
    }
)  # fmt: skip


def request_form(spec: Json, *, where: str) -> Body:
    """Return a workload with seconds instead of durations; ``where`` begins the names of fields in errors.

    Raises:
        WorkloadFileError: a duration cannot be read.
    """
    body = {key: value for key, value in spec.items() if value is not None}
    if "gap" in body:
        body["gap"] = _gap(body["gap"], f"{where}.gap")
    classes = body.get("classes")
    if isinstance(classes, list):
        body["classes"] = [_class(item, f"{where}.classes[{k}]") for k, item in enumerate(classes)]
    return body


def _class(item: object, where: str) -> object:
    if not isinstance(item, Mapping):
        return item
    body = {key: value for key, value in item.items() if value is not None}
    if "gap" in body:
        body["gap"] = _gap(body["gap"], f"{where}.gap")
    return body


def _gap(value: object, where: str) -> object:
    if not isinstance(value, Mapping):
        return {"mean": _seconds(value, where)}
    body = dict(value)
    if "mean" in body:
        body["mean"] = _seconds(body["mean"], f"{where}.mean")
    for shape, key in (("quantiles", "values"), ("histogram", "edges")):
        points = body.get(shape)
        if isinstance(points, Mapping) and isinstance(points.get(key), list):
            listed = cast("list[object]", points[key])
            seconds = [_seconds(item, f"{where}.{shape}.{key}[{k}]") for k, item in enumerate(listed)]
            body[shape] = {**points, key: seconds}
    return body


def _seconds(value: object, where: str) -> float:
    try:
        return parse_duration(value)
    except ValueError as error:
        raise WorkloadFileError(f"{where}: {error}") from error


def spec_form(body: Json) -> Body:
    """Return a request's workload as ``spec.workload`` has it: durations, no source and no notes."""
    spec: Body = {key: value for key, value in body.items() if key not in ("source", "notes") and value is not None}
    if isinstance(spec.get("gap"), Mapping | int | float):
        spec["gap"] = _gap_with_units(spec["gap"])
    classes = spec.get("classes")
    if isinstance(classes, list):
        spec["classes"] = [
            {**item, "gap": _gap_with_units(item["gap"])} if item.get("gap") is not None else item for item in classes
        ]
    for key in ("rounds", "firstPrompt", "increment", "decode"):
        if isinstance(spec.get(key), int | float):
            spec[key] = {"mean": spec[key]}
    return spec


def _gap_with_units(gap: object) -> Body:
    body: Body = dict(gap) if isinstance(gap, Mapping) else {"mean": gap}
    body["mean"] = duration(cast(float, body["mean"]))
    for shape, key in (("quantiles", "values"), ("histogram", "edges")):
        points = body.get(shape)
        if isinstance(points, Mapping):
            body[shape] = {**points, key: [duration(item) for item in cast("list[float]", points[key])]}
    return body


def duration(seconds: float) -> str:
    """Return a time as Kubernetes writes it, to the millisecond."""
    milliseconds = round(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    whole, rest = divmod(milliseconds, 1000)
    return f"{whole}.{rest:03d}".rstrip("0").rstrip(".") + "s" if rest else f"{whole}s"


def to_yaml(spec: Json, *, comments: tuple[str, ...] = ()) -> str:
    """Return the fragment ``workload: …`` with comments before it."""
    lines = "".join(f"# {line}\n" for comment in comments for line in _wrapped(comment))
    body = yaml.safe_dump({"workload": dict(spec)}, sort_keys=False, default_flow_style=None, width=116)
    return lines + body


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, width=116)


def read_fragment(text: str, *, name: str) -> Body | None:
    """Return the workload of a YAML or JSON text in a request's form, None when the text is none.

    The text may be a whole manifest, ``spec: {workload: …}``, ``workload: …``, or the workload alone.

    Raises:
        WorkloadFileError: it is a workload, but a duration cannot be read.
    """
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    for key in ("spec", "workload"):
        if isinstance(document, Mapping) and isinstance(document.get(key), Mapping):
            document = document[key]
    if not isinstance(document, Mapping) or not document.keys() & KEYS:
        return None
    return request_form(cast(Json, document), where=f"{name}: workload")
