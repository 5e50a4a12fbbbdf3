"""Ask the installed parts what the API server would refuse in a manifest, without importing them."""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import cast

GROUP = "weft.manifest_checks"
"""Entry points named by kind: a function from a manifest to messages that name the field and the fix."""

Check = Callable[[Mapping[str, object]], list[str]]


def manifest_faults(kind: str, manifest: Mapping[str, object]) -> list[str] | None:
    """Return what the API server would refuse, None when no part that can tell is installed."""
    for point in entry_points(group=GROUP, name=kind):
        try:
            check = cast(Check, point.load())
        except ImportError:  # an image holds only the parts it runs
            continue
        return check(manifest)
    return None
