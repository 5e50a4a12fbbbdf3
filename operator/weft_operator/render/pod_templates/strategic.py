"""Strategic merge patches of pod templates, as ``kubectl patch`` and the API server merge them.

Maps are merged, null removes, lists with a merge key are merged by it and all other lists are replaced; the
directives ``$patch: replace`` and ``$patch: delete`` are understood. Source: the patchStrategy and patchMergeKey
tags of k8s.io/api/core/v1 (PodSpec and below).
"""

from collections.abc import Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]

MERGE_KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "resourceClaims": "name",
    "claims": "name",
    "schedulingGates": "name",
    "topologySpreadConstraints": "topologyKey",
}
"""The merge key of each list, by the list's name."""

_DIRECTIVE = "$patch"


class PatchError(ValueError):
    """Report a patch that cannot be merged; ``field`` is its path inside the patch."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


def merge_patch(base: Json, patch: Json, *, at: str = "") -> dict[str, Any]:
    """Return a map with a patch merged into it; neither argument is changed.

    Raises:
        PatchError: an entry of a list lacks the merge key, or a directive is unknown.
    """
    if _directive(patch, at) == "replace":
        return {name: value for name, value in patch.items() if name != _DIRECTIVE}
    result = dict(base)
    for name, value in patch.items():
        if name == _DIRECTIVE:
            continue
        where = f"{at}.{name}" if at else name
        if name.startswith("$"):
            raise PatchError(where, "this directive is not supported; use $patch: delete or $patch: replace")
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            found = base.get(name)
            result[name] = merge_patch(found if isinstance(found, Mapping) else {}, value, at=where)
        elif isinstance(value, list) and name in MERGE_KEYS:
            found = base.get(name)
            result[name] = _merged_list(found if isinstance(found, list) else [], value, MERGE_KEYS[name], where)
        else:
            result[name] = value
    return result


def replaces_list(patch: Sequence[Any], key: str) -> bool:
    """Return whether a patch of a list with merge key ``key`` has a directive to replace the whole list."""
    return any(isinstance(item, Mapping) and item.get(_DIRECTIVE) == "replace" and key not in item for item in patch)


def _merged_list(base: Sequence[Any], patch: Sequence[Any], key: str, at: str) -> list[Any]:
    if replaces_list(patch, key):
        return [item for item in patch if not isinstance(item, Mapping) or item.get(_DIRECTIVE) != "replace"]
    result = list(base)
    for position, item in enumerate(patch):
        if not isinstance(item, Mapping) or key not in item:
            raise PatchError(f"{at}[{position}]", f"{key} is missing; entries of this list are merged by it")
        where = f"{at}[{item[key]}]"
        found = next(
            (i for i, other in enumerate(result) if isinstance(other, Mapping) and other.get(key) == item[key]), None
        )
        if _directive(item, where) == "delete":
            result = [other for i, other in enumerate(result) if i != found]
        elif found is None:
            result.append({name: value for name, value in item.items() if name != _DIRECTIVE})
        else:
            result[found] = merge_patch(result[found], item, at=where)
    return result


def _directive(patch: Json, at: str) -> str | None:
    directive = patch.get(_DIRECTIVE)
    if directive in (None, "replace", "delete", "merge"):
        return directive
    raise PatchError(at or _DIRECTIVE, f"$patch: {directive!r} is not known; use delete, replace or merge")
