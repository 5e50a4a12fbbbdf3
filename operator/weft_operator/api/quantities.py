"""Amounts that leave no room for what is asked for."""

from collections.abc import Iterator

from weft_core.quantities import amount, bytes_of
from weft_operator.api.engine_parts import Resources
from weft_operator.api.service import DisaggInferenceServiceSpec

LEAST_TIER = 2**30
"""Bytes of the smallest tier: less would hold less than one session of most models."""


def _resources(spec: DisaggInferenceServiceSpec) -> Iterator[tuple[str, Resources]]:
    yield "spec.coordinator.resources", spec.coordinator.resources
    yield "spec.routing.resources", spec.routing.resources
    yield "spec.engine.resources", spec.engine.resources
    for name, own in (("prefill", spec.engine.prefill), ("decode", spec.engine.decode)):
        if own is not None and own.resources is not None:
            yield f"spec.engine.{name}.resources", own.resources


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
