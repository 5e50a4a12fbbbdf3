"""How large a spec may be: it is stored with the service, in its status' object, and once more with the plan."""

import json
from collections.abc import Mapping

MAX_SPEC_BYTES = 512 * 1024
"""The API server stores objects of some 1.5 MiB (etcd) and ConfigMaps of 1 MiB. In the service's object there are the
spec, who manages which of its fields, and the status; in the ConfigMap of the plan there are the spec, the plan and a
cost profile for each pool."""
NAMED = 3
"""Parts that a message names."""


def size_fault(spec: Mapping[str, object]) -> str | None:
    """Return what is wrong with a spec that is too large to be stored, with its largest parts; None when it fits."""
    sizes = {name: len(_json(part)) for name, part in spec.items()}
    total = len(_json(dict(spec)))
    if total <= MAX_SPEC_BYTES:
        return None
    largest = sorted(sizes, key=lambda name: -sizes[name])[:NAMED]
    named = ", ".join(f"spec.{name} ({sizes[name]:,})" for name in largest)
    return f"spec: has {total:,} bytes as JSON, and {MAX_SPEC_BYTES:,} is the most; shorten its largest parts: {named}"


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str).encode("utf-8", "replace")
