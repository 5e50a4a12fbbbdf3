"""Argo CD's judgement of an object: the shipped health checks, run by Lua as Argo CD runs them."""

from pathlib import Path
from typing import Any

import yaml
from lupa import lua51

FILE = Path(__file__).parents[2] / "charts" / "weft" / "files" / "gitops" / "argocd-cm.yaml"
_PREFIX = "resource.customizations.health."


def checks() -> dict[str, str]:
    """Return the Lua of every kind, by group_Kind."""
    data = yaml.safe_load(FILE.read_text())["data"]
    return {name.removeprefix(_PREFIX): text for name, text in data.items()}


def health(manifest: dict[str, Any]) -> tuple[str, str]:
    """Return the health and the message that Argo CD shows for an object.

    Argo CD runs Lua 5.1 with the object as ``obj`` and without the libraries io, os and string.
    """
    group, kind = manifest["apiVersion"].partition("/")[0], manifest["kind"]
    lua = lua51.LuaRuntime(unpack_returned_tuples=True)
    for name in ("io", "os", "string", "require", "package"):
        lua.globals()[name] = None
    lua.globals()["obj"] = _table(lua, manifest)
    found = lua.execute(checks()[f"{group}_{kind}"])
    return str(found["status"]), str(found["message"])


def _table(lua: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return lua.table_from({key: _table(lua, item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return lua.table_from([_table(lua, item) for item in value])
    return value
