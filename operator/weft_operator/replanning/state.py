"""Replanning state: the observed history and the pending replan request of each service; it is lost with the process.

A loss only makes the operator wait: no service is idle, and no drift is proven, before it was observed for a while.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from weft_core.durations import parse_duration
from weft_core.plan import Plan
from weft_operator.api.objects import ServiceKey
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.metrics.history import History, in_their_time, quiet_for, sample_of
from weft_operator.metrics.observation import Observation, ObservedWorkload
from weft_operator.render.inputs import PlanRecord
from weft_operator.replanning.decide import ReplanInputs, ReplanRequest
from weft_operator.replanning.drift import DetectedDrift, drifts_of

MOST_LAGS = 8


@dataclass(slots=True)
class _Memory:
    spec: DisaggInferenceServiceSpec
    record: PlanRecord
    history: History
    replan_request: ReplanRequest | None = None
    told: tuple[frozenset[tuple[str, str]], bool] = (frozenset(), False)
    """Kinds of drift with their directions, and whether it was quiet for long, as the service was last enqueued for."""


class ReplanningState:
    """The histories and pending replan requests of all services that are planned on observed traffic."""

    def __init__(self) -> None:
        self._of: dict[ServiceKey, _Memory] = {}

    def on_observation(self, key: ServiceKey, observation: Observation) -> bool:
        """Record an observation; return whether drift started or ended, so that the service must be reconciled."""
        memory = self._of.get(key)
        if memory is None:
            return False
        _take_in(memory, observation)
        kinds = frozenset((drift.kind, drift.direction) for drift in self.drifts(key, observation))
        rest = memory.spec.planning.scale_to_zero
        since = memory.history.quiet_since
        told = kinds, rest is not None and quiet_for(since, observation.at, parse_duration(rest.after))
        changed = told != memory.told
        memory.told = told
        return changed

    def drifts(self, key: ServiceKey, observation: Observation | None) -> tuple[DetectedDrift, ...]:
        """Return how far a service is from what its plan was made for, as far as its newest look tells."""
        memory = self._of.get(key)
        if memory is None or observation is None:
            return ()
        return drifts_of(
            memory.record.plan,
            memory.spec.slo,
            memory.spec.planning,
            history=memory.history,
            observation=observation,
            changed_at=memory.record.baseline.changed_at,
        )

    def quiet_since(self, key: ServiceKey) -> datetime | None:
        """Return since when surely nobody asks a service anything, None where somebody may, or nobody looked."""
        memory = self._of.get(key)
        return None if memory is None else memory.history.quiet_since

    def replan_inputs(
        self,
        key: ServiceKey,
        *,
        spec: DisaggInferenceServiceSpec,
        prior: Mapping[str, Any],
        record: PlanRecord,
        observation: Observation | None,
        now: datetime,
        approval: str,
    ) -> ReplanInputs:
        """Return the inputs of a replanning decision, the newest observation included."""
        keep_s = parse_duration(spec.planning.drift.shrink_after)
        memory = self._of.get(key)
        if memory is None:
            memory = self._of[key] = _Memory(spec, record, History(keep_s))
        if memory.history.keep_s != keep_s:
            memory.history = replace(memory.history, keep_s=keep_s)
        if memory.record.request_hash != record.request_hash or memory.record.plan.groups != record.plan.groups:
            memory.replan_request = None  # it was about another plan
        memory.spec, memory.record = spec, record
        if observation is not None:
            _take_in(memory, observation)
        return ReplanInputs(
            spec=spec,
            prior=prior,
            record=record,
            history=memory.history,
            observation=observation,
            now=now,
            approval=approval,
            replan_request=memory.replan_request,
        )

    def hold(self, key: ServiceKey, replan_request: ReplanRequest | None) -> None:
        """Keep a replan request until it is answered; None: there is none any more."""
        if key in self._of:
            self._of[key].replan_request = replan_request

    def forget(self, key: ServiceKey) -> None:
        """Drop what is known of a service."""
        self._of.pop(key, None)


def _take_in(memory: _Memory, observation: Observation) -> None:
    sample = sample_of(
        observation,
        attainment=memory.spec.slo.attainment,
        min_samples=memory.spec.planning.drift.min_samples,
        burn_rate=memory.spec.planning.drift.burn_rate,
    )
    load, valid = observation.workload, memory.record.plan.validity
    if sample.seen and load is not None and valid is not None:
        later, lags = load.round_rate - load.session_rate, lags_of_rounds(memory.record.plan, load)
        sample = in_their_time(sample, memory.history, later=later, planned=valid.rounds, lags=lags)
    memory.history = memory.history.with_(sample)


def lags_of_rounds(plan: Plan, load: ObservedWorkload) -> tuple[float, ...]:
    """Return how many seconds after a session's beginning its later rounds come, as far as plan and look tell."""
    valid, predicted = plan.validity, plan.predicted
    if valid is None or valid.rounds <= 1:
        return ()
    gap = valid.gap_s if load.gap_s is None else load.gap_s.mean
    decode = valid.decode if load.decode is None else load.decode.mean
    answer = predicted.ttft_mean_s + decode * predicted.itl_mean_s
    length = (valid.rounds - 1) * (gap + (answer if math.isfinite(answer) else 0.0))
    count = min(MOST_LAGS, math.ceil(valid.rounds - 1))
    return tuple(length * (number + 1) / count for number in range(count))
