"""Amounts as Kubernetes writes them, and limits that leave no room for what is asked for."""

import math
import re
from collections.abc import Iterator
from fractions import Fraction

from weft_operator.api.engine_parts import Resources
from weft_operator.api.service import DisaggInferenceServiceSpec

_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:(n|u|m|[kMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,3}))?")
"""Kubernetes' quantities (API conventions, resource.Quantity): 1.5Gi, 1500m, 2e3, .5."""

LEAST_TIER = 2**30
"""Bytes of the smallest tier: less would hold less than one session of most models."""

_SCALE = (
    {"": Fraction(1)}
    | {unit: Fraction(1, 1000**power) for power, unit in enumerate("mun", start=1)}
    | {unit: Fraction(1000**power) for power, unit in enumerate("kMGTPE", start=1)}
    | {f"{unit}i": Fraction(1024**power) for power, unit in enumerate("KMGTPE", start=1)}
)


def amount(value: object) -> Fraction | None:
    """Return the number that a quantity is, None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return None
    number, unit, exponent = match.groups()
    return Fraction(number) * _SCALE[unit or ""] * Fraction(10) ** int(exponent or 0)


def _resources(spec: DisaggInferenceServiceSpec) -> Iterator[tuple[str, Resources]]:
    yield "spec.coordinator.resources", spec.coordinator.resources
    yield "spec.routing.resources", spec.routing.resources
    yield "spec.engine.resources", spec.engine.resources
    for name, own in (("prefill", spec.engine.prefill), ("decode", spec.engine.decode)):
        if own is not None and own.resources is not None:
            yield f"spec.engine.{name}.resources", own.resources


def size_text(size: int) -> str:
    """Return a number of bytes as a quantity, in the largest binary unit that gives a whole number."""
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        if size % int(_SCALE[unit]) == 0:
            return f"{size // int(_SCALE[unit])}{unit}"
    return str(size)


def bytes_of(value: object) -> int:
    """Return the bytes that a valid quantity is, a part of one as a whole one."""
    return math.ceil(amount(value) or 0)


def tier_fault(spec: DisaggInferenceServiceSpec) -> str | None:
    """Return which KV cache tier is smaller than any use of it."""
    cache = spec.kv_cache
    for name, tier in (("cpu", cache.cpu), ("disk", cache.disk)) if cache is not None else ():
        if tier is not None and bytes_of(tier.size) < LEAST_TIER:
            return f"spec.kvCache.{name}.size: is below 1Gi (got {tier.size!r}); write an amount such as 200Gi"
    return None


def resources_fault(spec: DisaggInferenceServiceSpec) -> str | None:
    """Return which request of a container is above its limit: the API server would refuse its pods one by one."""
    for path, resources in _resources(spec):
        for name, request in resources.requests.items():
            asked, limit = amount(request), amount(resources.limits.get(name))
            if asked is not None and limit is not None and asked > limit:
                given = f"{request} and {resources.limits[name]}"
                return f"{path}.requests.{name}: is above limits.{name} ({given}); lower it, or raise the limit"
    return None
