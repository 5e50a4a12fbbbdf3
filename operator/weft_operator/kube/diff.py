"""Compare live and desired objects; the result is data: objects to apply and objects to delete."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from weft_core.layouts import WorkerRole
from weft_core.quantities import amount
from weft_operator.api.objects import HASH_ANNOTATION, Manifest, ObjectKey, annotations_of, is_terminating, key_of
from weft_operator.kube.field_managers import manager_of


@dataclass(frozen=True, slots=True)
class Apply:
    """Send an object by server-side apply; ``fresh`` when no such object of ours was observed."""

    manifest: Manifest
    reason: str
    fresh: bool
    replaces: str = ""
    """Resource version of the live object that differed."""
    uid: str = ""
    """Its uid, so that a deleted object is not created again."""
    by: str = ""
    """The field manager of the field that differs, "" if unknown."""

    @property
    def key(self) -> ObjectKey:
        """Return the key of the object."""
        return key_of(self.manifest)


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an object if it still has this uid; ``grace_s`` shortens a pod's grace period."""

    key: ObjectKey
    uid: str
    reason: str
    grace_s: int | None = None


@dataclass(frozen=True, slots=True)
class Scale:
    """Set ``spec.replicas`` of a group, if it still has this uid ("": any).

    Applied manifests do not contain it, so that people and autoscalers can set it.
    """

    key: ObjectKey
    replicas: int
    uid: str
    reason: str
    roles: Mapping[WorkerRole, int] | None = None
    """``spec.roles``, written in the same request; None for a group with a fixed role."""


@dataclass(frozen=True, slots=True)
class Relabel:
    """Set labels of a pod, if it still has this uid."""

    key: ObjectKey
    labels: Mapping[str, str]
    uid: str
    reason: str
    replaces: str = ""
    """Resource version of the observed pod."""


Action = Apply | Delete | Scale | Relabel


def content_hash(manifest: Mapping[str, Any]) -> str:
    """Return the hash of an object's canonical JSON."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def stamped(manifest: Manifest) -> Manifest:
    """Return the object with the annotation that holds the hash of its content."""
    metadata = dict(manifest["metadata"])
    metadata["annotations"] = {**(metadata.get("annotations") or {}), HASH_ANNOTATION: content_hash(manifest)}
    return {**manifest, "metadata": metadata}


def diff(
    desired: Iterable[Manifest],
    live: Iterable[Manifest],
    *,
    prunable: Collection[str],
    keep: Collection[ObjectKey] = (),
) -> tuple[Action, ...]:
    """Return the actions that turn the live objects into the desired ones.

    An object is unchanged when it has the desired hash and every desired field has its value; fields that others added
    are ignored. Live objects of ``prunable`` kinds that are not desired are deleted, except those in ``keep`` and those
    that terminate already.
    """
    existing = {key_of(item): item for item in live}
    wanted = [stamped(item) for item in desired]
    actions: list[Action] = []
    for item in wanted:
        found = existing.get(key_of(item))
        if found is None:
            actions.append(Apply(item, reason="missing", fresh=True))
            continue
        if is_terminating(found):
            continue  # the name becomes free with the next event
        version, uid = (str(found["metadata"].get(field, "")) for field in ("resourceVersion", "uid"))
        if annotations_of(found).get(HASH_ANNOTATION) != item["metadata"]["annotations"][HASH_ANNOTATION]:
            actions.append(Apply(item, reason="changed", fresh=False, replaces=version, uid=uid))
            continue
        drift = first_difference(item, found)
        if drift is not None:
            by = manager_of(found, drift)
            actions.append(Apply(item, reason=f"drifted: {drift}", fresh=False, replaces=version, uid=uid, by=by))
    names = {key_of(item) for item in wanted}
    for key, item in sorted(existing.items()):
        if key in names or key.kind not in prunable or key in keep or is_terminating(item):
            continue
        actions.append(Delete(key, uid=str(item["metadata"].get("uid", "")), reason="not in the plan"))
    return tuple(actions)


def first_difference(desired: object, live: object, path: str = "") -> str | None:
    """Return the path of the first desired field that the live object does not have; None when it has all."""
    if desired == live:
        return None  # the usual case, much faster than field by field
    if isinstance(desired, dict):
        if not isinstance(live, dict):
            return None if not desired and live is None else path or "object"
        for name, value in desired.items():
            found = first_difference(value, live.get(name), f"{path}.{name}" if path else str(name))
            if found is not None:
                return found
        return None
    if isinstance(desired, list):
        return _list_difference(desired, live, path)
    if _same_quantity(desired, live) or (not desired and live is None):
        return None
    return path


def _list_difference(desired: list[Any], live: object, path: str) -> str | None:
    if not isinstance(live, list):
        return None if not desired and live is None else path
    if any(not isinstance(item, dict) for item in desired):
        return path
    for position, item in enumerate(desired):
        # Others may add entries (a mesh's container, an admission plug-in's toleration), so order does not count.
        if position < len(live) and first_difference(item, live[position]) is None:
            continue
        if all(first_difference(item, other) is not None for other in live):
            named = [other for other in live if isinstance(other, dict) and other.get("name") == item.get("name")]
            inside = first_difference(item, named[0]) if "name" in item and named else None
            return f"{path}[{item.get('name', position)}]" + (f".{inside}" if inside else "")
    return None


def _same_quantity(left: object, right: object) -> bool:
    """Return whether two quantities are equal: the API server stores 1000m as 1, 1.4Gi as 1503238553600m."""
    a, b = amount(left), amount(right)
    return a is not None and a == b
