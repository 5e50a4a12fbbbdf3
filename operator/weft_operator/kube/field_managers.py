"""The field manager that changed a field, from an object's managedFields (server-side apply)."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

OURS = "weft-operator"


def manager_of(live: Mapping[str, Any], path: str) -> str:
    """Return the field manager other than the operator that owns a field of an object; "" where there is none.

    ``path`` is one of ``diff.first_difference``. Where it is not among the managed fields (a list without names, or a
    removed field), the manager that wrote last is returned.
    """
    others = [
        entry
        for entry in live["metadata"].get("managedFields") or ()
        if entry.get("manager") != OURS and entry.get("subresource") != "status"
    ]
    owners = [entry for entry in others if any(_covers(field, path) for field in _paths(entry.get("fieldsV1") or {}))]
    latest = max(owners or others, key=lambda entry: str(entry.get("time", "")), default=None)
    return "" if latest is None else str(latest["manager"])


def _covers(field: str, path: str) -> bool:
    return field == path or path.startswith((f"{field}.", f"{field}["))


def _paths(fields: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """Yield the leaves of a field set: f:<name> is a field, k:<json> an entry of a list by its keys."""
    for name, inner in fields.items():
        if name == ".":
            continue
        kind, _, rest = name.partition(":")
        if kind == "k":
            keys = json.loads(rest)
            where = f"{at}[{keys['name']}]" if "name" in keys else f"{at}[*]"
        elif kind == "f":
            where = f"{at}.{rest}" if at else rest
        else:
            where = at  # v:<json>, an entry of a set: the path of the list itself
        below = [key for key in inner if key != "."] if isinstance(inner, Mapping) else []
        if below:
            yield from _paths(inner, where)
        else:
            yield where
