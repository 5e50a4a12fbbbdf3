"""Scale to zero within a pass: read demand and heartbeats, and decide."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from weft_core.heartbeat import WorkerRecord
from weft_operator.api.objects import (
    COMPONENT_LABEL,
    WORKER_COMPONENTS,
    WORKER_LABEL,
    Manifest,
    ServiceKey,
    condition_of,
    is_terminating,
    labels_of,
)
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.metrics.observation import Demand, Observation
from weft_operator.render.inputs import PlanRecord
from weft_operator.scaling.idle import (
    ScaleToZeroDecision,
    has_demand,
    is_idle,
    may_scale_to_zero,
    scale_to_zero,
    scaled_up,
    why_unobserved,
)


class DemandSource(Protocol):
    """Where coordinators publish that requests wait."""

    async def read(self, key: ServiceKey) -> Demand:
        """Return the demand for a service at zero; from now on the service is enqueued when it changes."""

    def forget(self, key: ServiceKey) -> None:
        """Stop watching the demand for a service."""


class IdleScaler:
    """Scales idle services to zero and up again; the plan record has the result."""

    def __init__(
        self,
        *,
        demand: DemandSource,
        heartbeats: Callable[[ServiceKey], Awaitable[Mapping[str, WorkerRecord]]],
        quiet_since: Callable[[ServiceKey], datetime | None],
        clock: Callable[[], datetime],
    ) -> None:
        self._demand = demand
        self._heartbeats = heartbeats
        self._quiet_since = quiet_since
        self._clock = clock
        self._demand_unknown: set[ServiceKey] = set()

    async def scale_up_on_demand(
        self, key: ServiceKey, record: PlanRecord | None, seen: Observation | None
    ) -> PlanRecord | None:
        """Return the record, scaled up where requests wait, even while the spec has no plan."""
        self._demand_unknown.discard(key)
        if record is None or record.baseline.scaled_to_zero_at is None:
            self._demand.forget(key)
            return record
        demand = await self._demand.read(key)
        if has_demand(record, seen, demand):
            self._demand.forget(key)
            return scaled_up(record, self._clock())
        if demand == "Unknown":
            self._demand_unknown.add(key)
        return record

    async def scale_if_idle(
        self,
        key: ServiceKey,
        spec: DisaggInferenceServiceSpec,
        record: PlanRecord,
        *,
        stays: bool,
        observation: Observation | None,
        pods: Sequence[Manifest],
    ) -> ScaleToZeroDecision:
        """Return the record of a planned service, scaled to zero where that is allowed and it is idle.

        ``stays``: the active schedule requires workers.
        """
        now = self._clock()
        if record.baseline.scaled_to_zero_at is not None:
            return ScaleToZeroDecision(record if may_scale_to_zero(spec) and not stays else scaled_up(record, now))
        if stays:
            return ScaleToZeroDecision(record)
        why = why_unobserved(spec, observation)
        if why:
            return ScaleToZeroDecision(record, "ScaleToZeroBlocked", why)
        if not is_idle(spec, record, quiet_since=self._quiet_since(key), now=now):
            return ScaleToZeroDecision(record)
        ready = ready_workers(pods)
        return scale_to_zero(spec, record, workers=await self._heartbeats(key), ready=ready, now=now)

    def demand_unknown(self, key: ServiceKey) -> bool:
        """Return whether a service is at zero and its demand cannot be read."""
        return key in self._demand_unknown

    def forget(self, key: ServiceKey) -> None:
        """Drop the state of a service."""
        self._demand.forget(key)
        self._demand_unknown.discard(key)


def ready_workers(pods: Sequence[Manifest]) -> frozenset[str]:
    """Return the names of the workers whose pods are ready."""
    return frozenset(
        labels_of(pod)[WORKER_LABEL]
        for pod in pods
        if labels_of(pod).get(COMPONENT_LABEL) in WORKER_COMPONENTS
        and WORKER_LABEL in labels_of(pod)
        and not is_terminating(pod)
        and (condition_of(pod, "Ready") or {}).get("status") == "True"
    )
