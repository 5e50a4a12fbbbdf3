"""Replace a preset or a trace in a request's workload by its figures; what is given beside it takes their place.

In a request, ``preset`` is a preset's name, and ``trace`` is ``{"name", "data", "encoding"}``: a workload file (YAML)
or a trace, as text or, where it is packed, as base64.
"""

import base64
import binascii
from collections.abc import Mapping

from weft_planner.traces.reading import parse_trace
from weft_planner.traces.records import BadLineError, TraceError
from weft_planner.workload.file import Body, read_fragment
from weft_planner.workload.presets import preset
from weft_planner.workload.trace_fit import FIGURES, WIRE, FitOptions, fit_trace


def resolve_workload(workload: Mapping[str, object]) -> Body:
    """Return a workload of figures alone.

    Raises:
        ValueError: the preset is not known, the trace cannot be used, or both are given.
    """
    given = {key: value for key, value in workload.items() if value is not None}
    name, trace = given.pop("preset", None), given.pop("trace", None)
    if name is not None and trace is not None:
        raise ValueError("preset and a trace: give one of them")
    if name is not None:
        base = dict(preset(str(name)).body)
    elif trace is not None:
        base = _of_trace(trace, frozenset(given))
        if "preset" in base:  # a workload file may build on a preset
            base = resolve_workload(base)
    else:
        return given
    replaced = [key for key in base if key in given and key not in ("arrivalRate", "arrivals", "source", "notes")]
    notes = [*_texts(base.get("notes"))]
    if replaced:
        notes.append(f"{', '.join(replaced)} given instead of those of {base.get('source', 'the workload file')}")
    body = {**base, **given}
    if notes:
        body["notes"] = notes
    return body


def _texts(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list | tuple) else []


def _of_trace(trace: object, given: frozenset[str]) -> Body:
    if not isinstance(trace, Mapping) or not isinstance(trace.get("data"), str):
        raise ValueError("trace: an object with name and data is needed")
    name = str(trace.get("name", "trace"))
    data = trace["data"].encode()
    if trace.get("encoding", "text") == "base64":
        try:
            data = base64.b64decode(data, validate=True)
        except binascii.Error as error:
            raise ValueError(f"trace: {name}: is not base64: {error}") from error
    return workload_of(data, name=name, given=given)


def workload_of(data: bytes, *, name: str, given: frozenset[str] = frozenset()) -> Body:
    """Return the workload that a workload file or a trace holds, in a request's form.

    ``given`` are the fields (as in the request) that the caller has from elsewhere.

    Raises:
        ValueError: it is neither, or lacks figures that are not given.
    """
    fragment = read_fragment(data.decode(errors="replace"), name=name) if data[:2] != b"\x1f\x8b" else None
    if fragment is not None:
        return {"source": name, **fragment}
    known = {WIRE.get(figure, figure): figure for figure in FIGURES}
    options = FitOptions(
        given=frozenset({known[field] for field in given if field in known})
        | (frozenset({"arrivals"}) if "arrivalRate" in given else frozenset())
    )
    try:
        trace = parse_trace(data, name=name)
    except BadLineError as error:
        raise ValueError(
            f"{error.place}, or skip and count such lines with `weft workload fit --skip-bad -o FILE` and give that"
        ) from error
    try:
        return fit_trace(trace, options).body
    except TraceError as error:
        raise ValueError(f"{error} (or the field of spec.workload)") from error


def workload_instead(data: bytes, *, name: str, service: Mapping[str, object]) -> Body:
    """Return the workload of a trace or workload file, for a service whose own workload (request form) it replaces.

    What the trace does not record (arrivals, gaps) is the service's, and the notes say so.

    Raises:
        ValueError: as ``workload_of``.
    """
    kept = {key: service[key] for key in ("arrivalRate", "gap") if service.get(key) is not None}
    body = resolve_workload(workload_of(data, name=name, given=frozenset(kept)))
    missing = [key for key in kept if key not in body]
    notes = [f"{name} records no {key}: it is the service's" for key in missing]
    return {**{key: kept[key] for key in missing}, **body, "notes": [*_texts(body.get("notes")), *notes]}
