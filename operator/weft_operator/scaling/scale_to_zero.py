"""Take one service through a pass with regard to having no workers: what is said of it is read, and decided on."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from weft_core.heartbeat import WorkerRecord
from weft_operator.api.objects import (
    COMPONENT_LABEL,
    WORKER_LABEL,
    Manifest,
    ServiceKey,
    condition_of,
    is_terminating,
    labels_of,
)
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.metrics.observation import Observation
from weft_operator.render.inputs import PlanRecord
from weft_operator.scaling.idle import Demand, ScaleToZeroDecision, awake, blind, may_sleep, settle, tired, wakes


class DemandSource(Protocol):
    """Where it is said that requests wait."""

    async def word(self, key: ServiceKey) -> Demand:
        """Return what is said of a service at zero now, and wake it from now on when that changes."""

    def forget(self, key: ServiceKey) -> None:
        """Look no more."""


class IdleScaler:
    """Puts services to rest and wakes them; what it decides is kept in the record."""

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
        self._unheard: set[ServiceKey] = set()

    async def stirred(self, key: ServiceKey, record: PlanRecord | None, seen: Observation | None) -> PlanRecord | None:
        """Return the record, awake where somebody asks something: also while its spec cannot be planned."""
        self._unheard.discard(key)
        if record is None or record.standing.asleep_at is None:
            self._demand.forget(key)
            return record
        word = await self._demand.word(key)
        if wakes(record, seen, word):
            self._demand.forget(key)
            return awake(record, self._clock())
        if word == "Unknown":
            self._unheard.add(key)
        return record

    async def rest(
        self,
        key: ServiceKey,
        spec: DisaggInferenceServiceSpec,
        record: PlanRecord,
        *,
        stays: bool,
        seen: Observation | None,
        pods: Sequence[Manifest],
    ) -> ScaleToZeroDecision:
        """Return the record of a planned service, at rest where it may be and nobody asks anything.

        ``stays``: a schedule in force asks for workers whatever the traffic is.
        """
        now = self._clock()
        if record.standing.asleep_at is not None:
            return ScaleToZeroDecision(record if may_sleep(spec) and not stays else awake(record, now))
        if stays:
            return ScaleToZeroDecision(record)
        lack = blind(spec, seen)
        if lack:
            return ScaleToZeroDecision(record, "KeptAwake", lack)
        if not tired(spec, record, quiet_since=self._quiet_since(key), now=now):
            return ScaleToZeroDecision(record)
        ready = ready_workers(pods)
        return settle(spec, record, workers=await self._heartbeats(key), ready=ready, now=now)

    def unheard(self, key: ServiceKey) -> bool:
        """Tell whether a service is at zero and nobody could say for a while whether requests wait."""
        return key in self._unheard

    def forget(self, key: ServiceKey) -> None:
        """Drop a service."""
        self._demand.forget(key)
        self._unheard.discard(key)


def ready_workers(pods: Sequence[Manifest]) -> frozenset[str]:
    """Return the workers whose pods may hold sessions: those that are ready."""
    return frozenset(
        labels_of(pod)[WORKER_LABEL]
        for pod in pods
        if labels_of(pod).get(COMPONENT_LABEL) in ("prefill", "decode")
        and WORKER_LABEL in labels_of(pod)
        and not is_terminating(pod)
        and (condition_of(pod, "Ready") or {}).get("status") == "True"
    )
